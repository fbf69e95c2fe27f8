"""The SQLite store's verbs about batches, their attempts and leases; triggers count what waits."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from types import MappingProxyType

from scrapyd_dist.batches import LEASABLE, Attempt, AttemptState, Batch, BatchState, Miss
from scrapyd_dist.frontier.backlog import (
    OTHER_SPIDER,
    Backlog,
    Leased,
    LeaseRequest,
    NewBatch,
    SeenBefore,
    SlotCount,
)
from scrapyd_dist.goals import COUNTED, Spent, spend
from scrapyd_dist.store.ports.batch_store import BatchStore
from scrapyd_dist.store.ports.frontier_rows import (
    BatchStep,
    joined,
    not_listed,
    parted,
    prints_of,
    retried_before,
    slot_counts,
)
from scrapyd_dist.store.ports.judging import whole
from scrapyd_dist.store.ports.rows import storable_text
from scrapyd_dist.store.sqlite.sqlite_events import SqliteEvents
from scrapyd_dist.store.sqlite.sqlite_file import NOW, SqliteConnection, SqlitePort, pairs_with
from scrapyd_dist.store.sqlite.sqlite_turns import SqliteTurns

_count = whole()
#: in the very words of the index `waiting_batches`, or it would not be used
_WAITING = "state IN ('sealed', 'failed')"


class SqliteBatches(SqlitePort, BatchStore):
    """The port for batches in an SQLite file."""

    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self._turns = SqliteTurns(connection)
        self._events = SqliteEvents(connection)

    # steps

    def make_step(self, step: BatchStep) -> list[Batch]:
        """Make the step as a part of a larger one."""
        return self._step(step)

    def _step(self, step: BatchStep) -> list[Batch]:
        with self._file.step():
            self._check(step)
            self._remember(step)
            self._move(step)
            for miss in step.misses:
                self._insert("misses", {"crawl": step.crawl, **vars(miss)})
            self._forget_misses(step)
            self._add_counts(step)
            if step.forget:
                self._forget_fingerprints(step)
            self._events.add(step.crawl, step.events)
            if step.dropped:
                query = "DELETE FROM batches WHERE crawl = ? AND number = ?"
                self._db.execute(query, (step.crawl, step.batch))
            return [self._insert_batch(step.crawl, new) for new in step.new]

    def _remember(self, step: BatchStep) -> None:
        """Keep the step's fingerprints; `SeenBefore` when new ones are there that must not be."""
        crawl = self._crawl_number(step.crawl)
        query = "INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING"
        self._db.executemany(query, pairs_with(crawl, step.prints))
        if not step.unseen:
            return
        seen = set()
        for fingerprint in prints_of(step.new):
            if not self._db.execute(query, (crawl, fingerprint)).rowcount:
                seen.add(fingerprint)
        if seen:
            raise SeenBefore(frozenset(seen))

    def _move(self, step: BatchStep) -> None:
        """Change the rows of the attempt and of the batch, and keep an attempt that is opened."""
        crawl = step.crawl
        if "ended_at" in step.changes:  # then it has no lease
            query = "DELETE FROM leases WHERE crawl = ? AND batch = ? AND attempt = ?"
            self._db.execute(query, (crawl, step.batch, step.attempt))
        if step.to is not None:
            row = {"state": step.to, **step.changes}
            self._update("attempts", row, crawl=crawl, batch=step.batch, number=step.attempt)
        if step.batch_to is not None:
            row = {"state": step.batch_to, **step.batch_changes}
            self._update("batches", row, crawl=crawl, number=step.batch)
        if step.opened is not None:
            self._insert_attempt(crawl, step.opened)

    def _forget_misses(self, step: BatchStep) -> None:
        """Remove each miss that is retried, once; `StepRefused` when one is not there."""
        if not step.retried:
            return
        query = "SELECT rowid, url, kind, reason FROM misses WHERE crawl = ? AND batch = ?"
        rows_of: dict[tuple[str, ...], list[int]] = {}
        for row, *words in self._db.execute(query, (step.crawl, step.batch)):
            rows_of.setdefault(tuple(words), []).append(row)
        forgotten = []
        for miss in step.retried:
            rows = rows_of.get((storable_text(miss.url), miss.kind, storable_text(miss.reason)))
            if not rows:
                raise retried_before(step)
            forgotten.append((rows.pop(0),))
        self._db.executemany("DELETE FROM misses WHERE rowid = ?", forgotten)

    def _add_counts(self, step: BatchStep) -> None:
        query = (
            "INSERT INTO counts VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET value = value + excluded.value"
        )
        rows = [(step.crawl, name, value) for name, value in step.counts.items() if value]
        self._db.executemany(query, rows)

    def _forget_fingerprints(self, step: BatchStep) -> None:
        crawl = self._crawl_number(step.crawl)
        prints = self.batch_fingerprints(step.crawl, step.batch)
        query = "DELETE FROM seen WHERE crawl = ? AND fingerprint = ?"
        self._db.executemany(query, pairs_with(crawl, prints))

    def _insert_batch(self, crawl: str, new: NewBatch) -> Batch:
        self._db.execute(
            "INSERT INTO batch_numbers VALUES (?, 1)"
            " ON CONFLICT (crawl) DO UPDATE SET last = last + 1",
            (crawl,),
        )
        last = self._value("SELECT last FROM batch_numbers WHERE crawl = ?", crawl)
        batch = new.numbered(last)
        self._insert("batches", {**vars(batch), "crawl": crawl})
        settings = self._door.payload_text(crawl, batch, new.payload)
        prints = joined(new.fingerprints) if new.fingerprints else None
        query = "INSERT INTO payloads VALUES (?, ?, ?, ?)"
        self._db.execute(query, (crawl, last, settings, prints))
        return batch

    def _insert_attempt(self, crawl: str, attempt: Attempt) -> None:
        row = {**vars(attempt), "crawl": crawl}
        assignments = ", ".join(f"{name} = excluded.{name}" for name in row)
        on_conflict = f"ON CONFLICT (crawl, batch, number) DO UPDATE SET {assignments}"
        self._insert("attempts", row, on_conflict)

    # the account

    def counts(self, crawl: str) -> dict[str, int]:
        """Return the counts that can be read, by name."""
        query = "SELECT name, value FROM counts WHERE crawl = ?"
        return self._door.counts(self._db.execute(query, (crawl,)))

    def spend(
        self,
        crawl: str,
        limits: Mapping[str, float],
        requests: int = 0,
        done: Mapping[str, int] = MappingProxyType({}),
        *,
        reserve: bool = False,
    ) -> Spent:
        """Count what a process did, and grant it requests, in one step."""
        with self._file.step():
            self._crawl_number(crawl)
            before = {}
            for name, value in self.counts(crawl).items():
                if name.startswith(COUNTED):
                    before[name.removeprefix(COUNTED)] = value
            spent = spend(limits, before, requests, done, reserve=reserve)
            rows = []
            for name, value in spent.counts.items():
                if value == before.get(name):
                    continue
                rows.append((crawl, COUNTED + name, value))
            self._db.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?, ?)", rows)
            return spent

    def misses(self, crawl: str) -> list[Miss]:
        """Return the misses of batches, then the producer's own."""
        query = "SELECT * FROM misses WHERE crawl = ? ORDER BY batch = 0, rowid"
        return self._all(partial(self._door.miss, crawl), query, crawl)

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        """Yield the fingerprints of all sealed requests, as they are read."""
        query = (
            "SELECT fingerprint FROM seen WHERE crawl = (SELECT number FROM crawls WHERE id = ?)"
        )
        for row in self._db.execute(query, (crawl,)):
            yield row[0]

    # batches

    def batch(self, crawl: str, number: int) -> Batch:
        """Return the batch; `NothingMatched` when there is none of this number."""
        query = "SELECT * FROM batches WHERE crawl = ? AND number = ?"
        row = self._db.execute(query, (crawl, number)).fetchone()
        if row is None:
            raise self._door.no_batch(crawl, number)
        return self._door.batch(dict(row))

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        """Return the batches in one of these states, or all, by number."""
        where, values = in_states(states)
        query = f"SELECT * FROM batches WHERE crawl = ?{where} ORDER BY number"  # noqa: S608 - own words
        return self._all(self._door.batch, query, crawl, *values)

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        """Return the settings that carry the batch."""
        batch = self.batch(crawl, number)
        return self._door.payload(crawl, batch, self._payload_text(crawl, number))

    def _payload_text(self, crawl: str, number: int) -> str | None:
        """Return what a batch carries, as it is kept."""
        query = "SELECT settings FROM payloads WHERE crawl = ? AND batch = ?"
        settings: str | None = self._value(query, crawl, number)
        return settings

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        """Let dead batches of these wait again, and return their numbers."""
        requeued = []
        with self._file.step():
            for number in sorted(set(numbers)):
                batch = self.batch(crawl, number)
                if batch.state is BatchState.DEAD:
                    row = {"state": BatchState.SEALED, "earlier": batch.attempts, "forgiven": 0}
                    self._update("batches", row, crawl=crawl, number=number)
                    requeued.append(number)
        return requeued

    def prioritise(self, crawl: str, numbers: Collection[int], priority: int) -> list[int]:
        """Set the priority of those of these batches that wait, and return their numbers."""
        query = f"UPDATE batches SET priority = ? WHERE crawl = ? AND number = ? AND {_WAITING}"  # noqa: S608 - own words
        changed = []
        with self._file.step():
            self._crawl_number(crawl)
            for number in sorted(set(numbers)):
                cursor = self._db.execute(query, (priority, crawl, number))
                if cursor.rowcount:
                    changed.append(number)
        return changed

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        """Return the fingerprints that are kept with an added batch."""
        query = "SELECT fingerprints FROM payloads WHERE crawl = ? AND batch = ?"
        return parted(self._value(query, crawl, number) or b"")

    # attempts

    def _holder(self, crawl: str, batch: int, number: int) -> str | None:
        query = "SELECT holder FROM leases WHERE crawl = ? AND batch = ? AND attempt = ?"
        holder: str | None = self._value(query, crawl, batch, number)
        return holder

    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None:
        query = "SELECT state FROM attempts WHERE crawl = ? AND batch = ? AND number = ?"
        state = self._value(query, crawl, batch, number)
        return None if state is None else AttemptState(state)

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        """Return the attempts in one of these states, or all, in the order they were sent."""
        where, values = in_states(states)
        query = f"SELECT * FROM attempts WHERE crawl = ?{where} ORDER BY sent_at, batch, number"  # noqa: S608 - own words
        return self._all(partial(self._door.attempt, crawl), query, crawl, *values)

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
        """Take or prolong the lease of an attempt; False when the holder must stop."""
        if again:
            query = (
                f"UPDATE leases SET until = {NOW} + :seconds WHERE crawl = :crawl"  # noqa: S608 - own words
                " AND batch = :batch AND attempt = :attempt AND holder = :holder"
            )
        else:
            query = (
                f"INSERT INTO leases VALUES (:crawl, :batch, :attempt, :holder, {NOW} + :seconds)"  # noqa: S608 - own words
                " ON CONFLICT DO UPDATE SET holder = excluded.holder, until = excluded.until"
                f" WHERE until < {NOW} OR holder = excluded.holder"
            )
        lease = {
            "crawl": crawl,
            "batch": batch,
            "attempt": attempt,
            "holder": holder,
            "seconds": seconds,
        }
        with self._file.step():
            number = "SELECT attempts FROM batches WHERE crawl = ? AND number = ?"
            if attempt != self._value(number, crawl, batch):
                return False
            if self._attempt_state(crawl, batch, attempt) not in LEASABLE:
                return False
            return self._db.execute(query, lease).rowcount == 1

    def expired(self, crawl: str) -> list[Attempt]:
        """Return the attempts that are out and whose lease has run out."""
        query = f"SELECT batch, attempt FROM leases WHERE crawl = ? AND until < {NOW}"  # noqa: S608 - own words
        late = set(map(tuple, self._db.execute(query, (crawl,))))
        out = self.attempts(crawl, LEASABLE)
        return [attempt for attempt in out if (attempt.batch, attempt.number) in late]

    # leasing

    def lease_next(self, wanted: LeaseRequest) -> list[Leased]:
        """Open and lease attempts of the next batches in one step."""
        crawl = wanted.crawl
        if wanted.listed:
            self._check_listed(wanted)
        if wanted.fair:
            return self._lease_in_turn(wanted)
        # Idle workers ask again and again; those that find nothing do not wait for the lock of
        # those that write.
        if not self._waiting_in(crawl, wanted.slots):
            self._crawl_number(crawl)
            return []
        with self._file.step():
            waiting: list[Batch] = []
            for slot in self._waiting_in(crawl, wanted.slots):
                waiting += self.peek(crawl, slot, wanted.limit)
            first = nsmallest(
                wanted.limit, waiting, key=lambda batch: (-batch.priority, batch.number)
            )
            return [self._lease_batch(wanted, batch) for batch in first]

    def _check_listed(self, wanted: LeaseRequest) -> None:
        """Raise what speaks against a lease for a worker that has to be listed."""
        query = "SELECT 1 FROM workers WHERE crawl = ? AND job = ?"
        if self._value(query, wanted.crawl, wanted.lessee.job) is None:
            self._crawl_number(wanted.crawl)  # a crawl that is not there is the better reason
            raise not_listed(wanted)

    def _lease_in_turn(self, wanted: LeaseRequest) -> list[Leased]:
        crawl = wanted.crawl
        if self._turns.are_kept(crawl) and not self._finds_turn(wanted):
            return []
        leased: list[Leased] = []
        with self._file.step():
            if not self._turns.are_kept(crawl):
                self._turns.begin(crawl)
            share = self._turns.share(wanted, wanted.limit)
            while len(leased) < wanted.limit and not self._rests(crawl):
                slot = self._turns.next_slot(wanted, share)
                if slot is None:
                    break
                found = self.peek(crawl, slot, 1)
                if not found:  # it cannot be read
                    break
                leased.append(self._lease_batch(wanted, found[0]))
                share.held += self._turns.give_turn(wanted, slot)
                wanted = replace(wanted, enough={*wanted.enough, slot})
        return leased

    def _finds_turn(self, wanted: LeaseRequest) -> bool:
        """Return whether there may be something for this worker.

        It is read without the lock, which those need that write.
        """
        share = self._turns.share(wanted, 1)
        if self._turns.next_slot(wanted, share) is not None:
            return not self._rests(wanted.crawl)
        if wanted.alone and not share.held and self._waiting_in(wanted.crawl, wanted.slots):
            self._turns.note_hunger(wanted)
        return False

    def _rests(self, crawl: str) -> bool:
        """Return whether the crawl is to rest or to end."""
        return self._value("SELECT 1 FROM crawls WHERE id = ? AND wanted != ''", crawl) is not None

    def _waiting_in(self, crawl: str, slots: Collection[str]) -> list[str]:
        """Return the named slots, else all of the own spider, in which something waits.

        There are none while the crawl is to rest.
        """
        query = (
            "SELECT DISTINCT slot FROM slot_counts"  # noqa: S608 - own words
            f" WHERE crawl = ? AND {_WAITING} AND batches > 0"
            " AND NOT EXISTS (SELECT 1 FROM crawls WHERE id = slot_counts.crawl AND wanted != '')"
        )
        named = set(slots)
        found = []
        for (slot,) in self._db.execute(query, (crawl,)):
            is_meant = slot in named if named else not slot.startswith(OTHER_SPIDER)
            if is_meant:
                found.append(slot)
        return found

    def _lease_batch(self, wanted: LeaseRequest, batch: Batch) -> Leased:
        crawl = wanted.crawl
        number = batch.attempts + 1
        self._insert_attempt(crawl, wanted.attempt_at(batch.number, number))
        # Through SENT, in one step: a worker that leases a batch has it.
        row = {"state": BatchState.RUNNING, "attempts": number}
        self._update("batches", row, crawl=crawl, number=batch.number)
        self._db.execute(
            f"INSERT INTO leases VALUES (?, ?, ?, ?, {NOW} + ?)",  # noqa: S608 - own words
            (crawl, batch.number, number, wanted.lessee.job, wanted.seconds),
        )
        leased = replace(batch, state=BatchState.RUNNING, attempts=number)
        return self._door.leased(crawl, leased, number, self._payload_text(crawl, batch.number))

    # producers

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        """Note until when the producer may add something."""
        with self._file.step():
            self._crawl_number(crawl)
            self._db.execute(
                f"INSERT INTO producers VALUES (?, ?, {NOW} + ?)"  # noqa: S608 - own words
                " ON CONFLICT (crawl, name) DO UPDATE SET until = excluded.until",
                (crawl, producer, seconds),
            )

    def sign_off(self, crawl: str, producer: str) -> None:
        """Remove the producer: it adds nothing more."""
        self._change("DELETE FROM producers WHERE crawl = ? AND name = ?", (crawl, producer))

    # how far the workers are

    def backlog(self, crawl: str) -> Backlog:
        """Return the counts that triggers keep, whatever the number of batches."""
        expired = f"SELECT count(*) FROM leases WHERE crawl = ? AND until < {NOW}"  # noqa: S608 - own words
        acked = "SELECT count(*) FROM attempts WHERE crawl = ? AND state = 'acked'"
        standing = "SELECT standing FROM crawls WHERE id = ?"
        with self._file.step(writes=False):
            self._crawl_number(crawl)
            producers, lost = self._producers(crawl)
            return Backlog(
                slots=self._slot_counts(crawl),
                expired=self._value(expired, crawl),
                acked=self._value(acked, crawl),
                producers=tuple(producers),
                lost=tuple(lost),
                standing=bool(self._value(standing, crawl)),
            )

    def _producers(self, crawl: str) -> tuple[list[str], list[str]]:
        """Return the producers that live, and those whose time ran out, by name."""
        query = f"SELECT name, until < {NOW} FROM producers WHERE crawl = ? ORDER BY name"  # noqa: S608 - own words
        live: list[str] = []
        lost: list[str] = []
        for name, is_lost in self._db.execute(query, (crawl,)):
            if is_lost:
                lost.append(name)
            else:
                live.append(name)
        return live, lost

    def _slot_counts(self, crawl: str) -> list[SlotCount]:
        query = (
            "SELECT slot, state, batches, requests FROM slot_counts WHERE crawl = ? AND batches > 0"
        )
        rows = []
        for slot, state, batches, requests in self._db.execute(query, (crawl,)):
            rows.append((slot, state, _count(batches), _count(requests)))
        return slot_counts(rows)

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        """Return the batches that are first in the line of a slot."""
        where = f"crawl = ? AND slot = ? AND {_WAITING} ORDER BY priority DESC, number LIMIT ?"
        query = f"SELECT * FROM batches WHERE {where}"  # noqa: S608 - own words
        return self._all(self._door.batch, query, crawl, slot, limit)


def in_states(states: Collection[BatchState] | Collection[AttemptState]) -> tuple[str, list[str]]:
    """Return a condition and its values; nothing when no state is named."""
    if not states:
        return "", []
    marks = ", ".join("?" * len(states))
    return f" AND state IN ({marks})", [state.value for state in states]
