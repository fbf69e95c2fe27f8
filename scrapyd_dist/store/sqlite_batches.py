"""The SQLite store's verbs about batches, their attempts and leases; each step goes by the tables of batches.py."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from scrapyd_dist.batches import LEASABLE, Attempt, AttemptState, Batch, BatchState, Miss, check_step
from scrapyd_dist.errors import NothingMatched, StepRefused
from scrapyd_dist.frontier.backlog import NewBatch, SeenBefore
from scrapyd_dist.store.base import BatchStore
from scrapyd_dist.store.frontier_rows import AttemptMove, check_done, joined, lost_lease, over, parted, prints_of
from scrapyd_dist.store.rows import text
from scrapyd_dist.store.sqlite_file import SqlitePort

#: the time, in seconds since the epoch, as the database tells it
NOW = "((julianday('now') - 2440587.5) * 86400.0)"


class SqliteBatches(SqlitePort, BatchStore):
    def _seal(self, crawl: str, new: NewBatch, fingerprints: Iterable[bytes], counts: Mapping[str, int]) -> Batch:
        with self._file.step():
            batch = self.insert(crawl, new)
            number = self._crawl_number(crawl)
            rows = [(number, fingerprint) for fingerprint in fingerprints]
            self._db.executemany("INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING", rows)
            self._add_counts(crawl, counts)
        return batch

    def insert(self, crawl: str, new: NewBatch) -> Batch:
        self._db.execute(
            "INSERT INTO batch_numbers VALUES (?, 1) ON CONFLICT (crawl) DO UPDATE SET last = last + 1", (crawl,)
        )
        last = self._value("SELECT last FROM batch_numbers WHERE crawl = ?", crawl)
        batch = new.numbered(last)
        self._insert("batches", {**vars(batch), "crawl": crawl})
        settings = self._door.payload_text(crawl, batch, new.payload)
        prints = joined(new.fingerprints) if new.fingerprints else None
        self._db.execute("INSERT INTO payloads VALUES (?, ?, ?, ?)", (crawl, last, settings, prints))
        return batch

    def add(self, crawl: str, new: Sequence[NewBatch]) -> list[Batch]:
        """Keep batches with their fingerprints, of which none may be there."""
        number, keep = self._crawl_number(crawl), "INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING"
        there = {one for one in prints_of(new) if not self._db.execute(keep, (number, one)).rowcount}
        if there:
            raise SeenBefore(frozenset(there))
        return [self.insert(crawl, one) for one in new]

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        query = "SELECT fingerprint FROM seen WHERE crawl = (SELECT number FROM crawls WHERE id = ?)"
        for row in self._db.execute(query, (crawl,)):
            yield row[0]

    def batch(self, crawl: str, number: int) -> Batch:
        query = "SELECT * FROM batches WHERE crawl = ? AND number = ?"
        row = self._db.execute(query, (crawl, number)).fetchone()
        if row is None:
            raise NothingMatched(f"crawl {crawl} has no batch {number}.")
        return self._door.batch(dict(row))

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        where, values = in_states(states)
        query = f"SELECT * FROM batches WHERE crawl = ?{where} ORDER BY number"  # noqa: S608 - only marks are added
        return self._all(self._door.batch, query, crawl, *values)

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        batch, kept = self.batch(crawl, number), self.payload_text(crawl, number)
        if kept is None:
            raise NothingMatched(f"crawl {crawl} has no batch {number}.")
        return self._door.payload(crawl, batch, kept)

    def payload_text(self, crawl: str, number: int) -> str | None:
        """What a batch carries, as it is kept."""
        text_of: str | None = self._value("SELECT settings FROM payloads WHERE crawl = ? AND batch = ?", crawl, number)
        return text_of

    def sign_batches(self, crawl: str) -> int:
        with self._file.step():
            batches = self.batches(crawl)
            for batch in batches:
                payload = self._door.resigned(crawl, batch, self.payload_text(crawl, batch.number) or "")
                self._update("payloads", {"settings": payload}, crawl=crawl, batch=batch.number)
            return len(batches)

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        again = []
        with self._file.step():
            for number in sorted(set(numbers)):
                batch = self.batch(crawl, number)
                if batch.state is BatchState.DEAD:
                    self.move(crawl, number, BatchState.SEALED, {"forgiven": batch.attempts})
                    again.append(number)
        return again

    def _split(self, crawl: str, number: int, new: Sequence[NewBatch]) -> list[Batch]:
        with self._file.step():
            self.move(crawl, number, BatchState.SPLIT)
            return [self.insert(crawl, one) for one in new]

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        return parted(
            self._value("SELECT fingerprints FROM payloads WHERE crawl = ? AND batch = ?", crawl, number) or b""
        )

    def _retry(self, crawl: str, number: int, new: Sequence[NewBatch], misses: Sequence[Miss]) -> list[Batch] | None:
        with self._file.step():
            check_done(number, self.batch(crawl, number).state)
            is_first = self._forget_misses(crawl, number, misses)
            return [self.insert(crawl, one) for one in new] if is_first else None

    def _forget_misses(self, crawl: str, number: int, misses: Sequence[Miss]) -> bool:
        """Each once; False, and none is forgotten, when one of them is not there."""
        query = "SELECT rowid, url, kind, reason FROM misses WHERE crawl = ? AND batch = ?"
        there: dict[tuple[str, str, str], list[int]] = {}
        for row, *words in self._db.execute(query, (crawl, number)):
            there.setdefault(tuple(words), []).append(row)
        try:
            rows = [there[text(miss.url), miss.kind, text(miss.reason)].pop(0) for miss in misses]
        except LookupError:
            return False
        self._db.executemany("DELETE FROM misses WHERE rowid = ?", [(row,) for row in rows])
        return True

    def move(
        self, crawl: str, batch: int, state: BatchState, changes: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        check_step(self.batch(crawl, batch).state, state)
        self._update("batches", {"state": state, **changes}, crawl=crawl, number=batch)

    # attempts

    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        with self._file.step():
            self.move(crawl, attempt.batch, BatchState.SENT, {"attempts": attempt.number})
            self.insert_attempt(crawl, attempt)

    def insert_attempt(self, crawl: str, attempt: Attempt) -> None:
        """Write an attempt down; its number may have been used by one that was refused."""
        old = self._attempt_state(crawl, attempt.batch, attempt.number)
        if old is not None:
            check_step(old, attempt.state)
        row = {**vars(attempt), "crawl": crawl}
        again = ", ".join(f"{name} = excluded.{name}" for name in row)
        self._insert("attempts", row, f"ON CONFLICT (crawl, batch, number) DO UPDATE SET {again}")

    def _step(self, move: AttemptMove) -> None:
        crawl, batch, number = move.crawl, move.batch, move.number
        with self._file.step():
            self._check(move)
            if "ended_at" in move.changes:  # then it has no lease
                query = "DELETE FROM leases WHERE crawl = ? AND batch = ? AND attempt = ?"
                self._db.execute(query, (crawl, batch, number))
            self._update("attempts", {"state": move.to, **move.changes}, crawl=crawl, batch=batch, number=number)
            if move.batch_to is not None:
                self.move(crawl, batch, move.batch_to, move.batch_changes)
            self._insert_misses(crawl, move.misses)
            if move.new:
                self.add(crawl, move.new)
            self._add_counts(crawl, move.counts)

    def _check(self, move: AttemptMove) -> None:
        """Raise what speaks against the step."""
        crawl, batch, number, holder = move.crawl, move.batch, move.number, move.holder
        query = "SELECT holder FROM leases WHERE crawl = ? AND batch = ? AND attempt = ?"
        if holder is not None and self._value(query, crawl, batch, number) != holder:
            raise lost_lease(batch, number, holder)
        old = self._attempt_state(crawl, batch, number)
        if old is None:
            raise NothingMatched(f"batch {batch} of crawl {crawl} has no attempt {number}.")
        if move.out and old is AttemptState.ACKED:
            raise StepRefused(f"attempt {number} of batch {batch} was acked meanwhile")
        check_step(old, move.to)
        current = self.batch(crawl, batch).attempts
        if number != current:
            raise over(batch, number, current)

    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None:
        query = "SELECT state FROM attempts WHERE crawl = ? AND batch = ? AND number = ?"
        state = self._value(query, crawl, batch, number)
        return None if state is None else AttemptState(state)

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        where, values = in_states(states)
        query = f"SELECT * FROM attempts WHERE crawl = ?{where} ORDER BY sent_at, batch, number"  # noqa: S608 - only marks are added
        return self._all(partial(self._door.attempt, crawl), query, crawl, *values)

    def _lease(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float, *, again: bool) -> bool:
        lease = {"crawl": crawl, "batch": batch, "attempt": attempt, "holder": holder, "seconds": seconds}
        with self._file.step():
            current = self._value("SELECT attempts FROM batches WHERE crawl = ? AND number = ?", crawl, batch)
            if attempt != current or self._attempt_state(crawl, batch, attempt) not in LEASABLE:
                return False
            if again:
                query = (
                    f"UPDATE leases SET until = {NOW} + :seconds"  # noqa: S608 - own words
                    " WHERE crawl = :crawl AND batch = :batch AND attempt = :attempt AND holder = :holder"
                )
                return self._db.execute(query, lease).rowcount == 1
            took = self._db.execute(
                f"INSERT INTO leases VALUES (:crawl, :batch, :attempt, :holder, {NOW} + :seconds)"  # noqa: S608 - own words
                " ON CONFLICT DO UPDATE SET holder = excluded.holder, until = excluded.until"
                f" WHERE until < {NOW} OR holder = excluded.holder",
                lease,
            )
            return took.rowcount == 1

    def expired(self, crawl: str) -> list[Attempt]:
        late = self._db.execute(f"SELECT batch, attempt FROM leases WHERE crawl = ? AND until < {NOW}", (crawl,))  # noqa: S608 - own words
        keys = {tuple(row) for row in late}
        return [attempt for attempt in self.attempts(crawl, LEASABLE) if (attempt.batch, attempt.number) in keys]


def in_states(states: Collection[BatchState] | Collection[AttemptState]) -> tuple[str, list[str]]:
    """A condition, and its values; nothing when no state is named."""
    if not states:
        return "", []
    return f" AND state IN ({', '.join('?' * len(states))})", [state.value for state in states]
