"""Holds one row for each `DISTRIBUTED_` setting; all that reads, checks or lists settings uses it.

Part of the worker half: imports the standard library only.
"""

from __future__ import annotations

from typing import Any

from .setting_kinds import LONGEST, Setting, Travels, ValueKind

PREFIX = "DISTRIBUTED_"
#: BATCH_SIZE: the fleet decides
AUTO = "auto"
#: seconds; the throttle counts nothing for longer than this
LONGEST_WINDOW = 86400.0 * 31
#: numbered slots per prefix, at most
MOST_SLOTS = 10_000
#: hits of a limit in one window, at most
MOST_HITS = 1_000_000


def _setting(name: str, kind: ValueKind, default: Any, help_: str, **more: Any) -> Setting:
    return Setting(name=PREFIX + name, kind=kind, default=default, help=help_, **more)


_, _CALL, _JOBS, _FLEET, _LIMITS, _LEASING, _SLOTS = Travels
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
            travels=_CALL,
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
            metavar="TEMPLATE",
        ),
        _setting(
            "PAGES",
            _WHOLE,
            None,
            "number of index pages",
            option="--pages",
            metavar="P",
            least=1,
        ),
        _setting(
            "FIRST_PAGE",
            _WHOLE,
            0,
            "number of the first one",
        ),
        _setting(
            "SHARDS",
            _WHOLE,
            1,
            "walks that share the index, each from a start page; at least the crawl's concurrency",
            option="--shards",
            metavar="S",
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
            " reaches the store) ([more](../internals/placement.md))",
            option="--batch-size",
            metavar="N|auto",
            least=1,
            choices=(AUTO,),
            must_be="a whole number, or auto",
            travels=_CALL,
        ),
        _setting(
            "BATCH_MAX_AGE",
            _SECONDS,
            30.0,
            "seconds after which a batch is sealed though it is not full",
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
            "how many sites share batches and workers"
            " ([more](../internals/placement.md#fair-work)): `spread`, the next batch is of the"
            " site with the least under way in the fleet; `by-domain`, the same, and a site stays"
            " with one worker. With `pull`, batches have 10 requests of one site",
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
            " ([more](../internals/placement.md#nodes-that-come-and-go))",
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
            " fewest jobs per process slot ([more](../internals/placement.md))",
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
            most=3600,
        ),
        _setting("REQUEST_TIMEOUT", _SECONDS, 15.0, "seconds for one call to a node", most=3600),
        _setting(
            "NODE_TIMEOUT",
            _SECONDS,
            30.0,
            "seconds of silence after which a node's work goes elsewhere",
        ),
        _setting(
            "FLEET_TIMEOUT",
            _SECONDS,
            300.0,
            "seconds without any answering node after which a crawl stops, to be resumed",
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
            travels=_CALL,
        ),
        _setting(
            "MAX_BATCHES",
            _WHOLE,
            0,
            "batches after which a worker ends and another one takes its place; 0: no limit",
            option="frontier consume --max-batches",
            travels=_CALL,
        ),
        _setting(
            "MAX_REQUESTS",
            _WHOLE,
            0,
            "requests after which it ends, once its last batch is finished; 0: no limit",
            option="frontier consume --max-requests",
            travels=_CALL,
        ),
        _setting(
            "MAX_TIME",
            _SECONDS,
            0.0,
            "seconds after which it ends; 0: no limit",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "IDLE",
            _SECONDS,
            0.0,
            "seconds without work after which a worker of a standing frontier ends; 0: it stays",
            option="frontier consume --idle",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "LEASE",
            _SECONDS,
            60.0,
            "seconds after which the lease of a worker that stands still expires"
            " ([more](../internals/store.md#leases-and-fencing))",
            travels=_CALL,
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
            travels=_JOBS,
            in_force=True,
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
        _setting(
            "CRAWL",
            _TEXT,
            None,
            "the crawl's name; not set: one is made",
            option="--name",
            travels=_CALL,
        ),
        _setting(
            "LABELS",
            _LIST,
            [],
            "labels of the crawl, such as `night=1`, by which lists are filtered; its jobs get"
            " them as this setting, and `settings.getlist` has them as a list",
            option="--label",
            travels=_FLEET,
            in_force=True,
        ),
        _setting(
            "STORE",
            _TEXT,
            ".sdist/store.db",
            "path of an SQLite file on a local disk, or `redis://…`"
            " ([more](../internals/store.md)). `SDIST_STORE` in the environment goes before it",
            secret=True,
            variable="SDIST_STORE",
            travels=_CALL,
        ),
        _setting(
            "PROFILE",
            _CHOICE,
            "usual",
            "what makes a page cheaper, and changes neither results nor settings of yours:"
            " `usual`, `CONCURRENT_ITEMS` is 16, and start-up objects are left out of garbage"
            " collection; `fast`, it is 4, `LOG_LEVEL` is INFO, and records below the log's level"
            " are not made; `none`, Scrapy as it is ([more](../explanation/benchmarks.md))",
            choices=("usual", "fast", "none"),
            travels=_JOBS,
            in_force=True,
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
            travels=_CALL,
        ),
        _setting(
            "GOAL_PAGES",
            _WHOLE,
            0,
            "the same with pages that a callback got",
            option="--max-pages",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "GOAL_REQUESTS",
            _WHOLE,
            0,
            "the same with requests that left, with retries, redirects and robots.txt",
            option="--max-requests",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "GOAL_ERRORS",
            _WHOLE,
            0,
            "the same with exceptions in the spider's code",
            option="--max-errors",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "GOAL_TIME",
            _SECONDS,
            0.0,
            "the same after so many seconds; `sdist resume` counts anew",
            option="--max-time",
            least=0,
            travels=_CALL,
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
            in_force=True,
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
