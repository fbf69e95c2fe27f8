"""Ends attempts: accepts them with their part, or gives them up and lets the batch wait again, be cut or die.

Invariants: one attempt of a batch is accepted, after its part was fetched and checked. Only failures that the batch may
have caused get it cut: a lost node never does.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from scrapyd_dist.frontier.backlog import Backlog, Leased, LeaseRequest, Lessee, NewBatch
from scrapyd_dist.items.kept_parts import KeptParts, part_of
from scrapyd_dist.items.merging import PartLost, PartTooBig, fetch_part
from scrapyd_dist.joblogs.worker_report import (
    BadReport,
    WorkerReport,
    kept,
    misses,
    read_report,
    refusal,
)
from scrapyd_dist.payload import REPLACES, PayloadError, decode, fit, replaced_by
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.base import BatchCounters, SchedulerState
from scrapyd_dist.scheduling.node_state import JobRun, NodeState
from scrapyd_dist.scheduling.scaling_policy import ALL

logger = logging.getLogger(__name__)

#: parts that are fetched at the same time
FETCHES = 4
#: attempts of a batch that may be lost with nodes that are restarted or away: a page may be what ends them
SPARED = 20
#: batches that are given up in one step
BURIED = 50
#: parts of a node that are lost, one after the other, until it gets no more work
LOST_PARTS = 3
#: attempts of a single request that may kill its workers
ALONE = 2
#: most cuts per crawl: a spider that dies on every tenth page has to be corrected
CUTS = 200
#: most cuts while no batch has succeeded: code that fails on every page has to be corrected
BLIND = 10


# A batch that kills its workers is bisected, until the request that does it is alone and named.


def most_attempts(batch: Batch, most: int) -> int:
    """The attempts that a batch gets which may kill its workers: a piece of a cut batch is cut again at once."""
    if not batch.parent:
        return most
    return min(most, 1 if batch.size > 1 else ALONE)


def may_be_cut(batch: Batch, counters: BatchCounters) -> bool:
    """Whether to cut it now that its attempts are used up."""
    return batch.size > 1 and counters.cuts < (CUTS if counters.done else BLIND)


def halves(batch: Batch, payload: Mapping[str, str], key: bytes | None) -> list[NewBatch]:
    """Its two halves in the same slot; more when a half does not fit into one job."""
    values = decode(payload.get, key=key)
    middle = (len(values) + 1) // 2
    pieces = fit(values[:middle], key=key) + fit(values[middle:], key=key)
    return [
        NewBatch(payload=settings, size=len(piece), slot=batch.slot, priority=batch.priority)
        for piece, settings in pieces
    ]


@dataclass(kw_only=True)
class Collector:
    """Ends attempts, and stores how: those of jobs that were sent a batch, and those that workers have leased."""

    state: SchedulerState
    folder: Path  #: the folder of fetched parts
    worked: Callable[[str], None]  #: called with the slot of each leased batch that was accepted
    key: bytes | None = None  #: key of encrypted batches
    spared: Counter[int] = field(
        default_factory=Counter
    )  #: batch -> its attempts that do not count
    coming: set[tuple[int, int]] = field(
        default_factory=set
    )  #: batch and attempt of leased parts that are fetched
    _fetches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES))

    # jobs that were sent a batch

    def end(self, out: JobRun, report: WorkerReport) -> None:
        """The worker's final report is there."""
        # its process slot is free already; the part is fetched while the next poll runs
        out.learn(report)
        out.report = report
        self.state.count_for(out, over=True)
        out.member.out.pop(out.job, None)
        self.state.spawn(self._finish_sent(out, report))
        self.state.pump()

    async def _finish_sent(self, out: JobRun, report: WorkerReport) -> None:
        try:
            is_shut_down = report.finish_reason == FinishReason.SHUTDOWN.value
            if is_shut_down and refusal(report, out.batch.size, feed=self.state.spec.feed):
                await self._told_to_end(out)
            else:
                await self._finish(out.batch, out.number, out.job, out.member, report)
        except (NothingMatched, StepRefused) as error:
            self.not_in_store(out, error)

    async def _told_to_end(self, out: JobRun) -> None:
        """A signal has ended a job that had done nothing of its batch: its node's restart, a user, or one of its pages.

        Only a node that was restarted has forgotten it.
        """
        try:
            has_forgotten = await self.state.client.status(out) is None
        except NodeError:
            has_forgotten = True
        name = out.member.node.name
        reason = (
            f"{name} was restarted"
            if has_forgotten
            else f"its worker on {name} was told to end (SIGTERM)"
        )
        await self.give_up(out.batch, out.number, reason, name, blame=True, harmless=has_forgotten)

    def not_in_store(self, out: JobRun, error: DistError) -> None:
        """The store has lost the steps that led to this one: what it knows of the batch counts."""
        logger.warning(
            "job %s is not what the store has of batch %d any more: %s",
            out.job,
            out.batch.number,
            error,
        )
        out.member.out.pop(out.job, None)
        self.state.ended(out.batch.number)

    async def failed(
        self, out: JobRun, reason: str, *, blame: bool = False, harmless: bool = False
    ) -> None:
        """Give up an attempt that may still run: its job is cancelled before the batch goes elsewhere."""
        self.state.count_for(out, lost=True)
        await self.state.abandon(out)
        await self.give_up(
            out.batch, out.number, reason, out.member.node.name, blame=blame, harmless=harmless
        )

    # batches that workers have leased

    async def look(self, backlog: Backlog) -> dict[str, str]:
        """Fetch what is acked, and put back what has expired; returns workers that renew no lease, each with why."""
        if backlog.acked > len(self.coming):
            for attempt in await self.state.run(self.state.db.attempts, {AttemptState.ACKED}):
                key, member = (attempt.batch, attempt.number), self.state.member_at(attempt.url)
                # a node that is unreachable and not yet given up may come back with the part
                waits = member is not None and 0 < member.down_for < self.state.limits.node_timeout
                if attempt.worker and key not in self.coming and not waits:
                    self.coming.add(key)
                    self.state.spawn(self._bring_home(attempt))
        hanging: dict[str, str] = {}
        for attempt in await self.state.run(self.state.db.expired) if backlog.expired else ():
            if attempt.worker:  # a job that was sent is watched at its node
                reason = f"the lease of {attempt.worker} on {attempt.node} has run out"
                member = self.state.member_at(attempt.url)
                blame = (
                    member is not None and member.up
                )  # its node answers and it does nothing, as if it had died
                await self._give_up_lease(attempt, reason, blame=blame)
                if blame:
                    hanging[attempt.worker] = reason
        return hanging

    async def worker_gone(
        self, job: str, reason: str, *, blame: bool = False, harmless: bool = False
    ) -> int:
        """Let the batches wait again that a worker had leased and not acked when it ended; returns their number.

        `blame`: one of them may have killed it; `harmless`: its end says nothing of them, and none dies of it.
        """
        running = await self.state.run(self.state.db.attempts, {AttemptState.RUNNING})
        had = [attempt for attempt in running if attempt.worker == job]
        for attempt in had:
            await self._give_up_lease(attempt, reason, blame=blame, harmless=harmless)
        return len(had)

    async def bury(self, pool: str, reason: str) -> None:
        """Give up all batches that wait in this pool, for this reason."""
        async for one in self._take_away(pool):
            await self.state.run(
                self.state.db.fail,
                one.batch.number,
                one.attempt,
                reason=reason,
                now=time.time(),
                max_attempts=0,
            )
            logger.error("batch %d is dead: %s", one.batch.number, reason)
            self.state.counters.failed += 1
            self.state.counters.died(one.batch)
        self.state.news.set()

    async def leave_out(self, pool: str, reason: str) -> None:
        """Drop what waits in this pool: its workers have ended as their settings say."""
        kind, words = not_made(reason)
        async for one in self._take_away(pool):
            number, size = one.batch.number, one.batch.size
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
            missed = [
                Miss(url=url, kind=kind, reason=words, batch=number) for url in self._urls(one)
            ]
            await self._store(number, one.attempt, kept(report), missed)
        self.state.news.set()

    def _urls(self, leased: Leased) -> list[str]:
        """The URLs of a batch; as many empty ones when it cannot be read, so that the account balances."""
        try:
            return [value["url"] for value in decode(leased.payload.get, key=self.key)]
        except PayloadError:
            return [""] * leased.batch.size

    async def _take_away(self, pool: str) -> AsyncIterator[Leased]:
        """All batches that wait in a pool, leased so that no worker gets them."""
        crawl = self.state.spec.crawl
        wanted = LeaseRequest(
            crawl=crawl,
            lessee=Lessee(job=f"{crawl}.no-worker", node="", url=""),
            seconds=60.0,
            now=time.time(),
            limit=BURIED,
            slots=[] if pool == ALL else [pool],
        )
        while leased := await self.state.store(self.state.db.lease_next, wanted):
            for one in leased:
                yield one

    async def _bring_home(self, attempt: Attempt) -> None:
        try:
            report = read_report(json.dumps(dict(attempt.report)).encode())
            try:
                await self._end_lease(attempt, report)
            finally:
                for one in self.state.workers():
                    if (
                        one.job == attempt.worker
                    ):  # an ended batch counts no longer as its worker's progress
                        one.counted.update(report.counts)
        except BadReport as error:
            await self._give_up_lease(attempt, str(error))
        except StepRefused as error:  # it was given up at the same moment
            logger.info("batch %d, attempt %d: %s", attempt.batch, attempt.number, error)
        finally:
            self.coming.discard((attempt.batch, attempt.number))
            self.state.news.set()

    async def _end_lease(self, attempt: Attempt, report: WorkerReport) -> None:
        member = self.state.member_at(attempt.url)
        if member is None:
            await self._give_up_lease(
                attempt, f"its node {attempt.node} is not in the fleet any more"
            )
            return
        if member.down_since is not None:
            await self._give_up_lease(
                attempt, f"{attempt.node}, where its part is, does not answer any more"
            )
            return
        batch = await self.state.run(self.state.db.batch, attempt.batch)
        if await self._finish(batch, attempt.number, attempt.job, member, report):
            self.worked(batch.slot)

    async def _give_up_lease(
        self, attempt: Attempt, reason: str, *, blame: bool = False, harmless: bool = False
    ) -> None:
        member = self.state.member_at(attempt.url)
        # a worker on an unreachable node goes on leasing; its batches are not to blame for what happens there
        alone = (
            member is not None
            and member.down_since is not None
            and attempt.sent_at > member.down_since
        )
        batch = await self.state.run(self.state.db.batch, attempt.batch)
        not_acked = attempt.state is not AttemptState.ACKED  # its state when it was read
        try:
            await self.give_up(
                batch,
                attempt.number,
                reason,
                attempt.node,
                blame=blame,
                harmless=harmless or alone,
                out=not_acked,
            )
        except StepRefused as error:  # it was acked, or given back, at the same moment
            logger.info("batch %d, attempt %d: %s", attempt.batch, attempt.number, error)

    # both

    async def _finish(
        self, batch: Batch, attempt: int, job: str, member: NodeState, report: WorkerReport
    ) -> bool:
        """Judge an ended attempt and fetch its part; True when it was accepted."""
        number, node, spec = batch.number, member.node, self.state.spec
        self.state.close_crawl(report.closed_by)
        if reason := refusal(report, batch.size, feed=spec.feed):
            await self.give_up(batch, attempt, reason, node.name, blame=report.blames_batch)
            return False
        part = ""
        if report.part is not None and not spec.feed:
            patience = self.state.limits.node_timeout
            try:
                async with self._fetches:
                    part = await fetch_part(
                        self.state.sender, node, spec.home, job, report.part, self.folder, patience
                    )
            except PartTooBig as error:
                await self.give_up(batch, attempt, str(error), node.name)
                return False
            except PartLost as error:
                await self._lose_part(batch, attempt, member, str(error))
                return False
            except OSError as error:
                self.state.stop_now(
                    f"No items can be written to {self.folder}: {error.strerror or error}."
                )
                return False
        words = kept(report, await self._replaced(number) if report.replaces else ())
        await self._store(number, attempt, words, misses(report, number), part)
        await self.put_off(number, words)
        member.accepted(report)
        self.state.ended(number)
        return True

    async def fetch_again(self) -> None:
        """Fetch the accepted parts again that are not at home any more as their workers wrote them.

        What its node does not have any more stays as it is: who merges the parts tells it.
        """
        accepted = await self.state.run(self.state.db.attempts, {AttemptState.ACCEPTED})
        kept = await asyncio.to_thread(KeptParts.found_in, self.folder, accepted)
        await asyncio.gather(*map(self._fetch_again, kept.bad))

    async def _fetch_again(self, attempt: Attempt) -> None:
        part, member = part_of(attempt.report), self.state.member_at(attempt.url)
        if part is None or member is None:
            return
        spec, patience = self.state.spec, self.state.limits.node_timeout
        try:
            async with self._fetches:
                await fetch_part(
                    self.state.sender,
                    member.node,
                    spec.home,
                    attempt.job,
                    part,
                    self.folder,
                    patience,
                )
        except (PartLost, OSError) as error:
            logger.warning(
                "the part of batch %d is lost at home, and cannot be had again: %s",
                attempt.batch,
                error,
            )
        else:
            logger.warning(
                "the part of batch %d was damaged or lost at home, and was fetched again",
                attempt.batch,
            )

    async def _lose_part(self, batch: Batch, attempt: int, member: NodeState, reason: str) -> None:
        """Give up an attempt whose part cannot be had from its node, which is at fault, and not the batch.

        A node of which no part comes home would lease the same batches again and again, until they are dead.
        """
        member.lost_parts += 1
        if member.lost_parts >= LOST_PARTS and not member.unfit:
            member.unfit = f"no part can be fetched from it: {reason}"
            logger.error("%s gets no more work: %s", member.node, member.unfit)
        others = [one for one in self.state.members if one is not member and one.usable]
        is_harmless = bool(others or member.unfit)
        await self.give_up(batch, attempt, reason, member.node.name, harmless=is_harmless)
        self.state.check_unfit()

    async def _store(
        self,
        batch: int,
        attempt: int,
        report: Mapping[str, object],
        missed: list[Miss],
        part: str = "",
    ) -> None:
        await self.state.run(
            self.state.db.accept,
            batch,
            attempt,
            report=report,
            part=part,
            misses=missed,
            now=time.time(),
        )
        self.state.counters.accepted(
            batch, report, [miss for miss in missed if miss.reason != PUT_OFF_REASON]
        )
        self.state.accepted(
            Attempt(
                batch=batch,
                number=attempt,
                job="",
                node="",
                url="",
                state=AttemptState.ACCEPTED,
                report=report,
                part=part,
            )
        )

    async def put_off(self, number: int, report: Mapping[str, Any]) -> None:
        """Let the requests of a batch wait, in new ones, that were not made as their job ended early."""
        places = [
            place for place, kind, _ in report.get("missed_requests") or () if kind == PUT_OFF
        ]
        if not places:
            return
        state = self.state
        row, payload = (
            await state.run(state.db.batch, number),
            await state.run(state.db.payload, number),
        )
        values = decode(payload.get, key=self.key)
        rest = [
            Miss(url=values[at]["url"], kind="failed", reason=PUT_OFF_REASON, batch=number)
            for at in places
        ]
        parts = [
            NewBatch(payload=settings, size=len(piece), slot=row.slot, priority=row.priority)
            for piece, settings in fit(
                [{**values[at], REPLACES: [number, at]} for at in places], key=self.key
            )
        ]
        with suppress(StepRefused):  # an earlier process has done so
            await state.run(state.db.retry, number, parts, misses=rest, now=time.time())
        state.news.set()

    async def _replaced(self, number: int) -> list[tuple[int, int]]:
        """The requests of earlier batches that this batch retried, as the store has them, whatever the worker says."""
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
        blame: bool = False,
        harmless: bool = False,
        out: bool = False,
    ) -> None:
        """Store the end of a failed attempt; the batch waits for the next one, is cut, or is dead.

        `blame`: the batch may have killed its worker; `harmless`: the failure says nothing about the batch, and costs
        it no attempt, unless there are too many of them; `out`: fail the attempt only if it was not acked meanwhile.
        The next attempt avoids the `node`.
        """
        logger.warning("batch %d, attempt %d: %s", batch.number, number, reason)
        spared = self.spared[batch.number]
        harmless = harmless and spared < SPARED
        blame = blame and not harmless
        self.spared[batch.number] += harmless
        most = self.state.limits.max_attempts
        tried = number - batch.forgiven - spared
        most = most_attempts(batch, most) if blame else most
        cut = blame and tried >= most and may_be_cut(batch, self.state.counters)
        if cut or harmless:
            most = tried + 1  # a failure that does not count leaves it waiting, not dead
        state = await self.state.run(
            self.state.db.fail,
            batch.number,
            number,
            reason=reason,
            now=time.time(),
            out=out,
            max_attempts=most + spared,
        )
        self.state.counters.failed += 1
        if cut:
            await self._cut(batch, number)
        elif state is BatchState.DEAD:
            logger.error(
                "batch %d is dead after %s: %s", batch.number, counted(number, "attempt"), reason
            )
            self.state.counters.died(batch)
            self.state.ended(batch.number)
        else:
            self.state.put_back(replace(batch, state=state, attempts=number, reason=reason), node)

    async def _cut(self, batch: Batch, number: int) -> None:
        """One of its requests kills workers: smaller batches take its requests over."""
        state = self.state
        try:
            payload = await state.run(state.db.payload, batch.number)
            state.counters.cuts += 1
            pieces = await state.run(state.db.split, batch.number, halves(batch, payload, self.key))
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
