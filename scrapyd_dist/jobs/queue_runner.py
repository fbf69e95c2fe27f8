"""Works off the plain jobs that wait in the store: starts what may start, and waits for its own.

The rules it keeps: a job is taken by one process, in one step of the store; what a process leaves
behind when it ends is taken up by the next one; no node that is silent or drained is waited for
without an end.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from scrapyd_dist.errors import ConfigError, NoNodeReachable
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.keys import SealError, unseal
from scrapyd_dist.nodes import Node
from scrapyd_dist.store import Store
from scrapyd_dist.transports import sweep

from .job_fleet import JobFleet, draining_error, make_fleet
from .job_judge import settle_jobs
from .job_memory import TRIES, JobMemory
from .job_posts import call_of, post_job
from .job_site import JobSite
from .queue_decision import Predecessor, chains, decide_starts
from .waiting_jobs import JobQueue, find_predecessors

#: seconds between two looks at the store and the nodes
LOOK = 2.0


@dataclass(frozen=True, kw_only=True)
class QueueNodes:
    """How a runner finds the nodes, each time anew."""

    #: gives all nodes as they are listed now, each with its project; raises ConfigError
    find: Callable[[], Sequence[Node]]
    #: gives when versions were sent to such nodes from here, by name, in seconds since the epoch
    find_times: Callable[[Sequence[Node]], Mapping[str, float]]
    timeout: float  #: seconds that a node gets for each answer
    #: seconds without an answer after which a job is given up that may be tried again elsewhere
    patience: float
    #: the same for any other job, and for jobs of which none can start
    long_patience: float


@dataclass(kw_only=True)
class QueueRunner:
    """Starts the jobs that wait in the store, of all commands, until those of its own are over."""

    site: JobSite
    queue: JobQueue
    nodes: QueueNodes
    own: Collection[str]  #: the jobs that are waited for, by the ids of their first attempts
    clock: Callable[[], float] = time.monotonic  #: seconds
    _nodes: tuple[Node, ...] = ()  #: as they are listed now
    #: by base address, with those that are not listed any more
    _met: dict[str, Node] = field(default_factory=dict)
    #: base address of a node -> since when it does not answer, by the clock
    _silent: dict[str, float] = field(default_factory=dict)
    #: since when no job is out, and none that may start has a node; None while that is not so
    _stuck: float | None = None

    def run(self, pause: Callable[[float], None], show: Callable[[str], None]) -> list[JobRecord]:
        """Start what may start until its own jobs are over; returns the last attempt of each.

        pause: waits so many seconds; show: gets to know how it stands, again and again.

        Raises:
            NoNodeReachable: for `long_patience` no node has been there that may take what waits,
                and no job has been out. What waits stays in the store.
        """
        while left := self._find_left():
            self._read_nodes()
            self._settle()
            self._start()
            show(_standing(left))
            if self._find_left():
                pause(LOOK)
        last = chains(self._store.jobs())
        return [last[name] for name in self.own if name in last]

    @property
    def _store(self) -> Store:
        return self.queue.store

    def _find_left(self) -> list[JobRecord]:
        """Return those of its own that are not over."""
        left = []
        for record in self._store.jobs(OPEN_ONLY):
            first = record.first or record.id
            if first in self.own:
                left.append(record)
        return left

    def _read_nodes(self) -> None:
        """Read the lists of nodes again.

        All nodes are read, whatever was asked for, since what others left is started as well.
        """
        try:
            nodes = self.nodes.find()
        except ConfigError:  # as while scrapy.cfg is being written
            if not self._nodes:
                raise
            return
        self._nodes = tuple(nodes)
        for node in self._nodes:
            self._met[node.url] = node

    def _settle(self) -> None:
        """Write down which jobs have ended, and give up those on nodes that are gone."""
        nodes = list(self._met.values())
        settled = settle_jobs(self.site, nodes, timeout=self.nodes.timeout, since=OPEN_ONLY)
        now = self.clock()
        silent = {}
        for url in settled.silent:
            silent[url] = self._silent.get(url, now)
        self._silent = silent
        ends = {}
        for record in settled.records:
            if record.state.over or record.state is Outcome.WAITING:
                continue
            reason = self._why_lost(record, now)
            if reason:
                ends[record.id] = partial(_ended, state=Outcome.UNKNOWN, reason=reason, lost=True)
        settled.memory.change(ends)

    def _why_lost(self, record: JobRecord, now: float) -> str:
        """Return why a job is given up that was sent; empty for one that is not."""
        # A job that may be tried again is given up sooner.
        may_retry = record.attempt <= record.retries
        patience = self.nodes.patience if may_retry else self.nodes.long_patience
        waited = now - self._silent.get(record.url, now)
        if waited > patience:
            return f"its node has not answered for {waited:.0f} s"
        if record.url not in self._met:
            return "its node is no target any more"
        return ""

    def _start(self) -> None:
        """Take the jobs that may start, and post them."""
        fleet: JobFleet | None = None
        for _ in range(TRIES):
            revision = self._store.job_revision()
            records, others = self._read_records()
            if not _any_waits(records):
                self._stuck = None
                return
            decision = decide_starts(records, others, time.time())
            if decision.ready and fleet is None:
                fleet = make_fleet(
                    self.site, self._nodes, self.nodes.timeout, self.nodes.find_times
                )
                fleet.poll_nodes()
            begun, placeless = _place_each(decision.ready, fleet)
            self._check_stuck(fleet, is_idle=not begun and not _any_is_out(records))
            changed = [record for record, _ in begun]
            changed += decision.dropped
            if _is_complete(fleet):
                changed += map(_impossible, placeless)
            if not changed:
                return
            if self._store.keep_jobs(changed, revision):
                self._post(begun)
                return

    def _read_records(self) -> tuple[list[JobRecord], list[Predecessor]]:
        """Return the open jobs; if one of them follows others, all jobs, and what it may follow."""
        records = self._store.jobs(OPEN_ONLY)
        for record in records:
            if record.after and record.state is Outcome.WAITING:
                every = self._store.jobs()
                return every, find_predecessors(self._store, every)
        return records, []

    def _check_stuck(self, fleet: JobFleet | None, *, is_idle: bool) -> None:
        """Raise NoNodeReachable when nothing has moved for `long_patience`.

        fleet: the nodes that were asked for room, if any job may start; is_idle: whether no job is
        out, and none has got a node. What waits stays in the store.
        """
        if fleet is None or not is_idle or _is_complete(fleet):
            self._stuck = None
            return
        now = self.clock()
        if self._stuck is None:
            self._stuck = now
        if now - self._stuck > self.nodes.long_patience:
            reasons: list[Exception] = [*fleet.absent.values()]
            if fleet.draining:
                reasons.insert(0, draining_error(fleet.draining))
            raise NoNodeReachable(
                f"No node that answers may take the jobs that wait. {' '.join(map(str, reasons))}"
            )

    def _post(self, begun: Sequence[tuple[JobRecord, Node]]) -> None:
        """Post jobs that have been written down as sent; one that was not taken is ended."""
        ends: dict[str, Callable[[JobRecord], JobRecord]] = {}

        def send(placed: tuple[JobRecord, Node]) -> None:
            record, node = placed
            try:
                settings = {}
                if record.sealed:
                    settings = json.loads(unseal(record.sealed, self.queue.key))
                call = call_of(record, settings)
            except (SealError, ConfigError) as error:
                reason = f"not started: {error}"
                ends[record.id] = partial(_ended, state=Outcome.CANCELLED, reason=reason)
                return
            node = replace(node, project=record.project)
            failed, lost = post_job(self.site.sender, node, call, record.id, self.nodes.timeout)
            if failed is not None and not lost:
                reason = f"not started: {failed.short}"
                ends[record.id] = partial(_ended, state=Outcome.FAILED, reason=reason)

        for _ in sweep(begun, send, threads=4 * len(self._nodes)):  # so that no node is run over
            pass
        if ends:
            JobMemory(self._store, OPEN_ONLY).change(ends)


def _place_each(
    ready: Sequence[JobRecord], fleet: JobFleet | None
) -> tuple[list[tuple[JobRecord, Node]], list[JobRecord]]:
    """Return the jobs that have a node, as they are once sent, with it; and those without one."""
    begun: list[tuple[JobRecord, Node]] = []
    placeless: list[JobRecord] = []
    if fleet is None:
        return begun, list(ready)
    for record in ready:
        node = fleet.place_of(record)
        if node is None:
            placeless.append(record)
        else:
            begun.append((_begun(record, node), node))
    return begun, placeless


def _is_complete(fleet: JobFleet | None) -> bool:
    """Tell whether no node was silent or drained: such a node may have what is missing."""
    return fleet is not None and not fleet.absent and not fleet.draining


def _any_waits(records: Sequence[JobRecord]) -> bool:
    return any(record.state is Outcome.WAITING for record in records)


def _any_is_out(records: Sequence[JobRecord]) -> bool:
    return any(record.posted and not record.state.over for record in records)


def _begun(record: JobRecord, node: Node) -> JobRecord:
    project = record.wanted_project or node.project or ""
    now = time.time()
    return replace(
        record, state=Outcome.PENDING, posted=now, node=node.name, url=node.url, project=project
    )


def _ended(record: JobRecord, *, state: Outcome, reason: str, lost: bool = False) -> JobRecord:
    return record.end(state, time.time(), reason, lost=lost)


def _impossible(record: JobRecord) -> JobRecord:
    where = f"the node {record.on}" if record.on else "any node"
    reason = f"not started: the version {record.version} is not on {where} that may be used"
    return replace(record.end(Outcome.FAILED, time.time(), reason), sealed="")


def _standing(left: Sequence[JobRecord]) -> str:
    waits = [record for record in left if record.state is Outcome.WAITING]
    text = f"jobs: {len(left) - len(waits):,} sent · {len(waits):,} waiting"
    if waits:
        text += f" ({waits[0].waits_for})"
    return text
