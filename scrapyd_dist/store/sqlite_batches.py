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
)
from scrapyd_dist.goals import COUNTED, Spent, spend
from scrapyd_dist.store.base import BatchStore
from scrapyd_dist.store.frontier_rows import (
    BatchStep,
    joined,
    parted,
    prints_of,
    retried_before,
    slot_counts,
)
from scrapyd_dist.store.judging import whole
from scrapyd_dist.store.rows import text
from scrapyd_dist.store.sqlite_events import SqliteEvents
from scrapyd_dist.store.sqlite_file import NOW, SqliteConnection, SqlitePort
from scrapyd_dist.store.sqlite_turns import SqliteTurns

_count = whole()
#: in the very words of the index `waiting_batches`, or it would not be used
_WAITING = "state IN ('sealed', 'failed')"


class SqliteBatches(SqlitePort, BatchStore):
    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self._turns, self._events = SqliteTurns(connection), SqliteEvents(connection)

    def make_step(self, step: BatchStep) -> list[Batch]:
        """The step, as a part of a larger one."""
        return self._step(step)

    def _step(self, step: BatchStep) -> list[Batch]:
        crawl, batch, attempt = step.crawl, step.batch, step.attempt
        with self._file.step():
            self._check(step)
            self._remember(step)
            if "ended_at" in step.changes:  # then it has no lease
                query = "DELETE FROM leases WHERE crawl = ? AND batch = ? AND attempt = ?"
                self._db.execute(query, (crawl, batch, attempt))
            if step.to is not None:
                self._update(
                    "attempts",
                    {"state": step.to, **step.changes},
                    crawl=crawl,
                    batch=batch,
                    number=attempt,
                )
            if step.batch_to is not None:
                self._update(
                    "batches",
                    {"state": step.batch_to, **step.batch_changes},
                    crawl=crawl,
                    number=batch,
                )
            if step.opened is not None:
                self._insert_attempt(crawl, step.opened)
            for miss in step.misses:
                self._insert("misses", {"crawl": crawl, **vars(miss)})
            self._forget_misses(step)
            query = "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value"
            self._db.executemany(
                query, [(crawl, name, value) for name, value in step.counts.items() if value]
            )
            if step.forget:
                rows = [
                    (self._crawl_number(crawl), one)
                    for one in self.batch_fingerprints(crawl, batch)
                ]
                self._db.executemany("DELETE FROM seen WHERE crawl = ? AND fingerprint = ?", rows)
            self._events.add(crawl, step.events)
            if step.dropped:
                self._db.execute(
                    "DELETE FROM batches WHERE crawl = ? AND number = ?", (crawl, batch)
                )
            return [self._insert_batch(crawl, one) for one in step.new]

    def _remember(self, step: BatchStep) -> None:
        """Keep the step's fingerprints."""
        number, keep = (
            self._crawl_number(step.crawl),
            "INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING",
        )
        self._db.executemany(keep, ((number, one) for one in step.prints))
        unseen = prints_of(step.new) if step.unseen else ()
        there = {one for one in unseen if not self._db.execute(keep, (number, one)).rowcount}
        if there:
            raise SeenBefore(frozenset(there))

    def _insert_batch(self, crawl: str, new: NewBatch) -> Batch:
        self._db.execute(
            "INSERT INTO batch_numbers VALUES (?, 1) ON CONFLICT (crawl) DO UPDATE SET last = last + 1",
            (crawl,),
        )
        last = self._value("SELECT last FROM batch_numbers WHERE crawl = ?", crawl)
        batch = new.numbered(last)
        self._insert("batches", {**vars(batch), "crawl": crawl})
        settings = self._door.payload_text(crawl, batch, new.payload)
        prints = joined(new.fingerprints) if new.fingerprints else None
        self._db.execute(
            "INSERT INTO payloads VALUES (?, ?, ?, ?)", (crawl, last, settings, prints)
        )
        return batch

    def _insert_attempt(self, crawl: str, attempt: Attempt) -> None:
        row = {**vars(attempt), "crawl": crawl}
        again = ", ".join(f"{name} = excluded.{name}" for name in row)
        self._insert("attempts", row, f"ON CONFLICT (crawl, batch, number) DO UPDATE SET {again}")

    def _payload_text(self, crawl: str, number: int) -> str | None:
        """What a batch carries, as it is kept."""
        text_of: str | None = self._value(
            "SELECT settings FROM payloads WHERE crawl = ? AND batch = ?", crawl, number
        )
        return text_of

    def counts(self, crawl: str) -> dict[str, int]:
        return self._door.counts(
            self._db.execute("SELECT name, value FROM counts WHERE crawl = ?", (crawl,))
        )

    def spend(
        self,
        crawl: str,
        limits: Mapping[str, float],
        requests: int = 0,
        told: Mapping[str, int] = MappingProxyType({}),
        *,
        reserve: bool = False,
    ) -> Spent:
        with self._file.step():
            self._crawl_number(crawl)
            before = {
                name.removeprefix(COUNTED): value
                for name, value in self.counts(crawl).items()
                if name.startswith(COUNTED)
            }
            spent = spend(limits, before, requests, told, reserve=reserve)
            rows = [
                (crawl, COUNTED + name, value)
                for name, value in spent.counts.items()
                if value != before.get(name)
            ]
            self._db.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?, ?)", rows)
            return spent

    def misses(self, crawl: str) -> list[Miss]:
        query = "SELECT * FROM misses WHERE crawl = ? ORDER BY batch = 0, rowid"
        return self._all(partial(self._door.miss, crawl), query, crawl)

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        query = (
            "SELECT fingerprint FROM seen WHERE crawl = (SELECT number FROM crawls WHERE id = ?)"
        )
        for row in self._db.execute(query, (crawl,)):
            yield row[0]

    def batch(self, crawl: str, number: int) -> Batch:
        query = "SELECT * FROM batches WHERE crawl = ? AND number = ?"
        row = self._db.execute(query, (crawl, number)).fetchone()
        if row is None:
            raise self._door.no_batch(crawl, number)
        return self._door.batch(dict(row))

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        where, values = in_states(states)
        query = f"SELECT * FROM batches WHERE crawl = ?{where} ORDER BY number"
        return self._all(self._door.batch, query, crawl, *values)

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        return self._door.payload(
            crawl, self.batch(crawl, number), self._payload_text(crawl, number)
        )

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        again = []
        with self._file.step():
            for number in sorted(set(numbers)):
                batch = self.batch(crawl, number)
                if batch.state is BatchState.DEAD:
                    row = {"state": BatchState.SEALED, "forgiven": batch.attempts}
                    self._update("batches", row, crawl=crawl, number=number)
                    again.append(number)
        return again

    def prioritise(self, crawl: str, numbers: Collection[int], priority: int) -> list[int]:
        query = f"UPDATE batches SET priority = ? WHERE crawl = ? AND number = ? AND {_WAITING}"
        with self._file.step():
            self._crawl_number(crawl)
            return [
                one
                for one in sorted(set(numbers))
                if self._db.execute(query, (priority, crawl, one)).rowcount
            ]

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        return parted(
            self._value(
                "SELECT fingerprints FROM payloads WHERE crawl = ? AND batch = ?", crawl, number
            )
            or b""
        )

    def _forget_misses(self, step: BatchStep) -> None:
        """Each that is retried, once."""
        query = "SELECT rowid, url, kind, reason FROM misses WHERE crawl = ? AND batch = ?"
        there: dict[tuple[str, str, str], list[int]] = {}
        for row, *words in (
            self._db.execute(query, (step.crawl, step.batch)) if step.retried else ()
        ):
            there.setdefault(tuple(words), []).append(row)
        try:
            rows = [
                there[text(miss.url), miss.kind, text(miss.reason)].pop(0) for miss in step.retried
            ]
        except LookupError:
            raise retried_before(step) from None
        self._db.executemany("DELETE FROM misses WHERE rowid = ?", [(row,) for row in rows])

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
        where, values = in_states(states)
        query = f"SELECT * FROM attempts WHERE crawl = ?{where} ORDER BY sent_at, batch, number"
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
        lease = {
            "crawl": crawl,
            "batch": batch,
            "attempt": attempt,
            "holder": holder,
            "seconds": seconds,
        }
        with self._file.step():
            current = self._value(
                "SELECT attempts FROM batches WHERE crawl = ? AND number = ?", crawl, batch
            )
            if attempt != current or self._attempt_state(crawl, batch, attempt) not in LEASABLE:
                return False
            if again:
                query = (
                    f"UPDATE leases SET until = {NOW} + :seconds"
                    " WHERE crawl = :crawl AND batch = :batch AND attempt = :attempt AND holder = :holder"
                )
                return self._db.execute(query, lease).rowcount == 1
            took = self._db.execute(
                f"INSERT INTO leases VALUES (:crawl, :batch, :attempt, :holder, {NOW} + :seconds)"
                " ON CONFLICT DO UPDATE SET holder = excluded.holder, until = excluded.until"
                f" WHERE until < {NOW} OR holder = excluded.holder",
                lease,
            )
            return took.rowcount == 1

    def expired(self, crawl: str) -> list[Attempt]:
        expired = f"SELECT batch, attempt FROM leases WHERE crawl = ? AND until < {NOW}"
        late = self._db.execute(expired, (crawl,))
        keys = {tuple(row) for row in late}
        return [
            attempt
            for attempt in self.attempts(crawl, LEASABLE)
            if (attempt.batch, attempt.number) in keys
        ]

    # leasing

    def lease_next(self, look: LeaseRequest) -> list[Leased]:
        crawl, slots, limit = look.crawl, look.slots, look.limit
        if look.fair:
            return self._lease_in_turn(look)
        # Idle workers ask again and again; those that find nothing do not wait for the lock of those that write.
        if not self._waiting_in(crawl, slots):
            self._crawl_number(crawl)
            return []
        with self._file.step():
            waiting = self._waiting_in(crawl, slots)
            found = [batch for slot in waiting for batch in self.peek(crawl, slot, limit)]
            first = nsmallest(limit, found, key=lambda batch: (-batch.priority, batch.number))
            return [self._lease_one(look, batch) for batch in first]

    def _lease_in_turn(self, look: LeaseRequest) -> list[Leased]:
        if self._turns.are_kept(look.crawl) and not self._finds_turn(look):
            return []
        leased: list[Leased] = []
        with self._file.step():
            if not self._turns.are_kept(look.crawl):
                self._turns.begin(look.crawl)
            share = self._turns.share(look, look.limit)
            while len(leased) < look.limit and not self._rests(look.crawl):
                slot = self._turns.next_slot(look, share)
                if slot is None:
                    break
                found = self.peek(look.crawl, slot, 1)
                if not found:  # it cannot be read
                    break
                leased.append(self._lease_one(look, found[0]))
                share.held += self._turns.take(look, slot)
                look = replace(look, enough={*look.enough, slot})
        return leased

    def _finds_turn(self, look: LeaseRequest) -> bool:
        """Whether there may be something for this worker; seen without the lock, which those need that write."""
        share = self._turns.share(look, 1)
        if self._turns.next_slot(look, share) is not None:
            return not self._rests(look.crawl)
        if look.alone and not share.held and self._waiting_in(look.crawl, look.slots):
            self._turns.note_hunger(look)
        return False

    def _rests(self, crawl: str) -> bool:
        return self._value("SELECT 1 FROM crawls WHERE id = ? AND wanted != ''", crawl) is not None

    def _waiting_in(self, crawl: str, slots: Collection[str]) -> list[str]:
        """The named slots, else all of the own spider, in which something waits; none while the crawl is to rest."""
        query = (
            f"SELECT DISTINCT slot FROM slot_counts WHERE crawl = ? AND {_WAITING} AND batches > 0"
            " AND NOT EXISTS (SELECT 1 FROM crawls WHERE id = slot_counts.crawl AND wanted != '')"
        )
        waiting, named = (row[0] for row in self._db.execute(query, (crawl,))), set(slots)
        return [
            slot
            for slot in waiting
            if (slot in named if named else not slot.startswith(OTHER_SPIDER))
        ]

    def _lease_one(self, look: LeaseRequest, batch: Batch) -> Leased:
        crawl, number = look.crawl, batch.attempts + 1
        self._insert_attempt(crawl, look.attempt_at(batch.number, number))
        # Through SENT, in one step: a worker that leases a batch has it.
        row = {"state": BatchState.RUNNING, "attempts": number}
        self._update("batches", row, crawl=crawl, number=batch.number)
        self._db.execute(
            f"INSERT INTO leases VALUES (?, ?, ?, ?, {NOW} + ?)",
            (crawl, batch.number, number, look.lessee.job, look.seconds),
        )
        leased = replace(batch, state=BatchState.RUNNING, attempts=number)
        return self._door.leased(crawl, leased, number, self._payload_text(crawl, batch.number))

    # producers

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        with self._file.step():
            self._crawl_number(crawl)
            self._db.execute(
                f"INSERT INTO producers VALUES (?, ?, {NOW} + ?)"
                " ON CONFLICT (crawl, name) DO UPDATE SET until = excluded.until",
                (crawl, producer, seconds),
            )

    def sign_off(self, crawl: str, producer: str) -> None:
        self._change("DELETE FROM producers WHERE crawl = ? AND name = ?", (crawl, producer))

    # looking

    def backlog(self, crawl: str) -> Backlog:
        with self._file.step(writes=False):
            self._crawl_number(crawl)
            known = self._db.execute(
                f"SELECT name, until < {NOW} FROM producers WHERE crawl = ? ORDER BY name",
                (crawl,),
            ).fetchall()
            query = "SELECT slot, state, batches, requests FROM slot_counts WHERE crawl = ? AND batches > 0"
            rows = self._db.execute(query, (crawl,))
            return Backlog(
                slots=slot_counts(
                    (slot, state, _count(batches), _count(size))
                    for slot, state, batches, size in rows
                ),
                expired=self._value(
                    f"SELECT count(*) FROM leases WHERE crawl = ? AND until < {NOW}",
                    crawl,
                ),
                acked=self._value(
                    "SELECT count(*) FROM attempts WHERE crawl = ? AND state = 'acked'", crawl
                ),
                producers=tuple(name for name, lost in known if not lost),
                lost=tuple(name for name, lost in known if lost),
                standing=bool(self._value("SELECT standing FROM crawls WHERE id = ?", crawl)),
            )

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        where = f"crawl = ? AND slot = ? AND {_WAITING} ORDER BY priority DESC, number LIMIT ?"
        statement = f"SELECT * FROM batches WHERE {where}"
        return self._all(self._door.batch, statement, crawl, slot, limit)


def in_states(states: Collection[BatchState] | Collection[AttemptState]) -> tuple[str, list[str]]:
    """A condition, and its values; nothing when no state is named."""
    if not states:
        return "", []
    return f" AND state IN ({', '.join('?' * len(states))})", [state.value for state in states]
