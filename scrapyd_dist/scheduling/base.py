"""What all schedulers share: their limits, the state of one crawl's work, and how they stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.scheduling.counters import BatchCounters
from scrapyd_dist.scheduling.node_client import NodeClient

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from scrapyd_dist.batches import Attempt, Batch
    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.scheduling.job_request import JobRequest
    from scrapyd_dist.scheduling.node_state import NodeState
    from scrapyd_dist.store.worker_thread import StoreThread
    from scrapyd_dist.transports import AsyncSender


logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """Limits and timeouts of a scheduler, in seconds unless noted."""

    poll: float = 1.0  #: between two polls of a job, up to five times that while its end is far and other work waits
    request_timeout: float = 15.0  #: for one call to a node
    node_timeout: float = 30.0  #: of silence after which a node's work goes elsewhere
    fleet_timeout: float = 300.0  #: without any answering node after which the crawl stops
    start_timeout: float = 3600.0  #: within which a sent job has to start
    max_attempts: int = 4  #: attempts per batch
    max_jobs: int = 0  #: jobs at one time over all nodes; 0: no limit
    wait: bool = True  #: False: send everything at once and leave


@dataclass(frozen=True, kw_only=True)
class OpenWork:
    """The batches of a crawl that are neither done nor dead."""

    waiting: int
    waiting_requests: int  #: in the waiting batches
    out: int  #: batches that run, or whose part is being fetched
    batches: int | None = None  #: all batches; None where the producer counts them


@dataclass(kw_only=True)
class SchedulerState:
    """One crawl's open work. Its holder may put batches back, start tasks and end the crawl."""

    spec: JobRequest
    members: list[NodeState]
    store: StoreThread
    sender: AsyncSender
    limits: SchedulerLimits
    counters: BatchCounters = field(default_factory=BatchCounters)
    waiting: deque[Batch] = field(default_factory=deque)  #: for a node, the next one first
    open: set[int] = field(default_factory=set)  #: numbers of batches that are neither done nor dead
    avoid: dict[int, str] = field(default_factory=dict)  #: batch -> name of the node of its last attempt
    posts: set[asyncio.Task[None]] = field(default_factory=set)  #: posts in flight, which are awaited at the end
    over: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False  #: the producer has sealed its last batch
    sending: bool = True
    paused: bool = False  #: a user paused the crawl
    stopped: str = ""  #: why it stopped before the end
    fault: BaseException | None = None  #: an internal error, never a node's
    pump: Callable[[], None] = lambda: None  #: gives waiting batches to nodes with room
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _wake: dict[int, asyncio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = NodeClient(spec=self.spec, sender=self.sender, timeout=self.limits.request_timeout)

    @property
    def waits(self) -> int:
        """Number of waiting batches."""
        return len(self.waiting)

    @property
    def which_work(self) -> str:
        """Where the batches wait, as the end of a sentence; empty when that has no name."""
        return ""

    def wake(self, member: NodeState) -> asyncio.Event:
        """The event that ends the pause before this node's next poll."""
        return self._wake.setdefault(id(member), asyncio.Event())

    def put_back(self, batch: Batch, avoid: str) -> None:
        """Put a batch first in the queue, for another node than `avoid` if there is one."""
        self.avoid[batch.number] = avoid
        self.waiting.appendleft(batch)
        self.pump()

    def cut_up(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """Replace a batch by the smaller ones that took over its requests; they wait first."""
        self.counters.cut += len(pieces) - 1
        self.open.update(piece.number for piece in pieces)
        self.waiting.extendleft(reversed(pieces))
        self.ended(batch.number)
        self.pump()

    def ended(self, batch: int) -> None:
        """The batch is done, or dead."""
        self.open.discard(batch)
        self.avoid.pop(batch, None)
        self.check_over()

    def lost_touch(self, member: NodeState, error: NodeError) -> None:
        """Record that the node did not answer."""
        if member.up:
            logger.warning(
                "%s; its work goes elsewhere if it stays so for %.0f s",
                str(error).rstrip("."),
                self.limits.node_timeout,
            )
        member.missed(str(error), time.time())

    # the end

    def check_unfit(self) -> None:
        """Stop when no node takes work and none will."""
        here = [member for member in self.members if not member.left]
        if here and all(member.unfit for member in here):
            reasons = "; ".join(sorted({member.unfit for member in here}))
            self.stop_now(f"No node takes the work{self.which_work}: {reasons}")

    def stop_now(self, reason: str) -> None:
        """Stop before the end; the batches stay in the store."""
        if not self.over.is_set():
            logger.error(reason)
            self.stopped = reason
            self.sending = False
            self.over.set()

    def close(self) -> None:
        """End all loops."""
        self.over.set()

    def check_over(self) -> None:
        """End the crawl when this was the last batch."""
        if self.closed and not self.open:
            self.over.set()
        if self.closed and not self.limits.wait and not self.waiting and not self.posts:
            self.over.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; an error in it stops the crawl with a message."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # an internal error must not leave a crawl waiting forever
            logger.error("the scheduler failed: %s", error, exc_info=error)
            self.fault = self.fault or error
            self.stop_now(f"scrapyd-dist itself failed: {type(error).__name__}: {error}")
        elif not self.limits.wait:
            asyncio.get_running_loop().call_soon(self.check_over)


class BaseScheduler:
    """Access to the state of one crawl, and an orderly stop."""

    state: SchedulerState
    members: list[NodeState]
    #: True when it stopped because a producer that still owed requests has disappeared
    incomplete = False
    #: reason why no more requests are needed: the workers ended as their settings say
    enough = ""

    @property
    def counters(self) -> BatchCounters:
        """Counters of the batches so far."""
        return self.state.counters

    @property
    def stopped(self) -> str:
        """Why it stopped before the end; empty when it did not."""
        return self.state.stopped

    @property
    def unreached(self) -> bool:
        """True when nothing was done because no answering node's workers reach the store."""
        return False

    @property
    def fault(self) -> BaseException | None:
        """An internal error, never a node's."""
        return self.state.fault

    @property
    def paused(self) -> bool:
        """True while no new work is sent."""
        return self.state.paused

    def credit(self, attempt: Attempt) -> None:
        """Count an attempt that an earlier process accepted."""
        member = next((one for one in self.members if one.node.name == attempt.node), None)
        if member is not None:
            member.jobs += 1
            member.items += attempt.report.get("items", 0)

    async def stop(self, reason: str) -> None:
        """Stop sending, let posts in flight finish, then cancel all tasks."""
        state = self.state
        state.sending = False
        state.stopped = state.stopped or reason
        while state.posts:
            await asyncio.wait(set(state.posts))
        state.close()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
