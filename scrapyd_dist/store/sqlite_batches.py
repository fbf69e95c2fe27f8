"""The SQLite store's verbs about batches, their attempts and leases; each step goes by the tables of batches.py."""

from collections.abc import Collection, Iterator
from functools import partial

from scrapyd_dist.batches import LEASABLE, Attempt, AttemptState, Batch, BatchState, Miss
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.frontier.backlog import NewBatch, SeenBefore
from scrapyd_dist.store.base import BatchStore
from scrapyd_dist.store.frontier_rows import BatchStep, joined, parted, prints_of, retried_before
from scrapyd_dist.store.rows import text
from scrapyd_dist.store.sqlite_file import SqlitePort

#: the time, in seconds since the epoch, as the database tells it
NOW = "((julianday('now') - 2440587.5) * 86400.0)"


class SqliteBatches(SqlitePort, BatchStore):
    def _step(self, step: BatchStep) -> list[Batch]:
        crawl, batch, attempt = step.crawl, step.batch, step.attempt
        with self._file.step():
            self._check(step)
            self._remember(step)
            if "ended_at" in step.changes:  # then it has no lease
                query = "DELETE FROM leases WHERE crawl = ? AND batch = ? AND attempt = ?"
                self._db.execute(query, (crawl, batch, attempt))
            if step.to is not None:
                self._update("attempts", {"state": step.to, **step.changes}, crawl=crawl, batch=batch, number=attempt)
            if step.batch_to is not None:
                self._update("batches", {"state": step.batch_to, **step.batch_changes}, crawl=crawl, number=batch)
            if step.opened is not None:
                self._insert_attempt(crawl, step.opened)
            for miss in step.misses:
                self._insert("misses", {"crawl": crawl, **vars(miss)})
            self._forget_misses(step)
            query = "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value"
            self._db.executemany(query, [(crawl, name, value) for name, value in step.counts.items() if value])
            if step.forget:
                rows = [(self._crawl_number(crawl), one) for one in self.batch_fingerprints(crawl, batch)]
                self._db.executemany("DELETE FROM seen WHERE crawl = ? AND fingerprint = ?", rows)
            if step.dropped:
                self._db.execute("DELETE FROM batches WHERE crawl = ? AND number = ?", (crawl, batch))
            return [self._insert_batch(crawl, one) for one in step.new]

    def _remember(self, step: BatchStep) -> None:
        """Keep the step's fingerprints."""
        number, keep = self._crawl_number(step.crawl), "INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING"
        self._db.executemany(keep, ((number, one) for one in step.prints))
        unseen = prints_of(step.new) if step.unseen else ()
        there = {one for one in unseen if not self._db.execute(keep, (number, one)).rowcount}
        if there:
            raise SeenBefore(frozenset(there))

    def _insert_batch(self, crawl: str, new: NewBatch) -> Batch:
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

    def counts(self, crawl: str) -> dict[str, int]:
        return self._door.counts(self._db.execute("SELECT name, value FROM counts WHERE crawl = ?", (crawl,)))

    def misses(self, crawl: str) -> list[Miss]:
        query = "SELECT * FROM misses WHERE crawl = ? ORDER BY batch = 0, rowid"
        return self._all(partial(self._door.miss, crawl), query, crawl)

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
        return self._door.payload(crawl, self.batch(crawl, number), self._payload_text(crawl, number))

    def sign_batches(self, crawl: str) -> int:
        with self._file.step():
            batches = self.batches(crawl)
            for batch in batches:
                payload = self._door.resigned(crawl, batch, self._payload_text(crawl, batch.number) or "")
                self._update("payloads", {"settings": payload}, crawl=crawl, batch=batch.number)
            return len(batches)

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

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        return parted(
            self._value("SELECT fingerprints FROM payloads WHERE crawl = ? AND batch = ?", crawl, number) or b""
        )

    def _forget_misses(self, step: BatchStep) -> None:
        """Each that is retried, once."""
        query = "SELECT rowid, url, kind, reason FROM misses WHERE crawl = ? AND batch = ?"
        there: dict[tuple[str, str, str], list[int]] = {}
        for row, *words in self._db.execute(query, (step.crawl, step.batch)) if step.retried else ():
            there.setdefault(tuple(words), []).append(row)
        try:
            rows = [there[text(miss.url), miss.kind, text(miss.reason)].pop(0) for miss in step.retried]
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
        query = f"SELECT * FROM attempts WHERE crawl = ?{where} ORDER BY sent_at, batch, number"  # noqa: S608 - only marks are added
        return self._all(partial(self._door.attempt, crawl), query, crawl, *values)

    def lease(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float, *, again: bool = False) -> bool:
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
