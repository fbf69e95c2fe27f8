"""How long a crawl will take, from what a few of its pages cost. Pure arithmetic: docs/explanation/speed.md."""

from dataclasses import dataclass, replace

#: seconds from the command to the first index page, as a multiple of a process's start: the command, and the producer
BEGIN = 2.0
#: seconds until a node looks into its queue, and from the last page to the end: the last parts are fetched and merged
QUEUE, END = 0.3, 0.5
#: processor seconds that a detail page costs in a crawl beyond what the probe sees: lease, marks, item, part, merging
BOOKKEEPING = 0.0005


@dataclass(frozen=True, kw_only=True)
class PageCost:
    """What a page of one kind costs, on average."""

    pages: int = 0  #: that were fetched
    latency: float = 0.0  #: seconds until the site answers
    processor: float = 0.0  #: seconds of this machine's processor


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What a probe found out, and how requests leave by the project's settings."""

    index: PageCost
    detail: PageCost
    targets: int  #: different target requests on these index pages
    whole: bool  #: there are no other index pages
    lanes: int  #: index pages that can be asked for at one time
    concurrency: float  #: requests of one process at one time
    spacing: float  #: seconds between two requests of one process, at least
    start: float  #: processor seconds of a Scrapy process until its first request


@dataclass(frozen=True, kw_only=True)
class CrawlShape:
    """What the plan says of the crawl."""

    pages: int | None  #: index pages; None: not known
    limit: int  #: target requests, at most; 0: all
    workers: int
    local: int  #: of these, on this machine
    cores: int  #: of this machine
    batch: int = 0  #: requests in each batch that is a job of its own; 0: workers live long


@dataclass(frozen=True, kw_only=True)
class CrawlForecast:
    """What to expect; None: it cannot be told without the number of index pages. Rates are in pages per second."""

    index_rate: float
    targets_per_page: float
    worker_rate: float  #: of one worker, with a processor of its own
    expected: int | None  #: detail pages
    bottleneck: str  #: `index`, `detail` or `processor`
    seconds: float | None


def forecast(probed: Probed, crawl: CrawlShape) -> CrawlForecast:
    """What to expect of a crawl: the longest of its index, its workers' pages and this machine's work decides."""
    index, per_page = (
        probed.index,
        probed.targets / probed.index.pages if probed.index.pages else 0.0,
    )
    detail = replace(probed.detail, processor=probed.detail.processor + BOOKKEEPING)
    pages = index.pages if probed.whole else crawl.pages
    expected = (
        probed.targets if probed.whole else None if pages is None else round(per_page * pages)
    )
    if crawl.limit:
        expected = crawl.limit if expected is None else min(expected, crawl.limit)
    details = probed.targets if expected is None else expected
    walked = details / per_page if per_page else 0.0
    # a walk asks for its next page when the callback of the last one has ended
    index_rate = _rate(probed, index, min(probed.lanes, probed.concurrency), after=index.processor)
    worker_rate = _rate(probed, detail, probed.concurrency)
    work = walked * index.processor + details * detail.processor * crawl.local / crawl.workers
    starts = max(1, details / crawl.batch / crawl.workers) if crawl.batch else 1
    spans = {
        "index": walked / index_rate,
        "detail": starts * (QUEUE + probed.start) + details / (crawl.workers * worker_rate),
        "processor": QUEUE + (crawl.local * starts * probed.start + work) / crawl.cores,
    }
    bottleneck = max(spans, key=spans.__getitem__)
    return CrawlForecast(
        index_rate=index_rate,
        targets_per_page=per_page,
        worker_rate=worker_rate,
        expected=expected,
        bottleneck=bottleneck,
        seconds=None if expected is None else BEGIN * probed.start + spans[bottleneck] + END,
    )


def _rate(probed: Probed, cost: PageCost, at_once: float, *, after: float = 0.0) -> float:
    """Pages per second of a process with so many requests under way, each made `after` seconds."""
    return 1 / max(cost.processor, (cost.latency + after) / max(1, at_once), probed.spacing, 1e-6)
