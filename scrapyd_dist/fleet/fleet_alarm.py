"""Finds the troubles of a fleet, by what a watch sees of nodes and what the store has.

The rule it keeps: what cannot be told now, since a node or the store does not answer, is neither
trouble nor well.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scrapyd_dist.batches import AttemptState, Crawl, FinishReason
from scrapyd_dist.config import state_dir
from scrapyd_dist.errors import StoreError
from scrapyd_dist.fleet.live_crawls import lives
from scrapyd_dist.fleet.present_troubles import (
    death_of_crawl,
    failure_of_crawl,
    failure_of_job,
    job_trouble,
    node_trouble,
    shortage_of_items,
)
from scrapyd_dist.fleet.trouble_log import TroubleLog
from scrapyd_dist.fleet.troubles import Sighting, TroubleKind
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.joblogs.verdict import STALL
from scrapyd_dist.messenger import NO_MESSENGER, Messenger
from scrapyd_dist.progress.summary_document import count_in, is_paused, summary_of
from scrapyd_dist.store import Store
from scrapyd_dist.time_spans import describe_span
from scrapyd_dist.transports.event_hook import EventHook

#: seconds without an answer after which a node is down
DOWN = 30.0
#: seconds between two looks at what the store has of jobs and crawls
STORE_LOOK = 10.0
#: seconds for which a node counts as full after a job has ended there for want of disk
FULL = 600.0
_FILE = "troubles.json"
#: kinds that are over when the node is none of the fleet any more
_OF_NODES = (TroubleKind.NODE_DOWN, TroubleKind.NODE_WEDGED, TroubleKind.JOB_STALLED)


@dataclass
class CrawlPace:
    """Whether a crawl moves on."""

    counts: tuple[object, ...] = ()
    changed: float | None = None  #: when that was seen, by the monotonic clock; None: not yet
    since: float = 0.0  #: when it was seen first

    def saw(self, counts: tuple[object, ...], now: float) -> None:
        """Take in the counts that the crawl has now, by the monotonic clock."""
        if not self.counts:
            self.since = now
        elif counts != self.counts:
            self.changed = now
        self.counts = counts

    def still(self, now: float) -> float:
        """Return the seconds for which nothing has changed."""
        return now - (self.changed or self.since)


class FleetAlarm:
    """Looks for troubles in what a watch of the fleet sees, and in the store.

    hook: the command or address that is told; recent_jobs: gives what is remembered of plain jobs
    that are open or ended in the last day; messenger: gets what could not be found out or told.
    """

    def __init__(
        self,
        workspace: Workspace,
        hook: EventHook,
        recent_jobs: Callable[[], Iterable[JobRecord]],
        messenger: Messenger = NO_MESSENGER,
    ) -> None:
        self._workspace = workspace
        self._recent_jobs = recent_jobs
        self._messenger = messenger
        self._log = TroubleLog(state_dir(workspace.root) / _FILE, hook, messenger)
        self._began: float | None = None  #: when the first look was, by the monotonic clock
        self._down: dict[str, float] = {}  #: name of a node -> since when it does not answer
        self._paces: dict[str, CrawlPace] = {}
        self._resting: set[str] = set()  #: crawls that are paused
        self._looked: float | None = None  #: when the store was read last, by the monotonic clock
        self._trouble = ""  #: why it could not be read, as was complained of

    def check(self, document: Mapping[str, Any], now: float) -> None:
        """Tell what is new; document: of `FleetWatch`, now: by the monotonic clock."""
        self._began = now if self._began is None else self._began
        sightings: list[Sighting] = []
        names = set()
        for node in document["nodes"]:
            names.add(str(node["name"]))
            sightings += self._node_sightings(node, now)
        sightings += self._gone_node_sightings(names)
        if self._looked is None or now - self._looked >= STORE_LOOK:
            self._looked = now
            try:
                sightings += self._store_sightings(self._workspace.store_if_any, now)
                self._trouble = ""
            except StoreError as error:
                if str(error) != self._trouble:
                    self._messenger.complain(f"{error} So jobs and crawls are not looked after.")
                self._trouble = str(error)
        self._log.report(sightings)

    def _node_sightings(self, node: Mapping[str, Any], now: float) -> Iterator[Sighting]:
        name = str(node["name"])
        down = TroubleKind.NODE_DOWN
        if node["running"] is None and node.get("draining"):
            self._down.pop(name, None)  # it may be away for as long as it likes
            return
        if node["running"] is None:
            if now - self._down.setdefault(name, now) >= DOWN:
                message = node_trouble(node)
                yield Sighting(kind=down, subject=name, node=name, message=message)
            return
        self._down.pop(name, None)
        yield Sighting(kind=down, subject=name, node=name)
        message = node_trouble(node)
        yield Sighting(kind=TroubleKind.NODE_WEDGED, subject=name, node=name, message=message)
        yield from self._job_sightings(node, now)

    def _gone_node_sightings(self, names: Container[str]) -> Iterator[Sighting]:
        """Say that all is well with nodes that are none of the fleet any more."""
        self._down = {name: since for name, since in self._down.items() if name in names}
        kinds = {kind.value: kind for kind in _OF_NODES}
        for event in self._log.open.values():
            if event["kind"] in kinds and event["node"] not in names:
                kind = kinds[event["kind"]]
                yield Sighting(kind=kind, subject=event["subject"], node=event["node"])

    def _job_sightings(self, node: Mapping[str, Any], now: float) -> Iterator[Sighting]:
        kind = TroubleKind.JOB_STALLED
        name = str(node["name"])
        running = set()
        for job in node["jobs"]:
            if job["crawl"] in self._resting:
                continue
            job_id = str(job["job"])
            running.add(job_id)
            if message := job_trouble(job, name):
                yield Sighting(kind=kind, subject=job_id, node=name, message=message)
            elif job["silent_s"] is not None and now - (self._began or now) >= STALL:
                yield Sighting(kind=kind, subject=job_id, node=name)
        for before in self._log.open.values():
            is_here = (before["kind"], before["node"]) == (kind.value, name)
            if is_here and before["subject"] not in running:
                yield Sighting(kind=kind, subject=before["subject"], node=name)

    # what the store has

    def _store_sightings(self, store: Store | None, now: float) -> Iterator[Sighting]:
        yield from self._ended_job_sightings()
        crawls = [] if store is None else store.crawls()
        self._resting = {crawl.id for crawl in crawls if crawl.wanted == "pause"}
        for crawl in crawls:
            yield from self._crawl_sightings(crawl, now)
        yield from self._ended_crawl_sightings(crawls)
        if store is not None:
            yield from self._full_node_sightings(store, crawls)

    def _ended_job_sightings(self) -> Iterator[Sighting]:
        """Say of plain jobs that have ended whether they ended well, in the order of their ends."""
        records = sorted(self._recent_jobs(), key=lambda record: record.ended or 0.0)
        rows = [(record.id, record.created, record.state.over) for record in records]
        ends = self._log.ends["jobs"].new(rows, time.time())
        for record in records:
            if record.id in ends:
                yield from _job_end_sightings(record)

    def _ended_crawl_sightings(self, crawls: Sequence[Crawl]) -> Iterator[Sighting]:
        """Say of crawls that have ended whether they ended well, with as many items as usual."""
        real = [crawl for crawl in crawls if crawl.kind != "frontier"]
        rows = [(crawl.id, crawl.created, crawl.state.ended) for crawl in real]
        ends = self._log.ends["crawls"].new(rows, time.time())
        for crawl in sorted(real, key=lambda crawl: crawl.ended or 0.0):
            if crawl.id in ends:
                yield from _crawl_end_sightings(crawl)

    def _crawl_sightings(self, crawl: Crawl, now: float) -> Iterator[Sighting]:
        kind = TroubleKind.CRAWL_STALLED
        if not _has_work(crawl) or is_paused(summary_of(crawl)) or crawl.wanted == "pause":
            self._paces.pop(crawl.id, None)
            yield Sighting(kind=kind, subject=crawl.id)
            return
        if message := death_of_crawl(crawl):
            yield Sighting(kind=kind, subject=crawl.id, message=message)
            return
        pace = self._paces.setdefault(crawl.id, CrawlPace())
        counts: list[object] = [crawl.state, count_in(crawl.summary, "requests", "done")]
        for name in ("pages", "items", "urls_found"):
            count = count_in(crawl.summary, name)
            counts.append(count)
        pace.saw(tuple(counts), now)
        if pace.still(now) >= STALL:
            message = (
                f"The crawl {crawl.id} makes no progress for {describe_span(pace.still(now))}."
            )
            yield Sighting(kind=kind, subject=crawl.id, message=message)
        elif pace.changed is not None:
            yield Sighting(kind=kind, subject=crawl.id)

    def _full_node_sightings(self, store: Store, crawls: Iterable[Crawl]) -> Iterator[Sighting]:
        """Say of each node whether a job of a crawl that runs has ended there for want of disk."""
        full: set[str] = set()
        for crawl in crawls:
            if crawl.state.ended:
                continue
            for attempt in store.attempts(crawl.id, {AttemptState.FAILED}):
                is_late = time.time() - (attempt.ended_at or 0.0) < FULL
                if is_late and FinishReason.DISK_FULL.value in attempt.reason:
                    full.add(attempt.url)
        for node in self._workspace.known_nodes():
            message = ""
            if node.url in full:
                message = f"A job on {node.name} ended for want of disk."
            yield Sighting(
                kind=TroubleKind.NODE_FULL, subject=node.name, node=node.name, message=message
            )


def _has_work(crawl: Crawl) -> bool:
    if crawl.state.ended:
        return False
    if crawl.kind != "frontier":
        return True
    # Without a process, or without work, a frontier waits.
    batches = crawl.summary.get("batches")
    return lives(crawl) and bool(count_in(batches, "waiting") or count_in(batches, "out"))


def _crawl_end_sightings(crawl: Crawl) -> Iterator[Sighting]:
    """Say how a crawl ended; the next good one of its spider makes it well."""
    few = shortage_of_items(crawl)
    failure = failure_of_crawl(crawl)
    if failure or crawl.exit_code == 0:
        yield Sighting(kind=TroubleKind.CRAWL_FAILED, subject=crawl.spider, message=failure)
    yield Sighting(kind=TroubleKind.FEW_ITEMS, subject=crawl.spider, message=few)


def _job_end_sightings(record: JobRecord) -> Iterator[Sighting]:
    """Say how a plain job ended; the next good one of its spider makes it well."""
    kind = TroubleKind.JOB_FAILED
    subject = f"{record.project}/{record.spider}"
    if message := failure_of_job(record):
        yield Sighting(kind=kind, subject=subject, node=record.node, message=message)
    elif record.state is Outcome.FINISHED:
        yield Sighting(kind=kind, subject=subject, node=record.node)
