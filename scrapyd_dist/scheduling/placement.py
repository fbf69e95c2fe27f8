"""Decides which node gets which waiting batch.

Invariant: no node gets more jobs than it can start soon.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from scrapyd_dist.batches import Batch
from scrapyd_dist.scheduling.node_capacity import jobs_per_slot
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
    ours: int  #: jobs of this crawl
    jobs: int  #: jobs, ours and others'
    work: float  #: requests in these jobs that have not ended
    pace: float  #: requests per second of one job

    def add(self, batch: Batch, nodes: int) -> None:
        """Count a batch that the node gets; all the other ones of so many `nodes` come next."""
        self.turn += nodes
        self.room -= 1
        self.ours += 1
        self.jobs += 1
        self.work += batch.size


_Heap = list[tuple[float, int, _FreeSlots]]


class Placement:
    """Gives batches to nodes, in one of three ways.

    `by-capacity`: where a batch will be done first, judged by the node's load (jobs of others too),
    process slots and past speed. A slow node gets no batch that would delay the crawl's end: that
    batch waits for a faster node that is full now.
    `round-robin`: the next node with room.
    `least-loaded`: the node with the fewest jobs of ours per process slot.
    """

    KINDS = SETTINGS["DISTRIBUTED_PLACEMENT"].choices

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._turn = 0  #: index of the node whose turn is next

    def deal(
        self,
        waiting: Collection[Batch],
        members: Sequence[NodeState],
        *,
        requests: int,
        avoid: Mapping[int, str] = MappingProxyType({}),
        limit: int | None = None,
        closing: bool = False,
    ) -> list[tuple[Batch, NodeState]]:
        """Give batches to nodes with room, the first batch first.

        `members` are all nodes, always in the same order; `requests` are those of all waiting
        batches. A batch takes the node in `avoid` only when no other one works; `closing`: no batch
        comes after these.
        """
        if not waiting or limit == 0:
            return []
        size = requests / len(waiting)
        heap = self._heap(members, size)
        too_long = self._too_long(waiting, members, requests, closing=closing)
        dealt: list[tuple[Batch, NodeState]] = []
        start = self._turn
        too_large = math.inf
        for batch in waiting:
            if not heap or len(dealt) == limit:
                break
            if batch.size >= too_large:
                continue
            seat = _pop_seat(heap, avoid.get(batch.number, ""), members)
            if seat is None:
                continue
            if too_long(self._seconds(seat, batch.size)):
                too_large = batch.size  # a smaller batch may still fit
            else:
                dealt.append((batch, seat.member))
                self._turn = (start + seat.turn + 1) % len(members)
                seat.add(batch, len(members))
            if seat.room > 0:
                heappush(heap, (self._rank(seat, size), seat.turn, seat))
        return dealt

    def _too_long(
        self,
        waiting: Collection[Batch],
        members: Sequence[NodeState],
        requests: int,
        *,
        closing: bool,
    ) -> Callable[[float], bool]:
        """Return a test whether this many seconds for a batch would delay the crawl's end."""
        typical = self._typical_pace(members) if closing else 0.0
        if not typical:
            return lambda _: False
        usable = [member for member in members if member.usable and not member.liveness.wedged]
        pace = _total_pace(usable, typical)
        least = requests / max(pace, 0.001)

        @cache
        def latest() -> float:
            """Return the most seconds that a batch may take."""
            work = _open_work(usable)
            if not work:
                return math.inf
            size = max(batch.size for batch in waiting)
            return max(least + work / pace, self._best(usable, size, typical) * WORTH_WAITING)

        return lambda seconds: seconds > least and seconds > latest()

    def _typical_pace(self, members: Sequence[NodeState]) -> float:
        """Return the pace for nodes of unknown pace; 0: not known, or of no use for this kind."""
        return typical_pace(members) if self._kind == "by-capacity" else 0.0

    def _best(self, usable: Sequence[NodeState], size: int, typical: float) -> float:
        """Return the seconds that the best of these nodes would take for such a batch."""
        best = math.inf
        for member in usable:
            best = min(best, self._seconds(_seat(member, 1, 0, size, typical), size))
        return best

    def _heap(self, members: Sequence[NodeState], size: float) -> _Heap:
        """Return the nodes that may be chosen, the best one first."""
        typical = self._typical_pace(members)
        heap: _Heap = []
        for index, (member, most) in enumerate(zip(members, _rooms(members), strict=True)):
            room = most
            if typical and not member.capacity.pace and not member.crowded_out:
                room = min(most, member.idle_slots)  # no batch waits on a node of unknown speed
            if room > 0:
                turn = (index - self._turn) % len(members)
                seat = _seat(member, room, turn, size, typical or 1.0)
                heap.append((self._rank(seat, size), seat.turn, seat))
        heapify(heap)
        return heap

    def _rank(self, seat: _FreeSlots, size: float) -> float:
        """Return the sort key of a node; the lowest is chosen."""
        if self._kind == "round-robin":
            return 0.0
        if self._kind == "least-loaded":
            return jobs_per_slot(seat.ours, seat.member.capacity.likely_slots)
        fill = min(1.0, jobs_per_slot(seat.jobs, seat.member.capacity.likely_slots))
        return self._seconds(seat, size) * (1 + SPREAD * fill)

    @staticmethod
    def _seconds(seat: _FreeSlots, size: float) -> float:
        """Return the seconds until the node would be done with one more batch of this size."""
        slots = seat.member.capacity.likely_slots
        wait = 0.0 if seat.jobs < slots else seat.work / (seat.pace * slots)
        return wait + size / seat.pace


def _rooms(members: Sequence[NodeState]) -> list[int]:
    """Return how many jobs each node may get."""
    rooms = [member.room() for member in members]
    if max(rooms, default=0) > 0 or any(member.out for member in members):
        return rooms
    # jobs of others fill the fleet: queue one job, so that this crawl gets its turn
    return [int(member.usable and member.crowded_out) for member in members]


def _total_pace(members: Iterable[NodeState], typical: float) -> float:
    """Return the requests per second of all likely slots of these nodes."""
    pace = 0.0
    for member in members:
        pace += member.capacity.likely_slots * (member.capacity.pace or typical)
    return pace


def _open_work(members: Iterable[NodeState]) -> int:
    """Return the requests that have not ended in the jobs on these nodes."""
    work = 0
    for member in members:
        for out in member.out.values():
            work += out.to_do
    return work


def _pop_seat(heap: _Heap, avoid: str, members: Sequence[NodeState]) -> _FreeSlots | None:
    """Remove the best node but `avoid` from the heap, and return it.

    It is `avoid` when no other one works, and None when another one is worth waiting for.
    """
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
    """Return a node with its load; jobs of others count as batches of this size."""
    ours = len(member.out)
    work = _open_work([member]) + member.capacity.others * size
    jobs = ours + member.capacity.others
    pace = member.capacity.pace or typical
    return _FreeSlots(member, turn, room, ours, jobs, work, pace)
