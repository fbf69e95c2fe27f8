"""Tell a command or an address of a fleet's troubles: once each, and again when all is well.

The rule it keeps: what cannot be told now, since a node or the store does not answer, is neither
trouble nor well. What was told is kept in the state folder, so that a watch that is started again
does not tell it again.
"""

import json
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from scrapyd_dist.middlewares.producer.completion_hooks import UNUSUAL

from scrapyd_dist.batches import AttemptState, Crawl, FinishReason
from scrapyd_dist.config import state_dir, write_file
from scrapyd_dist.diagnostics import moment
from scrapyd_dist.errors import StoreError
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.joblogs.verdict import STALL
from scrapyd_dist.jobs.job_judge import settle_jobs
from scrapyd_dist.progress import count_in, summary_of
from scrapyd_dist.store import Store
from scrapyd_dist.transports.event_hook import EventHook

from ..context import Context
from ..crawls import wording
from ..crawls.producer_process import lives
from ..crawls.stored_crawls import DAY
from ..crawls.watcher import alive_state
from ..output import complain

#: seconds without an answer after which a node is down
DOWN = 30.0
#: seconds between two looks at what the store has of jobs and crawls
STORE_LOOK = 10.0
#: seconds for which a node counts as full after a job has ended there for want of disk
FULL = 600.0
#: seconds that a command or an address may take
PATIENCE = 20.0
#: seconds after which it is tried again when it failed
AGAIN = 30.0
#: seconds in which a job or crawl can begin and end unseen
UNSEEN = 300.0
#: ends of a job that are no trouble
_UNTOLD = {Outcome.FINISHED, Outcome.CANCELLED, Outcome.UNKNOWN}
_FILE = "troubles.json"
#: what an event has besides its schema
_EVENT = ("event", "kind", "subject", "node", "since", "message")


class TroubleKind(str, Enum):
    """What can be wrong with a node, a job, a spider or a crawl."""

    NODE_DOWN = "node-down"
    NODE_WEDGED = "node-wedged"
    NODE_FULL = "node-full"
    JOB_FAILED = "job-failed"
    JOB_STALLED = "job-stalled"
    CRAWL_STALLED = "crawl-stalled"
    FEW_ITEMS = "few-items"

    def well(self, subject: str) -> str:
        """Say that a trouble of this kind is over, as the beginning of a sentence."""
        return _WELL[self].format(subject)


_WELL = {
    TroubleKind.NODE_DOWN: "The node {} answers again, or is none of the fleet any more",
    TroubleKind.NODE_WEDGED: "The node {} starts jobs again, or has none that wait",
    TroubleKind.NODE_FULL: "No job on {} has ended for want of disk lately",
    TroubleKind.JOB_FAILED: "A later job of {} ended well",
    TroubleKind.JOB_STALLED: "The job {} makes progress again, or is over",
    TroubleKind.CRAWL_STALLED: "The crawl {} makes progress again, or is over",
    TroubleKind.FEW_ITEMS: "A later crawl of {} has as many items as usual",
}


#: kinds that are over when the node is none of the fleet any more
_OF_NODES = (TroubleKind.NODE_DOWN, TroubleKind.NODE_WEDGED, TroubleKind.JOB_STALLED)


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """One thing that is in trouble now, or well."""

    kind: TroubleKind
    subject: str  #: name of a node, spider, crawl or job
    message: str = ""  #: what is wrong; empty: it is well
    node: str = ""  #: where a job is

    @property
    def key(self) -> str:
        """Return what tells one trouble from all others."""
        return f"{self.kind.value} {self.subject}"


@dataclass
class EndWatch:
    """Which jobs or crawls have ended since the last look."""

    since: float = 0.0  #: what was created before is known to have ended; seconds since the epoch
    ended: set[str] = field(default_factory=set)  #: known ends of what was created after

    def new(self, rows: Iterable[tuple[str, float, bool]], now: float) -> set[str]:
        """Return the ids of those that have ended; none at the first call.

        rows: id, creation time in seconds since the epoch, and whether it is over; now: the same.
        """
        if self.since > now:  # the clock was wrong
            self.since = now - UNSEEN
        created_at: dict[str, float] = {}  # of those that are over
        oldest = now - UNSEEN
        for name, created, is_over in rows:
            if created < self.since:
                continue
            if is_over:
                created_at[name] = created
            else:
                oldest = min(oldest, created)
        new = created_at.keys() - self.ended if self.since else set()
        self.since = max(self.since, oldest)
        self.ended = {name for name, created in created_at.items() if created >= self.since}
        return new


class TroubleLog:
    """What was told, and what is to be told still; kept in a file."""

    def __init__(self, path: Path, hook: EventHook) -> None:
        self._path = path
        self._hook = hook
        self.open: dict[str, dict[str, Any]] = {}  #: troubles that are not over, by key
        self.ends = {"jobs": EndWatch(), "crawls": EndWatch()}
        self._pending: list[dict[str, Any]] = []  #: events that are not sent yet, in order
        self._again = 0.0  #: when the first of them is tried again, by the monotonic clock
        self._wrong = ""  #: why it could not be sent, as was complained of
        self._written = ""  #: what is in the file
        with suppress(
            OSError,
            ArithmeticError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ):
            self._read(json.loads(path.read_text("utf-8")))

    def _read(self, document: dict[str, Any]) -> None:
        """Take over what was kept; where anything of it is wrong, nothing is changed."""
        opened = {str(key): _event_in(row) for key, row in document["told"].items()}
        pending = [_event_in(row) for row in document["pending"]]
        ends = {}
        for name in self.ends:
            since = int(document["ends"][name][0])
            ended = set(map(str, document["ends"][name][1]))
            ends[name] = EndWatch(since, ended)
        self.open = opened
        self._pending = pending
        self.ends = ends

    def report(self, sightings: Iterable[Sighting]) -> None:
        """Tell what is new in them, in their order."""
        for sighting in sightings:
            if bool(sighting.message) == (sighting.key in self.open):
                continue
            if sighting.message:
                self._open_trouble(sighting)
            else:
                self._close_trouble(sighting)
        self._keep()
        self._send()

    def _open_trouble(self, sighting: Sighting) -> None:
        trouble: dict[str, Any] = {
            "schema": 1,
            "event": "trouble",
            "kind": sighting.kind.value,
            "subject": sighting.subject,
            "node": sighting.node,
            "since": moment(time.time()),
            "message": sighting.message,
        }
        self.open[sighting.key] = trouble
        self._pending.append(trouble)

    def _close_trouble(self, sighting: Sighting) -> None:
        trouble = self.open.pop(sighting.key)
        before = str(trouble["message"]).rstrip(".")
        message = f"{sighting.kind.well(sighting.subject)} (before: {before})."
        self._pending.append({**trouble, "event": "well", "message": message})

    def _send(self) -> None:
        while self._pending and time.monotonic() >= self._again:
            if wrong := self._hook.notify(self._pending[0], patience=PATIENCE):
                self._again = time.monotonic() + AGAIN
                if wrong != self._wrong:
                    complain(f"{wrong} It is tried again.")
                self._wrong = wrong
                return
            self._wrong = ""
            self._pending.pop(0)
            self._keep()

    def _keep(self) -> None:
        ends = {}
        for name, watch in self.ends.items():
            ends[name] = [int(watch.since), sorted(watch.ended)]
        text = json.dumps({"told": self.open, "pending": self._pending, "ends": ends})
        if text != self._written:
            with suppress(OSError):  # the next watch then tells again what is still so
                write_file(self._path, text.encode())
            self._written = text


def _event_in(row: Mapping[str, Any]) -> dict[str, Any]:
    """An event as it was kept; an error if it is none."""
    return {"schema": 1, **{name: str(row[name]) for name in _EVENT}}


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
    """Looks for troubles in what a watch of the fleet sees, and in the store."""

    def __init__(self, context: Context, hook: EventHook) -> None:
        self._context = context
        self._log = TroubleLog(state_dir(context.root) / _FILE, hook)
        self._began: float | None = None  #: when the first look was, by the monotonic clock
        self._down: dict[str, float] = {}  #: name of a node -> since when it does not answer
        self._paces: dict[str, CrawlPace] = {}
        self._resting: set[str] = set()  #: crawls that are paused
        self._looked: float | None = None  #: when the store was read last, by the monotonic clock
        self._trouble = ""  #: why it could not be read, as was complained of

    def check(self, document: Mapping[str, Any], now: float) -> None:
        """Tell what is new; document: of `FleetLook`, now: by the monotonic clock."""
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
                sightings += self._store_sightings(self._context.store_if_any, now)
                self._trouble = ""
            except StoreError as error:
                if str(error) != self._trouble:
                    complain(f"{error} So jobs and crawls are not looked after.")
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
                message = f"The node {name} does not work: {node['reason'] or node['state']}"
                yield Sighting(kind=down, subject=name, node=name, message=message)
            return
        self._down.pop(name, None)
        yield Sighting(kind=down, subject=name, node=name)
        message = ""
        if node["state"] == "wedged":
            message = f"The node {name}: {node['reason']}"
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
            if job["state"] == "stalled":
                silent = wording.clock(job["silent_s"])
                message = f"The job {job_id} on {name} makes no progress for {silent}."
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
        yield from self._few_items_sightings(crawls)
        if store is not None:
            yield from self._full_node_sightings(store, crawls)

    def _ended_job_sightings(self) -> Iterator[Sighting]:
        """Say of plain jobs that have ended whether they ended well, in the order of their ends."""
        nodes = self._context.nodes()
        settled = settle_jobs(self._context.job_site, nodes, since=time.time() - DAY)
        records = sorted(settled.records, key=lambda record: record.ended or 0.0)
        rows = [(record.id, record.created, record.state.over) for record in records]
        ends = self._log.ends["jobs"].new(rows, time.time())
        for record in records:
            if record.id in ends:
                yield from _job_end_sightings(record)

    def _few_items_sightings(self, crawls: Sequence[Crawl]) -> Iterator[Sighting]:
        """Say of crawls that have ended whether they have as many items as usual."""
        real = [crawl for crawl in crawls if crawl.kind != "frontier"]
        rows = [(crawl.id, crawl.created, crawl.state.ended) for crawl in real]
        ends = self._log.ends["crawls"].new(rows, time.time())
        for crawl in sorted(real, key=lambda crawl: crawl.ended or 0.0):
            if crawl.id in ends:
                message = _few_items_message(crawl)
                yield Sighting(kind=TroubleKind.FEW_ITEMS, subject=crawl.spider, message=message)

    def _crawl_sightings(self, crawl: Crawl, now: float) -> Iterator[Sighting]:
        kind = TroubleKind.CRAWL_STALLED
        if not _has_work(crawl) or wording.rests(summary_of(crawl)) or crawl.wanted == "pause":
            self._paces.pop(crawl.id, None)
            yield Sighting(kind=kind, subject=crawl.id)
            return
        if alive_state(crawl) == "died":
            message = (
                f"The process of the crawl {crawl.id} is gone. Go on with: sdist resume {crawl.id}"
            )
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
                f"The crawl {crawl.id} makes no progress for {wording.clock(pace.still(now))}."
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
        for node in self._context.nodes():
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


def _few_items_message(crawl: Crawl) -> str:
    """Return what is wrong with the number of items; empty where it is as usual."""
    for warning in crawl.summary.get("warnings") or ():
        if UNUSUAL in str(warning):
            return f"The crawl {crawl.id}: {warning}"
    return ""


def _job_end_sightings(record: JobRecord) -> Iterator[Sighting]:
    """Say how a plain job ended; the next good one of its spider makes it well."""
    kind = TroubleKind.JOB_FAILED
    subject = f"{record.project}/{record.spider}"
    if record.state not in _UNTOLD:
        reason = ""
        if record.reason:
            reason = f": {record.reason}"
        job = f"The job {record.id} of {record.spider} on {record.node}"
        message = f"{job} {record.state.value}{reason}."
        yield Sighting(kind=kind, subject=subject, node=record.node, message=message)
    elif record.state is Outcome.FINISHED:
        yield Sighting(kind=kind, subject=subject, node=record.node)
