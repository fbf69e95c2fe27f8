"""Decides how many workers a frontier gets, for which slots and on which nodes. No IO.

Invariant: no slot has more workers than allowed, and a closed one gets none.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from scrapyd_dist.batches import OUT, WAITING
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, SlotCount, WorkerRequest
from scrapyd_dist.plurals import counted

#: the pool of workers that lease from all slots but those of other spiders; no slot has this name
ALL = "*"
#: workers in a row that ended on one node without any work done
OF_A_NODE = 3
#: workers in a row that ended in one pool without any work done, beyond the attempts of one batch
OF_A_POOL = 4


@dataclass(frozen=True, kw_only=True)
class ScalingPolicy:
    """Says how many workers are allowed, and which slots they lease from."""

    most: int = 0  #: workers at one time; 0: as many as the fleet has process slots
    #: workers per slot; 0: workers are not bound to slots, each leases from all of them
    per_slot: int = 0
    prefix: str = ""  #: only slots whose names begin with it
    #: seconds between two rounds of starts; None: no rounds, 0: only one
    every: float | None = None
    #: seconds after which no more workers are started or awaited; 0: no limit
    max_time: float = 0.0
    terms: WorkerRequest = field(default_factory=WorkerRequest)

    def pool_of(self, slot: str) -> str | None:
        """Return the slot's pool: its own, or `ALL`; None when these workers skip the slot."""
        if not slot.startswith(self.prefix) and not slot.startswith(OTHER_SPIDER):
            return None
        bound = self.per_slot or self.prefix or slot.startswith(OTHER_SPIDER)
        return slot if bound else ALL


@dataclass(kw_only=True)
class Workload:
    """Counts the open batches of a pool."""

    waiting: int = 0
    out: int = 0  #: leased, or their part is being fetched

    def add(self, count: SlotCount) -> None:
        """Count the open batches of one of its slots."""
        for state in WAITING:
            self.waiting += count.batches.get(state.value, 0)
        for state in OUT:
            self.out += count.batches.get(state.value, 0)

    @property
    def over(self) -> bool:
        """Return whether no batch is open."""
        return not (self.waiting or self.out)


def work_in(counts: Iterable[SlotCount], scaling: ScalingPolicy) -> dict[str, Workload]:
    """Return the open batches of each pool, also of pools that have none."""
    pools: dict[str, Workload] = {}
    if not scaling.per_slot and not scaling.prefix:
        pools[ALL] = Workload()
    for count in counts:
        pool = scaling.pool_of(count.slot)
        if pool is None:
            continue
        work = pools.setdefault(pool, Workload())
        work.add(count)
    return pools


@dataclass(frozen=True, kw_only=True)
class ScalingDecision:
    """Says which pools get workers, and which have to let some end."""

    #: pools that get one more worker for each time they are named
    start: Sequence[str] = field(default_factory=list)
    end: Sequence[str] = field(default_factory=list)  #: pools of which one has to let a worker end
    #: the pools that wait for that room, if only some nodes are of use to them
    only_for: Collection[str] = ()


def plan_workers(
    pools: Mapping[str, Workload],
    working: Mapping[str, int],
    scaling: ScalingPolicy,
    *,
    room: int,
    early: int = 0,
    closed: Collection[str] = (),
    cramped: Collection[str] = (),
    retired: Mapping[str, int] = MappingProxyType({}),
) -> ScalingDecision:
    """Return which pools get workers now, when so many process slots are free (`room`).

    `working` has those that have not started yet, too; `early`: workers that should run before the
    first batch comes, where workers lease from all slots; `closed`: pools that get none any more;
    `cramped`: pools without room on the nodes that could do their batches, whatever is free
    elsewhere; `retired`: workers that are not replaced.
    """
    free = _free_slots(room, scaling.most, working, retired)
    wanted: dict[str, int] = {}
    for pool, work in pools.items():
        if pool not in closed:
            gone = retired.get(pool, 0)
            wanted[pool] = _wanted(pool, work, working.get(pool, 0), scaling, early, gone)
    starved = _starved(pools, working, wanted)
    turns = [pool for pool in _turns(wanted, starved) if pool not in cramped]
    stuck = starved
    if free > 0:  # only those that no free node can serve
        stuck = [pool for pool in starved if pool in cramped]
    return ScalingDecision(
        start=turns[: max(0, free)],
        end=_spare(pools, working, wanted) if stuck else [],
        only_for=stuck if set(stuck) <= set(cramped) else (),
    )


def _free_slots(
    room: int, most: int, working: Mapping[str, int], retired: Mapping[str, int]
) -> int:
    """Return how many workers may be started; none when it is below one."""
    if not most:
        return room
    return min(room, most - sum(working.values()) - sum(retired.values()))


def _wanted(
    pool: str, work: Workload, working: int, scaling: ScalingPolicy, early: int, retired: int
) -> int:
    """Return how many more workers a pool could use, whatever the room."""
    if pool == ALL:
        return max(0, max(work.waiting, early - retired) - working)
    if scaling.per_slot and not pool.startswith(OTHER_SPIDER):
        return max(0, min(scaling.per_slot - working - retired, work.waiting))
    return max(0, work.waiting - working)


def _starved(
    pools: Mapping[str, Workload], working: Mapping[str, int], wanted: Mapping[str, int]
) -> list[str]:
    """Return the pools that want workers and have none, that with the most batches first."""
    starved = [pool for pool, number in wanted.items() if number and not working.get(pool)]
    return sorted(starved, key=lambda pool: -pools[pool].waiting)


def _turns(wanted: Mapping[str, int], starved: Sequence[str]) -> list[str]:
    """Return the pools in the order of their turns, each as often as it wants a worker.

    Every slot gets one worker before any gets two.
    """
    turns = list(starved)
    for pool, number in wanted.items():
        turns += [pool] * (number - (pool in starved))
    return turns


def _spare(
    pools: Mapping[str, Workload], working: Mapping[str, int], wanted: Mapping[str, int]
) -> list[str]:
    """Return the pools with idle workers, while another one has batches and no worker."""
    spare = []
    for pool, workers in working.items():
        is_over = pool not in pools or pools[pool].over
        if is_over and workers and not wanted.get(pool):
            spare.append(pool)
    return spare


@dataclass(kw_only=True)
class CircuitBreaker:
    """Counts failures per node and per pool."""

    attempts: int  #: attempts per batch: one batch may kill this many workers
    closed: dict[str, str] = field(default_factory=dict)  #: pool -> why it gets no more workers
    unknown: set[str] = field(default_factory=set)  #: the closed pools whose spider no node has
    unfit: set[str] = field(default_factory=set)  #: names of nodes that get no more workers
    #: of these, the nodes whose workers do not reach the store
    unreached: set[str] = field(default_factory=set)
    _refusals: Counter[str] = field(default_factory=Counter)  #: pool -> refusals of its spider
    _nodes: Counter[str] = field(default_factory=Counter)  #: node -> failures in a row
    _pools: Counter[str] = field(default_factory=Counter)  #: pool -> failures in a row

    def worked(self, pool: str, node: str = "") -> None:
        """Note that a worker of this pool has done something, on this node."""
        self._pools.pop(pool, None)
        self._nodes.pop(node, None)

    def failed(self, pool: str, node: str, reason: str, *, begun: bool) -> str:
        """Count a worker that has ended without any work done, though it may have begun a batch.

        Returns why its node gets no more workers; empty as long as it gets some.
        """
        self._pools[pool] += 1
        if self._pools[pool] >= self.attempts + OF_A_POOL:
            workers = counted(self._pools[pool], "worker")
            self.closed.setdefault(pool, f"the last {workers} did nothing; the last one: {reason}")
        if begun:
            return ""
        self._nodes[node] += 1
        if self._nodes[node] < OF_A_NODE:
            return ""
        self.unfit.add(node)
        return f"the last {OF_A_NODE} workers there did nothing; the last one: {reason}"

    def out_of_reach(self, node: str) -> None:
        """Note that a node gets no more workers, as they do not reach the store."""
        self.unreached.add(node)
        self.unfit.add(node)

    def refused(self, pool: str, reason: str) -> bool:
        """Count a node's refusal of a worker for another spider.

        Returns whether the pool's batches are to be given up.
        """
        self._refusals[pool] += 1
        if self._refusals[pool] > 1:
            self.nowhere(pool, reason)
        return pool in self.unknown

    def nowhere(self, pool: str, reason: str) -> None:
        """Note that no node can run the pool's spider: its batches are given up."""
        self.unknown.add(pool)
        self.closed.setdefault(pool, reason)
