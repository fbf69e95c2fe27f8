"""The port: what a store can do, in domain words; each verb is one atomic step.

The interface is blocking on purpose, and there is only one of it. A process with an event loop makes
all its calls from one worker thread, so that they keep their order. A time that a caller gives (`now`)
is told to people and compared with the same caller's clock; leases run by the store's own clock.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, cast

from scrapyd_dist.errors import ForeignRow
from scrapyd_dist.frontier.backlog import UNFAIR

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.batches import Attempt, AttemptState, Batch, BatchState, Crawl, Miss, Shard, WorkerEntry
    from scrapyd_dist.frontier.backlog import Backlog, Leased, Lessee, NewBatch, SlotCount
    from scrapyd_dist.nodes import NodeRecord
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


class CrawlStore(Protocol):
    """Crawls, and what is remembered of nodes, which outlives them."""

    def nodes(self) -> list[NodeRecord]:
        """What is remembered of nodes, by name. A node of which nothing is remembered is not in it."""

    def update_node(self, name: str, **changes: Any) -> None:
        """Set fields of `NodeRecord` by their names; the record is made when there is none."""

    def add_crawl(self, crawl: Crawl) -> None:
        """Raises `NameTaken` when the id is."""

    def crawl(self, crawl: str) -> Crawl:
        """The row; of one that this project has not signed, no option is told (`Crawl.foreign`).

        Raises:
            NothingMatched: there is none of that id.
            ForeignRow: it cannot be a crawl's row.
        """

    def own_crawl(self, crawl: str) -> Crawl:
        """The row, for a caller that acts on its options.

        Raises:
            ForeignRow: this project has not signed it.
        """

    def crawls(self) -> list[Crawl]:
        """All crawls, newest first. What cannot be a row is left out, here and in all lists, and told in the log."""

    def update_crawl(self, crawl: str, **changes: Any) -> None:
        """Set fields of `Crawl` by their names.

        Raises:
            ForeignRow: what is signed would change, and this project has not signed what is there.
        """

    def unchecked(self, crawl: str) -> dict[str, Any]:
        """The options of the row, signed or not: only to be shown.

        Raises:
            NothingMatched: there is none of that id.
        """

    def claim(self, crawl: str, *, pid: int, host: str, before: tuple[int | None, str]) -> bool:
        """Name a process in the crawl's row, in the place of the one that was looked at there (`before`: pid and host).

        False, and nothing is changed, when another one is named by now.

        Raises:
            NothingMatched: there is no such crawl.
        """

    def want(self, crawl: str, what: str) -> None:
        """Ask the crawl's producer for something, one of `batches.WANTED`; "" takes it back.

        Raises:
            NothingMatched: there is no such crawl.
        """

    def forget(self, crawl: str) -> None:
        """Remove a crawl and everything of it, its name last.

        The one verb of many steps, so that nobody waits long for his turn: when it is broken off, the
        crawl is still listed, and forgetting it again finishes the work.
        """


class AccountStore(Protocol):
    """What is known of a crawl beside its batches: samples, counts, shards, workers, misses."""

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        """Keep one look at the crawl, a JSON document; `at` is in seconds since the epoch."""

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        """Time and document, in order of time."""

    def count(self, crawl: str, counts: Mapping[str, int]) -> None:
        """Add to the named counts: the account of found URLs, and what the producer itself did."""

    def counts(self, crawl: str) -> dict[str, int]: ...

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None: ...

    def shards(self, crawl: str) -> list[Shard]: ...

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        """All that these shards found is sealed; they are not walked again."""

    def walk_again(self, crawl: str) -> None:
        """The index is walked anew: forget the producer's own misses, and all counts but what is sealed."""

    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        """List these workers: they are about to be posted.

        Args:
            crawl: the crawl or frontier.
            workers: their entries; one whose job is listed already replaces that entry.
            last: the highest number that any worker of the crawl was given.
        """

    def remove_worker(self, crawl: str, job: str) -> None:
        """It has ended, or was never posted."""

    def workers(self, crawl: str) -> list[WorkerEntry]:
        """Those that are listed, by number."""

    def last_worker(self, crawl: str) -> int:
        """The highest number that any worker was given; 0 before the first. It never gets smaller."""

    def add_misses(self, crawl: str, misses: Sequence[Miss]) -> None: ...

    def misses(self, crawl: str) -> list[Miss]:
        """Those of batches, then the producer's own; each in the order they came."""


class BatchStore(Protocol):
    """Batches with their payloads and fingerprints."""

    def seal(
        self,
        crawl: str,
        payload: Mapping[str, str],
        *,
        size: int,
        fingerprints: Iterable[bytes],
        now: float,
        counts: Mapping[str, int],
    ) -> Batch:
        """Keep a new batch with its payload, and its fingerprints and counts, in one transaction."""

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        """The fingerprints of every sealed request."""

    def batch(self, crawl: str, number: int) -> Batch: ...

    def trust(self, crawl: str) -> int:
        """Sign the crawl's row and batches as they are. Gives the number of its batches."""

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

    def split(self, crawl: str, number: int, parts: Sequence[NewBatch]) -> list[Batch]:
        """Replace a batch that waits or is dead by others that have its requests: smaller ones, or in other slots.

        Parts that name no fingerprints get those of the batch, in its order, as far as it is known whose they are.

        Raises:
            StepRefused: the batch is out on a node, or over.
            StoreError: the parts do not have as many requests as the batch.
        """

    def retry(
        self,
        crawl: str,
        number: int,
        parts: Sequence[tuple[Mapping[str, str], int]],
        *,
        misses: Sequence[Miss],
        now: float,
    ) -> list[Batch]:
        """Requests of a batch that is done go into new batches, and these misses of it are forgotten.

        Raises:
            StepRefused: the batch is not done, or somebody else has retried some of them.
            StoreError: the parts do not have as many requests as there are misses.
        """


class AttemptStore(Protocol):
    """Attempts, and leases for workers that reach the store.

    Each verb moves the batch and its attempt together, by the tables of batches.py. The attempt's number is the fencing
    token: any but the batch's current attempt is `StepRefused`, however late it comes. Leases run by the store's clock,
    never by a worker's.
    """

    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        """The batch is about to be posted: written down before anything leaves."""

    def sent(self, crawl: str, batch: int, attempt: int) -> None:
        """The node said ok."""

    def refused(self, crawl: str, batch: int, attempt: int, reason: str, now: float) -> None:
        """The node certainly did not take it: the batch waits again, no attempt is counted."""

    def running(self, crawl: str, batch: int, attempt: int) -> None:
        """Its worker has been heard of."""

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

    def fail(
        self, crawl: str, batch: int, attempt: int, *, reason: str, now: float, max_attempts: int, out: bool = False
    ) -> BatchState:
        """The attempt ended badly: the batch is FAILED, or DEAD when it has none left; which is the answer.

        `out`: only if it is out still. One that was acked since somebody looked is `StepRefused`.
        """

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        """In the order they were opened; all of them when no state is named."""

    def lease(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float) -> bool:
        """Take the attempt for `holder`; False when it is not the batch's current one, or somebody else works on it.

        A lease that ran out may be taken by anybody, as long as the attempt is current.
        """

    def renew(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float) -> bool:
        """`seconds` more from now; False when `holder` has lost it and must stop."""

    def expired(self, crawl: str) -> list[Attempt]:
        """Attempts that are out and whose lease has run out."""


class QueueStore(Protocol):
    """Batches that workers lease by themselves, instead of being sent them."""

    def add_batches(
        self, crawl: str, new: Sequence[NewBatch], *, now: float, counts: Mapping[str, int] | None = None
    ) -> list[Batch]:
        """Keep these batches with their fingerprints, and the counts, in one transaction, whoever else adds some now.

        Raises:
            SeenBefore: requests of them are there already; nothing was kept.
            StoreError: two of the fingerprints are the same.
            NothingMatched: there is no such crawl; so for all that follows, but `slots`, `peek` and `sign_off`.
        """

    def seen(self, crawl: str, fingerprints: Collection[bytes]) -> set[bytes]:
        """Those of them that are there already."""

    def lease_next(
        self,
        crawl: str,
        lessee: Lessee,
        *,
        slots: Collection[str] = (),
        seconds: float,
        limit: int = 1,
        fair: str = UNFAIR,
        enough: Collection[str] = (),
        now: float,
    ) -> list[Leased]:
        """Open an attempt for each of the next batches that wait, and lease it; RUNNING from then on.

        The highest priority comes first, then the oldest. Nothing comes while somebody wants the crawl to rest, or to
        end.

        Args:
            crawl: the crawl or frontier.
            lessee: who will work on them.
            slots: names of slots; none: all but those of other spiders.
            seconds: how long the lease is good, by the store's clock.
            limit: batches at most.
            fair: `SPREAD`: each comes from the slot with the fewest requests under way in the whole fleet, ties in
                turn, and no two from one slot; the priority then orders the batches of one slot only. `BY_DOMAIN`: the
                same, and a slot is the lessee's alone while it has something of it. Then nobody takes more slots than
                his share, and who has more gets nothing until some of them have run out. Slots that are named, such as
                those of other spiders, are shared as with `SPREAD`.
            enough: names of slots of which the lessee wants nothing now; heeded when it is `fair`.
            now: for people.
        """

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
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """The holder has ended it: its report is kept, its lease is over, and what it has found is added, in one step.

        Raises:
            StepRefused: the attempt is over, or the lease has been lost to somebody else.
            SeenBefore: as `add_batches`; nothing was done.
        """

    def give_back(self, crawl: str, batch: int, attempt: int, holder: str, *, reason: str, now: float) -> None:
        """The holder has made no request of it: the batch waits again, no attempt is counted.

        Raises:
            StepRefused: as `ack`.
        """

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        """It may add something until `seconds` from now, or until it says so again, or signs off."""

    def sign_off(self, crawl: str, producer: str) -> None:
        """It will add nothing more."""

    def backlog(self, crawl: str) -> Backlog:
        """How far the workers are; costs the same however much is stored."""

    def slots(self, crawl: str) -> list[SlotCount]:
        """What is in each slot, by name; costs the same however much is stored."""

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        """The batches of a slot that would be leased next, in that order."""

    def drop_batch(self, crawl: str, number: int, *, forget: bool) -> None:
        """Remove a batch that is not out; `forget` its fingerprints as well, so that its requests can come again.

        Its number is never used again; its misses stay, for the account.

        Raises:
            StepRefused: a worker has it.
        """


class ThrottleStore(Protocol):
    """One budget per key for all workers of this store; its moments are those of the store's clock."""

    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        """Charge each ask's key for its permits, and say when each may be used; one step for all of them.

        Of the permits of a key, never more than the limit's hits lie within any of its windows.

        Args:
            asks: who wants how many.
            known: the version of the rules that the asker knows: what has changed since is told; None: nothing is.
        """

    def return_permits(self, permits: Sequence[Permit]) -> None:
        """These were not used: nothing left for the site. The budgets of pages get theirs back, too."""

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        """Heed what sites ask for, or have shown; the rules' version is the answer. No news: only that.

        Args:
            news: of sites.
            known: as for `take_permits`.
        """

    def rules(self) -> Rules: ...

    def change_rules(self, changes: Mapping[str, Rule | None], *, replace: bool = False) -> int:
        """Set or remove (None) the rules of these domains, all or none of them; the new version is the answer.

        Args:
            changes: by domain, or `ALL`.
            replace: all other domains lose their rules.
        """

    def domain_states(self) -> list[DomainState]:
        """Every domain that anything is known of, by name."""

    def forget_permits(self, before: float) -> None:
        """Remove what is known of domains that nobody has asked for since `before` (the store's clock).

        What nobody has asked for in an hour goes by itself, as new domains come: but for those that have a delay by
        their robots.txt, or pages of a budget, and for all that counts still.
        """

    def forget_pages(self, budgets: Collection[str]) -> None:
        """What was counted in these budgets of pages counts no more."""


class Store(CrawlStore, AccountStore, BatchStore, AttemptStore, QueueStore, ThrottleStore, Protocol):
    """All of them, as callers have it."""

    def close(self) -> None: ...

    def warnings(self) -> list[str]:
        """What endangers what is kept here, a sentence each, for the user who starts a crawl."""


#: what reading and computing with a value of another type or size ends with
_TRIPPED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
#: it gives what it finds bit by bit
_UNGUARDED = {"fingerprints"}


class Connection(Protocol):
    """What the ports of an engine share."""

    def close(self) -> None: ...

    def warnings(self) -> list[str]: ...


class _Assembled:
    """The verbs of all ports; they raise `ForeignRow` where no version of ours has written what is stored."""

    def __init__(self, connection: Connection, ports: dict[type, object]) -> None:
        self.connection = connection
        self.close, self.warnings = connection.close, _guarded(connection.warnings)
        for kind, port in ports.items():
            for name in (name for name in vars(kind) if not name.startswith("_")):
                verb = getattr(port, name)
                setattr(self, name, verb if name in _UNGUARDED else _guarded(verb))


def assembled(
    connection: Connection,
    crawls: CrawlStore,
    account: AccountStore,
    batches: BatchStore,
    attempts: AttemptStore,
    frontier: QueueStore,
    throttle: ThrottleStore,
) -> Store:
    """The store that has the verbs of these ports."""
    ports: dict[type, object] = {
        CrawlStore: crawls,
        AccountStore: account,
        BatchStore: batches,
        AttemptStore: attempts,
        QueueStore: frontier,
        ThrottleStore: throttle,
    }
    return cast("Store", _Assembled(connection, ports))


def _guarded(verb: Callable[..., Any]) -> Callable[..., Any]:
    import sqlite3  # noqa: PLC0415 - the help of a command loads this module, and needs no engine

    @wraps(verb)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except (*_TRIPPED, sqlite3.Error) as error:
            raise ForeignRow(
                f"The store has something that no version of sdist has written, so it cannot {verb.__name__} there:"
                f" {type(error).__name__}: {str(error)[:200]}. Another program has written to it, or it is damaged."
            ) from error

    return call
