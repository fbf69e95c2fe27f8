"""Decides which node gets which waiting batch. Invariant: no node gets more jobs than it can start soon."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from scrapyd_dist.batches import Batch
from scrapyd_dist.scheduling.node_state import NodeState, typical_pace
from scrapyd_dist.settings import SETTINGS

#: how much slower a full node is rated than an empty one, so that similar nodes fill evenly
SPREAD = 0.25
#: how much sooner a full node must finish a batch for the batch to wait for it
WORTH_WAITING = 1.25


@dataclass(eq=False)
class _FreeSlots:
    """A node while batches are dealt."""

    member: NodeState
    turn: int  #: nodes that come before it
    room: int
    ours: int  #: jobs
    jobs: int  #: jobs, ours and others'
    work: float  #: requests in these jobs that have not ended
    pace: float  #: requests per second of one job


_Heap = list[tuple[float, int, _FreeSlots]]


class Placement:
    """Gives batches to nodes, in one of three ways.

    `by-capacity`: where a batch will be done first, judged by the node's load (jobs of others too), process slots and
    past speed. A slow node gets no batch that would delay the crawl's end: that batch waits for a faster node that is
    full now.
    `round-robin`: the next node with room. `least-loaded`: the node with the fewest jobs of ours per process slot.
    """

    KINDS = SETTINGS["DISTRIBUTED_PLACEMENT"].choices

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._turn = 0

    def deal(
        self,
        waiting: Collection[Batch],
        members: Sequence[NodeState],
        *,
        avoid: Mapping[int, str] = MappingProxyType({}),
        limit: int | None = None,
        closing: bool = False,
    ) -> list[tuple[Batch, NodeState]]:
        """Give batches to nodes with room, the first batch first; `members` are all nodes, always in the same order.

        A batch takes the node in `avoid` only when no other one works; `closing`: no batch comes after these.
        """
        if not waiting or limit == 0:
            return []
        size = sum(batch.size for batch in waiting) / len(waiting)
        heap, too_long = (
            self._heap(members, size),
            self._too_long(waiting, members, closing=closing),
        )
        dealt: list[tuple[Batch, NodeState]] = []
        start, too_large = self._turn, math.inf
        for batch in waiting:
            if not heap or len(dealt) == limit:
                break
            if batch.size >= too_large:
                continue
            seat = _take(heap, avoid.get(batch.number, ""), members)
            if seat is None:
                continue
            if too_long(self._done(seat, batch.size)):
                too_large = batch.size  # a smaller batch may still fit
                heappush(heap, (self._rank(seat, size), seat.turn, seat))
                continue
            dealt.append((batch, seat.member))
            self._turn = (start + seat.turn + 1) % len(members)
            seat.room -= 1
            seat.ours += 1
            seat.jobs += 1
            seat.work += batch.size
            seat.turn += len(members)
            if seat.room > 0:
                heappush(heap, (self._rank(seat, size), seat.turn, seat))
        return dealt

    def _too_long(
        self, waiting: Collection[Batch], members: Sequence[NodeState], *, closing: bool
    ) -> Callable[[float], bool]:
        """A test whether this many seconds for a batch would delay the crawl's end."""
        typical = typical_pace(members) if closing and self._kind == "by-capacity" else 0.0
        if not typical:
            return lambda _: False
        usable = [member for member in members if member.usable and member.wedged_since is None]
        pace = sum([member.likely_slots * (member.pace or typical) for member in usable])
        least = sum([batch.size for batch in waiting]) / max(pace, 0.001)

        @cache
        def latest() -> float:
            work = sum(out.to_do for member in usable for out in member.out.values())
            if not work:
                return math.inf
            size = max(batch.size for batch in waiting)
            best = min(self._done(_seat(member, 1, 0, size, typical), size) for member in usable)
            return max(least + work / pace, best * WORTH_WAITING)

        return lambda seconds: seconds > least and seconds > latest()

    def _heap(self, members: Sequence[NodeState], size: float) -> _Heap:
        """The nodes that may be chosen, the best one first."""
        rooms = [member.room() for member in members]
        if max(rooms, default=0) <= 0 and not any(member.out for member in members):
            # jobs of others fill the fleet: queue one job, so that this crawl gets its turn
            rooms = [int(member.usable and member.crowded_out) for member in members]
        typical = typical_pace(members) if self._kind == "by-capacity" else 0.0
        heap: _Heap = []
        for index, (member, most) in enumerate(zip(members, rooms, strict=True)):
            room = most
            if typical and not member.pace and not member.crowded_out:
                room = min(most, member.idle_slots)  # no batch waits on a node of unknown speed
            if room > 0:
                seat = _seat(
                    member, room, (index - self._turn) % len(members), size, typical or 1.0
                )
                heap.append((self._rank(seat, size), seat.turn, seat))
        heapify(heap)
        return heap

    def _rank(self, seat: _FreeSlots, size: float) -> float:
        """The sort key of a node; the lowest is chosen."""
        if self._kind == "round-robin":
            return 0.0
        if self._kind == "least-loaded":
            return seat.ours / seat.member.likely_slots
        return self._done(seat, size) * (
            1 + SPREAD * min(1.0, seat.jobs / seat.member.likely_slots)
        )

    @staticmethod
    def _done(seat: _FreeSlots, size: float) -> float:
        """Seconds until it would be done with one more batch."""
        slots = seat.member.likely_slots
        wait = 0.0 if seat.jobs < slots else seat.work / (seat.pace * slots)
        return wait + size / seat.pace


def _take(heap: _Heap, avoid: str, members: Sequence[NodeState]) -> _FreeSlots | None:
    """The best node but `avoid`; `avoid` when no other works; None when another one is worth waiting for."""
    first = heappop(heap)
    if not avoid or first[2].member.node.name != avoid:
        return first[2]
    if heap:
        second = heappop(heap)
        heappush(heap, first)
        return second[2]
    if any(member.usable and member.node.name != avoid for member in members):
        heappush(heap, first)
        return None
    return first[2]


def _seat(member: NodeState, room: int, turn: int, size: float, typical: float) -> _FreeSlots:
    ours, others = len(member.out), member.others
    work = sum([out.to_do for out in member.out.values()]) + others * size
    return _FreeSlots(member, turn, room, ours, ours + others, work, member.pace or typical)
