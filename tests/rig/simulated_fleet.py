"""A fleet and a crawl on a clock that is not real: the program's own code places and cuts, the nodes are a model.

The model of a node: it looks into its queue every few seconds, starts jobs while it has free process
slots, and a job takes a start, then its requests at the node's speed. The coordinator hears of an end
a moment later, and of a dead node after its patience.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import Batch, job_id
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.batcher import Batcher, Demand
from scrapyd_dist.scheduling.node_state import AHEAD, JobRun, NodeState, settled_pace
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.readiness import Readiness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapyd_dist.scheduling.batcher import BatchDraft

#: seconds between two looks of a node into its queue: Scrapyd's own default
POLL = 5.0
#: seconds from a job's start to its first request
START = 1.5
#: seconds after which the coordinator hears of an end, at most
LOOK = 1.0
#: seconds after which the work of a dead node goes elsewhere
PATIENCE = 30.0
#: seconds after which a dead node is back
REPAIR = 120.0
#: requests that are found in a second, as a multiple of what the fleet can crawl in one
FINDING = 3.0
#: seconds between two ticks of the producer
TICK = 0.5
#: seconds within which two things happen at the same time
MOMENT = 0.1
#: seconds between two reports that are read
REPORTS = 2.0
#: by how much the speed of one job differs from the node's
NOISE = 0.15
#: what is found: only how many of them is of interest
NOTHING = FrontierIntake(value={"url": ""}, fingerprint=b"")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One node as it is, whatever the coordinator thinks of it."""

    slots: int
    speed: float  #: requests per second of one job


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One way to place and to cut."""

    placement: str
    adapt: bool
    size: int = 1000

    def __str__(self) -> str:
        return f"{self.placement}, {'adaptive' if self.adapt else f'batches of {self.size}'}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a simulated crawl went."""

    seconds: float  #: from the first request found to the last one done
    ideal: float  #: the least that this fleet could need
    idle: float  #: share of the slots' time in which no request was made
    tail: float  #: seconds from when nothing waited any more to the end
    batches: int

    @property
    def ratio(self) -> float:
        return self.seconds / self.ideal


@dataclass(eq=False)
class _Run:
    """A job on its machine."""

    out: JobRun
    speed: float
    begun: float | None = None  #: its first request
    ended: bool = False
    lost: bool = False


@dataclass(eq=False)
class _Host:
    """A machine with the coordinator's picture of it."""

    machine: Machine
    member: NodeState
    phase: float  #: when it looks into its queue, modulo POLL
    queue: deque[_Run] = field(default_factory=deque)
    running: dict[_Run, None] = field(default_factory=dict)  #: in the order they began
    dead: bool = False
    looks_at: float = -1.0


def _free_slots(member: NodeState) -> int:
    capacity = member.capacity
    return max(0, capacity.slots - len(member.out) - capacity.others)


class Simulation:
    """One crawl of so many requests on these machines, by one rule."""

    def __init__(
        self,
        machines: Sequence[Machine],
        requests: int,
        rule: Rule,
        *,
        seed: int = 0,
        failures: float = 0.0,
    ) -> None:
        self._random = random.Random(seed)
        self._capacity = sum(machine.slots * machine.speed for machine in machines)
        self._hosts = [self._host(number, machine) for number, machine in enumerate(machines)]
        self._of = {host.member: host for host in self._hosts}
        self._members = [host.member for host in self._hosts]
        self._placement = Placement(rule.placement)
        demand = self._demand if rule.adapt else None
        self._cutter = Batcher(size=rule.size, max_age=30.0, demand=demand)
        self._requests, self._left, self._found = requests, requests, 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._numbers = count(1)
        self._waiting: deque[Batch] = deque()
        self._avoid: dict[int, str] = {}
        self._closed = self._dealing = False
        self._busy = 0.0
        self._nothing_waits = 0.0
        self.now = 0.0
        self.overfull = 0
        horizon = requests / self._capacity
        for host in self._hosts:
            if self._random.random() < failures:
                self._at(self._random.uniform(0.1, 0.9) * horizon, partial(self._die, host))

    def _host(self, number: int, machine: Machine) -> _Host:
        node = Node.parse(f"n{number}:6800", name=f"n{number}", slots=machine.slots)
        return _Host(
            machine,
            NodeState(node=node, readiness=Readiness(prepared=True)),
            self._random.uniform(0, POLL),
        )

    def run(self) -> Outcome:
        """Let it run to its end."""
        self._at(0.0, self._tick)
        self._at(REPORTS, self._read_reports)
        while self._left:
            self.now, _, happen = heappop(self._events)
            happen()
        slots = sum(host.machine.slots for host in self._hosts)
        return Outcome(
            seconds=self.now,
            ideal=self._requests / self._capacity,
            idle=1 - self._busy / (slots * self.now),
            tail=self.now - self._nothing_waits,
            batches=next(self._numbers) - 1,
        )

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._order), happen))

    # the producer

    def _tick(self) -> None:
        """Requests are found; what is due is cut."""
        before, self._found = (
            int(self._found),
            min(self._requests, self._found + self._capacity * FINDING * TICK),
        )
        for _ in range(int(self._found) - before):
            cut = self._cutter.add(NOTHING, self.now)
            if cut is not None:
                self._seal([cut])
        if self._found >= self._requests:
            self._seal(self._cutter.cut_rest())
            self._closed = True
            self._pump()
            return
        self._seal(self._cutter.due(self.now))
        self._at(self.now + TICK, self._tick)

    def _seal(self, cuts: list[BatchDraft]) -> None:
        for cut in cuts:
            self._waiting.append(Batch(number=next(self._numbers), size=len(cut)))
        if cuts:
            self._pump()

    def _demand(self, _: int) -> Demand:
        usable = [member for member in self._members if member.usable]
        return Demand(
            slots=sum(member.capacity.slots for member in usable),
            idle=sum(map(_free_slots, usable)) - len(self._waiting),
            pace=settled_pace(self._members),
            more=self._requests - self._found,
        )

    # the coordinator

    def _pump(self) -> None:
        """Deal soon: what happens within the same moment is dealt with at once."""
        if not self._dealing:
            self._dealing = True
            self._at(self.now + MOMENT, self._deal)

    def _deal(self) -> None:
        self._dealing = False
        if not self._waiting:
            return
        dealt = self._placement.deal(
            self._waiting,
            self._members,
            requests=sum(batch.size for batch in self._waiting),
            avoid=self._avoid,
            closing=self._closed,
        )
        for batch, member in dealt:
            self._waiting.remove(batch)
            self._post(batch, self._of[member])
        if not self._waiting:
            self._nothing_waits = self.now

    def _post(self, batch: Batch, host: _Host) -> None:
        number = batch.attempts + 1
        job = job_id("c", batch.number, number)
        out = JobRun(
            batch=batch,
            number=number,
            job=job,
            member=host.member,
            since=self.now,
            start_by=0.0,
            posted=True,
        )
        host.member.add(out)
        speed = host.machine.speed * self._random.uniform(1 - NOISE, 1 + NOISE)
        host.queue.append(_Run(out, speed))
        given = len(host.queue) + len(host.running)
        self.overfull += given > host.machine.slots + max(AHEAD, host.machine.slots)
        self._expect_look(host)

    def _heard(self, host: _Host, run: _Run) -> None:
        """The coordinator learns that a job has ended."""
        if host.member.out.pop(run.out.job, None) is None:
            return
        self._left -= run.out.batch.size
        host.member.accepted(self._report(run))
        self._pump()

    def _given_up(self, host: _Host) -> None:
        """The node has been silent for too long."""
        for out in list(host.member.out.values()):
            del host.member.out[out.job]
            self._avoid[out.batch.number] = host.member.node.name
            self._waiting.appendleft(replace(out.batch, attempts=out.number))
        self._pump()

    def _read_reports(self) -> None:
        for host in self._hosts:
            for run in host.running:
                run.out.accept_report(self._report(run), self.now)
        self._pump()
        self._at(self.now + REPORTS, self._read_reports)

    def _report(self, run: _Run) -> WorkerReport:
        begun = self.now if run.begun is None else run.begun
        size = run.out.batch.size
        took = max(0.0, self.now - begun)
        done = size if run.ended else min(size, int(took * run.speed))
        updated = begun + (size / run.speed if run.ended else took)
        values: dict[str, Any] = {"missed": 0, "pages": done, "items": done}
        return WorkerReport(
            ended=run.ended, started=begun, updated=updated, requests=size, done=done, **values
        )

    # the nodes

    def _expect_look(self, host: _Host) -> None:
        """The node looks into its queue at its next turn."""
        turn = self.now - (self.now - host.phase) % POLL + POLL
        if host.looks_at < self.now and not host.dead:
            host.looks_at = turn
            self._at(turn, lambda: self._look(host))

    def _look(self, host: _Host) -> None:
        while host.queue and len(host.running) < host.machine.slots and not host.dead:
            run = host.queue.popleft()
            run.begun = self.now + START
            host.running[run] = None
            self._at(run.begun + run.out.batch.size / run.speed, partial(self._end, host, run))

    def _end(self, host: _Host, run: _Run) -> None:
        if run.lost:
            return
        run.ended = True
        self._busy += run.out.batch.size / run.speed
        host.running.pop(run, None)
        self._at(self.now + self._random.uniform(0, LOOK), lambda: self._heard(host, run))
        if host.queue:
            self._expect_look(host)

    def _die(self, host: _Host) -> None:
        host.dead = True
        for run in host.running:
            run.lost = True
        host.running.clear()
        host.queue.clear()
        host.member.liveness.missed("dead", self.now)
        self._at(self.now + PATIENCE, lambda: self._given_up(host))
        self._at(self.now + REPAIR, lambda: self._revive(host))

    def _revive(self, host: _Host) -> None:
        host.dead, host.looks_at = False, -1.0
        host.member.liveness.answered()
        self._pump()
