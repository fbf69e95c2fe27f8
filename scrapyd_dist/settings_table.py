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


_CALL = Travels.CALL
_JOBS = Travels.JOBS
_FLEET = Travels.FLEET
_LIMITS = Travels.LIMITS
_LEASING = Travels.LEASING
_SLOTS = Travels.SLOTS
_YES_NO = ValueKind.YES_NO
_WHOLE = ValueKind.WHOLE
_SECONDS = ValueKind.SECONDS
_NUMBER = ValueKind.NUMBER
_TEXT = ValueKind.TEXT
_CHOICE = ValueKind.CHOICE
_LIST = ValueKind.LIST
_MAPPING = ValueKind.MAPPING
_FILES = ValueKind.FILES
_CALLBACKS = "a mapping of callbacks' names"
#: heading in docs/reference/settings.md -> its settings
GROUPS: dict[str, tuple[Setting, ...]] = {
    "What goes to the nodes": (
        _setting(
            "ENABLED",
            _YES_NO,
            True,
            "with `False`, `scrapy crawl` runs the crawl in one process; throttle and time limits"
            " still hold. It does the same for a spider without a target, with a warning."
            " `sdist crawl` spreads it in any case",
        ),
        _setting(
            "TARGET_RULE",
            _WHOLE,
            -1,
            "number of the CrawlSpider rule whose requests go to the nodes, counted from 0. Links"
            " on its pages are not followed. If"
            " neither a rule nor a callback is named, it is the only rule that has a callback"
            " and does not follow; where all rules follow, it is all of them. Of a SitemapSpider it"
            " is the pages of its sitemaps; with `sdist crawl` else the only callback besides"
            " `parse()`",
            option="--rule",
            least=-1,
            must_be="the number of a rule",
            travels=_LEASING,
        ),
        _setting(
            "TARGET_CALLBACKS",
            _LIST,
            [],
            "names of callbacks whose requests go to the nodes, in any spider. If a rule with such"
            " a callback follows links (`follow=True`), all requests of the rules go there in a"
            " crawl, and workers follow them; not with `--push` or a sharded index, where such a"
            " rule is to be named by its number",
            option="--callback",
            travels=_LEASING,
        ),
        _setting(
            "TARGET_BY_META",
            _YES_NO,
            False,
            "with `True`, marked requests are target enough where nothing else names a target."
            ' Requests with `meta={"distribute": True}` go to the nodes in any case',
            travels=_LEASING,
        ),
        _setting(
            "UNSENDABLE",
            _CHOICE,
            "local",
            "what becomes of a target request that cannot travel, such as one with a lambda as"
            " callback or a value that JSON lacks: with `local` the producer crawls it, with"
            " `refuse` it is counted and dropped",
            choices=("local", "refuse"),
            travels=_LEASING,
        ),
        _setting(
            "LIMIT",
            _WHOLE,
            0,
            "for a trial, hand out only the first N target requests, not counting duplicates"
            " and those off the site. `resume` and `retry` keep to it; 0 is no limit",
            option="--limit",
            travels=_LEASING,
        ),
        _setting(
            "SPIDER_ARGS",
            _MAPPING,
            {},
            "spider arguments of the jobs, for a script that starts the crawl without a command"
            " line",
            travels=_CALL,
        ),
        _setting(
            "SEEDS",
            _YES_NO,
            False,
            "with `True`, the spider's own start requests go to the workers as well",
            pull_only=True,
        ),
        _setting(
            "SPIDER_CALLBACKS",
            _MAPPING,
            {},
            'callbacks whose requests another spider crawls: `{"enter": "login"}`, or'
            ' `{"enter": {"spider": "login", "project": "other", "callback": "parse"}}`'
            " ([more](../howto/several-spiders.md))",
            must_be=_CALLBACKS,
            pull_only=True,
            travels=_LEASING,
        ),
        _setting(
            "SPIDER_ATTRIBUTES",
            _LIST,
            [],
            "attributes of the spider that travel with each request: the worker's spider has"
            " them when the callback is called",
            pull_only=True,
            travels=_LEASING,
        ),
    ),
    "The index": (
        _setting(
            "INDEX",
            _TEXT,
            None,
            "address of the index pages, with a place for the page's number:"
            " `…/index_%05d.html` or `…?page={page}`. The spider's own start is left out then",
            option="--index",
            metavar="TEMPLATE",
        ),
        _setting(
            "PAGES",
            _WHOLE,
            None,
            "number of index pages. The first has the number 0, or that of"
            " `DISTRIBUTED_FIRST_PAGE`: -s DISTRIBUTED_FIRST_PAGE=1 if `?page=1` is the first",
            option="--pages",
            metavar="P",
            least=1,
        ),
        _setting(
            "FIRST_PAGE",
            _WHOLE,
            0,
            "number of the first index page: 1 where `?page=1` is the first",
        ),
        _setting(
            "SHARDS",
            _WHOLE,
            1,
            "number of walks that share the index. Each begins at a page of its own, goes on as"
            " the spider follows links to the next page, and ends where another has begun. Take as"
            " many as index pages may be requested at one time",
            option="--shards",
            metavar="S",
            least=1,
            most=100_000,
        ),
        _setting(
            "START_URLS_FILE",
            _TEXT,
            None,
            "file with a start page of the index on each line; each is walked by itself",
            option="--start-urls",
        ),
    ),
    "Batches": (
        _setting(
            "BATCH_SIZE",
            _WHOLE,
            AUTO,
            "requests in a batch. A number is kept exactly, except for the last batch and for"
            " requests that have waited long; `auto` is as many as the fleet can use, at most"
            " 100 (10,000 where no worker reaches the store)"
            " ([more](../internals/placement.md))",
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
            "seconds after which a batch is sealed although it is not full",
        ),
        _setting(
            "MAX_ATTEMPTS",
            _WHOLE,
            4,
            "attempts at a batch before it is given up as dead",
            option="--max-attempts",
            least=1,
        ),
        _setting(
            "FAIR",
            _CHOICE,
            "",
            "how many sites share batches and workers ([more](../howto/many-sites.md)): with"
            " `spread`, the next batch is of the site with the fewest requests under way in the"
            " fleet; with `by-domain`, a site also stays with one worker. Batches that are"
            " leased then have 10 requests of one site",
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
            "nodes of the crawl, in place of those in scrapy.cfg: names of targets, patterns of"
            " them as in `web*`, addresses (`host:port` or URLs), `file:PATH` (a list, read again"
            " when it changes) or `cmd:COMMAND` (a command that prints a list). Of the nodes that"
            " `sdist nodes add` adds, a pattern lets those join that it means, a list all",
            option="--node",
            secret=True,
        ),
        _setting(
            "TARGET_HOSTS",
            _LIST,
            [],
            'addresses of nodes, as "Learning Scrapy" has them, where `DISTRIBUTED_NODES` is'
            " not set",
            secret=True,
        ),
        _setting(
            "NODES_EVERY",
            _SECONDS,
            10.0,
            "seconds between two runs of `cmd:` entries, and between two look-ups of host names"
            " with several addresses",
        ),
        _setting(
            "PLACEMENT",
            _CHOICE,
            "by-capacity",
            "which node is sent a batch, where batches are sent: `by-capacity`, the one that"
            " will finish it first by its load, slots and speed; `round-robin`, each in turn;"
            " `least-loaded`, the one with the fewest jobs per process slot"
            " ([more](../internals/placement.md))",
            choices=("by-capacity", "round-robin", "least-loaded"),
        ),
        _setting(
            "MAX_JOBS",
            _WHOLE,
            0,
            "jobs at one time over all nodes, workers included; 0 leaves it to the nodes' own"
            " limits",
            option="--max-jobs",
        ),
        _setting(
            "DEPLOY",
            _CHOICE,
            "if-missing",
            "with `if-missing`, nodes that lack the code get it; with `never`, they must have"
            " it already",
            option="--deploy/--no-deploy",
            choices=("if-missing", "never"),
        ),
        _setting(
            "POLL_INTERVAL",
            _SECONDS,
            1.0,
            "seconds between two polls of a job, and up to five times that while its end is far",
            most=3600,
        ),
        _setting(
            "REQUEST_TIMEOUT", _SECONDS, 15.0, "seconds that one call to a node may take", most=3600
        ),
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
            "seconds without an answer from any node after which a crawl stops; it can be resumed",
        ),
        _setting(
            "START_TIMEOUT",
            _SECONDS,
            3600.0,
            "seconds within which a job that was sent has to start",
        ),
        _setting(
            "JOB_TIMEOUT",
            _SECONDS,
            0.0,
            "seconds after which a job on a node is ended with the reason `timeout`; 0 is no"
            " limit ([more](limits.md#time-limits-of-a-job))",
            option="--job-timeout",
            least=0,
            travels=_FLEET,
        ),
        _setting(
            "STALL_TIMEOUT",
            _SECONDS,
            0.0,
            "seconds without a page or an item after which a job that has work is ended with"
            " the reason `stalled`; 0 is no limit ([more](limits.md#time-limits-of-a-job))",
            option="--stall-timeout",
            least=0,
            travels=_FLEET,
        ),
        _setting(
            "KEEP_DAYS",
            _NUMBER,
            14,
            "days after which a worker deletes what other crawls left on its node, and the"
            " store forgets a [plain job](commands/jobs.md#what-is-remembered-of-plain-jobs)",
            least=0,
            most=LONGEST / 86400,
            must_be="a number of days",
            travels=_FLEET,
        ),
        _setting(
            "MIN_FREE",
            _WHOLE,
            1 << 30,
            "free bytes of disk below which a worker stops with the reason `disk-full`",
            most=1 << 62,
            travels=_FLEET,
        ),
    ),
    "Workers that lease": (
        _setting(
            "MODE",
            _CHOICE,
            "auto",
            "how batches reach the nodes. With `pull`, workers that stay lease them from the"
            " store; with `push`, each is sent as a job. With `auto`, a node's workers lease if"
            " they reach the store; otherwise batches are sent, as they always are with a feed"
            " URL and without waiting ([more](frontiers.md#workers))",
            option="--pull/--push",
            choices=("auto", "push", "pull"),
        ),
        _setting(
            "START",
            _CHOICE,
            "skip",
            "with `first`, a worker makes the spider's own start requests before its first"
            " batch; with `skip`, it does not make them",
            choices=("skip", "first"),
            travels=_CALL,
        ),
        _setting(
            "MAX_BATCHES",
            _WHOLE,
            0,
            "batches after which a worker ends and another one takes its place; 0 is no limit",
            option="frontier consume --max-batches",
            travels=_CALL,
        ),
        _setting(
            "MAX_REQUESTS",
            _WHOLE,
            0,
            "requests after which a worker ends, once its last batch is finished; 0 is no limit",
            option="frontier consume --max-requests",
            travels=_CALL,
        ),
        _setting(
            "MAX_TIME",
            _SECONDS,
            0.0,
            "seconds after which a worker ends; 0 is no limit",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "IDLE",
            _SECONDS,
            0.0,
            "seconds without work after which a worker of a standing frontier ends; with 0, it"
            " stays",
            option="frontier consume --idle",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "LEASE",
            _SECONDS,
            60.0,
            "seconds after which the lease of a worker that makes no progress expires"
            " ([more](../internals/store.md))",
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
            "name of a method of the spider whose requests each worker makes before its first"
            " batch, and again when a callback raises `scrapyd_dist.SessionExpired`"
            " ([more](../howto/login.md))",
            pull_only=True,
            travels=_LEASING,
        ),
        _setting(
            "REQUEST_HOOK",
            _TEXT,
            None,
            "name of a method of the spider that gets each request of a batch and returns it,"
            " another one, or `None`. A request for which it returns `None` is not made and"
            " counts as gone",
            pull_only=True,
            travels=_LEASING,
        ),
    ),
    "Frontiers and slots": (
        _setting(
            "FRONTIER",
            _TEXT,
            None,
            "name of the frontier that `scrapy crawl` fills with the target requests, in place"
            " of crawling them ([more](../howto/frontier.md))",
        ),
        _setting(
            "SLOTS",
            _WHOLE,
            1,
            "number of slots that requests are spread over, in a frontier and where workers"
            " lease ([more](frontiers.md#slots))",
            least=1,
            most=MOST_SLOTS,
            must_be="a number of slots",
            travels=_SLOTS,
        ),
        _setting(
            "SLOT_PREFIX",
            _TEXT,
            "",
            "beginning of the slots' names; a number from 0 on follows",
            travels=_SLOTS,
        ),
        _setting(
            "SLOT_BY",
            _CHOICE,
            "fingerprint",
            "what decides a request's slot: `fingerprint` fills the slots evenly, `domain`"
            " keeps a site in one slot, `site` gives each site a slot of its own (the default"
            " with `DISTRIBUTED_FAIR`)",
            choices=("fingerprint", "domain", "site"),
            travels=_SLOTS,
        ),
        _setting(
            "CALLBACK_SLOTS",
            _MAPPING,
            {},
            'slots of their own for some callbacks: `{"parse_article": "articles/4"}` stands'
            " for `articles0` to `articles3`",
            must_be=_CALLBACKS,
            travels=_SLOTS,
        ),
    ),
    "Items and the end": (
        _setting(
            "OUTPUTS",
            _FILES,
            None,
            "files and addresses that all items go to at the end; `-o`, `-O` and `FEEDS` fill it",
            option="-o",
        ),
        _setting(
            "DELIVER",
            _TEXT,
            None,
            "folder, or address (`s3://bucket/path`, `gs://…`, `abfs://…`, `sftp://host/path`,"
            " `ftp://…`), to which items are delivered as batches are done, in whole files that"
            " a manifest lists ([more](../howto/delivery.md)). An address with a password"
            " belongs in settings.py",
            option="--deliver",
            secret=True,
        ),
        _setting(
            "TARGET_FEED_URL",
            _TEXT,
            None,
            "address (ftp, s3, file, …) to which each batch writes its items, in place of"
            " bringing them home; `%(crawl)s`, `%(batch)s` and `%(attempt)s` are added to the"
            " file name where they are missing. An address with a password belongs in"
            " settings.py",
            option="--feed",
            secret=True,
            travels=_JOBS,
            in_force=True,
        ),
        _setting(
            "TARGET_FEED_FORMAT",
            _TEXT,
            "jsonlines",
            "format of the feed of `DISTRIBUTED_TARGET_FEED_URL`",
            travels=_JOBS,
        ),
        _setting(
            "MAX_FAILED",
            _WHOLE,
            0,
            "number of URLs that may fail while the crawl still counts as a success",
            option="--max-failed",
        ),
        _setting(
            "MIN_ITEMS",
            _WHOLE,
            0,
            "with fewer items, the crawl has failed: exit code 1, and the reason is the crawl's"
            " message",
            option="--min-items",
        ),
        _setting(
            "ON_FINISH",
            _TEXT,
            None,
            "what is called when the crawl has ended ([more](#items-and-the-end)): a shell"
            " command that gets the [summary](json.md#the-summary-of-a-crawl) on its standard"
            " input, or an http(s) address that gets it by POST",
            option="--on-finish",
            secret=True,
        ),
        _setting(
            "WAIT",
            _YES_NO,
            True,
            "with `False`, the producer sends everything at once and ends; `sdist resume`"
            " collects the items later",
        ),
    ),
    "The crawl": (
        _setting(
            "CRAWL",
            _TEXT,
            None,
            "name of the crawl; without one, a name is made",
            option="--name",
            travels=_CALL,
        ),
        _setting(
            "LABELS",
            _LIST,
            [],
            "labels of the crawl, such as `night=1`, by which lists are filtered. Its jobs have"
            " them in this setting, and `settings.getlist` reads them",
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
            "what makes a page cheaper without changing results or your settings"
            " ([more](../explanation/benchmarks.md)). With `usual`, `CONCURRENT_ITEMS` is 16, and"
            " objects made at the start are left out of garbage collection. With `fast`, it is"
            " 4, `LOG_LEVEL` is INFO, and records below the log's level are not made. With"
            " `none`, Scrapy is as it is",
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
            "end the crawl once all nodes together have this many items; what remains waits for"
            " `sdist resume` ([more](limits.md#goals-of-a-crawl)). 0 is no goal",
            option="--max-items",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "GOAL_PAGES",
            _WHOLE,
            0,
            "end the crawl once callbacks have got this many pages. 0 is no goal",
            option="--max-pages",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "GOAL_REQUESTS",
            _WHOLE,
            0,
            "end the crawl once this many requests have left, with retries, redirects and"
            " robots.txt. 0 is no goal",
            option="--max-requests",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "GOAL_ERRORS",
            _WHOLE,
            0,
            "end the crawl once the spider's code has raised this many exceptions. 0 is no goal",
            option="--max-errors",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "GOAL_TIME",
            _SECONDS,
            0.0,
            "end the crawl after this many seconds; `sdist resume` counts anew. 0 is no goal",
            option="--max-time",
            least=0,
            travels=_CALL,
        ),
        _setting(
            "GOAL_DEPTH",
            _WHOLE,
            0,
            "follow no links that lead deeper than this many pages: `DEPTH_LIMIT` for the whole"
            " crawl, not for each job. 0 is no limit",
            option="--max-depth",
            least=0,
            travels=_JOBS,
            in_force=True,
        ),
        _setting(
            "CLOSESPIDER",
            _CHOICE,
            "job",
            "what Scrapy's `CLOSESPIDER_…` settings count for: each job by itself (`job`), or"
            " the whole crawl (`crawl`), as goals do",
            choices=("job", "crawl"),
            travels=_JOBS,
        ),
    ),
    "The throttle": (
        _setting(
            "THROTTLE",
            _YES_NO,
            None,
            "with `True`, this process follows the throttle's rules and the settings below;"
            " with `False`, neither. Not set, it is `True` where `…_HITS`, `…_MAX_PAGES` or"
            " `…_CONCURRENCY` is set; otherwise the process follows [the rules"
            " alone](../explanation/throttle.md)",
            travels=_LIMITS,
        ),
        _setting(
            "THROTTLE_HITS",
            _WHOLE,
            None,
            "requests to a domain in any window, for domains without a rule of their own",
            least=1,
            most=MOST_HITS,
            travels=_LIMITS,
            cluster="QUEUE_HITS",
        ),
        _setting(
            "THROTTLE_WINDOW",
            _SECONDS,
            60.0,
            "seconds of the window of `DISTRIBUTED_THROTTLE_HITS`",
            most=LONGEST_WINDOW,
            travels=_LIMITS,
            cluster="QUEUE_WINDOW",
        ),
        _setting(
            "THROTTLE_MODERATED",
            _YES_NO,
            True,
            "with `True`, requests are spread evenly over the window; with `False`, they leave"
            " at once, and a pause follows",
            travels=_LIMITS,
            cluster="QUEUE_MODERATED",
        ),
        _setting(
            "THROTTLE_PER_SPIDER",
            _YES_NO,
            False,
            "with `True`, each spider has the whole limit for itself",
            travels=_LIMITS,
            cluster="SCHEDULER_TYPE_ENABLED",
        ),
        _setting(
            "THROTTLE_PER_IP",
            _YES_NO,
            False,
            "with `True`, each address that requests leave from has the whole limit for itself"
            " ([more](../explanation/throttle.md))",
            travels=_LIMITS,
            cluster="SCHEDULER_IP_ENABLED",
        ),
        _setting(
            "THROTTLE_PUBLIC_IP",
            _TEXT,
            None,
            "the machine's address, or the URL of a page that shows it",
            secret=True,
            travels=_LIMITS,
            cluster="PUBLIC_IP_URL",
        ),
        _setting(
            "THROTTLE_PUBLIC_IP_REGEX",
            _TEXT,
            None,
            "regular expression that finds the address in the page of"
            " `DISTRIBUTED_THROTTLE_PUBLIC_IP`, in its first group if it has one. Not set, the"
            " first address in the page counts",
            travels=_LIMITS,
            cluster="IP_ADDR_REGEX",
        ),
        _setting(
            "THROTTLE_PUBLIC_IP_REFRESH",
            _SECONDS,
            60.0,
            "seconds after which the page of `DISTRIBUTED_THROTTLE_PUBLIC_IP` is asked again",
            most=LONGEST_WINDOW,
            travels=_LIMITS,
            cluster="SCHEDULER_IP_REFRESH",
        ),
        _setting(
            "THROTTLE_MAX_PAGES",
            _WHOLE,
            0,
            "pages of one domain per crawl, over all its processes ([what"
            " counts](../explanation/throttle.md)); 0 is no limit",
            travels=_LIMITS,
            cluster="GLOBAL_PAGE_PER_DOMAIN_LIMIT",
        ),
        _setting(
            "THROTTLE_CONCURRENCY",
            _NUMBER,
            None,
            "requests under way at a domain at one time, over the whole fleet. Pauses follow"
            " the site's latency, as AutoThrottle does it for one process",
            must_be="a number of requests",
            travels=_LIMITS,
        ),
        _setting(
            "THROTTLE_LONGEST_DELAY",
            _SECONDS,
            60.0,
            "longest pause, in seconds, that follows from latency or from a Crawl-delay in"
            " robots.txt. A Retry-After is kept to, up to a day",
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
