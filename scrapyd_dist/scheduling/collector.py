"""Ends attempts: accepts them with their part, or lets the batch wait again, be cut or die.

Invariants: one attempt of a batch is accepted, after its part was fetched and checked. Only
failures that the batch may have caused get it cut: a lost node never does.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import (
    PUT_OFF,
    PUT_OFF_REASON,
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    FinishReason,
    Miss,
    not_made,
)
from scrapyd_dist.errors import DistError, ForeignRow, NodeError, NothingMatched, StepRefused
from scrapyd_dist.frontier.backlog import Backlog, Leased, LeaseRequest, Lessee, WorkerRequest
from scrapyd_dist.frontier.packing import add_unseen, halve_batch, make_batches_like
from scrapyd_dist.frontier.sealed_intake import SealedIntake
from scrapyd_dist.items.kept_parts import KeptParts, part_of
from scrapyd_dist.items.part_fetch import PartLost, PartOutOfReach, PartTooBig, fetch_part
from scrapyd_dist.joblogs.worker_report import (
    BadReport,
    PartInfo,
    WorkerReport,
    misses,
    read_report,
    refusal,
    to_kept,
)
from scrapyd_dist.keys import SealError
from scrapyd_dist.payload import REPLACES, PayloadError, decode, replaced_by
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.attempt_failure import FailureKind, decide_after_failure
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.scheduling.scaling_policy import ALL
from scrapyd_dist.scheduling.scheduler_state import SchedulerState

logger = logging.getLogger(__name__)

#: parts that are fetched at the same time
FETCHES = 4
#: batches that are given up in one step
BURIED = 50
#: parts of a node that are lost, one after the other, until it gets no more work
LOST_PARTS = 3


@dataclass(kw_only=True)
class Collector:
    """Ends attempts, and stores how: those of jobs that were sent a batch, and of leases."""

    state: SchedulerState
    folder: Path  #: the folder of fetched parts
    worked: Callable[[str], None]  #: called with the slot of each leased batch that was accepted
    key: bytes | None = None  #: key of encrypted batches
    batch_size: int = WorkerRequest.batch_size  #: most requests in a batch of what jobs ask for
    #: batch and attempt of leased parts that are being fetched
    coming: set[tuple[int, int]] = field(default_factory=set)
    _fetches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES))

    # jobs that were sent a batch

    def accept_end(self, out: JobRun, report: WorkerReport) -> None:
        """Take the final report of a sent job, and end its attempt."""
        # its process slot is free already; the part is fetched while the next poll runs
        out.member.readiness.believe_worker(report.no_lease)
        out.accept_last_report(report)
        self.state.goals.count_for(out, over=True)
        out.member.drop(out)
        self.state.spawn(self._finish_sent(out, report))
        self.state.pump()

    async def _finish_sent(self, out: JobRun, report: WorkerReport) -> None:
        """Accept the attempt of a sent job, or give it up."""
        is_shut_down = report.finish_reason == FinishReason.SHUTDOWN.value
        try:
            if is_shut_down and refusal(report, out.batch.size, feed=self.state.spec.feed):
                await self._give_up_shut_down(out)
            else:
                await self._finish(out.batch, out.attempt, out.member, report)
        except (NothingMatched, StepRefused) as error:
            self.forget_lost_job(out, error)

    async def _give_up_shut_down(self, out: JobRun) -> None:
        """Give up a job that a signal has ended before it had done anything of its batch.

        The signal came with its node's restart, from a user, or from one of its pages. Only a node
        that was restarted has forgotten the job.
        """
        try:
            has_forgotten = await self.state.client.status(out) is None
        except NodeError:
            has_forgotten = True
        name = out.member.node.name
        if has_forgotten:
            kind = FailureKind.RESTART
            reason = f"{name} was restarted"
        else:
            kind = FailureKind.SUSPECT
            reason = f"its worker on {name} was told to end (SIGTERM)"
        await self.give_up(out.batch, out.number, reason, name, kind=kind)

    def forget_lost_job(self, out: JobRun, error: DistError) -> None:
        """Forget a job whose steps the store has lost: what it knows of the batch counts."""
        logger.warning(
            "job %s is not what the store has of batch %d any more: %s",
            out.job,
            out.batch.number,
            error,
        )
        out.member.drop(out)
        self.state.forget_batch(out.batch.number)

    async def give_up_job(
        self, out: JobRun, reason: str, kind: FailureKind = FailureKind.COUNTED
    ) -> None:
        """Give up an attempt that may still run: its job is cancelled first."""
        self.state.goals.count_for(out, lost=True)
        await self.state.abandon(out)
        await self.give_up(out.batch, out.number, reason, out.member.node.name, kind=kind)

    # batches that workers have leased

    async def process_backlog(self, backlog: Backlog) -> dict[str, str]:
        """Fetch what is acked, and put back what has expired.

        Returns the workers that renew no lease, each with why.
        """
        if backlog.acked > len(self.coming):
            await self._fetch_acked()
        if not backlog.expired:
            return {}
        return await self._put_back_expired()

    async def _fetch_acked(self) -> None:
        """Begin to fetch the parts of acked attempts."""
        for attempt in await self.state.run(self.state.db.attempts, {AttemptState.ACKED}):
            key = (attempt.batch, attempt.number)
            if attempt.worker and key not in self.coming and not self._is_away(attempt):
                self.coming.add(key)
                self.state.spawn(self._bring_home(attempt))

    def _is_away(self, attempt: Attempt) -> bool:
        """Whether its node does not answer, but may come back with the part."""
        member = self.state.member_at(attempt.url)
        return member is not None and 0 < member.liveness.down_for < self.state.limits.node_timeout

    async def _put_back_expired(self) -> dict[str, str]:
        """Give up expired leases; return the workers that hang, each with why."""
        hanging: dict[str, str] = {}
        for attempt in await self.state.run(self.state.db.expired):
            if not attempt.worker:  # a job that was sent is watched at its node
                continue
            reason = f"the lease of {attempt.worker} on {attempt.node} has run out"
            member = self.state.member_at(attempt.url)
            if member is None or not member.up:  # it may only be cut off
                await self._give_up_lease(attempt, reason, FailureKind.HARMLESS)
                continue
            # its node answers and it does nothing, as if it had died
            await self._give_up_lease(attempt, reason, FailureKind.SUSPECT)
            hanging[attempt.worker] = reason
        return hanging

    async def worker_gone(self, job: str, reason: str, kind: FailureKind) -> int:
        """Let the batches wait again that a worker had leased and not acked when it ended.

        Returns their number.
        """
        leased = await self.leased_by(job)
        for attempt in leased:
            await self._give_up_lease(attempt, reason, kind)
        return len(leased)

    async def leased_by(self, job: str) -> list[Attempt]:
        """Return the attempts that a worker has leased and not acked."""
        running = await self.state.run(self.state.db.attempts, {AttemptState.RUNNING})
        return [attempt for attempt in running if attempt.worker == job]

    async def bury(self, pool: str, reason: str) -> None:
        """Give up all batches that wait in this pool, for this reason."""
        async for leased in self._lease_waiting(pool):
            await self.state.run(
                self.state.db.fail,
                leased.batch.number,
                leased.attempt,
                reason=reason,
                now=time.time(),
                max_attempts=0,
            )
            logger.error("batch %d is dead: %s", leased.batch.number, reason)
            self.state.counters.attempt_failed()
            self.state.counters.died(leased.batch)
        self.state.poll_now()

    async def leave_out(self, pool: str, reason: str) -> None:
        """Drop what waits in this pool: its workers have ended as their settings say."""
        kind, words = not_made(reason)
        async for leased in self._lease_waiting(pool):
            number = leased.batch.number
            size = leased.batch.size
            report = WorkerReport(
                ended=True,
                updated=time.time(),
                requests=size,
                done=0,
                missed=size,
                pages=0,
                items=0,
                finish_reason="finished",
                errors=0 if kind == "gone" else size,
            )
            urls = self._urls(leased)
            missed = [Miss(url=url, kind=kind, reason=words, batch=number) for url in urls]
            attempt = Attempt(batch=number, number=leased.attempt, job="", node="", url="")
            await self._store(attempt, to_kept(report), missed)
        self.state.poll_now()

    def _urls(self, leased: Leased) -> list[str]:
        """Return the URLs of a batch.

        They are empty when it cannot be read, but as many, so that the account balances.
        """
        try:
            return [value["url"] for value in decode(leased.payload.get, key=self.key)]
        except PayloadError:
            return [""] * leased.batch.size

    async def _lease_waiting(self, pool: str) -> AsyncIterator[Leased]:
        """Generate all batches that wait in a pool, leased so that no worker gets them."""
        crawl = self.state.spec.crawl
        request = LeaseRequest(
            crawl=crawl,
            lessee=Lessee(job=f"{crawl}.no-worker", node="", url=""),
            seconds=60.0,
            now=time.time(),
            limit=BURIED,
            slots=[] if pool == ALL else [pool],
        )
        while batches := await self.state.store(self.state.db.lease_next, request):
            for leased in batches:
                yield leased

    async def _bring_home(self, attempt: Attempt) -> None:
        """Accept an acked attempt with its part, or give it up."""
        try:
            report = read_report(json.dumps(dict(attempt.report)).encode())
            try:
                await self._end_lease(attempt, report)
            finally:
                self._discount(attempt, report)
        except BadReport as error:
            await self._give_up_lease(attempt, str(error))
        except StepRefused as error:  # it was given up at the same moment
            logger.info("batch %d, attempt %d: %s", attempt.batch, attempt.number, error)
        finally:
            self.coming.discard((attempt.batch, attempt.number))
            self.state.poll_now()

    def _discount(self, attempt: Attempt, report: WorkerReport) -> None:
        """Count an ended batch no longer as its worker's progress."""
        member = self.state.member_at(attempt.url)
        worker = None if member is None else member.out.get(attempt.worker)
        if isinstance(worker, WorkerRun):
            worker.count_home(report.counts)

    async def _end_lease(self, attempt: Attempt, report: WorkerReport) -> None:
        """Fetch the part of a leased batch from its node, unless that is lost."""
        member = self.state.holder_of(attempt)
        if member is None:
            reason = f"its node {attempt.node} is not in the fleet any more"
            await self._give_up_lease(attempt, reason, FailureKind.HARMLESS)
            return
        if not member.up:
            reason = f"{attempt.node}, where its part is, does not answer any more"
            await self._give_up_lease(attempt, reason, FailureKind.HARMLESS)
            return
        batch = await self.state.run(self.state.db.batch, attempt.batch)
        if await self._finish(batch, attempt, member, report):
            self.worked(batch.slot)

    async def _give_up_lease(
        self, attempt: Attempt, reason: str, kind: FailureKind = FailureKind.COUNTED
    ) -> None:
        """Give up an attempt that a worker has leased; see `give_up`."""
        if self._is_leased_while_down(attempt):
            kind = kind.made_harmless
        batch = await self.state.run(self.state.db.batch, attempt.batch)
        not_acked = attempt.state is not AttemptState.ACKED  # its state when it was read
        try:
            await self.give_up(
                batch,
                attempt.number,
                reason,
                attempt.node,
                kind=kind,
                out=not_acked,
            )
        except StepRefused as error:  # it was acked, or given back, at the same moment
            logger.info("batch %d, attempt %d: %s", attempt.batch, attempt.number, error)

    def _is_leased_while_down(self, attempt: Attempt) -> bool:
        """Whether its worker has leased it since its node has not answered.

        A worker on an unreachable node goes on leasing; its batches are not to blame for what
        happens there.
        """
        member = self.state.member_at(attempt.url)
        if member is None or member.liveness.down_since is None:
            return False
        return attempt.sent_at > member.liveness.down_since

    # both

    async def _finish(
        self, batch: Batch, attempt: Attempt, member: NodeState, report: WorkerReport
    ) -> bool:
        """Judge an ended attempt and fetch its part; return whether it was accepted."""
        number = batch.number
        spec = self.state.spec
        self.state.close_crawl(report.closed_by)
        if reason := refusal(report, batch.size, feed=spec.feed):
            kind = FailureKind.of_worker(to_blame=report.blames_batch)
            await self.give_up(batch, attempt.number, reason, member.node.name, kind=kind)
            return False
        part = ""
        if report.part is not None and not spec.feed:
            try:
                part = await self._fetch(member, attempt.job, report.part)
            except PartTooBig as error:
                await self.give_up(batch, attempt.number, str(error), member.node.name)
                return False
            except PartLost as error:
                await self._lose_part(batch, attempt, member, str(error))
                return False
            except OSError as error:
                self.state.stop_now(
                    f"No items can be written to {self.folder}: {error.strerror or error}."
                )
                return False
        try:
            await self._add_idle_requests(report)
        except SealError as error:
            await self.give_up(batch, attempt.number, str(error), member.node.name)
            return False
        words = to_kept(report, await self._replaced(number) if report.replaces else ())
        await self._store(attempt, words, misses(report, number), part)
        await self.put_off(number, words)
        member.accepted(report)
        self.state.forget_batch(number)
        return True

    async def _add_idle_requests(self, report: WorkerReport) -> None:
        """Add what the idle handlers of a sent job have asked for, but for what others asked for.

        That comes before its attempt is accepted: what is added a second time counts as repeated.

        Raises:
            SealError: it cannot be read, or is not of this crawl's code.
        """
        if not report.idle_requests:
            return
        intake = SealedIntake.unseal(report.idle_requests, self.key)
        state = self.state

        def add() -> None:
            add_unseen(
                partial(state.db.add_batches, state.spec.crawl, misses=intake.misses),
                intake.requests,
                size=self.batch_size,
                key=self.key,
                counts=intake.counts,
            )

        await state.store(add)
        state.poll_now()

    async def _fetch(self, member: NodeState, job: str, part: PartInfo) -> str:
        """Fetch a part from its node; return the name of its file."""
        state = self.state
        patience = state.limits.node_timeout
        async with self._fetches:
            return await fetch_part(
                state.sender, member.node, state.spec.home, job, part, self.folder, patience
            )

    async def fetch_again(self) -> list[Attempt]:
        """Fetch the accepted parts again that are not at home as their workers wrote them.

        Returns the attempts whose parts their nodes do not have any more.
        """
        accepted = await self.state.run(self.state.db.attempts, {AttemptState.ACCEPTED})
        kept = await asyncio.to_thread(KeptParts.found_in, self.folder, accepted)
        are_lost = await asyncio.gather(*map(self._is_lost, kept.bad))
        return [attempt for attempt, is_lost in zip(kept.bad, are_lost, strict=True) if is_lost]

    async def _is_lost(self, attempt: Attempt) -> bool:
        """Fetch a part again, and return whether its node has it no more."""
        part = part_of(attempt.report)
        member = self.state.holder_of(attempt)
        if part is None or member is None:
            return True
        try:
            await self._fetch(member, attempt.job, part)
        except (PartLost, OSError) as error:
            logger.warning(
                "the part of batch %d is lost at home, and cannot be had again: %s",
                attempt.batch,
                error,
            )
            # A node that is away may have it yet, and where nothing can be written here, another
            # attempt would not help.
            may_be_had_later = isinstance(error, (OSError, PartOutOfReach, PartTooBig))
            return not may_be_had_later
        logger.warning(
            "the part of batch %d was damaged or lost at home, and was fetched again",
            attempt.batch,
        )
        return False

    async def reopen(self, lost: Sequence[Attempt]) -> list[Attempt]:
        """Let the batches wait again whose parts are nowhere any more; return their attempts.

        A batch stays done if some of its requests were retried in others: their items would come
        twice.
        """
        state = self.state
        misses: dict[int, list[Miss]] = {}
        for miss in await state.run(state.db.misses):
            misses.setdefault(miss.batch, []).append(miss)
        reopened = []
        for attempt in lost:
            own = misses.get(attempt.batch, [])
            if len(own) != attempt.report.get("missed", 0):
                continue
            try:
                await state.run(
                    state.db.reopen,
                    attempt.batch,
                    attempt.number,
                    reason=f"its part is lost: {attempt.node} does not have it any more",
                    misses=own,
                    now=time.time(),
                )
            except StepRefused as error:  # some of its requests are retried at this moment
                logger.info("batch %d stays done: %s", attempt.batch, error)
                continue
            reopened.append(attempt)
        return reopened

    async def _lose_part(
        self, batch: Batch, attempt: Attempt, member: NodeState, reason: str
    ) -> None:
        """Give up an attempt whose part is lost at its node: the batch is not at fault.

        A node of which no part comes home would lease the same batches again and again, until they
        are dead.
        """
        readiness = member.readiness
        readiness.part_lost()
        if readiness.lost_parts >= LOST_PARTS and not readiness.unfit:
            readiness.mark_unfit(f"no part can be fetched from it: {reason}")
            logger.error("%s gets no more work: %s", member.node, readiness.unfit)
        is_harmless = (
            bool(readiness.unfit) or self._is_given_up(attempt) or self._has_another_node(member)
        )
        kind = FailureKind.HARMLESS if is_harmless else FailureKind.COUNTED
        await self.give_up(batch, attempt.number, reason, member.node.name, kind=kind)
        self.state.check_unfit()

    def _is_given_up(self, attempt: Attempt) -> bool:
        """Whether its worker was given up before, and leases on.

        The address of its node may lead to another machine: neither its end nor its parts are seen.
        """
        if not attempt.worker:
            return False
        return all(worker.job != attempt.worker for worker in self.state.workers())

    def _has_another_node(self, member: NodeState) -> bool:
        return any(other.usable for other in self.state.members if other is not member)

    async def _store(
        self,
        attempt: Attempt,
        report: Mapping[str, object],
        missed: list[Miss],
        part: str = "",
    ) -> None:
        """Store that an attempt is accepted, and count it."""
        await self.state.run(
            self.state.db.accept,
            attempt.batch,
            attempt.number,
            report=report,
            part=part,
            misses=missed,
            now=time.time(),
        )
        final_misses = [miss for miss in missed if miss.reason != PUT_OFF_REASON]
        self.state.counters.accepted(attempt.batch, report, final_misses)
        accepted = replace(attempt, state=AttemptState.ACCEPTED, report=report, part=part)
        self.state.note_accepted(accepted)

    async def put_off(self, number: int, report: Mapping[str, Any]) -> None:
        """Let those requests wait, in new batches, that were not made as their job ended early."""
        missed = report.get("missed_requests") or ()
        places = [place for place, kind, _ in missed if kind == PUT_OFF]
        if not places:
            return
        state = self.state
        batch = await state.run(state.db.batch, number)
        payload = await state.run(state.db.payload, number)
        values = decode(payload.get, key=self.key)
        rest = []
        requests = []
        for place in places:
            value = values[place]
            rest.append(Miss(url=value["url"], kind="failed", reason=PUT_OFF_REASON, batch=number))
            requests.append({**value, REPLACES: [number, place]})
        parts = make_batches_like(batch, requests, key=self.key)
        with suppress(StepRefused):  # an earlier process has done so
            await state.run(state.db.retry, number, parts, misses=rest, now=time.time())
        state.poll_now()

    async def _replaced(self, number: int) -> list[tuple[int, int]]:
        """Return the requests of earlier batches that this batch retried, each as batch and place.

        The store has them, whatever the worker says.
        """
        payload = await self.state.run(self.state.db.payload, number)
        try:
            return replaced_by(decode(payload.get, key=self.key))
        except PayloadError as error:
            logger.warning("what batch %d tries again stays beside it: %s", number, error)
            return []

    async def give_up(
        self,
        batch: Batch,
        number: int,
        reason: str,
        node: str = "",
        *,
        kind: FailureKind = FailureKind.COUNTED,
        out: bool = False,
    ) -> None:
        """Store the end of a failed attempt; the batch waits for the next one, is cut, or is dead.

        `out`: fail the attempt only if it was not acked meanwhile. The next attempt avoids the
        `node`.
        """
        logger.warning("batch %d, attempt %d: %s", batch.number, number, reason)
        after = decide_after_failure(
            batch,
            number,
            kind,
            max_attempts=self.state.limits.max_attempts,
            counters=self.state.counters,
        )
        state = await self.state.run(
            self.state.db.fail,
            batch.number,
            number,
            reason=reason,
            now=time.time(),
            out=out,
            max_attempts=after.max_attempts,
            forgive=after.is_forgiven,
        )
        self.state.counters.attempt_failed()
        if after.is_cut:
            await self._cut(batch, number)
        elif state is BatchState.DEAD:
            tries = counted(number, "attempt")
            logger.error("batch %d is dead after %s: %s", batch.number, tries, reason)
            self.state.counters.died(batch)
            self.state.forget_batch(batch.number)
        else:
            forgiven = batch.forgiven + after.is_forgiven
            left = replace(batch, state=state, attempts=number, reason=reason, forgiven=forgiven)
            self.state.put_back(left, node)

    async def _cut(self, batch: Batch, number: int) -> None:
        """Replace a batch by smaller ones: one of its requests kills workers."""
        state = self.state
        try:
            payload = await state.run(state.db.payload, batch.number)
            state.counters.cut_tried()
            halves = halve_batch(batch, payload, key=self.key)
            pieces = await state.run(state.db.split, batch.number, halves)
        except StepRefused:  # a worker leased it meanwhile: it is cut if that one dies as well
            logger.warning("batch %d is crawled once more before it is cut", batch.number)
            return
        except ForeignRow as error:  # the stored row was changed by another program
            logger.warning("%s", error)
            state.put_back(replace(batch, state=BatchState.FAILED, attempts=number), "")
            return
        names = " and ".join(str(piece.number) for piece in pieces)
        logger.warning(
            "batch %d is cut after %s: its requests are now batches %s",
            batch.number,
            counted(number, "attempt"),
            names,
        )
        state.cut_up(batch, pieces)
