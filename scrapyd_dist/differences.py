"""Says what a project's settings and components mean in a crawl of many processes.

A row of the table says how it is noticed in a project, whether anything differs from `scrapy
crawl`, and what to do. No IO.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .plurals import some_of


class Meaning(str, Enum):
    """What becomes of something that a project uses."""

    SAME = "same"  #: as with `scrapy crawl`: nothing is said
    TOLD = "told"  #: it differs, and the plan, the start, the end and the report say so
    REFUSED = "refused"  #: the crawl does not start


class Trait(str, Enum):
    """What can be noticed in a project's code or a crawl. The value is how, in words."""

    HANDLES_IDLE = "code of the spider or of a component that names `spider_idle`"
    MAKES_REQUESTS = "code of a component that calls `engine.crawl`"
    DROPS_REPEATS = "a pipeline that raises `DropItem` and remembers something"
    REMEMBERS = (
        "code of a pipeline, a middleware or a target callback that keeps something in an attribute"
        " of its own, in a name of its module or closure, in a default of an argument, or in an"
        " object of the project, and uses it, or uses what callbacks of index pages keep in such a"
        " name; or that reads `crawler.stats`"
    )
    HOLDS_BACK = (
        "code of a spider middleware or a target callback that gathers things in a container, and"
        " yields them when it empties it"
    )
    ENVIRONMENT = (
        "code of the project, or its settings, that reads an environment variable that is set here;"
        " or `http_proxy`, `https_proxy`"
    )
    FILES_BESIDE = (
        "code of the project that reads or lists a file, or imports a module, that lies beside its"
        " packages, or a setting that names such a file"
    )
    PROJECT_FOLDER = (
        "code of the project that imports or calls `data_path`, `project_data_dir` or"
        " `closest_scrapy_cfg` of Scrapy, or reads `scrapy.cfg`"
    )
    COMPONENTS_OFF = (
        "a pipeline, a middleware, an extension or an add-on of the project that is on in the"
        " process that walks the index and off in jobs, seen when the crawl ends"
    )
    ALL_ARGUMENTS = "an `__init__` of the spider that keeps or walks all of its `**kwargs`"
    MADE_ANEW = (
        "a setting, or an attribute from `__init__`, that is made of the time, of chance or of the"
        " machine, and that code of jobs reads"
    )
    READS_FEEDS = "code of the spider or of a component that reads the setting `FEEDS`"
    IN_SCRIPT = (
        "a program with `CrawlerProcess` or `CrawlerRunner` that connects signals or reads"
        " statistics, or handlers of pages or items that are in neither spider nor component"
    )
    BEYOND_TARGETS = (
        "a spider middleware of the project with an order below 100 that has `process_start`, or"
        " a `process_spider_output` that names `Request`"
    )
    OPENS_FILES = (
        "a pipeline that opens a database, or a file not only to read it, or another component, a"
        " spider that begins, or a module that opens a file to write into it"
    )
    WRITES_FILES = "a target callback, or what it calls, that writes a file"
    REPORTS_AT_END = (
        "`closed` of the spider, `close_spider` or a handler of `spider_closed`, that writes or"
        " sends something, or reads `crawler.stats`"
    )
    OWN_EXTENSION = "an extension that is not Scrapy's own"
    CANNOT_TRAVEL = "target requests that cannot be rebuilt on a node, seen when the crawl ends"
    CHANGED_ATTRIBUTES = (
        "attributes that the spider's callbacks set on index pages: by their code, or seen when the"
        " crawl ends"
    )
    KEPT_ATTRIBUTES = (
        "target callbacks that set attributes of the spider, or put something into them: by their"
        " code, or seen when the crawl ends"
    )
    UNHEARD_ON_INDEX = (
        "callbacks of index pages that read `crawler.stats`, or what target callbacks or components"
        " set in an attribute of the spider or in a module"
    )
    FOLLOWED_PAGES = (
        "pages that target pages led to, or were redirected to, seen when the crawl ends"
    )
    LEFT_LINKS = (
        "a rule that follows links, where the target is named by the rule's number; or links that"
        " rules have found on pages that nodes fetched and that no rule follows there, seen when"
        " the crawl ends"
    )
    SHARED_VALUES = (
        "a value in meta or cb_kwargs that several target requests share, and that callbacks"
        " change, seen when the crawl ends"
    )
    CACHE = "`HTTPCACHE_ENABLED`, with a relative `HTTPCACHE_DIR`"
    CACHE_ONLY = f"{CACHE}, and `HTTPCACHE_IGNORE_MISSING`"
    FEED_IN_ORDER = "a feed with `batch_item_count` or `postprocessing`"
    OWN_SCHEDULER = "a `SCHEDULER` that is not made from Scrapy's"
    OWN_FILTER_FOLLOWS = "a `DUPEFILTER_CLASS` that is not Scrapy's own, where workers follow links"
    AS_TEXT = "items with values of types that JSON lacks, seen when the crawl ends"
    COLUMNS = "a CSV file with items that have more fields than the first, seen when the crawl ends"
    NO_ITEM = "pages that gave no item at all, seen when the crawl ends"
    NO_PAGE = "a spider whose start gave no request, seen when the crawl ends"
    NO_TARGET = "an index walk that found no target request, seen when the crawl ends"
    ALL_AT_HOME = "a crawl that sent no request to the nodes, seen when it ends"
    START_WAITS = (
        "a `start` that still runs a minute after all that it has asked for was done, seen then"
    )
    START_WAITS_FOR_ITEMS = "a `start` that names `wait_for` and `item_scraped`, or the like"
    SPIDER_START = "an `__init__` that does not take what Scrapyd gives to each job"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A row of the table."""

    name: str  #: what it is called in documents; it stays
    meaning: Meaning
    sentence: str  #: plain text: what Scrapy does, what happens in many processes, what to do
    settings: Sequence[str] = ()  #: noticed when one of these is set; a name may end with `*`
    folders: Sequence[str] = ()  #: noticed when one of these names a folder of one machine
    #: import paths of classes, noticed when one is enabled, or a class made from it
    components: Sequence[str] = ()
    trait: Trait | None = None

    @property
    def noticed(self) -> str:
        """How it is noticed in a project, as Markdown; empty for what is in every crawl."""
        signs = [f"`{name}`" for name in (*self.settings, *self.folders, *self.components)]
        if self.trait:
            signs.append(self.trait.value)
        return ", ".join(signs)


@dataclass(frozen=True, kw_only=True)
class FoundDifference:
    """A row that concerns a project, with what was noticed there."""

    difference: Difference
    found: Sequence[str] = ()  #: names of settings, classes or attributes

    def __str__(self) -> str:
        return _to_line(self.difference.name, self.found, self.difference.sentence)

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of it in plans and summaries."""
        row = self.difference
        return {
            "name": row.name,
            "meaning": row.meaning.value,
            "found": list(self.found),
            "sentence": row.sentence,
        }


def texts(documents: Sequence[Any]) -> list[str]:
    """Return the objects of a plan or a summary as lines for people."""
    lines: list[str] = []
    for document in documents:
        if not isinstance(document, Mapping):  # an older store may have anything
            continue
        found = [str(name) for name in document.get("found") or ()]
        lines.append(_to_line(str(document.get("name")), found, str(document.get("sentence"))))
    return lines


def _to_line(name: str, found: Sequence[str], sentence: str) -> str:
    """Return a row as a line: what it is about, whom it concerns, and what is different."""
    others = [other for other in found if other != name]
    if not others:
        return f"{name}: {sentence}"
    return f"{name} ({some_of(found)}): {sentence}"


_SAME = Meaning.SAME
_TOLD = Meaning.TOLD
_REFUSED = Meaning.REFUSED
#: heading in docs/reference/what-changes.md -> its rows
GROUPS: dict[str, tuple[Difference, ...]] = {
    "Queue and duplicates": (
        Difference(
            name="JOBDIR",
            meaning=_TOLD,
            settings=("JOBDIR",),
            sentence=(
                "Scrapy keeps its queue, the pages that were seen and spider.state in this folder;"
                " a distributed crawl keeps queue and pages in its store, makes no such folder, and"
                " spider.state begins empty in every process. Go on with a crawl that was stopped"
                " by sdist resume."
            ),
        ),
        Difference(
            name="duplicate filter",
            meaning=_SAME,
            settings=("DUPEFILTER_CLASS", "REQUEST_FINGERPRINTER_CLASS"),
            sentence=(
                "Scrapy asks this class whether a request was seen; the process that walks the"
                " index asks it in the same way, for all requests that go to the nodes."
            ),
        ),
        Difference(
            name="duplicate filter of workers",
            meaning=_REFUSED,
            trait=Trait.OWN_FILTER_FOLLOWS,
            sentence=(
                "Scrapy asks this class for every request of the crawl; where all rules follow"
                " links, each worker finds requests and would ask a filter of its own, so pages"
                " would be crawled again. Name the pages that end a path: --rule N, --callback"
                " NAME; or use Scrapy's own filter with a REQUEST_FINGERPRINTER_CLASS."
            ),
        ),
        Difference(
            name="duplicate filter of scrapy-redis",
            meaning=_REFUSED,
            components=("scrapy_redis.dupefilter.RFPDupeFilter",),
            sentence=(
                "It keeps what was seen on a Redis server, in one set for all processes that start"
                " in the same second: jobs would drop each other's requests, and none leaves while"
                " that server is away. Take DUPEFILTER_CLASS out of the settings: sdist itself"
                " filters the requests of the whole crawl."
            ),
        ),
        Difference(
            name="SCHEDULER",
            meaning=_REFUSED,
            trait=Trait.OWN_SCHEDULER,
            sentence=(
                "A distributed crawl keeps its requests in its own store, and its processes need a"
                " scheduler in memory: one that keeps them elsewhere cannot take them, or mixes"
                " those of different jobs. Take SCHEDULER out of the settings (sdist shares the"
                " requests by itself), or crawl without sdist: -s DISTRIBUTED_ENABLED=0 with scrapy"
                " crawl."
            ),
        ),
        Difference(
            name="order of requests",
            meaning=_TOLD,
            settings=("SCHEDULER_*", "DEPTH_PRIORITY"),
            sentence=(
                "Scrapy orders all requests of the crawl by this; each process orders its own"
                " requests only, and batches go to the nodes as they are found. Do not rely on one"
                " page being crawled before another."
            ),
        ),
        Difference(
            name="spider middlewares beyond the targets",
            meaning=_TOLD,
            trait=Trait.BEYOND_TARGETS,
            sentence=(
                "Scrapy passes all requests that callbacks yield through its process_spider_output;"
                " with an order below 100 it does not get target requests there, and each job"
                " passes the requests of its batches through its process_start instead. Give it an"
                " order of more than 100."
            ),
        ),
        Difference(
            name="seen items of earlier crawls",
            meaning=_TOLD,
            components=(
                "scrapy_deltafetch.middleware.DeltaFetch",
                "scrapy_deltafetch.DeltaFetch",
                "scrapy_crawl_once.middlewares.CrawlOnceMiddleware",
                "scrapy_crawl_once.CrawlOnceMiddleware",
            ),
            sentence=(
                "It remembers in a file which pages gave an item; each node has a file of its own,"
                " so a page is crawled again when another node gets it. Keep what was seen in a"
                " database that all nodes reach."
            ),
        ),
    ),
    "Cookies, sessions, and what a spider remembers": (
        Difference(
            name="cookies of a session",
            meaning=_SAME,
            settings=("COOKIES_ENABLED",),
            sentence=(
                "Scrapy sends the cookies of its jar; those that it would send with a request"
                " travel with it. Cookies that a node receives stay in that job. For a session that"
                " each job must open, DISTRIBUTED_LOGIN names a method."
            ),
        ),
        Difference(
            name="attributes of the spider",
            meaning=_TOLD,
            trait=Trait.CHANGED_ATTRIBUTES,
            sentence=(
                "A callback sets them while the index is walked, and the callbacks of target pages"
                " or a component read them; a job's spider has its own, as `__init__` left them, so"
                " items may have wrong values. Hand them over in meta or cb_kwargs, or name them in"
                " DISTRIBUTED_SPIDER_ATTRIBUTES."
            ),
        ),
        Difference(
            name="attributes that target callbacks set",
            meaning=_TOLD,
            trait=Trait.KEPT_ATTRIBUTES,
            sentence=(
                "Scrapy has one spider for the whole crawl; each job has its own, so what these"
                " callbacks count or remember there is that of one job. Do not number items by it"
                " nor find repeats: that is for the output (sdist items merge CRAWL -O FILE --key"
                " FIELD)."
            ),
        ),
        Difference(
            name="what index callbacks hear of jobs",
            meaning=_TOLD,
            trait=Trait.UNHEARD_ON_INDEX,
            sentence=(
                "In Scrapy, callbacks of index pages see what other pages and items have set or"
                " counted; here target pages and their items stay in the jobs, and a walk that"
                " should end by them goes on to its last page. Let index pages show by themselves"
                " where to end, or count items over the whole crawl: --max-items N, or"
                " CLOSESPIDER_ITEMCOUNT with DISTRIBUTED_CLOSESPIDER = 'crawl'."
            ),
        ),
        Difference(
            name="what code remembers",
            meaning=_TOLD,
            trait=Trait.REMEMBERS,
            sentence=(
                "Scrapy has it once; each process counts and remembers for itself, and begins with"
                " nothing, so a limit, a number, a search for repeats, or what one page tells for"
                " another holds in one process only. A cache does no harm. Let the output find"
                " repeats (sdist items merge CRAWL -O FILE --key FIELD), or keep it on a server."
            ),
        ),
        Difference(
            name="what code holds back",
            meaning=_TOLD,
            trait=Trait.HOLDS_BACK,
            sentence=(
                "Scrapy has one such buffer, and loses what is left in it once, at the end; each"
                " process has its own, and what does not fill it there is lost, so items may be"
                " missing: all of them, where a job has fewer than the buffer waits for. Yield each"
                " item at once, let a pipeline gather them and write the rest in close_spider, or"
                " join them in the output."
            ),
        ),
        Difference(
            name="values that requests share",
            meaning=_TOLD,
            trait=Trait.SHARED_VALUES,
            sentence=(
                "In one process these requests have the same value in meta or cb_kwargs, and each"
                " callback sees what the others have changed; here each request has a copy of its"
                " own, so an item that waits for several pages may be missing. Let one page lead to"
                " the next, with the item in meta; or give each page an item, and join them in the"
                " output."
            ),
        ),
        Difference(
            name="spider_idle",
            meaning=_TOLD,
            trait=Trait.HANDLES_IDLE,
            sentence=(
                "Scrapy sends this signal when the whole crawl has nothing left to do. Here the"
                " process that walks the index calls the handler, and each worker, when nothing is"
                " left of its batches. What handlers of several workers ask for is fetched once, by"
                " one of them or (with --push) a later job. Let them do nothing else that must be"
                " done once. One that keeps the spider open and asks for nothing is heeded for a"
                " minute."
            ),
        ),
        Difference(
            name="engine.crawl",
            meaning=_SAME,
            trait=Trait.MAKES_REQUESTS,
            sentence=(
                "A component may give requests of its own to the engine; they are crawled where"
                " that component runs, and their items come home."
            ),
        ),
        Difference(
            name="requests that stay",
            meaning=_TOLD,
            trait=Trait.CANNOT_TRAVEL,
            sentence=(
                "A node cannot rebuild such a request, so the process that walks the index crawls"
                " it itself, as Scrapy does, and it is not spread. Give it a callback that is a"
                " method of the spider, a class of Scrapy's, and plain values."
            ),
        ),
        Difference(
            name="start that waits",
            meaning=_TOLD,
            trait=Trait.START_WAITS,
            sentence=(
                "All that the spider's start has asked for is done, and it has not ended: the crawl"
                " waits for it, as with Scrapy. But pages and items of the nodes send no signal to"
                " its process, so a start that waits for one waits for ever: sdist stop ends it."
            ),
        ),
        Difference(
            name="start that waits for items",
            meaning=_REFUSED,
            trait=Trait.START_WAITS_FOR_ITEMS,
            sentence=(
                "The spider's start waits for a signal of its items, and those of target pages are"
                " scraped on the nodes, which send no signal to its process: the crawl would never"
                " end. Let it give all its requests without waiting, or crawl without"
                " sdist: scrapy crawl, with -s DISTRIBUTED_ENABLED=0."
            ),
        ),
        Difference(
            name="start of the spider",
            meaning=_REFUSED,
            trait=Trait.SPIDER_START,
            sentence=(
                "Scrapyd gives each job's spider the argument `_job`, and an `__init__` of the"
                " spider or of a class that it is made from does not take it: no job would start."
                " Add `**kwargs` to it, and pass them on: `super().__init__(**kwargs)`."
            ),
        ),
    ),
    "Items and pipelines": (
        Difference(
            name="pipelines that remember",
            meaning=_TOLD,
            trait=Trait.DROPS_REPEATS,
            sentence=(
                "It drops an item by what it has seen before; each process has a pipeline of its"
                " own, which knows the items of that process only, so the crawl may have items that"
                " Scrapy would drop. Remove repeats from the output (sdist items merge CRAWL -O"
                " FILE --key FIELD), or keep what was seen in a database."
            ),
        ),
        Difference(
            name="pipelines that open files",
            meaning=_TOLD,
            trait=Trait.OPENS_FILES,
            sentence=(
                "Scrapy opens it once; here the producer opens it, too, and each job on a node"
                " opens its own: a file that is opened for writing is emptied here, and lies in"
                " pieces on the nodes. Write to a server, and insert or update by a key, or use -o."
            ),
        ),
        Difference(
            name="files that callbacks write",
            meaning=_TOLD,
            trait=Trait.WRITES_FILES,
            sentence=(
                "Scrapy writes such files on its one machine; each job writes those of its pages on"
                " the node on which it runs, below the folder of Scrapyd. Yield the content in an"
                " item, let FilesPipeline store it where all nodes reach, or write into a mounted"
                " folder by its absolute path."
            ),
        ),
        Difference(
            name="FEEDS",
            meaning=_SAME,
            settings=("FEEDS",),
            sentence=(
                "Scrapy writes a feed while it crawls; the items of all processes are written to it"
                " at the end of the crawl."
            ),
        ),
        Difference(
            name="FEEDS in code",
            meaning=_TOLD,
            trait=Trait.READS_FEEDS,
            sentence=(
                "Scrapy has the feeds in this setting; here it is empty in every process, since"
                " feeds are written when all items are there. --on-finish COMMAND gets the crawl's"
                " summary, which lists what was written."
            ),
        ),
        Difference(
            name="order of items",
            meaning=_TOLD,
            trait=Trait.FEED_IN_ORDER,
            sentence=(
                "Scrapy writes items as its one process scrapes them; here they come in the order"
                " of the batches, which differs from run to run. So each of several files"
                " (batch_item_count) has other items, and a compressed file (postprocessing) other"
                " bytes; taken together, the items are the same. Sort them by a field where their"
                " order counts."
            ),
        ),
        Difference(
            name="values of items",
            meaning=_TOLD,
            trait=Trait.AS_TEXT,
            sentence=(
                "Scrapy gives a value of any type to the exporter of a feed, and an exporter of"
                " JSON refuses an item with a value of these types; here each process writes its"
                " items as JSON, with the text of such a value. Let a pipeline make a text of it."
            ),
        ),
        Difference(
            name="columns of CSV files",
            meaning=_TOLD,
            trait=Trait.COLUMNS,
            sentence=(
                "Scrapy writes the fields of the first item only, and leaves out what other items"
                " have more; here the file has a column for each field of any item. To choose the"
                " columns, set FEED_EXPORT_FIELDS."
            ),
        ),
        Difference(
            name="folders for files",
            meaning=_TOLD,
            folders=("FILES_STORE", "IMAGES_STORE"),
            sentence=(
                "Scrapy stores files in this folder of its machine; each job stores them on the"
                " node on which it runs. Give a storage that all nodes reach, such as s3:// or"
                " ftp://, or a mounted folder."
            ),
        ),
        Difference(
            name="asynchronous pipelines",
            meaning=_SAME,
            sentence=(
                "A batch is done when the pipelines have finished with each of its items, as the"
                " spider is closed then by Scrapy."
            ),
        ),
        Difference(
            name="CONCURRENT_ITEMS",
            meaning=_SAME,
            settings=("CONCURRENT_ITEMS",),
            sentence=(
                "A value that a project sets is kept; without one, the profile takes 16 instead of"
                " 100, which changes no item (DISTRIBUTED_PROFILE = 'none' leaves it)."
            ),
        ),
    ),
    "Caches and files": (
        Difference(
            name="HTTP cache without a network",
            meaning=_REFUSED,
            trait=Trait.CACHE_ONLY,
            sentence=(
                "With HTTPCACHE_IGNORE_MISSING Scrapy makes no request at all, and answers from the"
                " cache in the project's folder; nodes do not have that folder, and would fetch"
                " each page. Crawl without sdist (scrapy crawl, with -s DISTRIBUTED_ENABLED=0),"
                " or set HTTPCACHE_DIR to an absolute path that all nodes share."
            ),
        ),
        Difference(
            name="HTTP cache",
            meaning=_TOLD,
            trait=Trait.CACHE,
            sentence=(
                "Scrapy answers from the cache in the project's folder; nodes do not have that"
                " folder, and there the cache is off: each page of the nodes is fetched from the"
                " site. Set HTTPCACHE_DIR to an absolute path that all nodes share, or crawl"
                " without sdist: scrapy crawl, with -s DISTRIBUTED_ENABLED=0."
            ),
        ),
        Difference(
            name="LOG_FILE",
            meaning=_TOLD,
            settings=("LOG_FILE",),
            sentence=(
                "Scrapy writes the whole log to this file; it gets the log of the producer, and"
                " each job's log stays on its node. sdist logs shows them as one."
            ),
        ),
    ),
    "Surroundings of a process": (
        Difference(
            name="environment variables",
            meaning=_TOLD,
            trait=Trait.ENVIRONMENT,
            sentence=(
                "Scrapy runs with the variables of this machine, and of a file .env here; each job"
                " has those of its node, where these may be missing or other ones. Set them, and"
                " secrets in any case, for Scrapyd on every node; or hand over what is no secret by"
                " -a NAME=VALUE or -s NAME=VALUE, which a node's list of jobs shows."
            ),
        ),
        Difference(
            name="files beside the packages",
            meaning=_TOLD,
            trait=Trait.FILES_BESIDE,
            sentence=(
                "Scrapy finds them here; nodes get the project's packages alone, and code that"
                " passes over what is missing goes on without it there, so items or settings may be"
                " other ones. Move them into a package: import a module from there, and read data"
                " by a path from `__file__` or with importlib.resources."
            ),
        ),
        Difference(
            name="folder of scrapy.cfg",
            meaning=_TOLD,
            trait=Trait.PROJECT_FOLDER,
            sentence=(
                "Scrapy looks for scrapy.cfg from the folder in which it is started, and has its"
                " folder .scrapy beside it; jobs find no scrapy.cfg: data_path and project_data_dir"
                " raise NotConfigured there, with which Scrapy leaves out a component, and"
                " closest_scrapy_cfg finds nothing. Use an absolute path that all nodes have, or"
                " put what is read into the project's package, with a path from `__file__`."
            ),
        ),
        Difference(
            name="components that are off on nodes",
            meaning=_TOLD,
            trait=Trait.COMPONENTS_OFF,
            sentence=(
                "Scrapy has it on here; in jobs it was off, as it raised NotConfigured there, or as"
                " the settings leave it out there: their items lack what it does. Give the nodes"
                " what it looks for: put a file into the project's package, and read it by a path"
                " from `__file__`; set variables for Scrapyd on every node; let nothing depend on"
                " scrapy.cfg. Then crawl again."
            ),
        ),
        Difference(
            name="arguments of the spider",
            meaning=_TOLD,
            trait=Trait.ALL_ARGUMENTS,
            sentence=(
                "Scrapy gives it the arguments of -a; a job gives it `_job`, too, and may give"
                " `_version`. Take them out before all arguments are used:"
                " kwargs.pop('_job', None)."
            ),
        ),
        Difference(
            name="values of one process",
            meaning=_TOLD,
            trait=Trait.MADE_ANEW,
            sentence=(
                "Scrapy makes such a value once in a crawl; each job makes its own, so items of one"
                " crawl have different ones. Give one value to all: -a NAME=VALUE, -s NAME=VALUE."
            ),
        ),
    ),
    "Limits and speed": (
        Difference(
            name="limits of one process",
            meaning=_TOLD,
            settings=(
                "CLOSESPIDER_ITEMCOUNT",
                "CLOSESPIDER_PAGECOUNT",
                "CLOSESPIDER_ERRORCOUNT",
                "CLOSESPIDER_TIMEOUT",
                "CLOSESPIDER_TIMEOUT_NO_ITEM",
                "CLOSESPIDER_PAGECOUNT_NO_ITEM",
            ),
            sentence=(
                "Scrapy counts over the whole crawl, and here each job counts for itself; a job"
                " that ends so has done its batch, and the rest of it is listed as misses."
                " DISTRIBUTED_CLOSESPIDER = 'crawl' counts over the whole crawl, and --limit tries"
                " a crawl."
            ),
        ),
        Difference(
            name="DEPTH_LIMIT",
            meaning=_SAME,
            settings=("DEPTH_LIMIT",),
            sentence=(
                "Scrapy counts the depth from the start page; the depth travels with each request,"
                " so the limit holds as in one process."
            ),
        ),
        Difference(
            name="pace of each process",
            meaning=_TOLD,
            settings=(
                *("DOWNLOAD_DELAY", "DOWNLOAD_SLOTS", "AUTOTHROTTLE_ENABLED"),
                *("CONCURRENT_REQUESTS", "CONCURRENT_REQUESTS_PER_DOMAIN"),
            ),
            sentence=(
                "Each job keeps to it alone, so four jobs make four times the requests of one"
                " process. sdist throttle set limits a site for all jobs together, and"
                " --max-jobs N the number of jobs."
            ),
        ),
        Difference(
            name="memory of one process",
            meaning=_TOLD,
            settings=("MEMUSAGE_LIMIT_MB", "MEMUSAGE_NOTIFY_MAIL"),
            sentence=(
                "Scrapy closes the crawl or sends mail when its process needs more memory; here"
                " each job does so for itself, and its work goes to another one."
            ),
        ),
        Difference(
            name="TELNETCONSOLE",
            meaning=_SAME,
            settings=("TELNETCONSOLE_*",),
            sentence=("Each process has its own console, on its own machine."),
        ),
    ),
    "Monitors and extensions": (
        Difference(
            name="monitors",
            meaning=_TOLD,
            components=(
                "spidermon.contrib.scrapy.extensions.Spidermon",
                "scrapy.extensions.statsmailer.StatsMailer",
                "scrapy.extensions.periodic_log.PeriodicLog",
            ),
            sentence=(
                "It judges the statistics of one process; here each job has some of the pages, and"
                " each would be judged as if it were the whole crawl. Switch it off"
                " (SPIDERMON_ENABLED = False), and judge the crawl: --min-items, --on-finish."
            ),
        ),
        Difference(
            name="STATS_CLASS",
            meaning=_TOLD,
            settings=("STATS_CLASS",),
            sentence=(
                "Scrapy collects the statistics of the whole crawl in it; each process has its own,"
                " with its own numbers. sdist jobs stats adds up what the jobs have counted."
            ),
        ),
        Difference(
            name="what is done at the end",
            meaning=_TOLD,
            trait=Trait.REPORTS_AT_END,
            sentence=(
                "Scrapy calls it once, when all is crawled; here it is called in the producer and"
                " in each job, with what that process has counted, on that process's machine: each"
                " writes or sends its own, and none is about the whole crawl. Do that once, with"
                " the crawl's own summary: --on-finish COMMAND."
            ),
        ),
        Difference(
            name="programs that watch their crawl",
            meaning=_TOLD,
            trait=Trait.IN_SCRIPT,
            sentence=(
                "Scrapy crawls all pages in the program's own process; here its handlers hear, and"
                " crawler.stats counts, only what the producer crawls itself: the pages and items"
                " of the nodes are not there, nor item_scraped_count. Read the output when the"
                " crawl has ended, or its summary: --on-finish COMMAND."
            ),
        ),
        Difference(
            name="extensions of the project",
            meaning=_TOLD,
            trait=Trait.OWN_EXTENSION,
            sentence=(
                "Scrapy makes it once; here each process has its own, which hears of the pages and"
                " items of that process, and of the end of that process."
            ),
        ),
    ),
    "Seen when a crawl ends": (
        Difference(
            name="no target request",
            meaning=_TOLD,
            trait=Trait.NO_TARGET,
            sentence=(
                "The index was walked, and not one request on it was for the nodes. sdist plan says"
                " which requests go there: name another callback or rule, or see whether the index"
                " still has links."
            ),
        ),
        Difference(
            name="no page",
            meaning=_TOLD,
            trait=Trait.NO_PAGE,
            sentence=(
                "The spider asked for no page: its start gave no request. If it reads standard"
                " input, give sdist crawl a pipe or a file: the crawl's process has no terminal."
            ),
        ),
        Difference(
            name="nothing was spread",
            meaning=_TOLD,
            trait=Trait.ALL_AT_HOME,
            sentence=(
                "No request went to the nodes: all of them were crawled by the producer, as Scrapy"
                " does it. The reasons are above."
            ),
        ),
        Difference(
            name="no item",
            meaning=_TOLD,
            trait=Trait.NO_ITEM,
            sentence=(
                "Not one page gave an item. If the spider writes its items itself, that is as it"
                " should be; else look at a job's log (sdist logs), or try one page with scrapy"
                " parse."
            ),
        ),
        Difference(
            name="links that are not followed",
            meaning=_TOLD,
            trait=Trait.LEFT_LINKS,
            sentence=(
                "Scrapy follows what rules find on these pages. Workers do not, where the pages are"
                " named by a rule's number or a mark, or are no target pages: what only such links"
                " lead to is missing. Name the callback of a rule with follow=True (--callback"
                " NAME, without --rule): then all requests of the rules go to the nodes, and"
                " workers follow them."
            ),
        ),
        Difference(
            name="pages found by several batches",
            meaning=_TOLD,
            trait=Trait.FOLLOWED_PAGES,
            sentence=(
                "Scrapy crawls each page once; a page that target pages lead to, or are redirected"
                " to, is crawled once for each batch that finds it, unless it is a target itself,"
                " even if the index has it. So the output has its items several times. Remove"
                " repeats, by a field that they have alike: sdist items merge CRAWL -O FILE --key"
                " FIELD."
            ),
        ),
    ),
}
#: name -> row
DIFFERENCES = {row.name: row for rows in GROUPS.values() for row in rows}


def by_trait(trait: Trait) -> Difference:
    """Return the row of a trait."""
    return next(row for row in DIFFERENCES.values() if row.trait is trait)
