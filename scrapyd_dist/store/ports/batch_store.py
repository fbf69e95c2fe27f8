"""The port for batches with payloads and fingerprints, their attempts and leases."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from scrapyd_dist.batches import Attempt, AttemptState, Batch, BatchState, Miss
from scrapyd_dist.errors import StepRefused
from scrapyd_dist.frontier.backlog import Backlog, Leased, LeaseRequest, NewBatch
from scrapyd_dist.goals import Spent
from scrapyd_dist.store.ports.frontier_rows import BatchStep, check_parts, check_rows, handed_down
from scrapyd_dist.strategy.links import LinkEvent


class BatchStore(ABC):
    """Batches with payloads and fingerprints; their attempts, and leases for workers.

    The account of all requests is kept in the same steps: counts, and misses. A crawl that is not
    there is `NothingMatched`.

    Each verb of an attempt moves its batch as well, by the tables of batches.py. The attempt's
    number is the fencing token: any but the batch's current attempt is `StepRefused`, however late
    it comes. Leases run by the store's clock, never by a worker's.
    """

    def seal(
        self, crawl: str, new: NewBatch, fingerprints: Iterable[bytes], counts: Mapping[str, int]
    ) -> Batch:
        """Keep a new batch with its fingerprints, and the counts, in one transaction."""
        return self._step(BatchStep(crawl, new=[new], prints=fingerprints, counts=counts))[0]

    def add_batches(
        self,
        crawl: str,
        new: Sequence[NewBatch],
        counts: Mapping[str, int] = MappingProxyType({}),
        misses: Sequence[Miss] = (),
    ) -> list[Batch]:
        """Keep batches with their fingerprints, the counts and the misses, in one transaction.

        Raises:
            SeenBefore: requests of them are there already; nothing was kept.
            StoreError: two of the fingerprints are the same.
        """
        return self._step(BatchStep(crawl, new=new, unseen=True, counts=counts, misses=misses))

    def count(self, crawl: str, counts: Mapping[str, int]) -> None:
        """Add to the named counts: the account of found URLs, and what the producer itself did."""
        self._step(BatchStep(crawl, counts=counts))

    @abstractmethod
    def counts(self, crawl: str) -> dict[str, int]:
        """Return the counts of the account, by name."""

    @abstractmethod
    def spend(
        self,
        crawl: str,
        limits: Mapping[str, float],
        requests: int = 0,
        done: Mapping[str, int] = MappingProxyType({}),
        *,
        reserve: bool = False,
    ) -> Spent:
        """Count what a process did for the crawl's goals, and grant it requests.

        It gets as many as these limits leave, and none when a goal is reached. What was granted
        counts, whatever becomes of it.

        Args:
            crawl: its id.
            limits: the goals, by name.
            requests: how many the process wants.
            done: what it did, by name of the goal.
            reserve: what is granted does not count yet, and is granted to no other process.
        """

    def add_misses(self, crawl: str, misses: Sequence[Miss]) -> None:
        """Keep misses of batches, and of the producer."""
        self._step(BatchStep(crawl, misses=misses))

    @abstractmethod
    def misses(self, crawl: str) -> list[Miss]:
        """Return the misses of batches, then the producer's own; each in the order they came."""

    @abstractmethod
    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        """Yield the fingerprints of all sealed requests."""

    @abstractmethod
    def batch(self, crawl: str, number: int) -> Batch:
        """Return the batch; `NothingMatched` when there is none of this number."""

    @abstractmethod
    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        """Return the batches in one of these states, or all, in the order they were sealed."""

    @abstractmethod
    def payload(self, crawl: str, number: int) -> dict[str, str]:
        """Return the settings that carry the batch."""

    @abstractmethod
    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        """Return the fingerprints of a batch that was added, in the order of its requests.

        There are none of a batch that was sealed.
        """

    @abstractmethod
    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        """Let those of these batches that are DEAD wait again, and return their numbers.

        They have as many new attempts as a fresh batch; their old attempts stay as they were.
        Batches that are not dead are left alone.
        """

    @abstractmethod
    def prioritise(self, crawl: str, numbers: Collection[int], priority: int) -> list[int]:
        """Set the priority of those of these batches that wait, and return their numbers."""

    def split(self, crawl: str, number: int, parts: Sequence[NewBatch]) -> list[Batch]:
        """Replace a batch by others that have its requests: smaller ones, or in other slots.

        Parts that name no fingerprints get those of the batch, in its order, as far as it is known
        whose they are. Returns the new batches.

        Raises:
            StepRefused: the batch neither waits nor is dead.
            StoreError: the parts do not have as many requests.
        """
        whole = self.batch(crawl, number)
        check_parts(number, whole.size, parts)
        prints = handed_down(self.batch_fingerprints(crawl, number), whole.size, parts)
        new = []
        for part, fingerprints in zip(parts, prints, strict=True):
            child = replace(
                part, fingerprints=fingerprints, sealed_at=whole.sealed_at, parent=number
            )
            new.append(child)
        return self._step(BatchStep(crawl, number, batch_to=BatchState.SPLIT, new=new))

    def retry(
        self,
        crawl: str,
        number: int,
        parts: Sequence[NewBatch],
        *,
        misses: Sequence[Miss],
        now: float,
    ) -> list[Batch]:
        """Put requests of a batch that is done into new batches in its slot, and forget its misses.

        Returns the new batches.

        Raises:
            StepRefused: the batch is not done, or another process has retried some of the misses.
            StoreError: the parts do not have as many requests as there are misses.
        """
        check_parts(number, len(misses), parts)
        old = self.batch(crawl, number)
        new = []
        for part in parts:
            in_slot = replace(part, slot=old.slot, priority=old.priority, sealed_at=now)
            new.append(in_slot)
        return self._step(BatchStep(crawl, number, retried=misses, new=new))

    def drop_batch(self, crawl: str, number: int, *, forget: bool) -> None:
        """Remove a batch; with `forget` its fingerprints as well.

        Then its requests can come again. Its number is never used again; its misses stay, for the
        account. Raises `StepRefused` when a worker has it.
        """
        self._step(BatchStep(crawl, number, dropped=True, forget=forget))

    # attempts

    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        """Note that the batch is about to be posted, before anything leaves.

        The attempt's number may have been used by one that was refused.
        """
        step = BatchStep(
            crawl,
            attempt.batch,
            attempt.number,
            batch_to=BatchState.SENT,
            batch_changes={"attempts": attempt.number},
            opened=attempt,
        )
        self._step(step)

    def sent(self, crawl: str, batch: int, attempt: int) -> None:
        """Note that the node has taken the job."""
        self._step(BatchStep(crawl, batch, attempt, AttemptState.SENT))

    def give_back(
        self, crawl: str, batch: int, attempt: int, holder: str | None, *, reason: str, now: float
    ) -> None:
        """Let the batch wait again, of which no request was made; no attempt is counted.

        `holder` is the worker that says so, and may be refused as in `ack`; None: the node
        certainly did not take it.
        """
        step = BatchStep(
            crawl,
            batch,
            attempt,
            to=AttemptState.REFUSED,
            changes={"reason": reason, "ended_at": now},
            batch_to=BatchState.SEALED,
            batch_changes={"attempts": attempt - 1, "reason": reason},
            holder=holder,
        )
        self._step(step)

    def running(self, crawl: str, batch: int, attempt: int) -> None:
        """Note that the attempt's worker gives signs of life."""
        step = BatchStep(
            crawl, batch, attempt, to=AttemptState.RUNNING, batch_to=BatchState.RUNNING
        )
        self._step(step)

    def accept(
        self,
        crawl: str,
        batch: int,
        attempt: int,
        *,
        report: Mapping[str, Any],
        part: str,
        misses: Sequence[Miss],
        now: float,
    ) -> None:
        """Count this attempt's result; no other one of its batch ever will be."""
        step = BatchStep(
            crawl,
            batch,
            attempt,
            to=AttemptState.ACCEPTED,
            changes={"report": report, "part": part, "ended_at": now},
            batch_to=BatchState.DONE,
            misses=misses,
        )
        self._step(step)

    def fail(
        self,
        crawl: str,
        batch: int,
        attempt: int,
        *,
        reason: str,
        now: float,
        max_attempts: int,
        forgive: bool = False,
        out: bool = False,
    ) -> BatchState:
        """Note that the attempt ended badly, and return the state of the batch.

        It is FAILED, or DEAD when it has no attempt left. `forgive`: it costs the batch none.
        `out`: only if the attempt is still out; one that was acked meanwhile is `StepRefused`.
        """
        # How many attempts are forgiven changes only with the end of an attempt, and while a batch
        # is dead, so it may be read before: an attempt ends once.
        before = self.batch(crawl, batch)
        forgiven = before.forgiven + forgive
        is_alive = forgive or before.counted(attempt) < max_attempts
        end = BatchState.FAILED if is_alive else BatchState.DEAD
        step = BatchStep(
            crawl,
            batch,
            attempt,
            to=AttemptState.FAILED,
            changes={"reason": reason, "ended_at": now},
            batch_to=BatchState.FAILED,
            # The step of the table is to FAILED; a batch without attempts goes on to DEAD at once.
            batch_changes={"reason": reason, "state": end.value, "forgiven": forgiven},
            out=out,
        )
        self._step(step)
        return end

    def reopen(
        self,
        crawl: str,
        batch: int,
        attempt: int,
        *,
        reason: str,
        misses: Sequence[Miss],
        now: float,
    ) -> None:
        """Let a batch that is done wait again: its accepted attempt is failed, and counts no more.

        It gets as many attempts as a new batch. `misses` are all that it has, and are forgotten.
        Raises `StepRefused` if the batch is not done, or has others.
        """
        step = BatchStep(
            crawl,
            batch,
            attempt,
            to=AttemptState.FAILED,
            changes={"reason": reason, "ended_at": now},
            batch_to=BatchState.FAILED,
            batch_changes={"reason": reason, "earlier": attempt, "forgiven": 0},
            reopens=True,
            retried=misses,
        )
        self._step(step)

    def ack(
        self,
        crawl: str,
        batch: int,
        attempt: int,
        holder: str,
        *,
        report: Mapping[str, Any],
        new: Sequence[NewBatch] = (),
        now: float,
        counts: Mapping[str, int] = MappingProxyType({}),
        events: Sequence[LinkEvent] = (),
    ) -> None:
        """End the holder's attempt: keep its report, end its lease, and add what it has found.

        `events` are for the crawl's strategy. When an error is raised, nothing was done.

        Raises:
            StepRefused: the attempt is over, or another worker has the lease.
            SeenBefore: requests of new batches are there already.
        """
        step = BatchStep(
            crawl,
            batch,
            attempt,
            to=AttemptState.ACKED,
            changes={"report": report, "ended_at": now},
            holder=holder,
            new=new,
            unseen=True,
            counts=counts,
            events=events,
        )
        self._step(step)

    @abstractmethod
    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        """Return the attempts in one of these states, or all, in the order they were opened."""

    @abstractmethod
    def lease(
        self,
        crawl: str,
        batch: int,
        attempt: int,
        holder: str,
        seconds: float,
        *,
        again: bool = False,
    ) -> bool:
        """Take the attempt for `holder`, for `seconds` from now.

        `again`: only if it has it already. Returns False when the attempt is not the batch's
        current one, or another worker has it: the holder must stop. A lease that ran out may be
        taken by any worker, as long as the attempt is current.
        """

    @abstractmethod
    def expired(self, crawl: str) -> list[Attempt]:
        """Return the attempts that are out and whose lease has run out."""

    # leasing what waits

    @abstractmethod
    def lease_next(self, wanted: LeaseRequest) -> list[Leased]:
        """Open an attempt for each of the next batches that wait, and lease it.

        They are RUNNING from then on. The highest priority comes first, then the oldest. Nothing
        comes while the crawl is asked to rest, or to end.

        With `SPREAD` each comes from the slot with the fewest requests under way in the whole
        fleet, ties in turn, and no two from one slot; the priority then orders the batches of one
        slot only. `BY_DOMAIN`: the same, and a slot is the lessee's alone while it has something of
        it. Then no worker takes more slots than its share, and one that has more gets nothing until
        some of them have run out. Slots that are named, such as those of other spiders, are shared
        as with `SPREAD`.

        Raises:
            StepRefused: only a worker that the crawl lists may lease, and this one is not listed.
        """

    @abstractmethod
    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        """Note that a producer may add something until `seconds` from now.

        It registers again before that time is over, or signs off.
        """

    @abstractmethod
    def sign_off(self, crawl: str, producer: str) -> None:
        """Note that a producer adds nothing more."""

    @abstractmethod
    def backlog(self, crawl: str) -> Backlog:
        """Return how far the workers are; it costs the same however much is stored."""

    @abstractmethod
    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        """Return the batches of a slot that would be leased next, in that order."""

    @abstractmethod
    def _step(self, step: BatchStep) -> list[Batch]:
        """Make the step, unless `_check` raises, and return the new batches."""

    def _check(self, step: BatchStep) -> None:
        """Raise what speaks against the step."""
        key = (step.crawl, step.batch, step.attempt)
        if step.holder is not None and self._holder(*key) != step.holder:
            raise StepRefused(
                f"{step.holder} does not hold attempt {step.attempt} of batch {step.batch}: it is"
                " over, or another worker's"
            )
        if step.batch:
            batch = self.batch(step.crawl, step.batch)
            check_rows(step, batch, self._attempt_state(*key))

    @abstractmethod
    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None:
        """Return the state of an attempt, if there is such an attempt."""

    @abstractmethod
    def _holder(self, crawl: str, batch: int, number: int) -> str | None:
        """Return the worker that has the attempt's lease, if one has it."""
