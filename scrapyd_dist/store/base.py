"""The port: what a store can do, in domain words; each verb is one atomic step.

The interface is blocking on purpose, and there is only one of it. A process with an event loop
makes all its calls from one worker thread, so that they keep their order. A time that a caller
gives (`now`) is shown to people and compared with the same caller's clock; leases run by the
store's own clock. Verbs with a body are the same on both engines, out of the few steps (`_…`) in
which the engines differ.
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
    """Crawls with their samples, shards and workers; and records of nodes, which outlive them."""

    _door: Door

    def nodes(self) -> list[NodeRecord]:
        """Return the records of all nodes of which anything is remembered, by name."""

    def update_node(self, name: str, **changes: Any) -> None:
        """Set fields of `NodeRecord` by their names; the record is made when there is none."""

    def add_crawl(self, crawl: Crawl) -> None:
        """Keep a new crawl; `NameTaken` when there is one of its id."""
        row: dict[str, Any] = {name: getattr(crawl, name) for name in CRAWL_COLUMNS}
        check_names(row)
        row["options"] = signed_row(self._door.signer, row, crawl.options)
        if not self._add_row(crawl.id, row):
            raise NameTaken(f"there is a crawl {crawl.id} already; give this one another name.")

    def crawl(self, crawl: str) -> Crawl:
        """Return the crawl of this id.

        One that this project has not signed comes without its options (`Crawl.foreign`).

        Raises:
            NothingMatched: there is none.
            ForeignRow: its row cannot be a crawl's.
        """
        return self._door.crawl(self._row(crawl), crawl)

    def own_crawl(self, crawl: str) -> Crawl:
        """Return the crawl, for a caller that acts on its options.

        Raises `ForeignRow` when this project has not signed it.
        """
        return self._door.own(self.crawl(crawl))

    def crawls(self) -> list[Crawl]:
        """Return all crawls, newest first.

        What cannot be a row is left out, here and in all lists, and logged.
        """

    def update_crawl(self, crawl: str, **changes: Any) -> None:
        """Set fields of `Crawl` by their names; nothing happens when there is no such crawl.

        Raises `ForeignRow` when what is signed would change, and this project has not signed what
        is there.
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
            covered = {name: kept[name] for name in ("options", *SIGNED) if name in kept}
            if self._set_row(crawl, row, covered):
                return
        raise StepRefused(f"the row of the crawl {crawl} is changed by others all the time")

    def claim(self, crawl: str, *, pid: int, host: str, before: tuple[int | None, str]) -> bool:
        """Name a process in the crawl's row, in the place of another one.

        `before` are pid and host that the caller has read there. Returns False, and changes
        nothing, when another process is named by now. Raises `NothingMatched` when there is no such
        crawl.
        """
        self.crawl(crawl)
        return self._set_row(
            crawl, {"pid": pid, "host": host}, {"pid": before[0], "host": before[1]}
        )

    def want(self, crawl: str, what: str) -> None:
        """Ask the crawl's processes for one of `batches.WANTED`; "" takes it back.

        Raises `NothingMatched` when there is no such crawl.
        """
        if what not in WANTED:
            known = ", ".join(sorted(WANTED - {""}))
            raise StoreError(f"a crawl cannot be asked for {what!r}; there are: {known}")
        if not self._set_row(crawl, {"wanted": what}):
            raise self._door.no_crawl(crawl)

    def wanted(self, crawl: str) -> str:
        """Return what the crawl was asked for, one of `batches.WANTED`.

        It costs little, however long the crawl's row is.
        """

    def forget(self, crawl: str) -> None:
        """Remove a crawl and everything of it, its name last.

        This is the one verb of many steps, so that no other process waits long for its turn: when
        it is broken off, the crawl is still listed, and forgetting it again finishes the work.
        """

    # a run of a crawl, beside its batches

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        """Keep a sample of the crawl, a JSON document; `at` is in seconds since the epoch."""

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        """Return time and document of each sample, in order of time."""

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        """Keep new shards of the index; an error says that a number is taken."""

    def shards(self, crawl: str) -> list[Shard]:
        """Return the shards, by number."""

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        """Note that all that these shards found is sealed; they are not walked again."""

    def walk_again(self, crawl: str) -> None:
        """Forget the producer's own misses, and all counts but what is sealed.

        The index is walked anew then.
        """

    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        """List workers that are about to be posted, each in the place of an entry with its job.

        `last` is the highest number that any worker of the crawl was given.
        """

    def remove_worker(self, crawl: str, job: str) -> None:
        """Take a worker from the list that has ended, or was never posted."""

    def workers(self, crawl: str) -> tuple[list[WorkerEntry], int]:
        """Return the listed workers by number, and the highest number that any was given.

        That is 0 before the first.
        """

    # the steps in which engines differ

    def _row(self, crawl: str) -> dict[str, Any]:
        """Return the row of a crawl as it is kept, not judged; `NothingMatched` without one."""

    def _add_row(self, crawl: str, row: Mapping[str, Any]) -> bool:
        """Keep a new row, and return False when the crawl is there already."""

    def _set_row(
        self, crawl: str, row: Mapping[str, Any], before: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        """Set fields of the row, if those in `before` are still kept so.

        Returns whether that was done.
        """


class BatchStore(Protocol):
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
        self, crawl: str, new: Sequence[NewBatch], counts: Mapping[str, int] = MappingProxyType({})
    ) -> list[Batch]:
        """Keep batches with their fingerprints, and the counts, in one transaction.

        Raises:
            SeenBefore: requests of them are there already; nothing was kept.
            StoreError: two of the fingerprints are the same.
        """
        return self._step(BatchStep(crawl, new=new, unseen=True, counts=counts))

    def count(self, crawl: str, counts: Mapping[str, int]) -> None:
        """Add to the named counts: the account of found URLs, and what the producer itself did."""
        self._step(BatchStep(crawl, counts=counts))

    def counts(self, crawl: str) -> dict[str, int]:
        """Return the counts of the account, by name."""

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

    def misses(self, crawl: str) -> list[Miss]:
        """Return the misses of batches, then the producer's own; each in the order they came."""

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        """Yield the fingerprints of all sealed requests."""

    def batch(self, crawl: str, number: int) -> Batch:
        """Return the batch; `NothingMatched` when there is none of this number."""

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        """Return the batches in one of these states, or all, in the order they were sealed."""

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        """Return the settings that carry the batch."""

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        """Return the fingerprints of a batch that was added, in the order of its requests.

        There are none of a batch that was sealed.
        """

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        """Let those of these batches that are DEAD wait again, and return their numbers.

        They have as many new attempts as a fresh batch; their old attempts stay as they were.
        Batches that are not dead are left alone.
        """

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
        out: bool = False,
    ) -> BatchState:
        """Note that the attempt ended badly, and return the state of the batch.

        It is FAILED, or DEAD when it has no attempt left. `out`: only if the attempt is still out;
        one that was acked meanwhile is `StepRefused`.
        """
        # How many attempts are forgiven changes only while a batch is dead, so it may be read
        # before.
        forgiven = self.batch(crawl, batch).forgiven
        end = BatchState.FAILED if attempt - forgiven < max_attempts else BatchState.DEAD
        step = BatchStep(
            crawl,
            batch,
            attempt,
            to=AttemptState.FAILED,
            changes={"reason": reason, "ended_at": now},
            batch_to=BatchState.FAILED,
            # The step of the table is to FAILED; a batch without attempts goes on to DEAD at once.
            batch_changes={"reason": reason, "state": end.value},
            out=out,
        )
        self._step(step)
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

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        """Return the attempts in one of these states, or all, in the order they were opened."""

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

    def expired(self, crawl: str) -> list[Attempt]:
        """Return the attempts that are out and whose lease has run out."""

    # leasing what waits

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
        """

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        """Note that a producer may add something until `seconds` from now.

        It registers again before that time is over, or signs off.
        """

    def sign_off(self, crawl: str, producer: str) -> None:
        """Note that a producer adds nothing more."""

    def backlog(self, crawl: str) -> Backlog:
        """Return how far the workers are; it costs the same however much is stored."""

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        """Return the batches of a slot that would be leased next, in that order."""

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

    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None:
        """Return the state of an attempt, if there is such an attempt."""

    def _holder(self, crawl: str, batch: int, number: int) -> str | None:
        """Return the worker that has the attempt's lease, if one has it."""


class ThrottleStore(Protocol):
    """One budget per key for all workers of this store; moments are those of its own clock."""

    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        """Charge each ask's key for its permits, and return when each may be used; in one step.

        Of the permits of a key, never more than the limit's hits lie within any of its windows. The
        answer names what has changed since `known`, the version of the rules that the asker has;
        None: it names nothing.
        """

    def return_permits(self, permits: Sequence[Permit]) -> None:
        """Give back permits that were not used, so that nothing left for the site.

        The budgets of pages get theirs back, too.
        """

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        """Apply what sites ask for, or have shown; returns the rules' version, also without news.

        `known` is as for `take_permits`.
        """

    def rules(self) -> Rules:
        """Return all rules, and their version."""

    def change_rules(self, changes: Mapping[str, Rule | None]) -> int:
        """Set or remove (None) the rules of these domains (or `ALL`), all or none.

        Returns the new version.
        """

    def domain_states(self) -> list[DomainState]:
        """Return the state of every domain of which anything is known, by name."""

    def forget_permits(self, before: float) -> None:
        """Remove domains that no worker has asked for since `before` (the store's clock).

        What no worker has asked for in an hour goes by itself, as new domains come: but for domains
        that have a delay by their robots.txt, or pages of a budget, and for all that still counts.
        """

    def forget_pages(self, budgets: Collection[str]) -> None:
        """Forget what was counted in these budgets of pages."""


class JobStore(Protocol):
    """Records of plain jobs. A record is open until its job is seen to be over."""

    def job_revision(self) -> int:
        """Return a number that is higher after each `keep_jobs`.

        It is read before the jobs on which a step depends.
        """

    def jobs(self, since: float | None = None) -> list[JobRecord]:
        """Return the open records, and those of jobs that ended since then, or ever.

        They come in order of their ends, open ones by when they were written.
        """

    def keep_jobs(self, records: Sequence[JobRecord], revision: int | None = None) -> bool:
        """Keep these records in one step, each in the place of the one of its id.

        Returns False, and keeps nothing, when `revision` is given and is not the current one.
        """

    def forget_jobs(self, before: float) -> int:
        """Remove jobs that ended before this time, or were posted before it and are open.

        Verdicts that were written down before it are removed as well. Returns how many jobs they
        were.
        """

    def keep_verdicts(self, verdicts: Sequence[JobVerdict]) -> None:
        """Write down how jobs ended. What is there already stays as it is."""

    def verdicts(self, keys: Collection[str]) -> dict[str, JobVerdict]:
        """Return the verdicts that are known of these keys."""


class StrategyStore(Protocol):
    """Links, events and domain metadata of crawling strategies; a strategy is stored as a frontier.

    Workers add events in the step that acks their batch. Each partition is held by one strategy
    process for a limited time, by the store's clock; only its holder changes what belongs to it.
    """

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        """Note that the process lives, and take its share of the partitions; return the share.

        It is the process's for `seconds` from now. The share is an equal part, rounded up, among
        the processes that live; what a process has beyond it is given back, and it takes no
        partition that another one holds. Events of a partition that no process holds wait.
        """

    def leave_partitions(self, crawl: str, process: str) -> None:
        """Free the partitions of a process that ends, at once."""

    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        """Return the oldest events of these partitions that wait, at most so many, by number."""

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        """Return those of these links that are there, without their requests.

        It is one question, however many they are.
        """

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the metadata of those of these sites that have any."""

    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        """Return the links to be requested next, with their requests.

        They stay in the queue until a step takes them out. Of each slot the highest scores come,
        the oldest first among equals: as many as its batches lack to have `ahead` requests waiting.
        The slots come in turn, first those that had their turn longest ago; `limit` links in all.
        Links that are due later than `now` are left out; those that have expired are not. It costs
        the same however long the queue is. There are none when the strategy has ended, or the crawl
        is to rest or to end.
        """

    def apply(self, step: StrategyStep) -> list[Batch]:
        """Make the step, and return the new batches.

        Raises `StepRefused` when the process does not hold one of the partitions any more, when an
        event that it has handled does not wait any more, when a link of `new` is not in the queue,
        or when a batch that it drops is not DEAD: nothing was done then.
        """

    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        """Return how far the strategy is; it costs the same however much is stored."""

    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        """Close the queue, so that no link is taken from it any more; `ended=False` opens it again.

        `if_empty`: only if `links.is_empty` is true in the same step. Returns whether it was done.
        """

    def changes(self, crawl: str, after: int = 0, limit: int = 10_000) -> list[LinkChange]:
        """Return the changes in the log behind that number, at most so many, in order."""

    def dead_events(self, crawl: str, limit: int = 1_000) -> list[LinkEvent]:
        """Return the dead letters, at most so many, by number."""

    def replay(self, crawl: str, numbers: Collection[int] | None = None) -> int:
        """Let these dead letters wait again, or all, and return how many there were."""

    def reset_strategy(self, crawl: str) -> None:
        """Forget the links, events, metadata and log, and all batches; the crawl's row stays.

        Raises `StepRefused` when a batch is out, or a process holds a partition.
        """


class Store(CrawlStore, BatchStore, ThrottleStore, JobStore, StrategyStore, Protocol):
    """All ports together, as callers have them."""

    def close(self) -> None:
        """Close the connection to what is stored."""

    def warnings(self) -> list[str]:
        """Return what endangers the store, a sentence each, for the user who starts a crawl."""
