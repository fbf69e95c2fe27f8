"""How many workers a frontier gets, and on which slots. Values and decisions, no IO.

The rule it keeps: no slot has more workers than it may have, and one that is closed gets none.
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

#: the lane of workers that take from every slot but those of other spiders; no slot is called so
ALL = "*"
#: states of a batch that waits for a worker, and of one that a worker has had
_WAITING, _OUT = ("sealed", "failed"), ("sent", "running")


@dataclass(frozen=True, kw_only=True)
class Staffing:
    """How many workers there may be, and for what."""

    most: int = 0  #: workers at one time; 0: as many as the fleet has process slots
    per_slot: int = 0  #: workers on one slot; 0: workers are not bound to slots, each takes from all of them
    prefix: str = ""  #: only the slots whose names begin with it
    every: float | None = None  #: seconds between two times that workers are started; None: at once, 0: only one time
    max_time: float = 0.0  #: seconds after which no more workers are started, and nobody waits for them; 0: no limit
    terms: WorkerTerms = field(default_factory=WorkerTerms)

    def lane_of(self, slot: str) -> str | None:
        """The lane that this slot belongs to: its own, or `ALL`; None when it is no concern of these workers."""
        if not slot.startswith(self.prefix) and not slot.startswith(OTHER_SPIDER):
            return None
        bound = self.per_slot or self.prefix or slot.startswith(OTHER_SPIDER)
        return slot if bound else ALL


@dataclass(kw_only=True)
class Work:
    """What is left to do in a lane; batches."""

    waiting: int = 0
    out: int = 0  #: a worker has them, or their part is on its way home

    @property
    def over(self) -> bool:
        return not (self.waiting or self.out)


def work_in(counts: Iterable[SlotCount], staffing: Staffing) -> dict[str, Work]:
    """Lane -> what is left to do there; also lanes where nothing is."""
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

    start: Sequence[str] = field(
        default_factory=list
    )  #: lanes that get one more worker each; one may come several times
    end: Sequence[str] = field(default_factory=list)  #: lanes of which one has to let a worker make room
    only_for: Collection[str] = ()  #: the lanes that wait for that room, if it is of use on some nodes only


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
        lanes: what is left to do.
        working: lane -> workers that it has, those that have not started yet included.
        staffing: what is allowed.
        room: process slots that are free.
        early: more work is about to come, and so many workers that take from everywhere are to be up before it does.
        closed: lanes that get none any more.
        retired: lane -> workers that have done what their settings wanted; none takes their place.
        cramped: lanes that have room on none of the nodes where their work can be done, whatever is free elsewhere.
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
    # Every slot gets one worker before any gets two.
    turns = starved + [lane for lane, number in wanted.items() for _ in range(number - (lane in starved))]
    stuck = starved if free <= 0 else [lane for lane in starved if lane in cramped]
    return Decision(
        start=[lane for lane in turns if lane not in cramped][: max(0, free)],
        end=_spare(lanes, working, wanted) if stuck else [],
        only_for=stuck if all(lane in cramped for lane in stuck) else (),
    )


def _wanted(lane: str, work: Work, working: int, staffing: Staffing, early: int, retired: int) -> int:
    """How many more workers a lane could use, however little room there is."""
    if lane == ALL:
        return max(0, max(work.waiting, early - retired) - working)
    if staffing.per_slot and not lane.startswith(OTHER_SPIDER):
        return max(0, min(staffing.per_slot - working - retired, work.waiting))
    return max(0, work.waiting - working)


def _spare(lanes: Mapping[str, Work], working: Mapping[str, int], wanted: Mapping[str, int]) -> list[str]:
    """The lanes whose workers have nothing to do while another one has work and no worker."""
    idle = [lane for lane, number in working.items() if number and not wanted.get(lane)]
    return [lane for lane in idle if lane not in lanes or lanes[lane].over]
