"""The state of one crawl's work, which the parts of its scheduler share, and the limits that it keeps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.frontier.backlog import Backlog
from scrapyd_dist.scheduling.counters import BatchCounters
from scrapyd_dist.scheduling.node_client import NodeClient
from scrapyd_dist.scheduling.node_state import WorkerRun

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.frontier.backlog import SlotCount
    from scrapyd_dist.scheduling.job_request import JobRequest
    from scrapyd_dist.scheduling.node_state import NodeState
    from scrapyd_dist.store.worker_thread import StoreThread
    from scrapyd_dist.transports import AsyncSender


logger = logging.getLogger(__name__)
#: the backlog before the first look at the store
UNKNOWN = Backlog(waiting=0, leased=0, expired=0, acked=0)
#: most slots that a message names
NAMED = 5


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
    out: int  #: batches that are sent or leased, or whose part is being fetched
    batches: int  #: all batches


@dataclass(kw_only=True)
class SchedulerState:
    """One crawl's open work. Its holder may put batches back, start tasks and end the crawl.

    The store has all batches. Those in `waiting` are about to be sent to nodes; workers lease theirs from the store.
    """

    spec: JobRequest
    members: list[NodeState]
    store: StoreThread
    sender: AsyncSender
    limits: SchedulerLimits
    leases: bool = True  #: workers lease batches
    sends: bool = False  #: batches are sent to nodes; besides leases: to those whose workers do not reach the store
    counters: BatchCounters = field(default_factory=BatchCounters)
    backlog: Backlog = UNKNOWN
    slots: Sequence[SlotCount] = ()
    waiting: deque[Batch] = field(default_factory=deque)  #: for a node, the next one first
    open: set[int] = field(default_factory=set)  #: numbers of batches that wait here, or are sent
    avoid: dict[int, str] = field(default_factory=dict)  #: batch -> name of the node of its last attempt
    posts: set[asyncio.Task[None]] = field(default_factory=set)  #: posts in flight, which are awaited at the end
    news: asyncio.Event = field(default_factory=asyncio.Event)  #: the store should be polled at once
    done: asyncio.Event = field(default_factory=asyncio.Event)  #: nothing is left to do, or it was stopped
    over: asyncio.Event = field(default_factory=asyncio.Event)  #: all loops end
    closed: bool = False  #: this process adds no more batches
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
    def which_work(self) -> str:
        """Where the batches wait, as the end of a sentence; empty when that has no name."""
        names = [repr(one.slot) for one in self.slots if one.slot and one.waiting]
        if not names:
            return ""
        others = f" and {len(names) - NAMED:,} others" if len(names) > NAMED else ""
        return f" of the slot{'s' if names[1:] else ''} {', '.join(names[:NAMED])}{others}"

    def workers(self) -> Iterator[WorkerRun]:
        """All workers that are out."""
        return (out for member in self.members for out in member.out.values() if isinstance(out, WorkerRun))

    @property
    def sent_to(self) -> list[NodeState]:
        """The nodes that batches are sent to."""
        return [one for one in self.members if self.sends and (one.unreached or not self.leases)]

    def wake(self, member: NodeState) -> asyncio.Event:
        """The event that ends the pause before this node's next poll."""
        return self._wake.setdefault(id(member), asyncio.Event())

    def put_back(self, batch: Batch, avoid: str) -> None:
        """A failed batch waits again: first in the queue, for another node than `avoid` if there is one."""
        if not self.sent_to:
            self.ended(batch.number)
        elif batch.number in self.open and all(one.number != batch.number for one in self.waiting):
            self.avoid[batch.number] = avoid
            self.waiting.appendleft(batch)
            self.pump()
        self.news.set()

    def cut_up(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """Replace a batch by the smaller ones that took over its requests; they wait first."""
        if batch.number in self.open:
            self.open.update(piece.number for piece in pieces)
            self.waiting.extendleft(reversed(pieces))
        self.ended(batch.number)
        self.pump()

    def ended(self, batch: int) -> None:
        """The batch is done, dead, or nowhere."""
        self.open.discard(batch)
        self.avoid.pop(batch, None)
        self.news.set()

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
            self.close()

    def close(self) -> None:
        """End all loops."""
        self.over.set()
        self.done.set()

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
            self.news.set()
