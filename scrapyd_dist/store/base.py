"""The port: what a store can do, in domain words; each verb is one atomic step.

The interface is blocking on purpose, and there is only one of it. A process with an event loop makes all its calls from
one worker thread, so that they keep their order. A time that a caller gives (`now`) is told to people and compared with
the same caller's clock; leases run by the store's own clock. Verbs with a body are the same on both engines, out of
the few steps (`_…`) in which the engines differ.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from scrapyd_dist.batches import (
    WANTED,
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    Crawl,
    Miss,
    Shard,
    WorkerEntry,
)
from scrapyd_dist.errors import NameTaken, NothingMatched, StepRefused, StoreError
from scrapyd_dist.frontier.backlog import Backlog, Leased, LeaseRequest, NewBatch
from scrapyd_dist.goals import Spent
from scrapyd_dist.job_record import JobRecord, JobVerdict
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.frontier_rows import BatchStep, check_parts, check_rows, handed_down
from scrapyd_dist.store.rows import (
    CRAWL_COLUMNS,
    CRAWL_FIELDS,
    SIGNED,
    Door,
    check_fields,
    check_names,
    signed_row,
)
from scrapyd_dist.strategy.links import Link, LinkChange, LinkEvent, StrategyBacklog, StrategyStep
from scrapyd_dist.throttle.permits import (
    DomainLook,
    DomainState,
    Permit,
    PermitRequest,
    Rule,
    Rules,
    SiteNews,
    TakenPermits,
)

#: tries to change a row that another client changes at the same time
_TRIES = 20


class CrawlStore(Protocol):
    """Crawls with their samples, shards and workers; and what is remembered of nodes, which outlives them."""

    _door: Door

    def nodes(self) -> list[NodeRecord]:
        """What is remembered of nodes, by name. A node of which nothing is remembered is not in it."""

    def update_node(self, name: str, **changes: Any) -> None:
        """Set fields of `NodeRecord` by their names; the record is made when there is none."""

    def add_crawl(self, crawl: Crawl) -> None:
        """Raises `NameTaken` when the id is."""
        row: dict[str, Any] = {name: getattr(crawl, name) for name in CRAWL_COLUMNS}
        check_names(row)
        row["options"] = signed_row(self._door.signer, row, crawl.options)
        if not self._add_row(crawl.id, row):
            raise NameTaken(f"there is a crawl {crawl.id} already; give this one another name.")

    def crawl(self, crawl: str) -> Crawl:
        """The row; of one that this project has not signed, no option is told (`Crawl.foreign`).

        Raises `NothingMatched` when there is none of that id, `ForeignRow` when it cannot be a crawl's row.
        """
        return self._door.crawl(self._row(crawl), crawl)

    def own_crawl(self, crawl: str) -> Crawl:
        """The row, for a caller that acts on its options; `ForeignRow` when this project has not signed it."""
        return self._door.own(self.crawl(crawl))

    def crawls(self) -> list[Crawl]:
        """All crawls, newest first. What cannot be a row is left out, here and in all lists, and told in the log."""

    def update_crawl(self, crawl: str, **changes: Any) -> None:
        """Set fields of `Crawl` by their names.

        Raises `ForeignRow` when what is signed would change, and this project has not signed what is there.
        """
        check_fields("crawl", changes, CRAWL_FIELDS)
        check_names(changes)
        if not {"options", *SIGNED} & changes.keys():
            self._set_row(crawl, changes)
            return
        for _ in range(_TRIES):
            try:
                kept = self._row(crawl)
            except NothingMatched:
                return
            new = replace(self._door.own(self._door.crawl(kept, crawl)), **changes)
            row = {**changes, "options": signed_row(self._door.signer, vars(new), new.options)}
            # What the signature covers is as it was read, or all of this is done once more.
            if self._set_row(
                crawl, row, {name: kept[name] for name in ("options", *SIGNED) if name in kept}
            ):
                return
        raise StepRefused(f"the row of the crawl {crawl} is changed by others all the time")

    def claim(self, crawl: str, *, pid: int, host: str, before: tuple[int | None, str]) -> bool:
        """Name a process in the crawl's row, in the place of the one that was looked at there (`before`: pid and host).

        False, and nothing is changed, when another one is named by now; `NothingMatched` when there is no such crawl.
        """
        self.crawl(crawl)
        return self._set_row(
            crawl, {"pid": pid, "host": host}, {"pid": before[0], "host": before[1]}
        )

    def want(self, crawl: str, what: str) -> None:
        """Ask the crawl's processes for one of `batches.WANTED`; "" takes it back. `NothingMatched` without a crawl."""
        if what not in WANTED:
            raise StoreError(
                f"a crawl cannot be asked for {what!r}; there are: {', '.join(sorted(WANTED - {''}))}"
            )
        if not self._set_row(crawl, {"wanted": what}):
            raise self._door.no_crawl(crawl)

    def wanted(self, crawl: str) -> str:
        """What the crawl was asked for, one of `batches.WANTED`; costs little, however long its row is."""

    def forget(self, crawl: str) -> None:
        """Remove a crawl and everything of it, its name last.

        The one verb of many steps, so that no other process waits long for its turn: when it is broken off, the crawl
        is still listed, and forgetting it again finishes the work.
        """

    # a run of a crawl, beside its batches

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        """Keep one look at the crawl, a JSON document; `at` is in seconds since the epoch."""

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        """Time and document, in order of time."""

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None: ...

    def shards(self, crawl: str) -> list[Shard]: ...

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        """All that these shards found is sealed; they are not walked again."""

    def walk_again(self, crawl: str) -> None:
        """The index is walked anew: forget the producer's own misses, and all counts but what is sealed."""

    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        """List these workers, which are about to be posted; one whose job is listed already replaces that entry.

        `last` is the highest number that any worker of the crawl was given.
        """

    def remove_worker(self, crawl: str, job: str) -> None:
        """It has ended, or was never posted."""

    def workers(self, crawl: str) -> tuple[list[WorkerEntry], int]:
        """Those that are listed, by number; and the highest number that any worker was given, 0 before the first."""

    # what differs

    def _row(self, crawl: str) -> dict[str, Any]:
        """The row of a crawl as it is kept, not judged; `NothingMatched` when there is none."""

    def _add_row(self, crawl: str, row: Mapping[str, Any]) -> bool:
        """Keep a new row; False when the crawl is there already."""

    def _set_row(
        self, crawl: str, row: Mapping[str, Any], before: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        """Set fields of the row, if those in `before` are so still, as they are kept; whether that was done."""


class BatchStore(Protocol):
    """Batches with their payloads and fingerprints; their attempts, and leases for workers that reach the store.

    The account of all requests is kept in the same steps: counts, and misses. A crawl that is not there is
    `NothingMatched`.

    Each verb of an attempt moves its batch as well, by the tables of batches.py. The attempt's number is the fencing
    token: any but the batch's current attempt is `StepRefused`, however late it comes. Leases run by the store's clock,
    never by a worker's.
    """

    def seal(
        self, crawl: str, new: NewBatch, fingerprints: Iterable[bytes], counts: Mapping[str, int]
    ) -> Batch:
        """Keep a new batch with its payload, and its fingerprints and counts, in one transaction."""
        return self._step(BatchStep(crawl, new=[new], prints=fingerprints, counts=counts))[0]

    def add_batches(
        self, crawl: str, new: Sequence[NewBatch], counts: Mapping[str, int] = MappingProxyType({})
    ) -> list[Batch]:
        """Keep these batches with their fingerprints, and the counts, in one transaction, whatever else is added now.

        Raises:
            SeenBefore: requests of them are there already; nothing was kept.
            StoreError: two of the fingerprints are the same.
        """
        return self._step(BatchStep(crawl, new=new, unseen=True, counts=counts))

    def count(self, crawl: str, counts: Mapping[str, int]) -> None:
        """Add to the named counts: the account of found URLs, and what the producer itself did."""
        self._step(BatchStep(crawl, counts=counts))

    def counts(self, crawl: str) -> dict[str, int]: ...

    def spend(
        self,
        crawl: str,
        limits: Mapping[str, float],
        requests: int = 0,
        told: Mapping[str, int] = MappingProxyType({}),
        *,
        reserve: bool = False,
    ) -> Spent:
        """Count what a process tells of the crawl's goals, and grant it as many requests as these `limits` leave.

        A goal that is reached grants none. What was granted counts, whatever becomes of it. `reserve`: it does not
        count yet, and is granted to no other process.
        """

    def add_misses(self, crawl: str, misses: Sequence[Miss]) -> None:
        self._step(BatchStep(crawl, misses=misses))

    def misses(self, crawl: str) -> list[Miss]:
        """Those of batches, then the producer's own; each in the order they came."""

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        """The fingerprints of every sealed request."""

    def batch(self, crawl: str, number: int) -> Batch: ...

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        """In the order they were sealed; all of them when no state is named."""

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        """The settings that carry the batch."""

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        """Those of a batch that was added, in the order of its requests; none of one that was sealed."""

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        """Batches that are DEAD wait again, with as many new attempts as a fresh one; which ones, is the answer.

        Their attempts stay as they were. Those that are not dead are left alone.
        """

    def prioritise(self, crawl: str, numbers: Collection[int], priority: int) -> list[int]:
        """Batches that wait have this priority from now on; which ones, is the answer. Others are left alone."""

    def split(self, crawl: str, number: int, parts: Sequence[NewBatch]) -> list[Batch]:
        """Replace a batch that waits or is dead by others that have its requests: smaller ones, or in other slots.

        Parts that name no fingerprints get those of the batch, in its order, as far as it is known whose they are.
        Raises `StepRefused` when the batch is out on a node, or over; `StoreError` when the parts do not have as many
        requests.
        """
        whole = self.batch(crawl, number)
        check_parts(number, whole.size, parts)
        prints = handed_down(self.batch_fingerprints(crawl, number), whole.size, parts)
        new = [
            replace(part, fingerprints=its, sealed_at=whole.sealed_at, parent=number)
            for part, its in zip(parts, prints, strict=True)
        ]
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
        """Requests of a batch that is done go into new batches in its slot, and these misses of it are forgotten.

        Raises `StepRefused` when the batch is not done, or another process has retried some of them; `StoreError` when
        the parts do not have as many requests as there are misses.
        """
        check_parts(number, len(misses), parts)
        old = self.batch(crawl, number)
        new = [replace(part, sealed_at=now, slot=old.slot, priority=old.priority) for part in parts]
        return self._step(BatchStep(crawl, number, retried=misses, new=new))

    def drop_batch(self, crawl: str, number: int, *, forget: bool) -> None:
        """Remove a batch that is not out; `forget` its fingerprints as well, so that its requests can come again.

        Its number is never used again; its misses stay, for the account. Raises `StepRefused` when a worker has it.
        """
        self._step(BatchStep(crawl, number, dropped=True, forget=forget))

    # attempts

    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        """The batch is about to be posted: written down before anything leaves.

        The attempt's number may have been used by one that was refused.
        """
        key, row = (crawl, attempt.batch, attempt.number), {"attempts": attempt.number}
        self._step(BatchStep(*key, batch_to=BatchState.SENT, batch_changes=row, opened=attempt))

    def sent(self, crawl: str, batch: int, attempt: int) -> None:
        """The node said ok."""
        self._step(BatchStep(crawl, batch, attempt, AttemptState.SENT))

    def give_back(
        self, crawl: str, batch: int, attempt: int, holder: str | None, *, reason: str, now: float
    ) -> None:
        """No request of it was made: the batch waits again, no attempt is counted.

        `holder` is the worker that says so, and may be refused as in `ack`; None: the node certainly did not take it.
        """
        waits, ends = (
            {"attempts": attempt - 1, "reason": reason},
            {"reason": reason, "ended_at": now},
        )
        self._step(
            BatchStep(
                crawl, batch, attempt, AttemptState.REFUSED, ends, BatchState.SEALED, waits, holder
            )
        )

    def running(self, crawl: str, batch: int, attempt: int) -> None:
        """Its worker has been heard of."""
        self._step(BatchStep(crawl, batch, attempt, AttemptState.RUNNING, {}, BatchState.RUNNING))

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
        """This attempt's result counts, and no other one of its batch ever will."""
        ends = {"report": report, "part": part, "ended_at": now}
        self._step(
            BatchStep(
                crawl, batch, attempt, AttemptState.ACCEPTED, ends, BatchState.DONE, misses=misses
            )
        )

    def fail(
        self,
        crawl: str,
        batch: int,
        attempt: int,
        *,
        reason: str,
        now: float,
        max_attempts: int,
        out: bool = False,
    ) -> BatchState:
        """The attempt ended badly: the batch is FAILED, or DEAD when it has none left; which is the answer.

        `out`: only if it is out still. One that was acked meanwhile is `StepRefused`.
        """
        # How many attempts are forgiven changes only while a batch is dead, so it may be read before.
        forgiven = self.batch(crawl, batch).forgiven
        end = BatchState.FAILED if attempt - forgiven < max_attempts else BatchState.DEAD
        fails, ends = {"reason": reason, "state": end.value}, {"reason": reason, "ended_at": now}
        self._step(
            BatchStep(
                crawl, batch, attempt, AttemptState.FAILED, ends, BatchState.FAILED, fails, out=out
            )
        )
        return end

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
        """The holder has ended it: its report is kept, its lease is over, and what it has found is added, in one step.

        `events` are for the crawl's strategy. Raises `StepRefused` when the attempt is over, or another worker has the
        lease; `SeenBefore` as `add_batches`; nothing was done then.
        """
        self._step(
            BatchStep(
                crawl,
                batch,
                attempt,
                AttemptState.ACKED,
                {"report": report, "ended_at": now},
                holder=holder,
                new=new,
                unseen=True,
                counts=counts,
                events=events,
            )
        )

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        """In the order they were opened; all of them when no state is named."""

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
        """Take the attempt for `holder`, for `seconds` from now; `again`: only if it has it already.

        False when the attempt is not the batch's current one, or another worker has it: the holder must stop. A lease
        that ran out may be taken by any worker, as long as the attempt is current.
        """

    def expired(self, crawl: str) -> list[Attempt]:
        """Attempts that are out and whose lease has run out."""

    # leasing what waits

    def lease_next(self, wanted: LeaseRequest) -> list[Leased]:
        """Open an attempt for each of the next batches that wait, and lease it; RUNNING from then on.

        The highest priority comes first, then the oldest. Nothing comes while the crawl is asked to rest, or to end.
        With `SPREAD` each comes from the slot with the fewest requests under way in the whole fleet, ties in turn, and
        no two from one slot; the priority then orders the batches of one slot only. `BY_DOMAIN`: the same, and a slot
        is the lessee's alone while it has something of it. Then no worker takes more slots than its share, and one that
        has more gets nothing until some of them have run out. Slots that are named, such as those of other spiders, are
        shared as with `SPREAD`.
        """

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        """It may add something until `seconds` from now, or until it says so again, or signs off."""

    def sign_off(self, crawl: str, producer: str) -> None:
        """It will add nothing more."""

    def backlog(self, crawl: str) -> Backlog:
        """How far the workers are; costs the same however much is stored."""

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        """The batches of a slot that would be leased next, in that order."""

    def _step(self, step: BatchStep) -> list[Batch]:
        """Make it, unless `_check` raises; the new batches are the answer."""

    def _check(self, step: BatchStep) -> None:
        """Raise what speaks against the step."""
        crawl, batch, number, holder = step.crawl, step.batch, step.attempt, step.holder
        if holder is not None and self._holder(crawl, batch, number) != holder:
            raise StepRefused(
                f"{holder} does not hold attempt {number} of batch {batch}: it is over, or another worker's"
            )
        if batch:
            check_rows(step, self.batch(crawl, batch), self._attempt_state(crawl, batch, number))

    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None: ...

    def _holder(self, crawl: str, batch: int, number: int) -> str | None:
        """The worker that has the attempt's lease."""


class ThrottleStore(Protocol):
    """One budget per key for all workers of this store; its moments are those of the store's clock."""

    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        """Charge each ask's key for its permits, and say when each may be used; one step for all of them.

        Of the permits of a key, never more than the limit's hits lie within any of its windows. `known` is the version
        of the rules that the asker knows: what has changed since is told; None: nothing is.
        """

    def return_permits(self, permits: Sequence[Permit]) -> None:
        """These were not used: nothing left for the site. The budgets of pages get theirs back, too."""

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        """Heed what sites ask for, or have shown; the rules' version is the answer, also without news.

        `known` is as for `take_permits`.
        """

    def rules(self) -> Rules: ...

    def change_rules(self, changes: Mapping[str, Rule | None]) -> int:
        """Set or remove (None) the rules of these domains (or `ALL`), all or none; the new version is the answer."""

    def domain_states(self) -> list[DomainState]:
        """Every domain that anything is known of, by name."""

    def forget_permits(self, before: float) -> None:
        """Remove what is known of domains that no worker has asked for since `before` (the store's clock).

        What no worker has asked for in an hour goes by itself, as new domains come: but for those that have a delay by
        their robots.txt, or pages of a budget, and for all that counts still.
        """

    def forget_pages(self, budgets: Collection[str]) -> None:
        """What was counted in these budgets of pages counts no more."""


class JobStore(Protocol):
    """What is remembered of plain jobs. A record is open until its job is seen to be over."""

    def job_revision(self) -> int:
        """A number that is higher after each `keep_jobs`; read before the jobs that a step depends on."""

    def jobs(self, since: float | None = None) -> list[JobRecord]:
        """The records that are open, and those of jobs that ended since then, or ever.

        In order of their ends, those that are open by when they were written.
        """

    def keep_jobs(self, records: Sequence[JobRecord], revision: int | None = None) -> bool:
        """Keep these records in one step, each in the place of the one of its id.

        False, and nothing is kept, when `revision` is given and is not the current one.
        """

    def forget_jobs(self, before: float) -> int:
        """Remove jobs that ended before this time, or were posted before it and are open; gives how many.

        Verdicts that were written down before it are removed as well, and not counted.
        """

    def keep_verdicts(self, verdicts: Sequence[JobVerdict]) -> None:
        """Write down how jobs ended. What is there already stays as it is."""

    def verdicts(self, keys: Collection[str]) -> dict[str, JobVerdict]:
        """Those that are known of these keys."""


class StrategyStore(Protocol):
    """Links, events and domain metadata of crawling strategies; a strategy is stored as a frontier.

    Workers add events in the step that acks their batch. Each partition is held by one strategy process for a limited
    time, by the store's clock; only its holder changes what belongs to it.
    """

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        """Say that the process lives, and take its share of the partitions, for `seconds` from now; which they are.

        The share is an equal part, rounded up, among the processes that live; what a process has beyond it is given
        back, and it takes no partition that another one holds. Events of a partition that no process holds wait.
        """

    def leave_partitions(self, crawl: str, process: str) -> None:
        """The process ends: its partitions are free at once."""

    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        """The oldest events of these partitions that wait, at most so many, by number."""

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        """Those of these links that are there, without their requests; one question, however many they are."""

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """The metadata of those of these sites that have any."""

    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        """The links to be requested next, with their requests; they stay in the queue until a step takes them out.

        Of each slot the highest scores, the oldest first among equals, and no more than there are requests fewer than
        `ahead` waiting in its batches; the slots in turn, those first that had their turn longest ago; `limit` in all.
        Links that are due later than `now` are left out; those that have expired are among them. Costs the same however
        long the queue is. Empty when the strategy has ended, or the crawl is to rest or to end.
        """

    def apply(self, step: StrategyStep) -> list[Batch]:
        """Make the step; the new batches are the answer.

        Raises `StepRefused` when the process does not hold one of the partitions any more, when an event that it has
        handled does not wait any more, when a link of `new` is not in the queue, or when a batch that it drops is not
        DEAD: nothing was done then.
        """

    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        """How far the strategy is; costs the same however much is stored."""

    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        """No link is taken from the queue any more; `ended=False` takes that back.

        `if_empty`: only if `links.is_empty` is true in the same step. Whether it was done, is the answer.
        """

    def changes(self, crawl: str, after: int = 0, limit: int = 10_000) -> list[LinkChange]:
        """The log of changes behind that number, at most so many, in order."""

    def dead_events(self, crawl: str, limit: int = 1_000) -> list[LinkEvent]:
        """Dead letters, by number."""

    def replay(self, crawl: str, numbers: Collection[int] | None = None) -> int:
        """Let these dead letters wait again, or all; how many there were."""

    def reset_strategy(self, crawl: str) -> None:
        """Forget the links, events, metadata and log, and all batches; the crawl's row stays.

        Raises `StepRefused` when a batch is out, or a process holds a partition.
        """


class Store(CrawlStore, BatchStore, ThrottleStore, JobStore, StrategyStore, Protocol):
    """All of them, as callers have it."""

    def close(self) -> None: ...

    def warnings(self) -> list[str]:
        """What endangers what is kept here, a sentence each, for the user who starts a crawl."""
