"""Holds one row for each `DISTRIBUTED_` setting; all that reads, checks or lists settings uses it.

Part of the worker half: imports the standard library only.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .errors import ConfigError
from .related_names import answers

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

PREFIX = "DISTRIBUTED_"
#: how like one of ours a name is, from 0 to 1, whose beginning is misspelt
MISSPELT = 0.9
#: BATCH_SIZE: the fleet decides
AUTO = "auto"
#: seconds; the throttle counts nothing for longer than this
LONGEST_WINDOW = 86400.0 * 31
#: seconds; longer than any crawl, and no clock of the system overflows
LONGEST = 86400.0 * 36525
#: the largest number where a row says nothing else
MOST = 10**9
#: numbered slots per prefix, at most
MOST_SLOTS = 10_000
#: hits of a limit in one window, at most
MOST_HITS = 1_000_000
#: kinds of feeds that are written while a job runs
LOCAL_FEEDS = frozenset({"", "file", "stdout"})


class ValueKind(Enum):
    """What a value must be, as an error says it."""

    YES_NO = "True or False"
    WHOLE = "a whole number"
    SECONDS = "a number of seconds, or a time such as 30m, 2h or 7d"
    NUMBER = "a number"
    TEXT = "text"
    CHOICE = "one of the choices"
    LIST = "a list of texts"
    MAPPING = "a mapping with names as keys"
    FILES = 'a list with {"path": FILE} for each file'


#: least and most of a number, where its row says nothing else; None: it is more than 0
_RANGES: Mapping[ValueKind, tuple[float | None, float]] = {
    ValueKind.WHOLE: (0, MOST),
    ValueKind.SECONDS: (None, LONGEST),
    ValueKind.NUMBER: (None, MOST),
}
#: what Scrapy reads as true, and as false
_YES = (True, 1, "1", "True", "true")
_NO = (False, 0, "0", "False", "false")
#: a span of time as text
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: characters of a wrong value that an error shows
_SHOWN = 100


class Travels(Enum):
    """Which jobs get the setting when it was given on the command line.

    What settings.py says is in the egg.
    """

    NOWHERE = "none"
    JOBS = "every job of the crawl"
    FLEET = "every job, also those of other projects"
    LIMITS = "every job; those of other projects get what is in force"
    LEASING = "workers that lease, which find target requests as well"
    SLOTS = "workers that lease; those of other projects get what is in force"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One `DISTRIBUTED_` setting: its name, what its value may be, and where it is read."""

    name: str  #: in full
    kind: ValueKind
    default: Any = None  #: None: not set
    help: str  #: one line of Markdown
    option: str = ""  #: of `sdist crawl`; of `sdist frontier consume` with its name before it
    least: float | None = None  #: the least number; None: that of its kind
    most: float | None = None  #: the greatest one; None: that of its kind
    must_be: str = ""  #: what an error says, where the kind says too little
    choices: tuple[str, ...] = ()  #: of a number: words that are allowed as well
    pull_only: bool = False  #: jobs that are sent their batch ignore it
    travels: Travels = Travels.NOWHERE
    secret: bool = False  #: may hold a password
    variable: str = ""  #: of the environment, which goes before the setting
    cluster: str = ""  #: the setting of Scrapy Cluster that means the same

    @property
    def default_text(self) -> str:
        """The default as documents and `sdist config` show it; empty for none."""
        if self.default is None:
            return ""
        if type(self.default) is float:
            return f"{self.default:g}"
        return str(self.default)

    def judged(self, value: Any, name: str = "") -> Any:
        """Return the value as its kind, which may also be written as text, as on a command line.

        Raises:
            ConfigError: it is of another kind, or out of its range; the message calls it `name`,
                else the setting.
        """
        subject = name or self.name
        if not self.secret:
            subject = f"{subject} is {_shorten(value)}, and"
        try:
            converted = _convert(self.kind, value, self.choices)
        except (TypeError, ValueError, LookupError, OverflowError, RecursionError):
            raise ConfigError(f"{subject} must be {self._describe_kind()}.") from None
        if self.kind not in _RANGES or converted in self.choices:
            return converted
        if limit := self._describe_exceeded_limit(converted):
            raise ConfigError(f"{subject} must be {limit}.")
        return converted

    def _describe_kind(self) -> str:
        if self.kind is ValueKind.CHOICE:
            choices = " or ".join(filter(None, self.choices))
            if choices:
                return choices
        return self.must_be or self.kind.value

    def _describe_exceeded_limit(self, value: float) -> str:
        """Return the limit that the number is beyond, in words; empty when it is in its range."""
        least, most = self._get_range()
        unit = " seconds" if self.kind is ValueKind.SECONDS else ""
        if value > most:
            days = f" ({most / 86400:,.0f} days)" if unit and most >= 86400 else ""
            return f"{_group_digits(most)}{unit}{days} or less"
        if least is None:
            return f"more than 0{unit}" if value <= 0 else ""
        return f"{_group_digits(least)}{unit} or more" if value < least else ""

    def _get_range(self) -> tuple[float | None, float]:
        """Return the least and the greatest number; a least of None means more than 0."""
        least, most = _RANGES[self.kind]
        if self.least is not None:
            least = self.least
        if self.most is not None:
            most = self.most
        return least, most

    @property
    def plain_help(self) -> str:
        """The help without Markdown, as a terminal shows it."""
        text = re.sub(r" \(\[[^]]+\]\([^)]+\)\)|`", "", self.help)
        return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


def _setting(name: str, kind: ValueKind, default: Any, help_: str, **more: Any) -> Setting:
    return Setting(name=PREFIX + name, kind=kind, default=default, help=help_, **more)


_, _JOBS, _FLEET, _LIMITS, _LEASING, _SLOTS = Travels
_YES_NO, _WHOLE, _SECONDS, _NUMBER, _TEXT, _CHOICE, _LIST, _MAPPING, _FILES = ValueKind
_CALLBACKS = "a mapping of callbacks' names"
#: heading in docs/reference/settings.md -> its settings
GROUPS: dict[str, tuple[Setting, ...]] = {
    "What goes to the nodes": (
        _setting(
            "ENABLED",
            _YES_NO,
            True,
            "`False`: the add-on does nothing, and the crawl runs in one process as ever; so does"
            " `scrapy crawl` of a spider without a target, with a warning",
        ),
        _setting(
            "TARGET_RULE",
            _WHOLE,
            -1,
            "CrawlSpider rule whose requests go to the nodes, counted from 0. Without a rule and a"
            " callback: the only rule that has a callback and does not follow; if all rules"
            " follow, all of them",
            option="--rule",
            least=-1,
            must_be="the number of a rule",
            travels=_LEASING,
        ),
        _setting(
            "TARGET_CALLBACKS",
            _LIST,
            [],
            "callbacks whose requests go to the nodes; works for any spider",
            option="--callback",
            travels=_LEASING,
        ),
        _setting(
            "TARGET_BY_META",
            _YES_NO,
            False,
            'only requests with `meta={"distribute": True}` go to the nodes (they do in any case)',
            travels=_LEASING,
        ),
        _setting(
            "UNSENDABLE",
            _CHOICE,
            "local",
            "a request that cannot travel (a lambda as callback, a value without JSON form):"
            " `local`, the producer crawls it; `refuse`, it is counted and dropped",
            choices=("local", "refuse"),
            travels=_LEASING,
        ),
        _setting(
            "LIMIT",
            _WHOLE,
            0,
            "a trial: only the first N target requests are handed out, without duplicates and"
            " those off the site; `resume` and `retry` keep to it. 0: all",
            option="--limit",
            travels=_LEASING,
        ),
        _setting(
            "SPIDER_ARGS",
            _MAPPING,
            {},
            "spider arguments of the jobs, where a script starts the crawl without a command line",
        ),
        _setting(
            "SEEDS",
            _YES_NO,
            False,
            "`True`: the spider's own start requests go to the workers as well",
            pull_only=True,
        ),
        _setting(
            "SPIDER_CALLBACKS",
            _MAPPING,
            {},
            'callbacks whose requests are for another spider: `{"enter": "login"}`, or `{"enter":'
            ' {"spider": "login", "project": "other", "callback": "parse"}}`'
            " ([more](../howto/frontier.md#work-for-another-spider))",
            must_be=_CALLBACKS,
            pull_only=True,
            travels=_LEASING,
        ),
        _setting(
            "SPIDER_ATTRIBUTES",
            _LIST,
            [],
            "attributes of the spider that travel with each request, and are set on the worker's"
            " spider before the callback",
            pull_only=True,
            travels=_LEASING,
        ),
    ),
    "The index": (
        _setting(
            "INDEX",
            _TEXT,
            None,
            "address of the index pages with a place for the number: `…/index_%05d.html`,"
            " `…?page={page}`",
            option="--index",
        ),
        _setting("PAGES", _WHOLE, None, "number of index pages", option="--pages", least=1),
        _setting("FIRST_PAGE", _WHOLE, 0, "number of the first one", option="--first-page"),
        _setting(
            "SHARDS",
            _WHOLE,
            1,
            "walks that share the index, each from a start page; at least the crawl's concurrency",
            option="--shards",
            least=1,
            most=100_000,
        ),
        _setting(
            "START_URLS_FILE",
            _TEXT,
            None,
            "file of start pages, one per line, each walked by itself",
            option="--start-urls",
        ),
    ),
    "Batches": (
        _setting(
            "BATCH_SIZE",
            _WHOLE,
            AUTO,
            "requests in a batch: exactly so many, but for the last one and what has waited for"
            " long; or `auto`: as many as the fleet can use, at most 100 (10,000 where no worker"
            " reaches the store) ([more](../explanation/placement.md))",
            option="--batch-size",
            least=1,
            choices=(AUTO,),
            must_be="a whole number, or auto",
        ),
        _setting(
            "BATCH_MAX_AGE",
            _SECONDS,
            30.0,
            "seconds after which a batch is sealed though it is not full",
            option="--batch-max-age",
        ),
        _setting(
            "MAX_ATTEMPTS",
            _WHOLE,
            4,
            "attempts per batch before it is dead",
            option="--max-attempts",
            least=1,
        ),
        _setting(
            "FAIR",
            _CHOICE,
            "",
            "how many sites share batches and workers ([more](../explanation/fair.md)): `spread`,"
            " the next batch is of the site with the least under way in the fleet; `by-domain`,"
            " the same, and a site stays with one worker. With `pull`, batches have 10 requests of"
            " one site",
            option="--fair",
            choices=("", "spread", "by-domain"),
            travels=_SLOTS,
        ),
    ),
    "Nodes": (
        _setting(
            "NODES",
            _LIST,
            [],
            "nodes of the crawl, in place of scrapy.cfg's: names of targets, addresses"
            " (`host:port`, URLs), `file:PATH` (a list, read again when it changes) and"
            " `cmd:COMMAND` (prints a list)"
            " ([more](../explanation/placement.md#nodes-that-come-and-go))",
            option="--node",
            secret=True,
        ),
        _setting(
            "TARGET_HOSTS",
            _LIST,
            [],
            "addresses of nodes, as the book names them; where `DISTRIBUTED_NODES` is not set",
            secret=True,
        ),
        _setting(
            "NODES_EVERY",
            _SECONDS,
            10.0,
            "seconds after which `cmd:` entries run again, and host names with several addresses"
            " are resolved again",
        ),
        _setting(
            "PLACEMENT",
            _CHOICE,
            "by-capacity",
            "where a batch that is sent goes (`--push`): `by-capacity`, where it will be done"
            " first, by the nodes' load, slots and speed; `round-robin`; `least-loaded`, the"
            " fewest jobs per process slot ([more](../explanation/placement.md))",
            option="--placement",
            choices=("by-capacity", "round-robin", "least-loaded"),
        ),
        _setting(
            "MAX_JOBS",
            _WHOLE,
            0,
            "jobs, workers included, at one time over all nodes; 0: the nodes' own limits",
            option="--max-jobs",
        ),
        _setting(
            "DEPLOY",
            _CHOICE,
            "if-missing",
            "`never`: the nodes must have the code already",
            option="--deploy/--no-deploy",
            choices=("if-missing", "never"),
        ),
        _setting(
            "POLL_INTERVAL",
            _SECONDS,
            1.0,
            "seconds between two polls of a job (up to five times that while its end is far)",
            option="--poll-interval",
            most=3600,
        ),
        _setting("REQUEST_TIMEOUT", _SECONDS, 15.0, "seconds for one call to a node", most=3600),
        _setting(
            "NODE_TIMEOUT",
            _SECONDS,
            30.0,
            "seconds of silence after which a node's work goes elsewhere",
            option="--node-timeout",
        ),
        _setting(
            "FLEET_TIMEOUT",
            _SECONDS,
            300.0,
            "seconds without any answering node after which a crawl stops, to be resumed",
            option="--fleet-timeout",
        ),
        _setting("START_TIMEOUT", _SECONDS, 3600.0, "seconds within which a sent job has to start"),
        _setting(
            "JOB_TIMEOUT",
            _SECONDS,
            0.0,
            "seconds after which a job on a node is ended, with the reason `timeout`; 0: no limit"
            " ([more](../howto/unattended.md))",
            option="--job-timeout",
            least=0,
            travels=_FLEET,
        ),
        _setting(
            "STALL_TIMEOUT",
            _SECONDS,
            0.0,
            "seconds without a page and an item after which a job that has work is ended, with the"
            " reason `stalled`; 0: no limit ([more](../howto/unattended.md))",
            option="--stall-timeout",
            least=0,
            travels=_FLEET,
        ),
        _setting(
            "KEEP_DAYS",
            _NUMBER,
            14,
            "days after which a worker deletes what other crawls left on its node, and the store"
            " forgets a [plain job](../howto/unattended.md#a-memory-of-plain-jobs)",
            least=0,
            most=LONGEST / 86400,
            must_be="a number of days",
            travels=_FLEET,
        ),
        _setting(
            "MIN_FREE",
            _WHOLE,
            1 << 30,
            "bytes of free disk below which a worker stops as `disk-full`",
            most=1 << 62,
            travels=_FLEET,
        ),
    ),
    "Workers that lease": (
        _setting(
            "MODE",
            _CHOICE,
            "auto",
            "how batches reach the nodes: `pull`, long-lived workers there lease them from the"
            " store ([more](../howto/frontier.md#workers)); `push`, each is sent as a job; `auto`,"
            " leased, and sent to nodes whose workers do not reach the store, or to all with a"
            " feed URL, and without waiting",
            option="--pull/--push",
            choices=("auto", "push", "pull"),
        ),
        _setting(
            "START",
            _CHOICE,
            "skip",
            "the spider's own start requests in a worker: `skip`, or made `first`, before its"
            " first batch",
            choices=("skip", "first"),
        ),
        _setting(
            "MAX_BATCHES",
            _WHOLE,
            0,
            "batches after which a worker ends and another one takes its place; 0: no limit",
            option="frontier consume --max-batches",
        ),
        _setting(
            "MAX_REQUESTS",
            _WHOLE,
            0,
            "requests after which it ends, once its last batch is finished; 0: no limit",
            option="frontier consume --max-requests",
        ),
        _setting("MAX_TIME", _SECONDS, 0.0, "seconds after which it ends; 0: no limit", least=0),
        _setting(
            "IDLE",
            _SECONDS,
            0.0,
            "seconds without work after which a worker of a standing frontier ends; 0: it stays",
            option="frontier consume --idle",
            least=0,
        ),
        _setting(
            "LEASE",
            _SECONDS,
            60.0,
            "seconds after which the lease of a worker that stands still expires"
            " ([more](../explanation/store.md#leases-and-fencing))",
        ),
        _setting(
            "STRATEGY",
            _TEXT,
            None,
            "the crawling strategy that the workers tell of each page and its links, as"
            " `module:Class`, such as `shop.strategies:News`; `sdist strategy run` sets it",
            travels=_LEASING,
        ),
        _setting(
            "LOGIN",
            _TEXT,
            None,
            "a method of the spider whose requests each worker makes before its first batch, and"
            " again when a callback raises `scrapyd_dist.SessionExpired`",
            pull_only=True,
            travels=_LEASING,
        ),
        _setting(
            "REQUEST_HOOK",
            _TEXT,
            None,
            "a method of the spider that gets each request of a batch and returns it, another one,"
            " or `None`: that one is not made, and counts as gone",
            pull_only=True,
            travels=_LEASING,
        ),
    ),
    "Frontiers and slots": (
        _setting(
            "FRONTIER",
            _TEXT,
            None,
            "a process of `scrapy crawl` that only fills the frontier of this name"
            " ([more](../howto/frontier.md#filling-one-by-settings-alone))",
        ),
        _setting(
            "SLOTS",
            _WHOLE,
            1,
            "number of slots that requests are spread over, in a frontier and where workers lease"
            " ([more](../howto/frontier.md#slots))",
            least=1,
            most=MOST_SLOTS,
            must_be="a number of slots",
            travels=_SLOTS,
        ),
        _setting(
            "SLOT_PREFIX",
            _TEXT,
            "",
            "what their names begin with; a number from 0 on follows",
            travels=_SLOTS,
        ),
        _setting(
            "SLOT_BY",
            _CHOICE,
            "fingerprint",
            "what chooses a request's slot: `fingerprint`, evenly; `domain`, one site stays in one"
            " slot; `site`, each site has a slot of its own (the default with `DISTRIBUTED_FAIR`)",
            choices=("fingerprint", "domain", "site"),
            travels=_SLOTS,
        ),
        _setting(
            "CALLBACK_SLOTS",
            _MAPPING,
            {},
            'slots of their own for some callbacks: `{"parse_article": "articles/4"}` is'
            " `articles0` to `articles3`",
            must_be=_CALLBACKS,
            travels=_SLOTS,
        ),
    ),
    "Items and the end": (
        _setting(
            "OUTPUTS",
            _FILES,
            None,
            "the files and addresses that all items go to at the end; `-o`, `-O` and `FEEDS` are"
            " taken",
            option="-o",
        ),
        _setting(
            "DELIVER",
            _TEXT,
            None,
            "a folder, or an address (`s3://bucket/path`, `gs://…`, `abfs://…`,"
            " `sftp://host/path`, `ftp://…`), to which items are delivered as batches are done, in"
            " whole files that a manifest lists"
            " ([more](../howto/unattended.md#results-where-they-are-wanted)). One with a password"
            " belongs in settings.py",
            option="--deliver",
            secret=True,
        ),
        _setting(
            "TARGET_FEED_URL",
            _TEXT,
            None,
            "where each batch writes its items instead (ftp, s3, file, …); `%(crawl)s`,"
            " `%(batch)s` and `%(attempt)s` are added to the file name when missing. One with a"
            " password belongs in settings.py",
            option="--feed",
            secret=True,
        ),
        _setting("TARGET_FEED_FORMAT", _TEXT, "jsonlines", "format of that feed", travels=_JOBS),
        _setting(
            "MAX_FAILED",
            _WHOLE,
            0,
            "failed URLs that still count as success",
            option="--max-failed",
        ),
        _setting(
            "MIN_ITEMS",
            _WHOLE,
            0,
            "fewer items are a failure: exit code 1, with the reason as the crawl's message",
            option="--min-items",
        ),
        _setting(
            "ON_FINISH",
            _TEXT,
            None,
            "runs when the crawl has ended ([more](#items-and-the-end)): a shell command that gets"
            " the [summary](summary.md) on its standard input, or an http(s) address that gets it"
            " by POST",
            option="--on-finish",
            secret=True,
        ),
        _setting(
            "WAIT",
            _YES_NO,
            True,
            "`False`: send everything at once and leave; `sdist resume` collects later",
        ),
    ),
    "The crawl": (
        _setting("CRAWL", _TEXT, None, "the crawl's name; not set: one is made", option="--name"),
        _setting(
            "LABELS",
            _LIST,
            [],
            "labels of the crawl, such as `night=1`, by which lists are filtered; its jobs get"
            " them as this setting, and `settings.getlist` has them as a list",
            option="--label",
        ),
        _setting(
            "STORE",
            _TEXT,
            ".sdist/store.db",
            "path of an SQLite file on a local disk, or `redis://…`"
            " ([more](../explanation/store.md)). `SDIST_STORE` in the environment goes before it",
            secret=True,
            variable="SDIST_STORE",
        ),
        _setting(
            "PROFILE",
            _CHOICE,
            "usual",
            "what makes a page cheaper, and changes neither results nor settings of yours:"
            " `usual`, `CONCURRENT_ITEMS` is 16, and start-up objects are left out of garbage"
            " collection; `fast`, it is 4, `LOG_LEVEL` is INFO, and records below the log's level"
            " are not made; `none`, Scrapy as it is ([more](../explanation/speed.md))",
            option="--profile",
            choices=("usual", "fast", "none"),
        ),
    ),
    "Goals for the whole crawl": (
        _setting(
            "GOAL_ITEMS",
            _WHOLE,
            0,
            "end the crawl once all nodes together have so many items; the rest waits for `sdist"
            " resume` ([more](../howto/unattended.md#goals-for-a-whole-crawl)). 0: no goal, as for"
            " all of these",
            option="--max-items",
            least=0,
        ),
        _setting(
            "GOAL_PAGES",
            _WHOLE,
            0,
            "the same with pages that a callback got",
            option="--max-pages",
            least=0,
        ),
        _setting(
            "GOAL_REQUESTS",
            _WHOLE,
            0,
            "the same with requests that left, with retries, redirects and robots.txt",
            option="--max-requests",
            least=0,
        ),
        _setting(
            "GOAL_ERRORS",
            _WHOLE,
            0,
            "the same with exceptions in the spider's code",
            option="--max-errors",
            least=0,
        ),
        _setting(
            "GOAL_TIME",
            _SECONDS,
            0.0,
            "the same after so many seconds; `sdist resume` counts anew",
            option="--max-time",
            least=0,
        ),
        _setting(
            "GOAL_DEPTH",
            _WHOLE,
            0,
            "links that lead deeper than so many pages are not followed: `DEPTH_LIMIT` for the"
            " whole crawl, not for each job",
            option="--max-depth",
            least=0,
            travels=_JOBS,
        ),
        _setting(
            "CLOSESPIDER",
            _CHOICE,
            "job",
            "what Scrapy's `CLOSESPIDER_…` settings count: `job`, each job for itself; `crawl`,"
            " the whole crawl, as the goals above",
            choices=("job", "crawl"),
            travels=_JOBS,
        ),
    ),
    "The throttle": (
        _setting(
            "THROTTLE",
            _YES_NO,
            None,
            "`True`: this process follows the throttle's rules and the settings below; `False`:"
            " neither; not set: `True` with one of `…_HITS`, `…_MAX_PAGES`, `…_CONCURRENCY`, else"
            " [the rules alone](../explanation/throttle.md)",
            travels=_LIMITS,
        ),
        _setting(
            "THROTTLE_HITS",
            _WHOLE,
            None,
            "requests to a domain in any window, for domains without a rule; a domain is what the"
            " public suffix list calls one",
            least=1,
            most=MOST_HITS,
            travels=_LIMITS,
            cluster="QUEUE_HITS",
        ),
        _setting(
            "THROTTLE_WINDOW",
            _SECONDS,
            60.0,
            "seconds of that window",
            most=LONGEST_WINDOW,
            travels=_LIMITS,
            cluster="QUEUE_WINDOW",
        ),
        _setting(
            "THROTTLE_MODERATED",
            _YES_NO,
            True,
            "requests are spread evenly over the window; `False`: they leave at once, followed by"
            " a pause",
            travels=_LIMITS,
            cluster="QUEUE_MODERATED",
        ),
        _setting(
            "THROTTLE_PER_SPIDER",
            _YES_NO,
            False,
            "each spider name has the whole limit for itself",
            travels=_LIMITS,
            cluster="SCHEDULER_TYPE_ENABLED",
        ),
        _setting(
            "THROTTLE_PER_IP",
            _YES_NO,
            False,
            "each address that requests leave from has the whole limit for itself"
            " ([more](../explanation/throttle.md))",
            travels=_LIMITS,
            cluster="SCHEDULER_IP_ENABLED",
        ),
        _setting(
            "THROTTLE_PUBLIC_IP",
            _TEXT,
            None,
            "the machine's address, or the URL of a page that tells it",
            secret=True,
            travels=_LIMITS,
            cluster="PUBLIC_IP_URL",
        ),
        _setting(
            "THROTTLE_PUBLIC_IP_REGEX",
            _TEXT,
            None,
            "finds the address in that page, in its first group if it has one; not set: the first"
            " address there",
            travels=_LIMITS,
            cluster="IP_ADDR_REGEX",
        ),
        _setting(
            "THROTTLE_PUBLIC_IP_REFRESH",
            _SECONDS,
            60.0,
            "seconds after which the page is asked again",
            most=LONGEST_WINDOW,
            travels=_LIMITS,
            cluster="SCHEDULER_IP_REFRESH",
        ),
        _setting(
            "THROTTLE_MAX_PAGES",
            _WHOLE,
            0,
            "pages of one domain per crawl, over all its processes ([what"
            " counts](../explanation/throttle.md)); 0: no limit",
            travels=_LIMITS,
            cluster="GLOBAL_PAGE_PER_DOMAIN_LIMIT",
        ),
        _setting(
            "THROTTLE_CONCURRENCY",
            _NUMBER,
            None,
            "requests under way at a domain at one time, over the whole fleet: pauses follow the"
            " site's latency, as AutoThrottle does it for one process",
            must_be="a number of requests",
            travels=_LIMITS,
        ),
        _setting(
            "THROTTLE_LONGEST_DELAY",
            _SECONDS,
            60.0,
            "seconds: the longest pause that follows from latency or from a robots.txt's"
            " Crawl-delay; a Retry-After is kept to, up to a day",
            most=LONGEST_WINDOW,
            travels=_LIMITS,
        ),
    ),
}
#: by their names
SETTINGS: dict[str, Setting] = {row.name: row for group in GROUPS.values() for row in group}
LABELS = "DISTRIBUTED_LABELS"
#: the limits of a job's time; in scrapy.cfg, [sdist] has them as job_timeout and stall_timeout
JOB_LIMITS = (PREFIX + "JOB_TIMEOUT", PREFIX + "STALL_TIMEOUT")
#: what scrapyd-dist itself gives to jobs
INTERNAL = frozenset(PREFIX + name for name in ("JOB", "PULL", "START_URLS"))


def travelling(*travels: Travels) -> tuple[str, ...]:
    """Return the names of the settings that travel in one of these ways."""
    return tuple(name for name, row in SETTINGS.items() if row.travels in travels)


def settings_of_options(options: object, command: str = "") -> dict[str, Any]:
    """Return the settings that an object with fields named like options gives values to.

    `command` names the subcommand whose own options count as well.
    """
    # Options of the command itself go last: they replace those of the same name.
    rows = sorted(SETTINGS.values(), key=lambda row: " " in row.option)
    names_by_field: dict[str, str] = {}
    for row in rows:
        owner = row.option.rpartition(" ")[0]
        if row.option and owner in ("", command):
            names_by_field[_field_of_option(row.option)] = row.name
    given: dict[str, Any] = {}
    for field, name in names_by_field.items():
        value = getattr(options, field, None)
        if value not in (None, []):
            given[name] = value
    return given


def _field_of_option(option: str) -> str:
    """Return the field for an option: `max_time` for `frontier consume --max-time`."""
    flag = option.rpartition(" ")[2].partition("/")[0]
    return flag.lstrip("-").replace("-", "_")


def suggest_name(name: str, known: Iterable[str] = SETTINGS, cutoff: float = 0.7) -> str:
    """Return what a misspelt name probably means, as the end of a sentence or paragraph.

    It is empty when no known name is near.
    """
    # The prefix would make any two names alike.
    names_by_end = {full_name.removeprefix(PREFIX): full_name for full_name in known}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), names_by_end, 1, cutoff)
    suggestion = names_by_end[close[0]] if close else ""
    if not suggestion:
        return ""
    shown = repr(suggestion) if " " in suggestion else suggestion
    return f" Did you mean {shown}?"


def describe_unknown(names: Iterable[str], environment: Iterable[str] = ()) -> list[str]:
    """Return a paragraph for each unknown setting and each misspelt variable of the environment.

    A setting is unknown if it begins as ours do, or nearly so: DISTRIBUTE_MAX_JOBS.
    """
    sentences: list[str] = []
    for name, hint in _find_hints(names).items():
        sentences.append(f"The setting {name} is none of scrapyd-dist's, and does nothing.{hint}")
    for row in SETTINGS.values():
        if row.variable:
            sentences += _describe_misspelt_variables(row.variable, environment)
    return sentences


def _find_hints(names: Iterable[str]) -> dict[str, str]:
    """Return what each unknown setting probably means: first those with our prefix, then others."""
    strangers = [name for name in sorted(names) if not _is_known(name)]
    hints: dict[str, str] = {}
    for name in strangers:
        if name.startswith(PREFIX):
            hints[name] = suggest_name(name)
    for name in strangers:
        if name in hints or not name.startswith(PREFIX[:4]):
            continue
        close = difflib.get_close_matches(name, SETTINGS, 1, MISSPELT)
        if close:
            hints[name] = f" Did you mean {close[0]}?"
    return hints


def _is_known(name: str) -> bool:
    internal = (*INTERNAL, f"{PREFIX}START_URLS_")
    return name in SETTINGS or name.startswith(internal)


def _describe_misspelt_variables(variable: str, environment: Iterable[str]) -> Iterator[str]:
    close = difflib.get_close_matches(variable, environment, 3, 0.9)
    for name in sorted(close):
        if not name.startswith(variable):
            yield (
                f"The environment variable {name} is none of scrapyd-dist's, and does nothing."
                f" Did you mean {variable}?"
            )


def find_warnings(
    settings: Mapping[str, Any], arguments: Mapping[str, Any] | None = None
) -> list[str]:
    """Return what to warn of where a process begins.

    These are unknown settings, misspelt variables and names of related systems. `arguments` are
    those of the spider, or its attributes.
    """
    return describe_unknown(settings, os.environ) + answers(settings, arguments or {})


def check_settings(settings: Mapping[str, Any] | BaseSettings) -> None:
    """Raise `ConfigError` for the first of our settings with a value of another kind or range."""
    for name, row in SETTINGS.items():
        value = settings.get(name)
        if value not in (None, ""):
            row.judged(value)


class SettingReader:
    """Reads the settings of one process; an error names the setting."""

    def __init__(self, settings: BaseSettings) -> None:
        self.settings = settings

    def given(self, name: str) -> bool:
        """Return whether the setting has a value; an empty text is none."""
        return self.settings.get(name) not in (None, "")

    def name(self, name: str) -> str:
        """Return the name that has the value.

        It is this one, or that of Scrapy Cluster if only that is given.
        """
        cluster_name = SETTINGS[name].cluster
        if cluster_name and not self.given(name) and self.given(cluster_name):
            return cluster_name
        return name

    def value(self, name: str) -> Any:
        """Return the value, or the default if none is given.

        Raises:
            ConfigError: it is of another kind, or beyond its limits.
        """
        row = SETTINGS[name]
        given_name = self.name(name)
        if self.given(given_name):
            return row.judged(self.settings.get(given_name), given_name)
        if row.kind in (ValueKind.LIST, ValueKind.FILES):
            return ()
        return row.default

    def values_for(self, cls: Any, prefix: str = PREFIX) -> dict[str, Any]:
        """Return the values for those fields of a dataclass that are named like settings.

        The field `max_jobs` is that of DISTRIBUTED_MAX_JOBS.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = prefix + field.name.upper()
            if name in SETTINGS:
                values[field.name] = self.value(name)
        return values


def _convert(kind: ValueKind, value: Any, words: tuple[str, ...]) -> Any:
    """Return the value as this kind; text is read as Scrapy reads it.

    TypeError, ValueError, LookupError or OverflowError if it is none.
    """
    if kind is ValueKind.YES_NO:
        return _convert_yes_no(value)
    if kind in (ValueKind.LIST, ValueKind.FILES):
        return _convert_list(kind, value)
    if kind is ValueKind.MAPPING:
        return _convert_mapping(value)
    if kind is ValueKind.CHOICE and value not in words:
        raise ValueError
    if kind in (ValueKind.TEXT, ValueKind.CHOICE):
        if not isinstance(value, (str, os.PathLike)):
            raise TypeError
        return os.fspath(value)
    if isinstance(value, str) and value in words:
        return value
    return _convert_number(kind, value)


def _convert_yes_no(value: Any) -> bool:
    if value not in (*_YES, *_NO):
        raise ValueError
    return value in _YES


def _convert_mapping(value: Any) -> dict[str, Any]:
    mapping = dict(json.loads(value) if isinstance(value, str) else value)
    # `dict` takes a list of pairs as well, which is no mapping.
    if isinstance(value, (list, tuple)):
        raise TypeError
    for key in mapping:
        if not isinstance(key, str):
            raise TypeError
    return mapping


def _convert_list(kind: ValueKind, value: Any) -> tuple[Any, ...]:
    entries: Any = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple, set, frozenset)):
        raise TypeError
    for entry in entries:
        text = entry["path"] if kind is ValueKind.FILES else entry
        if not isinstance(text, (str, os.PathLike)):
            raise TypeError
    return tuple(entries)


def _convert_number(kind: ValueKind, value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    if kind is ValueKind.WHOLE:
        return _convert_whole_number(value)
    span = None
    if kind is ValueKind.SECONDS and isinstance(value, str):
        span = _SPAN.fullmatch(value.strip())
    number = float(span[1]) * _UNITS[span[2]] if span else float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _convert_whole_number(value: Any) -> int:
    if not re.fullmatch(r"\s*[+-]?\d+(\.0)?\s*", str(value)):
        raise ValueError
    if "." in str(value):
        return int(float(value))
    return int(value)


def _group_digits(number: float) -> str:
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,.16g}"


def _shorten(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # more digits than Python writes
        text = "a number without an end"
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}…"


def limits_in(options: Mapping[str, str]) -> dict[str, str]:
    """Return the limits of jobs that [sdist] of scrapy.cfg sets, as settings.

    Raises:
        ConfigError: one of them is no number of seconds.
    """
    names_by_key = {name.removeprefix(PREFIX).lower(): name for name in JOB_LIMITS}
    limits: dict[str, str] = {}
    for key, value in options.items():
        if key in names_by_key:
            limits[names_by_key[key]] = value
    for name, value in limits.items():
        key = name.removeprefix(PREFIX).lower()
        SETTINGS[name].judged(value, f"{key} in [sdist] of scrapy.cfg")
    return limits


def uploading_feeds(settings: BaseSettings) -> list[str]:
    """Return the addresses of the feeds that this process stores elsewhere when it closes.

    User names and passwords are left out.
    """
    addresses: list[str] = []
    for feed in settings.getdict("FEEDS"):
        uri = urlsplit(str(feed))
        if uri.scheme not in LOCAL_FEEDS:
            host = uri.netloc.rpartition("@")[2]
            addresses.append(uri._replace(netloc=host).geturl())
    return addresses
