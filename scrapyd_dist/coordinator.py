"""What places, sends, watches, retries and collects the batches of one crawl. It lives in the producer's process.

The rules it keeps: an attempt is in the store before it is posted; what may have been accepted is
never posted again under the same job id; one attempt of a batch is accepted, and its part is home
and checked before that is written down. It runs in an asyncio loop; the store and the way calls are
sent are given to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scrapyd_dist import api
from scrapyd_dist.batches import ENDED, WAITING, Attempt, AttemptState, Batch, BatchState, job_id
from scrapyd_dist.calls import Calls
from scrapyd_dist.collect import PartLost, fetch_part
from scrapyd_dist.errors import ApiRefused, AuthRefused, CallRefused, NodeError, NotFound
from scrapyd_dist.fleet import Member, Out, Placement
from scrapyd_dist.outcome import Report, kept, misses, refusal
from scrapyd_dist.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from pathlib import Path

    from scrapyd_dist.posting import JobSpec
    from scrapyd_dist.store.worker_thread import StoreThread
    from scrapyd_dist.transports import AsyncSender

logger = logging.getLogger(__name__)

#: seconds a report may stay the same before the node is asked whether the job still runs
FRESH = 3.5
#: seconds for which a job that its node does not know (any more) is given the benefit of the doubt
UNKNOWN_GRACE = 8.0
#: answers with which a node refuses a job that it could have taken
SAID_NO = (ApiRefused, AuthRefused, CallRefused, NotFound)
#: parts that are fetched at the same time
FETCHES = 4


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How patient a coordinator is; seconds unless said otherwise."""

    poll: float = 1.0  #: between two looks at a job, at most five times that when it has long to go
    request_timeout: float = 15.0  #: for one call to a node
    node_timeout: float = 30.0  #: after which the work of a node that does not answer goes elsewhere
    fleet_timeout: float = 300.0  #: after which a crawl stops when no node answers
    start_timeout: float = 3600.0  #: within which a sent job has to start
    max_attempts: int = 4  #: of one batch
    max_jobs: int = 0  #: out over the whole fleet at one time; 0 for no limit
    wait: bool = True  #: False: send everything at once and leave


@dataclass(kw_only=True)
class Coordinator:
    """See the module. `start`, then `add` batches, then `no_more`, then `await ended()`."""

    spec: JobSpec
    members: Sequence[Member]
    store: StoreThread
    sender: AsyncSender
    folder: Path  #: where parts are kept
    prepare: Callable[[Member], Awaitable[str]]  #: brings the crawl's code to a node; a reason when it cannot
    limits: Limits = field(default_factory=Limits)
    placement: Placement = field(default_factory=lambda: Placement("round-robin"))
    tally: Tally = field(default_factory=Tally)
    stopped: str = ""  #: why it stopped before the end, in words
    fault: BaseException | None = None  #: an error of ours, never of a node

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._calls = Calls(spec=self.spec, sender=self.sender, timeout=self.limits.request_timeout)
        self._waiting: deque[Batch] = deque()
        self._avoid: dict[int, str] = {}
        self._open: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._posts: set[asyncio.Task[None]] = set()
        self._wake: dict[int, asyncio.Event] = {}
        self._over = asyncio.Event()
        self._closed = False
        self._sending = True
        self._dark_since: float | None = None
        self._fetches = asyncio.Semaphore(FETCHES)

    # what the producer calls

    async def recover(self) -> None:
        """Take up what an earlier process left: waiting batches, and attempts that are out."""
        db, crawl = self.store.store, self.spec.crawl
        batches = await self.store(db.batches, crawl)
        attempts = await self.store(db.attempts, crawl)
        accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
        self.tally.recall(batches, accepted, await self.store(db.misses, crawl))
        for attempt in accepted:
            self._credit(attempt)
        last = {attempt.batch: attempt for attempt in attempts}
        for batch in batches:
            if batch.state in ENDED:
                continue
            self._open.add(batch.number)
            if batch.state in WAITING:
                self._waiting.append(batch)
            else:
                await self._take_up(batch, last[batch.number])

    async def _take_up(self, batch: Batch, attempt: Attempt) -> None:
        member = next((m for m in self.members if m.node.url == attempt.url), None)
        if member is None:
            await self._give_up(batch, attempt.number, f"its node {attempt.node} is not in the fleet any more")
            return
        now = time.time()
        out = Out(
            batch=batch,
            number=attempt.number,
            job=attempt.job,
            member=member,
            since=attempt.sent_at,
            start_by=now + self.limits.start_timeout,
            posted=True,
        )
        member.out[out.job] = out

    def _credit(self, attempt: Attempt) -> None:
        member = next((m for m in self.members if m.node.name == attempt.node), None)
        if member is not None:
            member.jobs += 1
            member.items += attempt.report.get("items", 0)

    def start(self) -> None:
        """Watch every node from now on."""
        for member in self.members:
            self._wake[id(member)] = asyncio.Event()
            self._spawn(self._watch(member))
        self._pump()

    def add(self, batch: Batch) -> None:
        """A batch was sealed."""
        self.tally.sealed += batch.size
        self._open.add(batch.number)
        self._waiting.append(batch)
        self._pump()

    def no_more(self) -> None:
        """The producer has sealed its last batch."""
        self._closed = True
        self._check_over()

    @property
    def waiting(self) -> int:
        """Batches that wait for a node."""
        return len(self._waiting)

    async def ended(self) -> None:
        """Wait until every batch is done or dead, or the crawl cannot go on (`stopped`, `fault`)."""
        await self._over.wait()

    async def stop(self, reason: str) -> None:
        """Send nothing that is not on its way, see the posts under way to their end, and leave."""
        self._sending = False
        self.stopped = self.stopped or reason
        while self._posts:
            await asyncio.wait(set(self._posts))
        self._over.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # placing and sending

    def _pump(self) -> None:
        """Give every waiting batch a node, as long as there is room."""
        for batch in list(self._waiting):
            if not self._sending or self._full():
                return
            member = self._choose(batch)
            if member is not None:
                self._waiting.remove(batch)
                self._send(batch, member)

    def _full(self) -> bool:
        if self.limits.max_jobs and sum(len(member.out) for member in self.members) >= self.limits.max_jobs:
            return True
        return self.limits.wait and not any(member.room() > 0 for member in self.members)

    def _send(self, batch: Batch, member: Member) -> None:
        number = batch.attempts + 1
        now = time.time()
        out = Out(
            batch=batch,
            number=number,
            job=job_id(self.spec.crawl, batch.number, number),
            member=member,
            since=now,
            start_by=now + self.limits.start_timeout,
        )
        member.out[out.job] = out
        task = self._spawn(self._post(out))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    def _choose(self, batch: Batch) -> Member | None:
        if self.limits.wait:
            return self.placement.choose(self.members, avoid=self._avoid.get(batch.number, ""))
        usable = [member for member in self.members if member.usable]
        return min(usable, key=lambda member: len(member.out)) if usable else None

    async def _post(self, out: Out) -> None:
        db, crawl, node = self.store.store, self.spec.crawl, out.member.node
        attempt = Attempt(
            batch=out.batch.number, number=out.number, job=out.job, node=node.name, url=node.url, sent_at=out.since
        )
        await self.store(db.open_attempt, crawl, attempt)
        payload = await self.store(db.payload, crawl, out.batch.number)
        try:
            await self._calls.post(out, payload)
        except NodeError as error:
            if not error.maybe_accepted:
                await self._refused(out, error)
                return
            if not await self._was_accepted(out, error):
                return
        self.tally.sent += 1
        await self.store(db.sent, crawl, out.batch.number, out.number)
        out.posted = True
        self._wake[id(out.member)].set()

    async def _refused(self, out: Out, error: NodeError) -> None:
        """The node certainly did not take it: the batch waits again, for another node if there is one."""
        member = out.member
        member.out.pop(out.job, None)
        if isinstance(error, SAID_NO):
            self._said_no(member, error)
        else:
            self._lost_touch(member, error)
        await self.store(
            self.store.store.refused, self.spec.crawl, out.batch.number, out.number, str(error), time.time()
        )
        self._avoid[out.batch.number] = member.node.name
        self._waiting.appendleft(out.batch)
        self._wake[id(member)].set()
        self._pump()
        self._check_unfit()

    def _said_no(self, member: Member, error: NodeError) -> None:
        """It answers and does not want the job. Once, it may have lost the code; twice, it gets no more work."""
        if isinstance(error, ApiRefused) and not member.prepared:
            return  # said to several posts at the same time: it counts once
        if isinstance(error, ApiRefused) and not member.refusals:
            member.refusals += 1
            member.prepared = False
            return
        member.unfit = str(error)
        logger.error("%s gets no more work: %s", member.node, error)

    async def _was_accepted(self, out: Out, error: NodeError) -> bool:
        """After a post whose fate is not known: ask the node for the job id before anything is sent again."""
        deadline = time.time() + self.limits.node_timeout
        logger.warning("%s: it is not known whether job %s was accepted (%s); asking", out.member.node, out.job, error)
        while True:
            try:
                if await self._calls.status(out) is not None or await self._calls.report(out) is not None:
                    return True
            except NodeError as again:
                self._lost_touch(out.member, again)
                if not self._sending:
                    return False  # it is in the store as being sent: a resumed crawl asks for it
                if time.time() > deadline:
                    await self._failed(out, f"nobody knows whether {out.member.node.name} took it ({error})")
                    return False
                await asyncio.sleep(self.limits.poll)
                continue
            await self._failed(out, f"{out.member.node.name} did not take it ({error})")
            return False

    # watching

    async def _watch(self, member: Member) -> None:
        while not self._over.is_set():
            self._wake[id(member)].clear()
            try:
                await self._look(member)
            except NodeError as error:
                self._lost_touch(member, error)
                await self._give_up_on(member)
            self._pump()
            self._check_dark()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake[id(member)].wait(), self._pause(member))

    def _pause(self, member: Member) -> float:
        """Seconds until the next look: soon when a job is about to end, later when all have long to go."""
        if not member.out:
            return self.limits.poll * (5 if member.usable else 1)
        left = min(out.left(time.time()) for out in member.out.values())
        return min(max(left / 4, self.limits.poll / 4), self.limits.poll * 5 if left else self.limits.poll)

    async def _look(self, member: Member) -> None:
        load = await self._calls.load(member)
        was_down = not member.up
        member.seen(load)
        if was_down:
            logger.info("%s answers again", member.node)
        if not member.prepared and not member.unfit:
            member.unfit = await self.prepare(member)
            member.prepared = not member.unfit
            self._check_unfit()
        while member.cancel_later:
            await self._calls.cancel(member, member.cancel_later[0])
            member.cancel_later.pop(0)
        for out in list(member.out.values()):
            if out.posted and out.job in member.out and out.batch.number in self._open:
                await self._look_at(out)

    async def _look_at(self, out: Out) -> None:
        now = time.time()
        report = await self._calls.report(out)
        if report is not None:
            if report.ended:
                self._end(out, report)
                return
            if out.heard(report, now) and out.batch.state is not BatchState.RUNNING:
                await self.store(self.store.store.running, self.spec.crawl, out.batch.number, out.number)
                out.batch = replace(out.batch, state=BatchState.RUNNING)
            if now - out.changed < FRESH:
                out.unknown_since = None
                return
        elif now - out.since < min(FRESH, self.limits.poll):
            return
        await self._ask_about(out, now)

    async def _ask_about(self, out: Out, now: float) -> None:
        """The job is silent: ask its node what it is doing."""
        state = await self._calls.status(out)
        if state is api.JobState.RUNNING:
            out.unknown_since = None
            return
        if state is api.JobState.PENDING:
            out.unknown_since = None
            if now > out.start_by:
                await self._failed(out, f"it did not start within {self.limits.start_timeout:.0f} s")
            return
        report = await self._calls.report(out)  # it may have ended between the two questions
        if report is not None and report.ended:
            self._end(out, report)
            return
        if state is None:
            # A node that was restarted knows none of its jobs; some may still be at work.
            out.unknown_since = out.unknown_since or now
            if now - out.unknown_since < UNKNOWN_GRACE:
                return
        words = await self._calls.last_words(out)
        how = "died while it worked" if out.report else "ended before it began"
        await self._failed(out, f"the worker {how} on {out.member.node.name}{words}")

    # how attempts end

    def _end(self, out: Out, report: Report) -> None:
        # Its process slot is free already; the part is fetched beside the next look.
        out.report = report
        out.member.out.pop(out.job, None)
        self._spawn(self._finish(out, report))
        self._pump()

    async def _finish(self, out: Out, report: Report) -> None:
        reason = refusal(report, out.batch.size, feed=self.spec.feed)
        if reason:
            await self._give_up(out.batch, out.number, reason, out.member.node.name)
            return
        try:
            part = await self._bring_home(out, report)
        except PartLost as error:
            await self._give_up(out.batch, out.number, str(error), out.member.node.name)
            return
        found = misses(report, out.batch.number)
        await self.store(
            self.store.store.accept,
            self.spec.crawl,
            out.batch.number,
            out.number,
            report=kept(report),
            part=part,
            misses=found,
            now=time.time(),
        )
        self.tally.accepted(report, found)
        out.member.jobs += 1
        out.member.items += report.items
        self._open.discard(out.batch.number)
        self._check_over()

    async def _bring_home(self, out: Out, report: Report) -> str:
        """The name of the fetched part; none when the items went to a feed."""
        if report.part is None or self.spec.feed:
            return ""
        async with self._fetches:
            patience = self.limits.node_timeout
            return await fetch_part(
                self.sender, out.member.node, self.spec.home, out.job, report.part, self.folder, patience
            )

    async def _failed(self, out: Out, reason: str) -> None:
        """Give an attempt up that may still be alive: cancel it before the batch goes elsewhere."""
        member = out.member
        member.out.pop(out.job, None)
        try:
            if member.up:
                await self._calls.cancel(member, out.job)
            else:
                member.cancel_later.append(out.job)
        except NodeError as error:
            member.cancel_later.append(out.job)
            self._lost_touch(member, error)
        await self._give_up(out.batch, out.number, reason, member.node.name)

    async def _give_up(self, batch: Batch, number: int, reason: str, node: str = "") -> None:
        """Write the end of an attempt down; the batch waits for the next one, or is dead."""
        logger.warning("batch %d, attempt %d: %s", batch.number, number, reason)
        state = await self.store(
            self.store.store.fail,
            self.spec.crawl,
            batch.number,
            number,
            reason=reason,
            now=time.time(),
            max_attempts=self.limits.max_attempts,
        )
        self.tally.failed += 1
        if state is BatchState.DEAD:
            logger.error("batch %d is dead after %d attempts: %s", batch.number, number, reason)
            self.tally.died(batch)
            self._open.discard(batch.number)
            self._check_over()
            return
        self._avoid[batch.number] = node
        self._waiting.appendleft(replace(batch, state=state, attempts=number, reason=reason))
        self._pump()

    # nodes that do not answer

    def _lost_touch(self, member: Member, error: NodeError) -> None:
        if member.up:
            logger.warning("%s; its work goes elsewhere if it stays so for %.0f s", error, self.limits.node_timeout)
        member.missed(str(error), time.time())

    async def _give_up_on(self, member: Member) -> None:
        if member.down_since is None or time.time() - member.down_since < self.limits.node_timeout:
            return
        for out in list(member.out.values()):
            if out.posted and out.batch.number in self._open:
                await self._failed(out, f"{member.node.name} has not answered for {self.limits.node_timeout:.0f} s")

    def _check_dark(self) -> None:
        """No node that could work answers: wait a while, then stop; the batches are in the store."""
        if any(member.up and not member.unfit for member in self.members):
            self._dark_since = None
            return
        self._dark_since = self._dark_since or time.time()
        if time.time() - self._dark_since > self.limits.fleet_timeout:
            reasons = "; ".join(sorted({member.unfit or member.down_reason for member in self.members}))
            self._stop_now(f"No node has answered for {self.limits.fleet_timeout:.0f} s ({reasons}).")

    def _check_unfit(self) -> None:
        if all(member.unfit for member in self.members):
            reasons = "; ".join(sorted({member.unfit for member in self.members}))
            self._stop_now(f"No node takes the work: {reasons}")

    def _stop_now(self, reason: str) -> None:
        if not self._over.is_set():
            logger.error(reason)
            self.stopped = reason
            self._sending = False
            self._over.set()

    # the end

    def _check_over(self) -> None:
        if self._closed and not self._open:
            self._over.set()
        if self._closed and not self.limits.wait and not self._waiting and not self._posts:
            self._over.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # An error of ours must not leave a crawl waiting for ever.
            logger.error("the coordinator failed: %s", error, exc_info=error)
            self.fault = self.fault or error
            self._stop_now(f"scrapyd-dist itself failed: {type(error).__name__}: {error}")
        elif not self.limits.wait:
            asyncio.get_running_loop().call_soon(self._check_over)
