"""Holds what the parts of a scheduler share: its crawl and nodes, and the keepers of its state."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from scrapyd_dist.batches import Attempt, Batch, Miss
from scrapyd_dist.errors import NodeError, StoreError, as_store_error
from scrapyd_dist.frontier.backlog import Backlog, SlotCount
from scrapyd_dist.goals import Spent
from scrapyd_dist.joblogs.remedies import remedy_for
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node, PresentNodes
from scrapyd_dist.plurals import some_of
from scrapyd_dist.scheduling.batch_counters import BatchCounters
from scrapyd_dist.scheduling.crawl_tasks import CrawlTasks
from scrapyd_dist.scheduling.goal_account import GoalAccount
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_client import NodeClient
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.scheduling.observers import Observers
from scrapyd_dist.scheduling.rules_watch import RulesWatch
from scrapyd_dist.scheduling.run_status import RunStatus
from scrapyd_dist.scheduling.send_queue import SendQueue
from scrapyd_dist.store.reach import Way
from scrapyd_dist.store.store_thread import StoreThread
from scrapyd_dist.transports import AsyncSender

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)
#: least seconds between two polls of the store
BREATH = 0.02
#: most slots or nodes that a message names
NAMED = 5


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
class SchedulerState:
    """Holds one crawl's open work.

    Its holder may put batches back, start tasks and end the crawl. The store has all batches. Those
    in the `queue` are about to be sent to nodes; workers lease theirs from the store.
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
    #: where the throttle's rules are kept for the process that goes on; None: nowhere
    rules_file: Path | None = None
    counters: BatchCounters = field(default_factory=BatchCounters)
    backlog: Backlog = field(default_factory=Backlog)  #: by the last poll of the store
    #: items that workers have scraped for no batch: there is no part for them, and they are lost
    stray_items: int = 0
    own_items: int = 0  #: those of the start requests and logins that workers have made
    queue: SendQueue = field(default_factory=SendQueue)
    status: RunStatus = field(default_factory=RunStatus)

    def __post_init__(self) -> None:
        self._by_url: dict[str, NodeState] = {}
        for member in self.members:
            self._by_url.setdefault(member.node.url, member)
        self.db = self.store.store  #: whose verbs are called with `run`
        self.leases = self.reach is not None
        self.client = NodeClient(
            spec=self.spec, sender=self.sender, timeout=self.limits.request_timeout
        )
        self.rules = RulesWatch(store=self.store, file=self.rules_file)
        self.goals = GoalAccount(limits=self.spec.goals, ask_store=self._ask_for_goals)
        self.tasks = CrawlTasks(failed=self._fail, ended=self._note_task)
        self._news = asyncio.Event()  #: the store is to be polled at once
        self._pumps: Observers[[]] = Observers()
        self._receivers: Observers[[Attempt]] = Observers()

    def run(
        self, verb: Callable[Concatenate[str, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Call a verb of the store for this crawl, in the store's thread."""
        return self.store(verb, self.spec.crawl, *args, **kwargs)

    def _ask_for_goals(
        self, requests: int, done: Mapping[str, int], *, reserve: bool
    ) -> Awaitable[Spent]:
        return self.run(self.db.spend, self.spec.goals, requests, done, reserve=reserve)

    # what the process of the crawl reads

    @property
    def paused(self) -> bool:
        """Return whether a user has paused the crawl."""
        return self.status.paused

    @property
    def stopped(self) -> str:
        """Return why it stopped before the end; empty if it did not."""
        return self.status.stopped

    @property
    def goal(self) -> str:
        """Return the goal that is reached; empty for none."""
        return self.status.goal

    @property
    def closed_by(self) -> str:
        """Return the reason for which the project's own code has closed the crawl."""
        return self.status.closed_by

    @property
    def ends_early(self) -> bool:
        """Return whether nothing more is begun, and what is under way ends the crawl."""
        return self.status.ends_early

    # who is told what

    def on_room(self, pump: Callable[[], None]) -> None:
        """Let this function give waiting batches to nodes with room, whenever there may be some."""
        self._pumps.add(pump)

    def pump(self) -> None:
        """Give waiting batches to nodes with room."""
        self._pumps.notify()

    def on_accepted(self, receive: Callable[[Attempt], None]) -> None:
        """Let this function have each attempt that is accepted from now on, its part being home."""
        self._receivers.add(receive)

    def note_accepted(self, attempt: Attempt) -> None:
        """Pass on an attempt that was accepted."""
        self._receivers.notify(attempt)

    # polls of the store

    async def read_backlog(self) -> Backlog:
        """Read the backlog from the store, and keep it until the next poll."""
        self.backlog = await self.run(self.db.backlog)
        return self.backlog

    def poll_now(self) -> None:
        """Have the store polled at once."""
        self._news.set()

    def begin_poll(self) -> None:
        """Count what happens from now on as news for the next poll."""
        self._news.clear()

    async def pause(self, share: float, least: float = BREATH) -> None:
        """Wait for a reason to poll, or for this share of `SchedulerLimits.poll`.

        The pause lasts at least `least` seconds.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), self.limits.poll * share)
        await asyncio.sleep(least)

    @property
    def which_work(self) -> str:
        """Return where the batches wait, as the end of a sentence; empty without a name."""
        names = [repr(count.slot) for count in self.backlog.slots if count.slot and count.waiting]
        if not names:
            return ""
        return f" of the slot{'s' if len(names) > 1 else ''} {some_of(names, NAMED)}"

    # nodes and jobs

    def join(self, member: NodeState) -> None:
        """Let a node join the crawl."""
        self.members.append(member)
        self._by_url.setdefault(member.node.url, member)

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
        return self._by_url.get(url)

    def holder_of(self, attempt: Attempt) -> NodeState | None:
        """Return the node that has the part of an attempt; None when it is not in the fleet.

        A local node that was started again has another address, and its files as before.
        """
        present = PresentNodes(member.node for member in self.members)
        node = present.find(attempt.node, attempt.url)
        return None if node is None else self.member_at(node.url)

    def lost_touch(self, member: NodeState, error: NodeError) -> None:
        """Note that a node does not answer, for this reason."""
        if member.up:
            words = str(error).rstrip(".")
            patience = self.limits.node_timeout
            logger.warning("%s; its work goes elsewhere if it stays so for %.0f s", words, patience)
        member.liveness.missed(str(error), time.time())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task; an error in it stops the crawl with a message."""
        return self.tasks.spawn(work)

    def send_out(self, out: JobRun, post: Coroutine[Any, Any, None]) -> None:
        """Count a job at its node, and run its post in a task that the end waits for."""
        out.member.add(out)
        self.tasks.post(post)

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

    def note_uncollected(self, report: WorkerReport) -> None:
        """Count items that a worker has scraped, and that are in no part."""
        self.stray_items += report.stray_items
        self.own_items += report.own_items

    # batches

    def put_back(self, batch: Batch, avoid: str) -> None:
        """Let a failed batch wait again, as the first one.

        It goes to another node than `avoid` if there is one.
        """
        if not self.sent_to:
            self.forget_batch(batch.number)
        elif self.queue.put_back(batch, avoid):
            self.pump()
        self.poll_now()

    def cut_up(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """Replace a batch by the smaller ones that took over its requests; they wait first."""
        self.queue.replace(batch, pieces)
        self.forget_batch(batch.number)
        self.pump()

    def forget_batch(self, batch: int) -> None:
        """Forget a batch that is done, dead, or nowhere."""
        self.queue.forget(batch)
        self.poll_now()

    def recount(
        self, slots: Sequence[SlotCount], attempts: Sequence[Attempt], misses: Sequence[Miss]
    ) -> None:
        """Count anew what the store has, but for what it does not keep."""
        counters = BatchCounters(failed=self.counters.failed, cuts=self.counters.cuts)
        counters.recall(slots, attempts, misses)
        self.counters = counters

    # the end

    def check_unfit(self) -> None:
        """Stop when no node takes work and none will."""
        reasons = set()
        for member in self.members:
            if not (member.left or member.died_before):
                reasons.add(member.readiness.unfit)
        if not reasons or "" in reasons:  # one that is not unfit has no reason
            return
        reason = "; ".join(sorted(reasons))
        message = f"No node takes the work{self.which_work}: {reason}"
        remedy = remedy_for(reason)
        if remedy:
            message = f"{message.rstrip('.')}. {remedy}"
        self.stop_now(message)

    def close_crawl(self, reason: str) -> None:
        """End the crawl for this reason, because the project's code has closed its spider.

        It has done so in one process; without a reason, nothing happens.
        """
        if reason and not self.status.closed_by:
            logger.warning("the spider has closed the crawl: %s", reason)
            self.status.close_crawl(reason)
            self.poll_now()

    def stop_now(self, reason: str) -> None:
        """Stop before the end; the batches stay in the store."""
        if not self.status.over.is_set():
            logger.error(reason)
            self.status.note_stop(reason)
            self.status.stop_sending()
            self.status.end()

    def _note_task(self) -> None:
        if not self.limits.wait:
            self.poll_now()

    def _fail(self, failure: BaseException) -> None:
        """Stop because of an error of the store, or an internal one, that has ended a task.

        Such an error must not leave a crawl waiting forever.
        """
        error = as_store_error(failure)
        is_ours = not isinstance(error, StoreError)
        logger.error("the scheduler failed: %s", error, exc_info=error if is_ours else None)
        self.status.note_fault(error)
        message = str(error)
        if is_ours:
            message = f"scrapyd-dist itself failed: {type(error).__name__}: {message}"
        self.stop_now(message)
