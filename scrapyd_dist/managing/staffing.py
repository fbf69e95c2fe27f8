"""Decides how many workers a frontier gets, and for which slots. Values and decisions, no IO.

Invariant: no slot has more workers than allowed, and a closed one gets none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from scrapyd_dist.frontier.values import OTHER_SPIDER
from scrapyd_dist.managing.terms import WorkerTerms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from scrapyd_dist.frontier.values import SlotCount

#: the lane of workers that lease from all slots but those of other spiders; no slot has this name
ALL = "*"
#: states of a batch that waits for a worker, and of one that a worker has had
_WAITING, _OUT = ("sealed", "failed"), ("sent", "running")


@dataclass(frozen=True, kw_only=True)
class Staffing:
    """The allowed number of workers, and their slots."""

    most: int = 0  #: workers at one time; 0: as many as the fleet has process slots
    per_slot: int = 0  #: workers per slot; 0: workers are not bound to slots, each leases from all of them
    prefix: str = ""  #: only slots whose names begin with it
    every: float | None = None  #: seconds between two rounds of starts; None: no rounds, 0: only one
    max_time: float = 0.0  #: seconds after which no more workers are started or awaited; 0: no limit
    terms: WorkerTerms = field(default_factory=WorkerTerms)

    def lane_of(self, slot: str) -> str | None:
        """The slot's lane: its own, or `ALL`; None when these workers do not lease from it."""
        if not slot.startswith(self.prefix) and not slot.startswith(OTHER_SPIDER):
            return None
        bound = self.per_slot or self.prefix or slot.startswith(OTHER_SPIDER)
        return slot if bound else ALL


@dataclass(kw_only=True)
class Work:
    """The open batches of a lane."""

    waiting: int = 0
    out: int = 0  #: leased, or their part is being fetched

    @property
    def over(self) -> bool:
        return not (self.waiting or self.out)


def work_in(counts: Iterable[SlotCount], staffing: Staffing) -> dict[str, Work]:
    """Lane -> its open batches; also lanes that have none."""
    lanes: dict[str, Work] = {} if staffing.per_slot or staffing.prefix else {ALL: Work()}
    for one in counts:
        lane = staffing.lane_of(one.slot)
        if lane is not None:
            work = lanes.setdefault(lane, Work())
            work.waiting += sum(one.batches.get(state, 0) for state in _WAITING)
            work.out += sum(one.batches.get(state, 0) for state in _OUT)
    return lanes


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do now."""

    start: Sequence[str] = field(default_factory=list)  #: lanes that get one more worker for each time they are named
    end: Sequence[str] = field(default_factory=list)  #: lanes of which one has to let a worker end
    only_for: Collection[str] = ()  #: the lanes that wait for that room, if only some nodes are of use to them


def decide(
    lanes: Mapping[str, Work],
    working: Mapping[str, int],
    staffing: Staffing,
    *,
    room: int,
    early: int = 0,
    closed: Collection[str] = (),
    cramped: Collection[str] = (),
    retired: Mapping[str, int] = MappingProxyType({}),
) -> Decision:
    """Which lanes get workers now.

    Args:
        lanes: open batches per lane.
        working: lane -> its workers, including those that have not started yet.
        staffing: what is allowed.
        room: free process slots.
        early: workers that should run before the first batch comes, where workers lease from all slots.
        closed: lanes that get none any more.
        cramped: lanes without room on the nodes that could do their batches, whatever is free elsewhere.
        retired: lane -> workers that ended as their settings say, and are not replaced.
    """
    free = min(room, staffing.most - sum(working.values()) - sum(retired.values())) if staffing.most else room
    wanted = {
        lane: _wanted(lane, work, working.get(lane, 0), staffing, early, retired.get(lane, 0))
        for lane, work in lanes.items()
        if lane not in closed
    }
    starved = sorted(
        (lane for lane, number in wanted.items() if number and not working.get(lane)),
        key=lambda lane: -lanes[lane].waiting,
    )
    # every slot gets one worker before any gets two
    turns = starved + [lane for lane, number in wanted.items() for _ in range(number - (lane in starved))]
    stuck = starved if free <= 0 else [lane for lane in starved if lane in cramped]
    return Decision(
        start=[lane for lane in turns if lane not in cramped][: max(0, free)],
        end=_spare(lanes, working, wanted) if stuck else [],
        only_for=stuck if all(lane in cramped for lane in stuck) else (),
    )


def _wanted(lane: str, work: Work, working: int, staffing: Staffing, early: int, retired: int) -> int:
    """How many more workers a lane could use, whatever the room."""
    if lane == ALL:
        return max(0, max(work.waiting, early - retired) - working)
    if staffing.per_slot and not lane.startswith(OTHER_SPIDER):
        return max(0, min(staffing.per_slot - working - retired, work.waiting))
    return max(0, work.waiting - working)


def _spare(lanes: Mapping[str, Work], working: Mapping[str, int], wanted: Mapping[str, int]) -> list[str]:
    """The lanes with idle workers, while another one has batches and no worker."""
    idle = [lane for lane, number in working.items() if number and not wanted.get(lane)]
    return [lane for lane in idle if lane not in lanes or lanes[lane].over]
