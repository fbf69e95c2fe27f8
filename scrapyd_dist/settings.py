"""The registry: one row for each `DISTRIBUTED_` setting, for all that reads, checks, lists or sends settings.

Part of the worker half: imports the standard library only.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
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
#: the largest number where a row says nothing else; numbered slots per prefix; hits of a limit in one window
MOST, MOST_SLOTS, MOST_HITS = 10**9, 10_000, 1_000_000
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
_YES, _NO = (True, 1, "1", "True", "true"), (False, 0, "0", "False", "false")
#: a span of time as text
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: characters of a wrong value that an error shows
_SHOWN = 100


class Travels(Enum):
    """Which jobs get the setting when it was given on the command line. What settings.py says is in the egg."""

    NOWHERE = "none"
    JOBS = "every job of the crawl"
    FLEET = "every job, also those of other projects"
    LIMITS = "every job; those of other projects get what is in force"
    LEASING = "workers that lease, which find target requests as well"
    SLOTS = "workers that lease; those of other projects get what is in force"


@dataclass(frozen=True, kw_only=True)
class Setting:
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
        return (
            ""
            if self.default is None
            else f"{self.default:g}"
            if type(self.default) is float
            else str(self.default)
        )

    def judged(self, value: Any, name: str = "") -> Any:
        """The value as its kind, which may also be written as text, as on a command line.

        Raises:
            ConfigError: it is of another kind, or out of its range; the message calls it `name`, else the setting.
        """
        said = name or self.name if self.secret else f"{name or self.name} is {_shown(value)}, and"
        try:
            read = _read(self.kind, value, self.choices)
        except (TypeError, ValueError, LookupError, OverflowError, RecursionError):
            choices = (
                " or ".join(filter(None, self.choices)) if self.kind is ValueKind.CHOICE else ""
            )
            raise ConfigError(
                f"{said} must be {choices or self.must_be or self.kind.value}."
            ) from None
        if self.kind in _RANGES and read not in self.choices and (limit := self._exceeded(read)):
            raise ConfigError(f"{said} must be {limit}.")
        return read

    def _exceeded(self, value: float) -> str:
        """The limit that the number is beyond, in words; empty when it is within its range."""
        usual_least, usual_most = _RANGES[self.kind]
        least = usual_least if self.least is None else self.least
        most = usual_most if self.most is None else self.most
        unit = " seconds" if self.kind is ValueKind.SECONDS else ""
        if value > most:
            days = f" ({most / 86400:,.0f} days)" if unit and most >= 86400 else ""
            return f"{_grouped(most)}{unit}{days} or less"
        if value <= 0 and least is None:
            return f"more than 0{unit}"
        return f"{_grouped(least)}{unit} or more" if least is not None and value < least else ""

    @property
    def plain_help(self) -> str:
        text = re.sub(r" \(\[[^]]+\]\([^)]+\)\)|`", "", self.help)
        return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


def _s(name: str, kind: ValueKind, default: Any, help_: str, **more: Any) -> Setting:
    return Setting(name=PREFIX + name, kind=kind, default=default, help=help_, **more)


_, _JOBS, _FLEET, _LIMITS, _LEASING, _SLOTS = Travels
_YES_NO, _WHOLE, _SECONDS, _NUMBER, _TEXT, _CHOICE, _LIST, _MAPPING, _FILES = ValueKind
_CALLBACKS = "a mapping of callbacks' names"
# fmt: off
#: heading in docs/reference/settings.md -> its settings
GROUPS: dict[str, tuple[Setting, ...]] = {
"What goes to the nodes": (
    _s("ENABLED", _YES_NO, True, "`False`: the add-on does nothing, and the crawl runs in one process as ever; so does"
       " `scrapy crawl` of a spider without a target, with a warning"),
    _s("TARGET_RULE", _WHOLE, -1, "CrawlSpider rule whose requests go to the nodes, counted from 0. Without a rule and"
       " a callback: the only rule that has a callback and does not follow; if all rules follow, all of them",
       option="--rule", least=-1, must_be="the number of a rule", travels=_LEASING),
    _s("TARGET_CALLBACKS", _LIST, [], "callbacks whose requests go to the nodes; works for any spider",
       option="--callback", travels=_LEASING),
    _s("TARGET_BY_META", _YES_NO, False, 'only requests with `meta={"distribute": True}` go to the nodes (they do in'
       " any case)", travels=_LEASING),
    _s("UNSENDABLE", _CHOICE, "local", "a request that cannot travel (a lambda as callback, a value without JSON"
       " form): `local`, the producer crawls it; `refuse`, it is counted and dropped", choices=("local", "refuse"),
       travels=_LEASING),
    _s("LIMIT", _WHOLE, 0, "a trial: only the first N target requests are handed out, without duplicates and those off"
       " the site; `resume` and `retry` keep to it. 0: all", option="--limit", travels=_LEASING),
    _s("SPIDER_ARGS", _MAPPING, {}, "spider arguments of the jobs, where a script starts the crawl without a command"
       " line"),
    _s("SEEDS", _YES_NO, False, "`True`: the spider's own start requests go to the workers as well", pull_only=True),
    _s("SPIDER_CALLBACKS", _MAPPING, {}, 'callbacks whose requests are for another spider: `{"enter": "login"}`, or'
       ' `{"enter": {"spider": "login", "project": "other", "callback": "parse"}}`'
       " ([more](../howto/frontier.md#work-for-another-spider))", must_be=_CALLBACKS, pull_only=True, travels=_LEASING),
    _s("SPIDER_ATTRIBUTES", _LIST, [], "attributes of the spider that travel with each request, and are set on the"
       " worker's spider before the callback", pull_only=True, travels=_LEASING),
),
"The index": (
    _s("INDEX", _TEXT, None, "address of the index pages with a place for the number: `…/index_%05d.html`,"
       " `…?page={page}`", option="--index"),
    _s("PAGES", _WHOLE, None, "number of index pages", option="--pages", least=1),
    _s("FIRST_PAGE", _WHOLE, 0, "number of the first one", option="--first-page"),
    _s("SHARDS", _WHOLE, 1, "walks that share the index, each from a start page; at least the crawl's concurrency",
       option="--shards", least=1, most=100_000),
    _s("START_URLS_FILE", _TEXT, None, "file of start pages, one per line, each walked by itself",
       option="--start-urls"),
),
"Batches": (
    _s("BATCH_SIZE", _WHOLE, AUTO, "requests in a batch: exactly so many, but for the last one and what has waited for"
       " long; or `auto`: as many as the fleet can use, at most 100 (10,000 where no worker reaches the store)"
       " ([more](../explanation/placement.md))", option="--batch-size", least=1, choices=(AUTO,),
       must_be="a whole number, or auto"),
    _s("BATCH_MAX_AGE", _SECONDS, 30.0, "seconds after which a batch is sealed though it is not full",
       option="--batch-max-age"),
    _s("MAX_ATTEMPTS", _WHOLE, 4, "attempts per batch before it is dead", option="--max-attempts", least=1),
    _s("FAIR", _CHOICE, "", "how many sites share batches and workers ([more](../explanation/fair.md)): `spread`, the"
       " next batch is of the site with the least under way in the fleet; `by-domain`, the same, and a site stays with"
       " one worker. With `pull`, batches have 10 requests of one site", option="--fair",
       choices=("", "spread", "by-domain"), travels=_SLOTS),
),
"Nodes": (
    _s("NODES", _LIST, [], "nodes of the crawl, in place of scrapy.cfg's: names of targets, addresses (`host:port`,"
       " URLs), `file:PATH` (a list, read again when it changes) and `cmd:COMMAND` (prints a list)"
       " ([more](../explanation/placement.md#nodes-that-come-and-go))", option="--node", secret=True),
    _s("TARGET_HOSTS", _LIST, [], "addresses of nodes, as the book names them; where `DISTRIBUTED_NODES` is not set",
       secret=True),
    _s("NODES_EVERY", _SECONDS, 10.0, "seconds after which `cmd:` entries run again, and host names with several"
       " addresses are resolved again"),
    _s("PLACEMENT", _CHOICE, "by-capacity", "where a batch that is sent goes (`--push`): `by-capacity`, where it will"
       " be done first, by the nodes' load, slots and speed; `round-robin`; `least-loaded`, the fewest jobs per process"
       " slot ([more](../explanation/placement.md))", option="--placement",
       choices=("by-capacity", "round-robin", "least-loaded")),
    _s("MAX_JOBS", _WHOLE, 0, "jobs, workers included, at one time over all nodes; 0: the nodes' own limits",
       option="--max-jobs"),
    _s("DEPLOY", _CHOICE, "if-missing", "`never`: the nodes must have the code already", option="--deploy/--no-deploy",
       choices=("if-missing", "never")),
    _s("POLL_INTERVAL", _SECONDS, 1.0, "seconds between two polls of a job (up to five times that while its end is"
       " far)", option="--poll-interval", most=3600),
    _s("REQUEST_TIMEOUT", _SECONDS, 15.0, "seconds for one call to a node", most=3600),
    _s("NODE_TIMEOUT", _SECONDS, 30.0, "seconds of silence after which a node's work goes elsewhere",
       option="--node-timeout"),
    _s("FLEET_TIMEOUT", _SECONDS, 300.0, "seconds without any answering node after which a crawl stops, to be resumed",
       option="--fleet-timeout"),
    _s("START_TIMEOUT", _SECONDS, 3600.0, "seconds within which a sent job has to start"),
    _s("JOB_TIMEOUT", _SECONDS, 0.0, "seconds after which a job on a node is ended, with the reason `timeout`; 0: no"
       " limit ([more](../howto/unattended.md))", option="--job-timeout", least=0, travels=_FLEET),
    _s("STALL_TIMEOUT", _SECONDS, 0.0, "seconds without a page and an item after which a job that has work is ended,"
       " with the reason `stalled`; 0: no limit ([more](../howto/unattended.md))", option="--stall-timeout", least=0,
       travels=_FLEET),
    _s("KEEP_DAYS", _NUMBER, 14, "days after which a worker deletes what other crawls left on its node, and the store"
       " forgets a [plain job](../howto/unattended.md#a-memory-of-plain-jobs)", least=0, most=LONGEST / 86400,
       must_be="a number of days", travels=_FLEET),
    _s("MIN_FREE", _WHOLE, 1 << 30, "bytes of free disk below which a worker stops as `disk-full`", most=1 << 62,
       travels=_FLEET),
),
"Workers that lease": (
    _s("MODE", _CHOICE, "auto", "how batches reach the nodes: `pull`, long-lived workers there lease them from the"
       " store ([more](../howto/frontier.md#workers)); `push`, each is sent as a job; `auto`, leased, and sent to"
       " nodes whose workers do not reach the store, or to all with a feed URL, and without waiting",
       option="--pull/--push", choices=("auto", "push", "pull")),
    _s("START", _CHOICE, "skip", "the spider's own start requests in a worker: `skip`, or made `first`, before its"
       " first batch", choices=("skip", "first")),
    _s("MAX_BATCHES", _WHOLE, 0, "batches after which a worker ends and another one takes its place; 0: no limit",
       option="frontier consume --max-batches"),
    _s("MAX_REQUESTS", _WHOLE, 0, "requests after which it ends, once its last batch is finished; 0: no limit",
       option="frontier consume --max-requests"),
    _s("MAX_TIME", _SECONDS, 0.0, "seconds after which it ends; 0: no limit", least=0),
    _s("IDLE", _SECONDS, 0.0, "seconds without work after which a worker of a standing frontier ends; 0: it stays",
       option="frontier consume --idle", least=0),
    _s("LEASE", _SECONDS, 60.0, "seconds after which the lease of a worker that stands still expires"
       " ([more](../explanation/store.md#leases-and-fencing))"),
    _s("STRATEGY", _TEXT, None, "the crawling strategy that the workers tell of each page and its links, as"
       " `module:Class`, such as `shop.strategies:News`; `sdist strategy run` sets it", travels=_LEASING),
    _s("LOGIN", _TEXT, None, "a method of the spider whose requests each worker makes before its first batch, and"
       " again when a callback raises `scrapyd_dist.SessionExpired`", pull_only=True, travels=_LEASING),
    _s("REQUEST_HOOK", _TEXT, None, "a method of the spider that gets each request of a batch and returns it, another"
       " one, or `None`: that one is not made, and counts as gone", pull_only=True, travels=_LEASING),
),
"Frontiers and slots": (
    _s("FRONTIER", _TEXT, None, "a process of `scrapy crawl` that only fills the frontier of this name"
       " ([more](../howto/frontier.md#filling-one-by-settings-alone))"),
    _s("SLOTS", _WHOLE, 1, "number of slots that requests are spread over, in a frontier and where workers lease"
       " ([more](../howto/frontier.md#slots))", least=1, most=MOST_SLOTS, must_be="a number of slots", travels=_SLOTS),
    _s("SLOT_PREFIX", _TEXT, "", "what their names begin with; a number from 0 on follows", travels=_SLOTS),
    _s("SLOT_BY", _CHOICE, "fingerprint", "what chooses a request's slot: `fingerprint`, evenly; `domain`, one site"
       " stays in one slot; `site`, each site has a slot of its own (the default with `DISTRIBUTED_FAIR`)",
       choices=("fingerprint", "domain", "site"), travels=_SLOTS),
    _s("CALLBACK_SLOTS", _MAPPING, {}, 'slots of their own for some callbacks: `{"parse_article": "articles/4"}` is'
       " `articles0` to `articles3`", must_be=_CALLBACKS, travels=_SLOTS),
),
"Items and the end": (
    _s("OUTPUTS", _FILES, None, "the files and addresses that all items go to at the end; `-o`, `-O` and `FEEDS` are"
       " taken", option="-o"),
    _s("DELIVER", _TEXT, None, "a folder, or an address (`s3://bucket/path`, `gs://…`, `abfs://…`, `sftp://host/path`,"
       " `ftp://…`), to which items are delivered as batches are done, in whole files that a manifest lists"
       " ([more](../howto/unattended.md#results-where-they-are-wanted)). One with a password belongs in settings.py",
       option="--deliver", secret=True),
    _s("TARGET_FEED_URL", _TEXT, None, "where each batch writes its items instead (ftp, s3, file, …); `%(crawl)s`,"
       " `%(batch)s` and `%(attempt)s` are added to the file name when missing. One with a password belongs in"
       " settings.py", option="--feed", secret=True),
    _s("TARGET_FEED_FORMAT", _TEXT, "jsonlines", "format of that feed", travels=_JOBS),
    _s("MAX_FAILED", _WHOLE, 0, "failed URLs that still count as success", option="--max-failed"),
    _s("MIN_ITEMS", _WHOLE, 0, "fewer items are a failure: exit code 1, with the reason as the crawl's message",
       option="--min-items"),
    _s("ON_FINISH", _TEXT, None, "runs when the crawl has ended ([more](#items-and-the-end)): a shell command that"
       " gets the [summary](summary.md) on its standard input, or an http(s) address that gets it by POST",
       option="--on-finish", secret=True),
    _s("WAIT", _YES_NO, True, "`False`: send everything at once and leave; `sdist resume` collects later"),
),
"The crawl": (
    _s("CRAWL", _TEXT, None, "the crawl's name; not set: one is made", option="--name"),
    _s("LABELS", _LIST, [], "labels of the crawl, such as `night=1`, by which lists are filtered; its jobs get them as"
       " this setting, and `settings.getlist` has them as a list", option="--label"),
    _s("STORE", _TEXT, ".sdist/store.db", "path of an SQLite file on a local disk, or `redis://…`"
       " ([more](../explanation/store.md)). `SDIST_STORE` in the environment goes before it", secret=True,
       variable="SDIST_STORE"),
    _s("PROFILE", _CHOICE, "usual", "what makes a page cheaper, and changes neither results nor settings of yours:"
       " `usual`, `CONCURRENT_ITEMS` is 16, and start-up objects are left out of garbage collection; `fast`, it is 4,"
       " `LOG_LEVEL` is INFO, and records below the log's level are not made; `none`, Scrapy as it is"
       " ([more](../explanation/speed.md))", option="--profile", choices=("usual", "fast", "none")),
),
"Goals for the whole crawl": (
    _s("GOAL_ITEMS", _WHOLE, 0, "end the crawl once all nodes together have so many items; the rest waits for"
       " `sdist resume` ([more](../howto/unattended.md#goals-for-a-whole-crawl)). 0: no goal, as for all of these",
       option="--max-items", least=0),
    _s("GOAL_PAGES", _WHOLE, 0, "the same with pages that a callback got", option="--max-pages", least=0),
    _s("GOAL_REQUESTS", _WHOLE, 0, "the same with requests that left, with retries, redirects and robots.txt",
       option="--max-requests", least=0),
    _s("GOAL_ERRORS", _WHOLE, 0, "the same with exceptions in the spider's code", option="--max-errors", least=0),
    _s("GOAL_TIME", _SECONDS, 0.0, "the same after so many seconds; `sdist resume` counts anew", option="--max-time",
       least=0),
    _s("GOAL_DEPTH", _WHOLE, 0, "links that lead deeper than so many pages are not followed: `DEPTH_LIMIT` for the"
       " whole crawl, not for each job", option="--max-depth", least=0, travels=_JOBS),
    _s("CLOSESPIDER", _CHOICE, "job", "what Scrapy's `CLOSESPIDER_…` settings count: `job`, each job for itself;"
       " `crawl`, the whole crawl, as the goals above", choices=("job", "crawl"), travels=_JOBS),
),
"The throttle": (
    _s("THROTTLE", _YES_NO, None, "`True`: this process follows the throttle's rules and the settings below; `False`:"
       " neither; not set: `True` with one of `…_HITS`, `…_MAX_PAGES`, `…_CONCURRENCY`, else [the rules"
       " alone](../explanation/throttle.md)", travels=_LIMITS),
    _s("THROTTLE_HITS", _WHOLE, None, "requests to a domain in any window, for domains without a rule; a domain is"
       " what the public suffix list calls one", least=1, most=MOST_HITS, travels=_LIMITS, cluster="QUEUE_HITS"),
    _s("THROTTLE_WINDOW", _SECONDS, 60.0, "seconds of that window", most=LONGEST_WINDOW, travels=_LIMITS,
       cluster="QUEUE_WINDOW"),
    _s("THROTTLE_MODERATED", _YES_NO, True, "requests are spread evenly over the window; `False`: they leave at once,"
       " followed by a pause", travels=_LIMITS, cluster="QUEUE_MODERATED"),
    _s("THROTTLE_PER_SPIDER", _YES_NO, False, "each spider name has the whole limit for itself", travels=_LIMITS,
       cluster="SCHEDULER_TYPE_ENABLED"),
    _s("THROTTLE_PER_IP", _YES_NO, False, "each address that requests leave from has the whole limit for itself"
       " ([more](../explanation/throttle.md))", travels=_LIMITS, cluster="SCHEDULER_IP_ENABLED"),
    _s("THROTTLE_PUBLIC_IP", _TEXT, None, "the machine's address, or the URL of a page that tells it", secret=True,
       travels=_LIMITS, cluster="PUBLIC_IP_URL"),
    _s("THROTTLE_PUBLIC_IP_REGEX", _TEXT, None, "finds the address in that page, in its first group if it has one; not"
       " set: the first address there", travels=_LIMITS, cluster="IP_ADDR_REGEX"),
    _s("THROTTLE_PUBLIC_IP_REFRESH", _SECONDS, 60.0, "seconds after which the page is asked again",
       most=LONGEST_WINDOW, travels=_LIMITS, cluster="SCHEDULER_IP_REFRESH"),
    _s("THROTTLE_MAX_PAGES", _WHOLE, 0, "pages of one domain per crawl, over all its processes ([what"
       " counts](../explanation/throttle.md)); 0: no limit", travels=_LIMITS, cluster="GLOBAL_PAGE_PER_DOMAIN_LIMIT"),
    _s("THROTTLE_CONCURRENCY", _NUMBER, None, "requests under way at a domain at one time, over the whole fleet:"
       " pauses follow the site's latency, as AutoThrottle does it for one process",
       must_be="a number of requests", travels=_LIMITS),
    _s("THROTTLE_LONGEST_DELAY", _SECONDS, 60.0, "seconds: the longest pause that follows from latency or from a"
       " robots.txt's Crawl-delay; a Retry-After is kept to, up to a day", most=LONGEST_WINDOW, travels=_LIMITS),
),
}
# fmt: on
#: by their names
SETTINGS: dict[str, Setting] = {row.name: row for group in GROUPS.values() for row in group}
LABELS = "DISTRIBUTED_LABELS"
#: the limits of a job's time; in scrapy.cfg, [sdist] has them as job_timeout and stall_timeout
JOB_LIMITS = (PREFIX + "JOB_TIMEOUT", PREFIX + "STALL_TIMEOUT")
#: what scrapyd-dist itself gives to jobs
INTERNAL = frozenset(PREFIX + name for name in ("JOB", "PULL", "START_URLS"))


def travelling(*travels: Travels) -> tuple[str, ...]:
    return tuple(name for name, row in SETTINGS.items() if row.travels in travels)


def of_options(options: object, command: str = "") -> dict[str, Any]:
    """The settings that an object with fields named like options, of this command, gives values to."""
    fields = {
        row.option.split()[-1].partition("/")[0].lstrip("-").replace("-", "_"): name
        for name, row in sorted(
            SETTINGS.items(), key=lambda one: " " in one[1].option
        )  # a command's own go last
        if row.option and row.option.rpartition(" ")[0] in ("", command)
    }
    given = {name: getattr(options, field, None) for field, name in fields.items()}
    return {name: value for name, value in given.items() if value not in (None, [])}


def nearest(name: str, known: Iterable[str] = SETTINGS, cutoff: float = 0.7) -> str:
    """What a misspelt name probably means, as the end of a sentence or paragraph; empty when none is near."""
    ends = {
        one.removeprefix(PREFIX): one for one in known
    }  # the prefix would make any two names alike
    close = difflib.get_close_matches(name.removeprefix(PREFIX), ends, 1, cutoff)
    meant = ends[close[0]] if close else ""
    return f" Did you mean {repr(meant) if ' ' in meant else meant}?" if meant else ""


def unknown(names: Iterable[str], environment: Iterable[str] = ()) -> list[str]:
    """A paragraph for each unknown name that begins as ours do, and for each misspelt variable of the environment.

    A name is taken for a misspelt one also where its beginning is: DISTRIBUTE_MAX_JOBS.
    """
    internal = (*INTERNAL, f"{PREFIX}START_URLS_")
    others = [
        name for name in sorted(names) if name not in SETTINGS and not name.startswith(internal)
    ]
    meant = {name: nearest(name) for name in others if name.startswith(PREFIX)}
    for name in others:
        near = difflib.get_close_matches(name, SETTINGS, 1, MISSPELT)
        if near and name not in meant and name.startswith(PREFIX[:4]):
            meant[name] = f" Did you mean {near[0]}?"
    said = [
        f"The setting {name} is none of scrapyd-dist's, and does nothing.{hint}"
        for name, hint in meant.items()
    ]
    for variable in (row.variable for row in SETTINGS.values() if row.variable):
        near = difflib.get_close_matches(variable, environment, 3, 0.9)
        said += [
            f"The environment variable {name} is none of scrapyd-dist's, and does nothing. Did you mean {variable}?"
            for name in sorted(near)
            if not name.startswith(variable)
        ]
    return said


def complaints(
    settings: Mapping[str, Any], arguments: Mapping[str, Any] | None = None
) -> list[str]:
    """What to warn of where a process begins: unknown settings, misspelt variables, names of related systems.

    `arguments` are those of the spider, or its attributes.
    """
    return unknown(settings, os.environ) + answers(settings, arguments or {})


def judge(settings: Mapping[str, Any] | BaseSettings) -> None:
    """`ConfigError` for the first setting of ours whose value is of another kind, or out of its range."""
    for name, row in SETTINGS.items():
        if (value := settings.get(name)) not in (None, ""):
            row.judged(value)


class SettingReader:
    """Reads the settings of one process; an error names the setting."""

    def __init__(self, settings: BaseSettings) -> None:
        self.settings = settings

    def given(self, name: str) -> bool:
        """Whether the setting has a value; an empty text is none."""
        return self.settings.get(name) not in (None, "")

    def name(self, name: str) -> str:
        """The name that has the value: this one, or that of Scrapy Cluster if only that is given."""
        theirs = SETTINGS[name].cluster
        return theirs if theirs and not self.given(name) and self.given(theirs) else name

    def value(self, name: str) -> Any:
        """The value, or the default if none is given; `ConfigError` if it is of another kind, or beyond its limits."""
        row, name = SETTINGS[name], self.name(name)
        if not self.given(name):
            return () if row.kind in (ValueKind.LIST, ValueKind.FILES) else row.default
        return row.judged(self.settings.get(name), name)

    def values_for(self, cls: Any, prefix: str = PREFIX) -> dict[str, Any]:
        """The values for a dataclass's fields that have the names of settings: `max_jobs` as DISTRIBUTED_MAX_JOBS."""
        names = {one.name: prefix + one.name.upper() for one in fields(cls)}
        return {field: self.value(name) for field, name in names.items() if name in SETTINGS}


def _read(kind: ValueKind, value: Any, words: tuple[str, ...]) -> Any:
    """The value as this kind; TypeError, ValueError or OverflowError if it is none. Text is read as Scrapy reads it."""
    if kind is ValueKind.YES_NO:
        if value not in (*_YES, *_NO):
            raise ValueError
        return value in _YES
    if kind in (ValueKind.LIST, ValueKind.FILES):
        return _list(kind, value)
    if kind is ValueKind.MAPPING:
        found = dict(json.loads(value) if isinstance(value, str) else value)
        if isinstance(value, (list, tuple)) or not all(isinstance(key, str) for key in found):
            raise TypeError
        return found
    if kind is ValueKind.CHOICE and value not in words:
        raise ValueError
    if kind in (ValueKind.TEXT, ValueKind.CHOICE):
        if not isinstance(value, (str, os.PathLike)):
            raise TypeError
        return os.fspath(value)
    if isinstance(value, str) and value in words:
        return value
    return _number(kind, value)


def _list(kind: ValueKind, value: Any) -> tuple[Any, ...]:
    found: Any = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, (list, tuple, set, frozenset)):
        raise TypeError
    for one in found:
        if not isinstance(one["path"] if kind is ValueKind.FILES else one, (str, os.PathLike)):
            raise TypeError
    return tuple(found)


def _number(kind: ValueKind, value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    if kind is ValueKind.WHOLE:
        if not re.fullmatch(r"\s*[+-]?\d+(\.0)?\s*", str(value)):
            raise ValueError
        return int(float(value)) if "." in str(value) else int(value)
    span = (
        _SPAN.fullmatch(value.strip())
        if kind is ValueKind.SECONDS and isinstance(value, str)
        else None
    )
    number = float(span[1]) * _UNITS[span[2]] if span else float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _grouped(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.16g}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # more digits than Python writes
        text = "a number without an end"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def limits_in(options: Mapping[str, str]) -> dict[str, str]:
    """The limits of jobs that [sdist] of scrapy.cfg sets, as settings; ConfigError if one is no number of seconds."""
    keys = {name.removeprefix(PREFIX).lower(): name for name in JOB_LIMITS}
    found = {keys[key]: value for key, value in options.items() if key in keys}
    for name, value in found.items():
        SETTINGS[name].judged(
            value, f"{name.removeprefix(PREFIX).lower()} in [sdist] of scrapy.cfg"
        )
    return found


def uploading_feeds(settings: BaseSettings) -> list[str]:
    """The feeds of this process that are stored elsewhere when it closes, without what is secret in their addresses."""
    feeds = (urlsplit(str(uri)) for uri in settings.getdict("FEEDS"))
    return [
        uri._replace(netloc=uri.netloc.rpartition("@")[2]).geturl()
        for uri in feeds
        if uri.scheme not in LOCAL_FEEDS
    ]
