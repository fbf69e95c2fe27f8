"""The SQLite store's verbs about attempts, and leases on them; each step goes by the tables of batches.py."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import LEASABLE, Attempt, AttemptState, BatchState, check_attempt_step
from scrapyd_dist.errors import NothingMatched, StepRefused
from scrapyd_dist.store.rows import storable
from scrapyd_dist.store.sqlite_batches import in_states
from scrapyd_dist.store.sqlite_file import SqlitePort

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from scrapyd_dist.batches import Miss
    from scrapyd_dist.store.sqlite_batches import SqliteBatches
    from scrapyd_dist.store.sqlite_crawls import SqliteAccount
    from scrapyd_dist.store.sqlite_file import SqliteConnection

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
