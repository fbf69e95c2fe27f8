"""One reading of a fleet as Prometheus metrics: nodes, crawls, the throttle, what was done lately.

Dashboards rely on the names, labels and types: they do not change. No label has a password in it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from prometheus_client import Metric
from prometheus_client.registry import Collector

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.progress.summary_document import MISSED, count_in
from scrapyd_dist.report.time_window import WINDOWS, Samples, ended_since, growth
from scrapyd_dist.store import Store
from scrapyd_dist.version import __version__

#: labels and value
Sample = tuple[Mapping[str, str], float]
T = TypeVar("T")

#: seconds for which a crawl that has ended is still told in full, so that its last numbers are seen
RECENT = 3600.0
#: what a summary says of a whole crawl: name, kind, help, where it is in the summary
_OF_CRAWL = (
    (
        "urls_found_total",
        "counter",
        "URLs that the index pages had, with repeated ones.",
        ("urls_found",),
    ),
    ("requests", "gauge", "Target requests that are sealed in batches.", ("sealed",)),
    (
        "requests_done",
        "gauge",
        "Of these, how many ended. Falls when an attempt fails and its requests wait again.",
        ("requests", "done"),
    ),
    (
        "items",
        "gauge",
        "Items, also of attempts that run. Falls when an attempt fails, whose items do not count.",
        ("items",),
    ),
    ("pages", "gauge", "Pages that were fetched, also by attempts that run.", ("pages",)),
    ("index_pages_total", "counter", "Index pages that were walked.", ("index", "pages")),
    ("batches", "gauge", "Batches that were made of the requests.", ("batches", "total")),
    ("batches_done_total", "counter", "Batches with an accepted attempt.", ("batches", "done")),
    ("batches_dead_total", "counter", "Batches that were given up.", ("batches", "dead")),
    ("batches_waiting", "gauge", "Batches that wait for a node.", ("batches", "waiting")),
    ("attempts_sent_total", "counter", "Jobs that nodes took.", ("batches", "sent")),
    (
        "attempts_failed_total",
        "counter",
        "Jobs that did not do their batch.",
        ("batches", "failed"),
    ),
    ("attempts_out", "gauge", "Jobs that are out on nodes now.", ("batches", "out")),
)
#: what a summary says of each of its nodes: name, help, key
_OF_NODE = (
    ("jobs", "Jobs of the crawl that ended well on the node.", "jobs"),
    ("running", "Jobs of the crawl that are out on the node.", "running"),
    ("items", "Items of the crawl from the node, also of attempts that run.", "items"),
    ("pages", "Pages of the crawl from the node, also of attempts that run.", "pages"),
    ("failed", "Requests of the crawl that failed on the node.", "failed"),
)


class Measurements(Collector):
    """One reading of nodes and crawls; a metric without a sample is left out."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = [metric for metric in metrics if metric.samples]

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, as `prometheus_client` asks for them."""
        return self._metrics

    @property
    def number(self) -> int:
        """How many numbers there are."""
        return sum(len(metric.samples) for metric in self._metrics)


def measure(
    nodes: Sequence[NodeStatus],
    crawls: Sequence[Crawl],
    throttled: Mapping[str, int] | None = None,
    recent: Iterable[Metric] = (),
    *,
    now: float,
    took: float,
) -> Measurements:
    """Return all metrics.

    crawls: all of the store, the newest first; throttled: number of domains by state; now: seconds
    since the epoch; recent: of `rolling`; took: seconds that the collecting took.
    """
    shown = [
        crawl for crawl in crawls if not crawl.state.ended or now - (crawl.ended or 0.0) < RECENT
    ]
    found = [
        *_own_metrics(now, took),
        *_node_metrics(nodes),
        _count_crawls(crawls),
        *_crawl_metrics(shown),
        *_crawl_node_metrics(shown),
        *_last_crawl_metrics(crawls),
        *_throttle_metrics(throttled or {}),
        *recent,
    ]
    return Measurements(found)


def _own_metrics(now: float, took: float) -> Iterator[Metric]:
    version = [({"version": __version__}, 1)]
    yield _metric("build_info", "The version of scrapyd-dist, as a label of a 1.", version)
    yield _metric(
        "collected_timestamp_seconds",
        "When these numbers were collected.",
        [({}, round(now, 3))],
    )
    yield _metric(
        "collect_duration_seconds", "How long the collecting took.", [({}, round(took, 3))]
    )


def _node_metrics(nodes: Sequence[NodeStatus]) -> Iterator[Metric]:
    def each(name: str, text: str, value: Callable[[NodeStatus], float | None]) -> Metric:
        """Return a metric with a sample of each node for which there is a value."""
        return _metric(name, text, _samples(nodes, _node_labels, value))

    yield each("node_up", "Whether the node answers.", lambda seen: int(seen.load is not None))
    yield _metric(
        "node_jobs",
        "Jobs by state; of finished ones as many as the node remembers.",
        _node_job_samples(nodes),
    )
    yield each(
        "node_slots", "Process slots, where the target says them.", lambda seen: seen.node.slots
    )
    yield each(
        "node_draining",
        "Whether the node is to get no new work.",
        lambda seen: int(seen.draining is not None),
    )
    yield each(
        "node_wedged",
        "Whether jobs wait there and none is ever started.",
        lambda seen: int(seen.wedged),
    )
    yield each(
        "node_latency_seconds",
        "How long the node took to answer.",
        lambda seen: _rounded(seen.latency),
    )
    yield each(
        "node_clock_skew_seconds", "The node's clock minus the one here.", lambda seen: seen.skew
    )


def _node_job_samples(nodes: Iterable[NodeStatus]) -> Iterator[Sample]:
    for seen in nodes:
        if seen.load is None:
            continue
        labels = _node_labels(seen)
        yield {**labels, "state": "pending"}, seen.load.pending
        yield {**labels, "state": "running"}, seen.load.running
        yield {**labels, "state": "finished"}, seen.load.finished


def _node_labels(seen: NodeStatus) -> dict[str, str]:
    return {"node": seen.node.name, "url": seen.node.url}  # which has neither user nor password


def _count_crawls(crawls: Iterable[Crawl]) -> Metric:
    counts = Counter(crawl.state for crawl in crawls)
    states = [({"state": state.value}, counts[state]) for state in CrawlState]
    return _metric("crawls", "Crawls in the store, by state.", states)


def _crawl_metrics(crawls: Sequence[Crawl]) -> Iterator[Metric]:
    """Yield what is known of each of these crawls as a whole."""

    def each(value: Callable[[Crawl], float | None]) -> Iterator[Sample]:
        """Return a sample of each crawl for which there is a value."""
        return _samples(crawls, _labels, value)

    for name, kind, text, path in _OF_CRAWL:
        samples = each(partial(_number_at, path))
        yield _metric(f"crawl_{name}", text, samples, kind)
    text = "URLs without a result: gone, failed, dead with their batch, or index pages that failed."
    yield _metric("crawl_urls_missed_total", text, _missed_samples(crawls), "counter")
    totals = each(lambda crawl: count_in(crawl.summary, "index", "total") or None)
    yield _metric("crawl_index_pages", "Index pages that there are, where it is known.", totals)
    ages = each(lambda crawl: _rounded(crawl.summary.get("duration_s")) or 0)
    yield _metric("crawl_duration_seconds", "How long it has been running, or ran.", ages)
    running = each(lambda crawl: int(not crawl.state.ended))
    yield _metric("crawl_running", "Whether the crawl has not ended.", running)


def _number_at(path: Sequence[str], crawl: Crawl) -> float:
    return count_in(crawl.summary, *path)


def _missed_samples(crawls: Iterable[Crawl]) -> Iterator[Sample]:
    for crawl in crawls:
        for kind, key in MISSED.items():
            yield {**_labels(crawl), "kind": kind}, count_in(crawl.summary, key)


def _crawl_node_metrics(crawls: Sequence[Crawl]) -> Iterator[Metric]:
    """Yield what is known of each node of these crawls."""
    for metric_name, text, key in _OF_NODE:
        # A crawl's node is listed once; a number that its row lacks is no sample.
        samples: dict[tuple[str, str], Sample] = {}
        for crawl in crawls:
            for node in crawl.summary.get("nodes") or ():
                if key in node:
                    name = str(node.get("name"))
                    labels = {**_labels(crawl), "node": name}
                    samples[crawl.id, name] = (labels, count_in(node, key))
        yield _metric(f"crawl_node_{metric_name}", text, list(samples.values()))


def _last_crawl_metrics(crawls: Sequence[Crawl]) -> Iterator[Metric]:
    """Yield how the last crawl of each spider ended: what an alarm asks for."""
    last: dict[tuple[str, str], Crawl] = {}
    for crawl in crawls:
        if crawl.state.ended and crawl.ended is not None:
            last.setdefault((crawl.project, crawl.spider), crawl)

    def each(value: Callable[[Crawl], float | None]) -> Iterator[Sample]:
        """Return a sample of each last crawl for which there is a value."""
        return _samples(last.values(), _spider_labels, value)

    codes = each(lambda crawl: crawl.exit_code)
    yield _metric("last_crawl_exit_code", "Exit code of the spider's last crawl that ended.", codes)
    items = each(lambda crawl: count_in(crawl.summary, "items"))
    yield _metric("last_crawl_items", "Items of the spider's last crawl that ended.", items)
    ends = each(lambda crawl: round(crawl.ended or 0.0, 3))
    yield _metric("last_crawl_ended_timestamp_seconds", "When the spider's last crawl ended.", ends)


def _spider_labels(crawl: Crawl) -> dict[str, str]:
    return {"project": crawl.project, "spider": crawl.spider}


def _throttle_metrics(throttled: Mapping[str, int]) -> Iterator[Metric]:
    states: list[Sample] = []
    slowed: list[Sample] = []
    for state, count in throttled.items():
        if state == "slowed":
            slowed.append(({}, count))
        else:
            states.append(({"state": state}, count))
    yield _metric("throttle_domains", "Domains that the throttle knows, by state.", states)
    yield _metric(
        "throttle_slowed_domains",
        "Of these, how many are slower than their limits, for their sites.",
        slowed,
    )


@dataclass
class _RecentWork:
    """What was done in each window; the keys begin with the window and the spider."""

    ends: Counter[tuple[str, ...]] = field(default_factory=Counter)  #: by window, spider, outcome
    errors: Counter[tuple[str, ...]] = field(default_factory=Counter)  #: by window, spider
    codes: Counter[tuple[str, ...]] = field(default_factory=Counter)  #: by window, spider, status
    pages: Counter[tuple[str, ...]] = field(default_factory=Counter)  #: by window, spider
    items: Counter[tuple[str, ...]] = field(default_factory=Counter)  #: by window, spider

    def add_job(self, window: str, record: JobRecord) -> None:
        """Count a plain job that ended in the window."""
        key = (window, record.spider)
        self.ends[window, record.spider, record.state.value] += 1
        self.errors[key] += record.errors or 0
        self.pages[key] += record.pages or 0
        self.items[key] += record.items or 0
        for code, count in record.codes.items():
            self.codes[window, record.spider, code] += count

    def add_growth(self, window: str, spider: str, grown: Mapping[str, int]) -> None:
        """Count by how much a crawl has grown in the window."""
        key = (window, spider)
        self.pages[key] += grown.get("pages", 0)
        self.items[key] += grown.get("items", 0)


def rolling(
    records: Sequence[JobRecord], grown: Iterable[tuple[Crawl, Samples]], now: float
) -> Iterator[Metric]:
    """Yield what was done in the last minutes, hours and day.

    grown: the crawls that worked in the last day; now: seconds since the epoch.
    """
    work = _RecentWork()
    grown = list(grown)
    for window, seconds in WINDOWS.items():
        since = now - seconds
        for record in ended_since(records, since):
            work.add_job(window, record)
        for crawl, samples in grown:
            if crawl.ended is None or crawl.ended >= since:
                work.add_growth(window, crawl.spider, growth(crawl, samples, since))
    for name, counts in (("pages", work.pages), ("items", work.items)):
        yield _metric(
            f"recent_{name}",
            f"Of crawls, and of plain jobs that ended in the window: {name}.",
            _window_samples(counts),
        )
    yield _metric(
        "recent_job_ends",
        "Plain jobs that ended in the window, by outcome.",
        _window_samples(work.ends, "state"),
    )
    yield _metric(
        "recent_job_errors", "Errors that these jobs logged.", _window_samples(work.errors)
    )
    waiting = [record.state for record in records].count(Outcome.WAITING)
    yield _metric("jobs_waiting", "Plain jobs that wait in the store.", [({}, waiting)])
    yield _metric(
        "recent_job_responses",
        "Responses that these jobs got, by status code.",
        _window_samples(work.codes, "status"),
    )


def _window_samples(
    counts: Mapping[tuple[str, ...], int], third_label: str = ""
) -> Iterator[Sample]:
    """Yield a sample for each key, whose parts are window, spider and, where named, a third one."""
    names = ("window", "spider", third_label)
    for key, count in counts.items():
        yield dict(zip(names, key, strict=False)), count


def _samples(
    subjects: Iterable[T],
    labels: Callable[[T], Mapping[str, str]],
    value: Callable[[T], float | None],
) -> Iterator[Sample]:
    """Yield a sample of each subject for which there is a value."""
    for subject in subjects:
        amount = value(subject)
        if amount is not None:
            yield labels(subject), amount


def _labels(crawl: Crawl) -> dict[str, str]:
    return {"crawl": crawl.id, "spider": crawl.spider}


def _metric(
    name: str, text: str, samples: Iterable[tuple[Mapping[str, str], Any]], kind: str = "gauge"
) -> Metric:
    # The library writes a counter's suffix.
    metric = Metric(f"sdist_{name}".removesuffix("_total"), text, kind)
    for labels, value in samples:
        clean = {label: _writable(word) for label, word in labels.items()}
        metric.add_sample(f"sdist_{name}", clean, value)
    return metric


def _writable(word: str) -> str:
    """Return a name without lone surrogates: one of a foreign file must not spoil the text."""
    return word.encode("utf-8", "replace").decode("utf-8")


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return round(value, 3)


def samples_since(
    store: Store, crawls: Iterable[Crawl], since: float
) -> Iterator[tuple[Crawl, Samples]]:
    """Yield the crawls that worked after this time, with the samples of their growth.

    since: seconds since the epoch.
    """
    for crawl in crawls:
        if crawl.ended is None or crawl.ended > since:
            yield crawl, store.samples(crawl.id)
