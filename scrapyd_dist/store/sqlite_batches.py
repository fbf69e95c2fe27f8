"""The SQLite store's verbs about batches, their attempts and leases; each step goes by the tables of batches.py."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import LEASABLE, Attempt, AttemptState, Batch, BatchState, check_attempt_step, check_step
from scrapyd_dist.errors import NothingMatched, StepRefused
from scrapyd_dist.store.frontier_rows import batch_from, handed_down, joined, parted
from scrapyd_dist.store.rows import check_done, check_parts, crawl_row, retried_already, signed_row, storable, text
from scrapyd_dist.store.sqlite_file import SqlitePort

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.batches import Miss
    from scrapyd_dist.frontier.backlog import NewBatch
    from scrapyd_dist.store.sqlite_crawls import SqliteAccount, SqliteCrawls
    from scrapyd_dist.store.sqlite_file import SqliteConnection

BATCH = ", ".join(field.name for field in fields(Batch))


class SqliteBatches(SqlitePort):
    """Batches and fingerprints."""

    def __init__(self, connection: SqliteConnection, crawls: SqliteCrawls, account: SqliteAccount) -> None:
        super().__init__(connection)
        self._crawls, self._account = crawls, account

    # sealing

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
        with self._file.step():
            batch = self.insert(crawl, payload, Batch(number=0, size=size, sealed_at=now))
            number = self.crawl_number(crawl)
            rows = [(number, fingerprint) for fingerprint in fingerprints]
            self._db.executemany("INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING", rows)
            self._account.add_counts(crawl, counts)
        return batch

    def crawl_number(self, crawl: str) -> int:
        """The short name of a crawl."""
        row = self._db.execute("SELECT number FROM crawls WHERE id = ?", (crawl,)).fetchone()
        if row is None:
            raise self._crawls.no_crawl(crawl)
        number: int = row[0]
        return number

    def insert(self, crawl: str, payload: Mapping[str, str], new: Batch, fingerprints: Collection[bytes] = ()) -> Batch:
        self._db.execute(
            "INSERT INTO batch_numbers VALUES (?, 1) ON CONFLICT (crawl) DO UPDATE SET last = last + 1", (crawl,)
        )
        last = self._db.execute("SELECT last FROM batch_numbers WHERE crawl = ?", (crawl,)).fetchone()[0]
        row = {field.name: getattr(new, field.name) for field in fields(Batch)}
        row |= {"number": last, "state": new.state.value}
        marks = ", ".join(f":{name}" for name in row)
        self._db.execute(f"INSERT INTO batches (crawl, {BATCH}) VALUES (:crawl, {marks})", {**row, "crawl": crawl})  # noqa: S608 - own names
        self._db.execute(
            "INSERT INTO payloads VALUES (?, ?, ?, ?)",
            (crawl, last, self._door.payload_text(crawl, new, payload), joined(fingerprints) if fingerprints else None),
        )
        return replace(new, number=last)

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        query = "SELECT fingerprint FROM seen WHERE crawl = (SELECT number FROM crawls WHERE id = ?)"
        for row in self._db.execute(query, (crawl,)):
            yield row[0]

    # batches

    def batch(self, crawl: str, number: int) -> Batch:
        row = self._db.execute(
            f"SELECT {BATCH} FROM batches WHERE crawl = ? AND number = ?",  # noqa: S608 - own names
            (crawl, number),
        ).fetchone()
        if row is None:
            raise NothingMatched(f"crawl {crawl} has no batch {number}.")
        return self._door.batch(dict(row))

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        where, values = in_states(states)
        query = f"SELECT {BATCH} FROM batches WHERE crawl = ?{where} ORDER BY number"  # noqa: S608 - only marks are added
        return self._door.each(self._door.batch, map(dict, self._db.execute(query, (crawl, *values))))

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        return self.payload_of(crawl, self.batch(crawl, number))

    def payload_of(self, crawl: str, batch: Batch) -> dict[str, str]:
        row = self._db.execute(
            "SELECT settings FROM payloads WHERE crawl = ? AND batch = ?", (crawl, batch.number)
        ).fetchone()
        if row is None:
            raise NothingMatched(f"crawl {crawl} has no batch {batch.number}.")
        return self._door.payload(crawl, batch, row[0])

    def trust(self, crawl: str) -> int:
        with self._file.step():
            row = self._crawls.crawl(crawl)
            options = self._crawls.unchecked(crawl)
            self._crawls.set_row(crawl, {"options": signed_row(self._door.signer, crawl_row(vars(row)), options)})
            return self._sign_batches(crawl)

    def _sign_batches(self, crawl: str) -> int:
        batches = self.batches(crawl)
        query = "SELECT settings FROM payloads WHERE crawl = ? AND batch = ?"
        for batch in batches:
            row = self._db.execute(query, (crawl, batch.number)).fetchone()
            payload = self._door.resigned(crawl, batch, row[0])
            self._db.execute(
                "UPDATE payloads SET settings = ? WHERE crawl = ? AND batch = ?", (payload, crawl, batch.number)
            )
        return len(batches)

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        again = []
        with self._file.step():
            for number in sorted(set(numbers)):
                batch = self.batch(crawl, number)
                if batch.state is BatchState.DEAD:
                    self.move(crawl, number, BatchState.SEALED, forgiven=batch.attempts)
                    again.append(number)
        return again

    def split(self, crawl: str, number: int, parts: Sequence[NewBatch]) -> list[Batch]:
        with self._file.step():
            whole = self.batch(crawl, number)
            check_parts(number, whole.size, [part.size for part in parts])
            self.move(crawl, number, BatchState.SPLIT)
            prints = handed_down(self.batch_fingerprints(crawl, number), whole.size, parts)
            return [
                self.insert(crawl, part.payload, batch_from(part, whole.sealed_at, parent=number), its)
                for part, its in zip(parts, prints, strict=True)
            ]

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        row = self._db.execute(
            "SELECT fingerprints FROM payloads WHERE crawl = ? AND batch = ?", (crawl, number)
        ).fetchone()
        return parted(row[0] or b"") if row else []

    def retry(
        self,
        crawl: str,
        number: int,
        parts: Sequence[tuple[Mapping[str, str], int]],
        *,
        misses: Sequence[Miss],
        now: float,
    ) -> list[Batch]:
        check_parts(number, len(misses), [size for _, size in parts])
        with self._file.step():
            old = self.batch(crawl, number)
            check_done(number, old.state)
            self._forget_misses(crawl, number, misses)
            like = Batch(number=0, size=0, sealed_at=now, slot=old.slot, priority=old.priority)
            return [self.insert(crawl, payload, replace(like, size=size)) for payload, size in parts]

    def _forget_misses(self, crawl: str, number: int, misses: Sequence[Miss]) -> None:
        """Each once; raises `StepRefused` when one of them is not there."""
        query = "SELECT rowid, url, kind, reason FROM misses WHERE crawl = ? AND batch = ?"
        there: dict[tuple[str, str, str], list[int]] = {}
        for row, *words in self._db.execute(query, (crawl, number)):
            there.setdefault(tuple(words), []).append(row)
        try:
            rows = [there[text(miss.url), miss.kind, text(miss.reason)].pop(0) for miss in misses]
        except LookupError:
            raise retried_already(crawl, number) from None
        self._db.executemany("DELETE FROM misses WHERE rowid = ?", [(row,) for row in rows])

    def move(self, crawl: str, batch: int, state: BatchState, **changes: Any) -> None:
        check_step(self.batch(crawl, batch).state, state)
        changes["state"] = state.value
        assignments = ", ".join(f"{name} = :{name}" for name in changes)
        self._db.execute(
            f"UPDATE batches SET {assignments} WHERE crawl = :crawl AND number = :number",  # noqa: S608 - own names
            {**storable(changes), "crawl": crawl, "number": batch},
        )


def in_states(states: Collection[BatchState] | Collection[AttemptState]) -> tuple[str, list[str]]:
    """A condition, and its values; nothing when no state is named."""
    if not states:
        return "", []
    return f" AND state IN ({', '.join('?' * len(states))})", [state.value for state in states]


ATTEMPT = ", ".join(field.name for field in fields(Attempt))
#: the time, in seconds since the epoch, as the database tells it
NOW = "((julianday('now') - 2440587.5) * 86400.0)"


class SqliteAttempts(SqlitePort):
    """Attempts and leases."""

    def __init__(self, connection: SqliteConnection, batches: SqliteBatches, account: SqliteAccount) -> None:
        super().__init__(connection)
        self._batches, self._account = batches, account

    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        with self._file.step():
            self._batches.move(crawl, attempt.batch, BatchState.SENT, attempts=attempt.number)
            self.insert(crawl, attempt)

    def insert(self, crawl: str, attempt: Attempt) -> None:
        """Write an attempt down; its number may have been used by one that was refused."""
        old = self._attempt_state(crawl, attempt.batch, attempt.number)
        if old is not None:
            check_attempt_step(old, attempt.state)
        names = ("batch", "number", "job", "node", "url", "sent_at", "worker")
        self._db.execute(
            "INSERT INTO attempts (crawl, batch, number, job, node, url, state, sent_at, worker)"
            " VALUES (:crawl, :batch, :number, :job, :node, :url, :state, :sent_at, :worker)"
            " ON CONFLICT (crawl, batch, number) DO UPDATE SET node = excluded.node, url = excluded.url,"
            " state = excluded.state, sent_at = excluded.sent_at, worker = excluded.worker, ended_at = NULL,"
            " reason = ''",
            {**{name: getattr(attempt, name) for name in names}, "crawl": crawl, "state": attempt.state.value},
        )

    def sent(self, crawl: str, batch: int, attempt: int) -> None:
        with self._file.step():
            self.move(crawl, batch, attempt, AttemptState.SENT)

    def refused(self, crawl: str, batch: int, attempt: int, reason: str, now: float) -> None:
        with self._file.step():
            self.refuse(crawl, batch, attempt, reason, now)

    def refuse(self, crawl: str, batch: int, attempt: int, reason: str, now: float) -> None:
        self.move(crawl, batch, attempt, AttemptState.REFUSED, reason=reason, ended_at=now)
        self._batches.move(crawl, batch, BatchState.SEALED, attempts=attempt - 1, reason=reason)

    def running(self, crawl: str, batch: int, attempt: int) -> None:
        with self._file.step():
            self.move(crawl, batch, attempt, AttemptState.RUNNING)
            self._batches.move(crawl, batch, BatchState.RUNNING)

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
        words = json.dumps(dict(report))
        with self._file.step():
            self.move(crawl, batch, attempt, AttemptState.ACCEPTED, ended_at=now, report=words, part=part)
            self._batches.move(crawl, batch, BatchState.DONE)
            self._account.insert_misses(crawl, misses)

    def fail(
        self, crawl: str, batch: int, attempt: int, *, reason: str, now: float, max_attempts: int, out: bool = False
    ) -> BatchState:
        with self._file.step():
            if out and self._attempt_state(crawl, batch, attempt) is AttemptState.ACKED:
                raise StepRefused(f"attempt {attempt} of batch {batch} was acked meanwhile")
            self.move(crawl, batch, attempt, AttemptState.FAILED, reason=reason, ended_at=now)
            self._batches.move(crawl, batch, BatchState.FAILED, reason=reason)
            if attempt - self._batches.batch(crawl, batch).forgiven < max_attempts:
                return BatchState.FAILED
            self._batches.move(crawl, batch, BatchState.DEAD)
            return BatchState.DEAD

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        where, values = in_states(states)
        query = f"SELECT {ATTEMPT} FROM attempts WHERE crawl = ?{where} ORDER BY sent_at, batch, number"  # noqa: S608 - only marks are added
        rows = map(dict, self._db.execute(query, (crawl, *values)))
        return self._door.each(lambda row: self._door.attempt(crawl, row), rows)

    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None:
        row = self._db.execute(
            "SELECT state FROM attempts WHERE crawl = ? AND batch = ? AND number = ?", (crawl, batch, number)
        ).fetchone()
        return None if row is None else AttemptState(row["state"])

    def move(self, crawl: str, batch: int, number: int, state: AttemptState, **changes: Any) -> None:
        old = self._attempt_state(crawl, batch, number)
        if old is None:
            raise NothingMatched(f"batch {batch} of crawl {crawl} has no attempt {number}.")
        check_attempt_step(old, state)
        current = self._batches.batch(crawl, batch).attempts
        if number != current:
            raise StepRefused(f"attempt {number} of batch {batch} is over; attempt {current} is the one that counts")
        if "ended_at" in changes:
            self._db.execute("DELETE FROM leases WHERE crawl = ? AND batch = ? AND attempt = ?", (crawl, batch, number))
        changes["state"] = state.value
        assignments = ", ".join(f"{name} = :{name}" for name in changes)
        self._db.execute(
            f"UPDATE attempts SET {assignments} WHERE crawl = :crawl AND batch = :batch AND number = :number",  # noqa: S608 - own names
            {**storable(changes), "crawl": crawl, "batch": batch, "number": number},
        )

    # leases

    def lease(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float) -> bool:
        with self._file.step():
            if not self._is_out(crawl, batch, attempt):
                return False
            took = self._db.execute(
                f"INSERT INTO leases VALUES (?, ?, ?, ?, {NOW} + ?) ON CONFLICT DO UPDATE"  # noqa: S608 - own words
                " SET holder = excluded.holder, until = excluded.until"
                f" WHERE until < {NOW} OR holder = excluded.holder",
                (crawl, batch, attempt, holder, seconds),
            )
            return took.rowcount == 1

    def renew(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float) -> bool:
        with self._file.step():
            if not self._is_out(crawl, batch, attempt):
                return False
            kept = self._db.execute(
                f"UPDATE leases SET until = {NOW} + ? WHERE crawl = ? AND batch = ? AND attempt = ? AND holder = ?",  # noqa: S608 - own words
                (seconds, crawl, batch, attempt, holder),
            )
            return kept.rowcount == 1

    def expired(self, crawl: str) -> list[Attempt]:
        late = self._db.execute(f"SELECT batch, attempt FROM leases WHERE crawl = ? AND until < {NOW}", (crawl,))  # noqa: S608 - own words
        keys = {tuple(row) for row in late}
        return [attempt for attempt in self.attempts(crawl, LEASABLE) if (attempt.batch, attempt.number) in keys]

    def _is_out(self, crawl: str, batch: int, attempt: int) -> bool:
        """Whether it is its batch's current attempt, and not over."""
        row = self._db.execute(
            "SELECT attempts.state FROM batches JOIN attempts ON attempts.crawl = batches.crawl"
            " AND attempts.batch = batches.number AND attempts.number = batches.attempts"
            " WHERE batches.crawl = ? AND batches.number = ? AND batches.attempts = ?",
            (crawl, batch, attempt),
        ).fetchone()
        return row is not None and AttemptState(row["state"]) in LEASABLE
