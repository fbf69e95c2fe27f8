"""Holds what the parts of a scheduler share: its crawl's open work, its counters and its limits."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

from scrapyd_dist.batches import Attempt, AttemptState, Batch, BatchState, Miss
from scrapyd_dist.errors import NodeError, StoreError, as_store_error
from scrapyd_dist.frontier.backlog import Backlog, SlotCount
from scrapyd_dist.goals import Spent
from scrapyd_dist.items.json_lines import AGAIN, count_items, places
from scrapyd_dist.joblogs.remedies import remedy_for
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.job_allowance import JobAllowance
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_client import NodeClient
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.store.reach import Way
from scrapyd_dist.store.worker_thread import StoreThread
from scrapyd_dist.transports import AsyncSender

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)
#: requests that a job may make besides two for each of its batch: a robots.txt, and more retries
SPARE = 10
#: most slots or nodes that a message names
NAMED = 5


def listed(names: Sequence[str]) -> str:
    """Return the first of these names, and how many others there are."""
    text = ", ".join(names[:NAMED])
    others = len(names) - NAMED
    if others > 0:
        text += f" and {others:,} others"
    return text


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """Sets the limits and timeouts of a scheduler, in seconds unless noted."""

    #: between two polls of a job, up to five times that while its end is far and other work waits
    poll: float = 1.0
    request_timeout: float = 15.0  #: for one call to a node
    node_timeout: float = 30.0  #: of silence after which a node's work goes elsewhere
    fleet_timeout: float = 300.0  #: without any answering node after which the crawl stops
    start_timeout: float = 3600.0  #: within which a sent job has to start
    max_attempts: int = 4  #: attempts per batch
    max_jobs: int = 0  #: jobs at one time over all nodes; 0: no limit
    wait: bool = True  #: False: send everything at once and leave


@dataclass(kw_only=True)
class BatchCounters:
    """Counts batches, attempts, and requests in them."""

    sent: int = 0  #: attempts that a node accepted
    done: int = 0  #: batches done
    failed: int = 0  #: failed attempts
    dead: int = 0  #: dead batches
    cuts: int = 0  #: cuts that this process has tried
    requests_done: int = 0
    pages: int = 0
    items: int = 0  #: items, where those of a retry replace those of the failed request
    gone: int = 0  #: URLs gone
    failed_urls: int = 0
    dead_urls: int = 0
    #: (batch, index in it) of a failed request -> number of its items
    _of_failed: dict[tuple[int, int], int] = field(default_factory=dict)

    def accepted(self, batch: int, report: Mapping[str, Any], misses: Sequence[Miss]) -> None:
        """Count a batch that is done; `report` is what the store keeps of its report."""
        self.done += 1
        self.requests_done += report.get("done", 0)
        self.pages += report.get("pages", 0)
        self.items += report.get("items", 0)
        for earlier, place in report.get(AGAIN) or ():
            self.items -= self._of_failed.pop((earlier, place), 0)
        for place, runs in places(report).items():
            if runs:
                self._of_failed[batch, place] = count_items(runs)
        self._missed(misses)

    def died(self, batch: Batch) -> None:
        """Count a dead batch."""
        self.dead += 1
        self.dead_urls += batch.size

    def recall(
        self, slots: Sequence[SlotCount], attempts: Sequence[Attempt], misses: Sequence[Miss]
    ) -> None:
        """Count the batches that an earlier process left in the store."""
        self.sent = len(attempts)
        self.dead = 0
        self.dead_urls = 0
        dead = BatchState.DEAD.value
        for slot in slots:
            self.dead += slot.batches.get(dead, 0)
            self.dead_urls += slot.requests.get(dead, 0)
        # a retry has a higher batch number
        for attempt in sorted(attempts, key=lambda attempt: attempt.batch):
            if attempt.state is AttemptState.ACCEPTED:
                self.accepted(attempt.batch, attempt.report, ())
        self._missed([miss for miss in misses if miss.batch])

    def _missed(self, misses: Sequence[Miss]) -> None:
        """Count requests that were not made."""
        for miss in misses:
            if miss.kind == "gone":
                self.gone += 1
            elif miss.kind == "failed":
                self.failed_urls += 1
            elif miss.kind == "dead":
                # Those of a dead batch are made at the end: these are for spiders or callbacks that
                # are nowhere.
                self.dead_urls += 1


@dataclass(kw_only=True)
class SchedulerState:
    """Holds one crawl's open work.

    Its holder may put batches back, start tasks and end the crawl. The store has all batches. Those
    in `waiting` are about to be sent to nodes; workers lease theirs from the store.
    """

    spec: JobRequest
    members: list[NodeState]
    store: StoreThread
    sender: AsyncSender
    limits: SchedulerLimits
    #: how a node's workers reach the store; None: they lease nothing
    reach: Callable[[Node], Way] | None = None
    #: nodes whose workers do not reach the store are sent their batches, as all without `reach`
    sends: bool = False
    counters: BatchCounters = field(default_factory=BatchCounters)
    backlog: Backlog = field(default_factory=Backlog)  #: by the last poll of the store
    waiting: deque[Batch] = field(default_factory=deque)  #: for a node, the next one first
    open: set[int] = field(default_factory=set)  #: numbers of batches that wait here, or are sent
    #: batch -> name of the node of its last attempt
    avoid: dict[int, str] = field(default_factory=dict)
    #: posts in flight, which are awaited at the end
    posts: set[asyncio.Task[Any]] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)  #: the store is to be polled at once
    #: nothing is left to do, or it was stopped
    done: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)  #: all loops end
    closed: bool = False  #: this process adds no more batches
    sending: bool = True
    paused: bool = False  #: a user paused the crawl
    #: how far the crawl is from its goals, by the last poll
    spent: Spent = field(default_factory=lambda: Spent(0, {}))
    #: what jobs have done since then that do not reach the store
    uncounted: Counter[str] = field(default_factory=Counter)
    #: items that workers have scraped for no batch: there is no part for them, and they are lost
    stray_items: int = 0
    goal: str = ""  #: the goal that is reached: nothing more is begun
    #: the reason for which the project's own code has closed the crawl: likewise
    closed_by: str = ""
    stopped: str = ""  #: why it stopped before the end
    fault: BaseException | None = None  #: an internal error, never a node's
    pump: Callable[[], None] = lambda: None  #: gives waiting batches to nodes with room
    #: called with each accepted attempt, whose part is home
    accepted: Callable[[Attempt], None] = lambda _: None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.db = self.store.store  #: whose verbs are called with `run`
        self.leases = self.reach is not None
        self.client = NodeClient(
            spec=self.spec, sender=self.sender, timeout=self.limits.request_timeout
        )

    def run(
        self, verb: Callable[Concatenate[str, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Call a verb of the store for this crawl, in the store's thread."""
        return self.store(verb, self.spec.crawl, *args, **kwargs)

    @property
    def ends_early(self) -> bool:
        """Return whether nothing more is begun, and what is under way ends the crawl."""
        return bool(self.goal or self.closed_by)

    @property
    def which_work(self) -> str:
        """Return where the batches wait, as the end of a sentence; empty without a name."""
        names = [repr(count.slot) for count in self.backlog.slots if count.slot and count.waiting]
        if not names:
            return ""
        return f" of the slot{'s' if len(names) > 1 else ''} {listed(names)}"

    def workers(self) -> Iterator[WorkerRun]:
        """Generate the workers on all nodes."""
        for member in self.members:
            for out in member.out.values():
                if isinstance(out, WorkerRun):
                    yield out

    @property
    def has_workers(self) -> bool:
        """Return whether any worker is out."""
        return next(self.workers(), None) is not None

    @property
    def sent_to(self) -> list[NodeState]:
        """Return the nodes that are sent their batches; workers of the others lease them."""
        if not self.leases:
            return list(self.members)
        if not self.sends:
            return []
        return [member for member in self.members if member.readiness.unreached]

    @property
    def jobs_out(self) -> int:
        """Return how many jobs are out on all nodes, workers too."""
        jobs = 0
        for member in self.members:
            jobs += len(member.out)
        return jobs

    def member_at(self, url: str) -> NodeState | None:
        """Return the node at this address, or None when it is not in the fleet any more."""
        for member in self.members:
            if member.node.url == url:
                return member
        return None

    def close_crawl(self, reason: str) -> None:
        """End the crawl for this reason, because the project's code has closed its spider.

        It has done so in one process; without a reason, nothing happens.
        """
        if reason and not self.closed_by:
            logger.warning("the spider has closed the crawl: %s", reason)
            self.closed_by = reason
            self.news.set()

    def put_back(self, batch: Batch, avoid: str) -> None:
        """Let a failed batch wait again, as the first one.

        It goes to another node than `avoid` if there is one.
        """
        if not self.sent_to:
            self.ended(batch.number)
        elif batch.number in self.open and not self._is_waiting(batch):
            self.avoid[batch.number] = avoid
            self.waiting.appendleft(batch)
            self.pump()
        self.news.set()

    def _is_waiting(self, batch: Batch) -> bool:
        return any(other.number == batch.number for other in self.waiting)

    def cut_up(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """Replace a batch by the smaller ones that took over its requests; they wait first."""
        if batch.number in self.open:
            for piece in pieces:
                self.open.add(piece.number)
            self.waiting.extendleft(reversed(pieces))
        self.ended(batch.number)
        self.pump()

    def ended(self, batch: int) -> None:
        """Forget a batch that is done, dead, or nowhere."""
        self.open.discard(batch)
        self.avoid.pop(batch, None)
        self.news.set()

    def lost_touch(self, member: NodeState, error: NodeError) -> None:
        """Note that a node does not answer, for this reason."""
        if member.up:
            words = str(error).rstrip(".")
            patience = self.limits.node_timeout
            logger.warning("%s; its work goes elsewhere if it stays so for %.0f s", words, patience)
        member.liveness.missed(str(error), time.time())

    # goals

    async def spend(
        self, requests: int = 0, done: Mapping[str, int] = MappingProxyType({}), **how: bool
    ) -> int:
        """Ask the store for requests, and add to it what was counted here.

        Returns the number of requests that is granted.
        """
        self.spent = await self.run(self.db.spend, self.spec.goals, requests, done, **how)
        return self.spent.granted

    async def reserve(self, out: JobRun) -> bool:
        """Set what a job may do without the store.

        Where its node does not reach the store, its requests are reserved there. Returns False when
        none are left now.
        """
        goals = self.spec.goals
        counts = self.spent.counts
        left = {name: limit - counts.get(name, 0) for name, limit in goals.items()}
        if "requests" not in goals:
            out.allow(JobAllowance(limits=left))
            return True
        most = 2 * out.batch.size + SPARE
        reserved = 0
        if out.member.readiness.throttle_problem or out.member.readiness.unreached:
            reserved = most = await self.spend(most, reserve=True)
        # Elsewhere it asks the store, and what it does not need must not be kept from others.
        left["requests"] = min(most, left["requests"])
        out.allow(JobAllowance(limits=left, reserved=reserved))
        return left["requests"] >= 1

    def count_for(self, out: JobRun, *, over: bool = False, lost: bool = False) -> None:
        """Count for the goals what a job reports, and release what it has reserved.

        This is for a job that does not reach the store. `over`: it makes no more requests; `lost`:
        it may make all that it has reserved.
        """
        if out.allowance is not None and out.allowance.limits:
            self.uncounted.update(out.allowance.settle(out.report, over=over, lost=lost))

    # jobs

    def send_out(self, out: JobRun, post: Coroutine[Any, Any, None]) -> None:
        """Count a job at its node, and run its post in a task that the end waits for."""
        out.member.add(out)
        task = self.spawn(post)
        self.posts.add(task)
        task.add_done_callback(self.posts.discard)

    async def abandon(self, out: JobRun) -> None:
        """Give up a job that may still run.

        It is cancelled, at once or when its node answers again.
        """
        member = out.member
        member.drop(out)
        if member.up:
            try:
                await self.client.cancel(member, out.given_up)
            except NodeError as error:
                self.lost_touch(member, error)
            else:
                return
        member.cancel_when_up(out.given_up)

    # the end

    def check_unfit(self) -> None:
        """Stop when no node takes work and none will."""
        reasons = set()
        for member in self.members:
            if not member.left:
                reasons.add(member.readiness.unfit)
        if not reasons or "" in reasons:  # one that is not unfit has no reason
            return
        reason = "; ".join(sorted(reasons))
        message = f"No node takes the work{self.which_work}: {reason}"
        remedy = remedy_for(reason)
        if remedy:
            message = f"{message.rstrip('.')}. {remedy}"
        self.stop_now(message)

    def stop_now(self, reason: str) -> None:
        """Stop before the end; the batches stay in the store."""
        if not self.over.is_set():
            logger.error(reason)
            self.stopped = reason
            self.sending = False
            self.close()

    def close(self) -> None:
        """End all loops, and those who wait for the end."""
        self.over.set()
        self.done.set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task; an error in it stops the crawl with a message."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        """Forget a task that has ended, and stop if it has failed."""
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # an internal error must not leave a crawl waiting forever
            self._fail(as_store_error(error))
        elif not self.limits.wait:
            self.news.set()

    def _fail(self, error: BaseException) -> None:
        """Stop because of an error of the store, or an internal one."""
        is_ours = not isinstance(error, StoreError)
        logger.error("the scheduler failed: %s", error, exc_info=error if is_ours else None)
        self.fault = self.fault or error
        message = str(error)
        if is_ours:
            message = f"scrapyd-dist itself failed: {type(error).__name__}: {message}"
        self.stop_now(message)
