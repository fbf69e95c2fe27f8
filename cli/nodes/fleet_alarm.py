"""Troubles of a fleet, of which a command or an address is told: once each, and once more when it is well again.

The rule it keeps: what cannot be told now, since a node or the store does not answer, is neither trouble nor well. What
was told is kept in the state folder, so that a watch that is started again does not tell it again.
"""

import json
import time
from collections.abc import Container, Iterable, Iterator, Mapping
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
from scrapyd_dist.progress import number, told
from scrapyd_dist.store import Store
from scrapyd_dist.transports.event_hook import EventHook

from ..context import Context
from ..crawls import wording
from ..crawls.producer_process import lives
from ..crawls.stored_crawls import DAY
from ..crawls.watcher import alive_state
from ..jobs.jobs_table import look_back
from ..output import complain

#: seconds without an answer after which a node is down
DOWN = 30.0
#: seconds between two looks at what the store has of jobs and crawls
STORE_LOOK = 10.0
#: seconds for which a node counts as full after a job has ended there for want of disk
FULL = 600.0
#: seconds that a command or an address may take, and after which it is tried again when it failed
PATIENCE, AGAIN = 20.0, 30.0
#: seconds in which a job or crawl can begin and end unseen
UNSEEN = 300.0
#: ends of a job that are no trouble
_UNTOLD = {Outcome.FINISHED, Outcome.CANCELLED, Outcome.UNKNOWN}
_FILE = "troubles.json"
#: what an event has besides its schema
_EVENT = ("event", "kind", "subject", "node", "since", "message")


class TroubleKind(str, Enum):
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
        return f"{self.kind.value} {self.subject}"


@dataclass
class EndWatch:
    """Which jobs or crawls have ended since the last look."""

    since: float = 0.0  #: what was created before is known to have ended; seconds since the epoch
    ended: set[str] = field(default_factory=set)  #: known ends of what was created after

    def new(self, rows: Iterable[tuple[str, float, bool]], now: float) -> set[str]:
        """The ids of those that have ended; rows: id, creation time, and whether it is over. None at the first call."""
        if self.since > now:  # the clock was wrong
            self.since = now - UNSEEN
        rows = [row for row in rows if row[1] >= self.since]
        over = {name for name, _, is_over in rows if is_over}
        new = over - self.ended if self.since else set()
        self.since = max(
            self.since,
            min([created for _, created, is_over in rows if not is_over] + [now - UNSEEN]),
        )
        self.ended = {name for name, created, _ in rows if name in over and created >= self.since}
        return new


class TroubleLog:
    """What was told, and what is to be told still; kept in a file."""

    def __init__(self, path: Path, hook: EventHook) -> None:
        self._path, self._hook = path, hook
        self.told: dict[str, dict[str, Any]] = {}  #: troubles that are not over, by key
        self.ends = {"jobs": EndWatch(), "crawls": EndWatch()}
        self._pending: list[dict[str, Any]] = []
        self._again = 0.0  #: by the monotonic clock
        self._wrong = self._written = ""
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
        told = {str(key): _event_in(one) for key, one in document["told"].items()}
        pending = [_event_in(one) for one in document["pending"]]
        ends = {
            name: EndWatch(
                int(document["ends"][name][0]), {str(one) for one in document["ends"][name][1]}
            )
            for name in self.ends
        }
        self.told, self._pending, self.ends = told, pending, ends

    def take(self, sightings: Iterable[Sighting]) -> None:
        """Tell what is new in them, in their order."""
        for one in sightings:
            if bool(one.message) == (one.key in self.told):
                continue
            if one.message:
                trouble: dict[str, Any] = {
                    "schema": 1,
                    "event": "trouble",
                    "kind": one.kind.value,
                    "subject": one.subject,
                    "node": one.node,
                    "since": moment(time.time()),
                    "message": one.message,
                }
                self.told[one.key] = trouble
                self._pending.append(trouble)
            else:
                trouble = self.told.pop(one.key)
                before = str(trouble["message"]).rstrip(".")
                message = f"{one.kind.well(one.subject)} (before: {before})."
                self._pending.append({**trouble, "event": "well", "message": message})
        self._keep()
        self._send()

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
        ends = {name: [int(one.since), sorted(one.ended)] for name, one in self.ends.items()}
        text = json.dumps({"told": self.told, "pending": self._pending, "ends": ends})
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

    def look(self, counts: tuple[object, ...], now: float) -> None:
        if not self.counts:
            self.since = now
        elif counts != self.counts:
            self.changed = now
        self.counts = counts

    def still(self, now: float) -> float:
        return now - (self.changed or self.since)


class FleetAlarm:
    """Looks for troubles in what a watch of the fleet sees, and in the store."""

    def __init__(self, context: Context, hook: EventHook) -> None:
        self._context, self._log = context, TroubleLog(state_dir(context.root) / _FILE, hook)
        self._began: float | None = None
        self._down: dict[str, float] = {}  #: name of a node -> since when it does not answer
        self._paces: dict[str, CrawlPace] = {}
        self._resting: set[str] = set()  #: crawls that are paused
        self._looked: float | None = None
        self._trouble = ""

    def look(self, document: Mapping[str, Any], now: float) -> None:
        """Tell what is new; document: of `FleetLook`, now: by the monotonic clock."""
        self._began = now if self._began is None else self._began
        sightings = [one for node in document["nodes"] for one in self._of_node(node, now)]
        sightings += self._of_nodes_gone({str(node["name"]) for node in document["nodes"]})
        if self._looked is None or now - self._looked >= STORE_LOOK:
            self._looked = now
            try:
                sightings += self._of_store(self._context.store_if_any, now)
                self._trouble = ""
            except StoreError as error:
                if str(error) != self._trouble:
                    complain(f"{error} So jobs and crawls are not looked after.")
                self._trouble = str(error)
        self._log.take(sightings)

    def _of_node(self, node: Mapping[str, Any], now: float) -> Iterator[Sighting]:
        name, down, wedged = str(node["name"]), TroubleKind.NODE_DOWN, TroubleKind.NODE_WEDGED
        if node["running"] is None and node.get(
            "draining"
        ):  # it may be away for as long as it likes
            self._down.pop(name, None)
            return
        if node["running"] is None:
            if now - self._down.setdefault(name, now) >= DOWN:
                message = f"The node {name} does not work: {node['reason'] or node['state']}"
                yield Sighting(kind=down, subject=name, node=name, message=message)
            return
        self._down.pop(name, None)
        yield Sighting(kind=down, subject=name, node=name)
        message = f"The node {name}: {node['reason']}" if node["state"] == "wedged" else ""
        yield Sighting(kind=wedged, subject=name, node=name, message=message)
        yield from self._of_jobs(node, now)

    def _of_nodes_gone(self, names: Container[str]) -> list[Sighting]:
        """That all is well with nodes that are none of the fleet any more."""
        self._down = {name: since for name, since in self._down.items() if name in names}
        kinds = {kind.value: kind for kind in _OF_NODES}
        told = [
            one
            for one in self._log.told.values()
            if one["kind"] in kinds and one["node"] not in names
        ]
        return [
            Sighting(kind=kinds[one["kind"]], subject=one["subject"], node=one["node"])
            for one in told
        ]

    def _of_jobs(self, node: Mapping[str, Any], now: float) -> Iterator[Sighting]:
        kind, name = TroubleKind.JOB_STALLED, str(node["name"])
        jobs = {str(job["job"]): job for job in node["jobs"] if job["crawl"] not in self._resting}
        for job_id, job in jobs.items():
            if job["state"] == "stalled":
                message = f"The job {job_id} on {name} makes no progress for {wording.clock(job['silent_s'])}."
                yield Sighting(kind=kind, subject=job_id, node=name, message=message)
            elif job["silent_s"] is not None and now - (self._began or now) >= STALL:
                yield Sighting(kind=kind, subject=job_id, node=name)
        for before in list(self._log.told.values()):
            if (before["kind"], before["node"]) == (kind.value, name) and before[
                "subject"
            ] not in jobs:
                yield Sighting(kind=kind, subject=before["subject"], node=name)

    # what the store has

    def _of_store(self, store: Store | None, now: float) -> Iterator[Sighting]:
        memory = look_back(self._context, self._context.nodes(), since=time.time() - DAY)
        records = sorted(memory.records.values(), key=lambda record: record.ended or 0.0)
        ends = self._log.ends["jobs"].new(
            ((one.id, one.created, one.state.over) for one in records), time.time()
        )
        yield from (one for record in records if record.id in ends for one in _job(record))
        crawls = [] if store is None else store.crawls()
        self._resting = {crawl.id for crawl in crawls if crawl.wanted == "pause"}
        yield from (one for crawl in crawls for one in self._of_crawl(crawl, now))
        known = ((one.id, one.created, one.state.ended) for one in crawls if one.kind != "frontier")
        ends = self._log.ends["crawls"].new(known, time.time())
        for crawl in sorted(
            (one for one in crawls if one.id in ends), key=lambda one: one.ended or 0.0
        ):
            warnings = [str(text) for text in crawl.summary.get("warnings") or ()]
            few = next((text for text in warnings if UNUSUAL in text), "")
            message = f"The crawl {crawl.id}: {few}" if few else ""
            yield Sighting(kind=TroubleKind.FEW_ITEMS, subject=crawl.spider, message=message)
        if store is not None:
            yield from self._full(store, [crawl for crawl in crawls if not crawl.state.ended])

    def _of_crawl(self, crawl: Crawl, now: float) -> Iterator[Sighting]:
        kind, works = TroubleKind.CRAWL_STALLED, not crawl.state.ended
        if crawl.kind == "frontier":  # without a process, or without work, it waits
            batches = crawl.summary.get("batches")
            works = (
                works
                and lives(crawl)
                and bool(number(batches, "waiting") or number(batches, "out"))
            )
        if not works or wording.rests(told(crawl)) or crawl.wanted == "pause":
            self._paces.pop(crawl.id, None)
            yield Sighting(kind=kind, subject=crawl.id)
            return
        if alive_state(crawl) == "died":
            message = (
                f"The process of the crawl {crawl.id} is gone. Go on with: sdist resume {crawl.id}"
            )
            yield Sighting(kind=kind, subject=crawl.id, message=message)
            return
        pace, doc = self._paces.setdefault(crawl.id, CrawlPace()), crawl.summary
        counts = (
            number(doc, "requests", "done"),
            *(number(doc, name) for name in ("pages", "items", "urls_found")),
        )
        pace.look((crawl.state, *counts), now)
        if pace.still(now) >= STALL:
            message = (
                f"The crawl {crawl.id} makes no progress for {wording.clock(pace.still(now))}."
            )
            yield Sighting(kind=kind, subject=crawl.id, message=message)
        elif pace.changed is not None:
            yield Sighting(kind=kind, subject=crawl.id)

    def _full(self, store: Store, crawls: Iterable[Crawl]) -> Iterator[Sighting]:
        full: set[str] = set()
        for crawl in crawls:
            for attempt in store.attempts(crawl.id, {AttemptState.FAILED}):
                late = time.time() - (attempt.ended_at or 0.0) < FULL
                if late and FinishReason.DISK_FULL.value in attempt.reason:
                    full.add(attempt.url)
        for node in self._context.nodes():
            message = f"A job on {node.name} ended for want of disk." if node.url in full else ""
            yield Sighting(
                kind=TroubleKind.NODE_FULL, subject=node.name, node=node.name, message=message
            )


def _job(record: JobRecord) -> Iterator[Sighting]:
    """How a plain job ended; the next good one of its spider makes it well."""
    kind, subject, bad = (
        TroubleKind.JOB_FAILED,
        f"{record.project}/{record.spider}",
        record.state not in _UNTOLD,
    )
    reason = f": {record.reason}" if record.reason else ""
    message = (
        f"The job {record.id} of {record.spider} on {record.node} {record.state.value}{reason}."
        if bad
        else ""
    )
    if bad or record.state is Outcome.FINISHED:
        yield Sighting(kind=kind, subject=subject, node=record.node, message=message)
