"""`sdist nodes metrics`: nodes and crawls as Prometheus metrics.

Dashboards rely on the names, labels and types: they do not change. No label has a password in it.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.progress import MISSED, number
from scrapyd_dist.report.time_window import WINDOWS, Samples, ended_since, growth
from scrapyd_dist.version import __version__
from scrapyd_dist.whole_files import replacing

from ..context import Context
from ..crawls.throttle_commands import rows_of, standing
from ..jobs.jobs_table import look_back
from ..node_status import look, recognise
from ..options import Nodes, Timeout, option
from ..output import say

Sample = tuple[Mapping[str, str], float]  # labels and value

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
        return self._metrics


def measure(
    nodes: Sequence[NodeStatus],
    crawls: Sequence[Crawl],
    throttled: Mapping[str, int] | None = None,
    recent: Iterable[Metric] = (),
    *,
    now: float,
    took: float,
) -> Measurements:
    """All metrics.

    crawls: all of the store, the newest first; throttled: number of domains by state; now: seconds since the epoch;
    recent: of `rolling`; took: seconds that the collecting took.
    """
    told = [
        crawl for crawl in crawls if not crawl.state.ended or now - (crawl.ended or 0.0) < RECENT
    ]
    own = (
        _metric(
            "build_info",
            "The version of scrapyd-dist, as a label of a 1.",
            [({"version": __version__}, 1)],
        ),
        _metric(
            "collected_timestamp_seconds",
            "When these numbers were collected.",
            [({}, round(now, 3))],
        ),
        _metric(
            "collect_duration_seconds", "How long the collecting took.", [({}, round(took, 3))]
        ),
    )
    counts = Counter(crawl.state for crawl in crawls)
    states: list[Sample] = [({"state": state.value}, counts[state]) for state in CrawlState]
    of_crawls = [
        _metric("crawls", "Crawls in the store, by state.", states),
        *_told(told),
        *_by_node(told),
    ]
    return Measurements(
        [*own, *_nodes(nodes), *of_crawls, *_last(crawls), *_throttle(throttled or {}), *recent]
    )


def _nodes(nodes: Sequence[NodeStatus]) -> Iterator[Metric]:
    def each(name: str, text: str, value: Callable[[NodeStatus], float | None]) -> Metric:
        samples = [
            (_node_labels(seen), told) for seen in nodes if (told := value(seen)) is not None
        ]
        return _metric(name, text, samples)

    yield each("node_up", "Whether the node answers.", lambda seen: int(seen.load is not None))
    jobs = [
        ({**_node_labels(seen), "state": state}, count)
        for seen in nodes
        if seen.load is not None
        for state, count in (
            ("pending", seen.load.pending),
            ("running", seen.load.running),
            ("finished", seen.load.finished),
        )
    ]
    yield _metric(
        "node_jobs", "Jobs by state; of finished ones as many as the node remembers.", jobs
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


def _node_labels(seen: NodeStatus) -> dict[str, str]:
    return {"node": seen.node.name, "url": seen.node.url}  # which has neither user nor password


def _told(crawls: Sequence[Crawl]) -> Iterator[Metric]:
    for name, kind, text, path in _OF_CRAWL:
        samples = [(_labels(crawl), number(crawl.summary, *path)) for crawl in crawls]
        yield _metric(f"crawl_{name}", text, samples, kind)
    missed = [
        ({**_labels(crawl), "kind": kind}, number(crawl.summary, key))
        for crawl in crawls
        for kind, key in MISSED.items()
    ]
    text = "URLs without a result: gone, failed, dead with their batch, or index pages that failed."
    yield _metric("crawl_urls_missed_total", text, missed, "counter")
    totals = [
        (_labels(crawl), total)
        for crawl in crawls
        if (total := number(crawl.summary, "index", "total"))
    ]
    yield _metric("crawl_index_pages", "Index pages that there are, where it is known.", totals)
    ages: list[Sample] = [
        (_labels(crawl), _rounded(crawl.summary.get("duration_s")) or 0) for crawl in crawls
    ]
    yield _metric("crawl_duration_seconds", "How long it has been running, or ran.", ages)
    running: list[Sample] = [(_labels(crawl), int(not crawl.state.ended)) for crawl in crawls]
    yield _metric("crawl_running", "Whether the crawl has not ended.", running)


def _by_node(crawls: Sequence[Crawl]) -> Iterator[Metric]:
    rows = [(crawl, node) for crawl in crawls for node in crawl.summary.get("nodes") or ()]
    for name, text, key in _OF_NODE:
        # A crawl's node is listed once; a number that its row lacks is no sample.
        samples = {
            (crawl.id, str(node.get("name"))): (
                {**_labels(crawl), "node": str(node.get("name"))},
                number(node, key),
            )
            for crawl, node in rows
            if key in node
        }
        yield _metric(f"crawl_node_{name}", text, list(samples.values()))


def _last(crawls: Sequence[Crawl]) -> Iterator[Metric]:
    """The last crawl of each spider that has ended: what an alarm asks for."""
    last: dict[tuple[str, str], Crawl] = {}
    for crawl in crawls:
        if crawl.state.ended and crawl.ended is not None:
            last.setdefault((crawl.project, crawl.spider), crawl)
    rows = [
        ({"project": project, "spider": spider}, crawl) for (project, spider), crawl in last.items()
    ]
    codes: list[Sample] = [
        (labels, crawl.exit_code) for labels, crawl in rows if crawl.exit_code is not None
    ]
    yield _metric("last_crawl_exit_code", "Exit code of the spider's last crawl that ended.", codes)
    items: list[Sample] = [(labels, number(crawl.summary, "items")) for labels, crawl in rows]
    yield _metric("last_crawl_items", "Items of the spider's last crawl that ended.", items)
    ends: list[Sample] = [(labels, round(crawl.ended or 0.0, 3)) for labels, crawl in rows]
    yield _metric("last_crawl_ended_timestamp_seconds", "When the spider's last crawl ended.", ends)


def _throttle(throttled: Mapping[str, int]) -> Iterator[Metric]:
    states: list[Sample] = [
        ({"state": word}, count) for word, count in throttled.items() if word != "slowed"
    ]
    yield _metric("throttle_domains", "Domains that the throttle knows, by state.", states)
    slow: list[Sample] = [({}, throttled["slowed"])] if "slowed" in throttled else []
    yield _metric(
        "throttle_slowed_domains",
        "Of these, how many are slower than their limits, for their sites.",
        slow,
    )


def rolling(
    records: Sequence[JobRecord], grown: Iterable[tuple[Crawl, Samples]], now: float
) -> Iterator[Metric]:
    """What was done in the last minutes, hours and day; grown: the crawls that worked in the last day."""
    ends, errors, codes = (
        Counter[tuple[str, ...]](),
        Counter[tuple[str, ...]](),
        Counter[tuple[str, ...]](),
    )
    work: dict[str, Counter[tuple[str, ...]]] = {"pages": Counter(), "items": Counter()}
    grown = list(grown)
    for window, seconds in WINDOWS.items():
        for record in ended_since(records, now - seconds):
            key = (window, record.spider)
            ends[(*key, record.state.value)] += 1
            errors[key] += record.errors or 0
            work["pages"][key] += record.pages or 0
            work["items"][key] += record.items or 0
            for code, count in record.codes.items():
                codes[(*key, code)] += count
        for crawl, samples in grown:
            if crawl.ended is None or crawl.ended >= now - seconds:
                for name, count in growth(crawl, samples, now - seconds).items():
                    work[name][window, crawl.spider] += count
    for name, counts in work.items():
        yield _metric(
            f"recent_{name}",
            f"Of crawls, and of plain jobs that ended in the window: {name}.",
            _windows(counts),
        )
    yield _metric(
        "recent_job_ends",
        "Plain jobs that ended in the window, by outcome.",
        _windows(ends, "state"),
    )
    yield _metric("recent_job_errors", "Errors that these jobs logged.", _windows(errors))
    waiting = sum(record.state is Outcome.WAITING for record in records)
    yield _metric("jobs_waiting", "Plain jobs that wait in the store.", [({}, waiting)])
    yield _metric(
        "recent_job_responses",
        "Responses that these jobs got, by status code.",
        _windows(codes, "status"),
    )


def _windows(counts: Mapping[tuple[str, ...], int], more: str = "") -> list[Sample]:
    names = ("window", "spider", more)
    return [(dict(zip(names, key, strict=False)), count) for key, count in counts.items()]


def _labels(crawl: Crawl) -> dict[str, str]:
    return {"crawl": crawl.id, "spider": crawl.spider}


def _metric(
    name: str, text: str, samples: Iterable[tuple[Mapping[str, str], Any]], kind: str = "gauge"
) -> Metric:
    metric = Metric(
        f"sdist_{name}".removesuffix("_total"), text, kind
    )  # the library writes a counter's suffix
    for labels, value in samples:
        # A name may come from a foreign file: a lone surrogate in it must not spoil the whole text.
        clean = {
            label: word.encode("utf-8", "replace").decode("utf-8") for label, word in labels.items()
        }
        metric.add_sample(f"sdist_{name}", clean, value)
    return metric


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def metrics(
    *,
    context: Context,
    textfile: Annotated[
        Path | None,
        option(
            "Write to this file, for node_exporter's textfile collector: FILE.prom.", metavar="FILE"
        ),
    ] = None,
    node: Nodes = None,
    timeout: Timeout = 5.0,  # Prometheus itself waits ten for all of it
) -> None:
    """Print how the nodes and the crawls stand, in the text format of Prometheus.

    Nodes: up, jobs, latency, clock skew. Crawls: how many of each state, and of
    each that runs what was found, sent, done and failed. Domains of the throttle:
    how many stand how. The last 15 minutes, hour and day: pages and items by
    spider, and how plain jobs ended. A node that is down is a number too, so the
    exit code is 0. A textfile is replaced as a whole: run this from cron or a timer.

    Example: sdist nodes metrics --textfile /var/lib/node_exporter/sdist.prom
    """
    if textfile is not None and not textfile.absolute().parent.is_dir():
        raise ConfigError(
            f"There is no folder {textfile.absolute().parent} for the textfile; make it first."
        )
    began = time.time()
    seen: list[NodeStatus] = []
    if node or context.all_nodes:
        seen = look(context.sender, context.nodes(node), None, timeout)
        recognise(context, context.sender, seen, timeout)
    store = context.store_if_any
    crawls = store.crawls() if store is not None else []
    domains = rows_of(store)[0] if store is not None else []
    throttled = standing(domains) if domains else {}
    up, since = [one.node for one in seen if one.load is not None], began - max(WINDOWS.values())
    records = look_back(context, up, timeout=timeout, since=since).records
    worked = [crawl for crawl in crawls if crawl.ended is None or crawl.ended > since]
    grown = [(crawl, store.samples(crawl.id)) for crawl in worked] if store is not None else []
    recent = rolling([*records.values()], grown, began)
    measured = measure(seen, crawls, throttled, recent, now=began, took=time.time() - began)
    if textfile is None:
        typer.echo(generate_latest(measured), nl=False)
        return
    with replacing(textfile) as file:
        os.fchmod(file.fileno(), 0o644)  # the collector is another user
        file.write(generate_latest(measured))
    say(f"{sum(len(metric.samples) for metric in measured.collect())} numbers in {textfile}.")
