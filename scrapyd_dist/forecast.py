"""Forecasts how long a crawl will take, from what a few of its pages cost.

Pure arithmetic, explained in docs/explanation/benchmarks.md.
"""

from dataclasses import dataclass, replace

#: seconds from the command to the first index page, as a multiple of a process's start: there are
#: the command and the producer
BEGIN = 2.0
#: seconds until a node looks into its queue
QUEUE = 0.3
#: seconds from the last page to the end: the last parts are fetched and merged
END = 0.5
#: processor seconds that a detail page costs in a crawl beyond what the probe sees: lease, marks,
#: item, part, merging
BOOKKEEPING = 0.0005
#: seconds between two pages of one process, at least: no rate is infinite
_LEAST_SPACING = 1e-6


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
    """What to expect of a crawl; rates are in pages per second.

    None: it cannot be said without the number of index pages.
    """

    index_rate: float
    targets_per_page: float
    worker_rate: float  #: of one worker, with a processor of its own
    expected: int | None  #: detail pages
    bottleneck: str  #: `index`, `detail` or `processor`
    seconds: float | None


def forecast(probed: Probed, crawl: CrawlShape) -> CrawlForecast:
    """Return what to expect of a crawl.

    The longest of its index, its workers' pages and this machine's work decides.
    """
    index = probed.index
    detail = replace(probed.detail, processor=probed.detail.processor + BOOKKEEPING)
    targets_per_page = probed.targets / index.pages if index.pages else 0.0
    expected = _expect_targets(probed, crawl, targets_per_page)
    details = probed.targets if expected is None else expected
    index_pages = details / targets_per_page if targets_per_page else 0.0
    # A walk asks for its next page when the callback of the last one has ended.
    index_rate = _compute_rate(
        probed, index, min(probed.lanes, probed.concurrency), after=index.processor
    )
    worker_rate = _compute_rate(probed, detail, probed.concurrency)
    starts = _count_starts(crawl, details)
    work = index_pages * index.processor + details * detail.processor * crawl.local / crawl.workers
    spans = {
        "index": index_pages / index_rate,
        "detail": starts * (QUEUE + probed.start) + details / (crawl.workers * worker_rate),
        "processor": QUEUE + (crawl.local * starts * probed.start + work) / crawl.cores,
    }
    bottleneck = max(spans, key=spans.__getitem__)
    seconds = None
    if expected is not None:
        seconds = BEGIN * probed.start + spans[bottleneck] + END
    return CrawlForecast(
        index_rate=index_rate,
        targets_per_page=targets_per_page,
        worker_rate=worker_rate,
        expected=expected,
        bottleneck=bottleneck,
        seconds=seconds,
    )


def _expect_targets(probed: Probed, crawl: CrawlShape, targets_per_page: float) -> int | None:
    """Return how many target requests the crawl will make; None if that is not known."""
    if probed.whole:
        expected = probed.targets
    elif crawl.pages is not None:
        expected = round(targets_per_page * crawl.pages)
    else:
        return crawl.limit or None
    if crawl.limit:
        return min(expected, crawl.limit)
    return expected


def _count_starts(crawl: CrawlShape, details: int) -> float:
    """Return how many processes each worker is, one after the other."""
    if not crawl.batch:
        return 1
    return max(1, details / crawl.batch / crawl.workers)


def _compute_rate(probed: Probed, cost: PageCost, at_once: float, *, after: float = 0.0) -> float:
    """Return the pages per second of a process with so many requests under way.

    A request is made `after` seconds, once the page before it has come.
    """
    waiting = (cost.latency + after) / max(1, at_once)
    return 1 / max(cost.processor, waiting, probed.spacing, _LEAST_SPACING)
