"""The embedded store: one SQLite file on a local disk, one immediate transaction per verb."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import (
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    Crawl,
    CrawlState,
    Miss,
    Shard,
    ShardState,
    check_attempt_step,
    check_step,
)
from scrapyd_dist.errors import NameTaken, NothingMatched, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

#: seconds that a call waits for another process's transaction
BUSY_TIMEOUT = 30.0
SCHEMA_VERSION = 1
_CRAWL_FIELDS = frozenset(field.name for field in fields(Crawl)) - {"id"}


class SqliteStore:
    """`Store` on an SQLite file. One instance belongs to one thread at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._db = self._connect()
        self._make_tables()

    def _connect(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Options and payloads may name what nobody else should read. A file that is there is left alone: to close
            # any descriptor of it would drop this process's locks, and another one would then throw its log away.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            database = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the store {self.path} cannot be opened: {error}.") from error
        database.row_factory = sqlite3.Row
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA foreign_keys = ON")
        except sqlite3.DatabaseError as error:
            database.close()
            raise StoreError(f"{self.path} is not a store of scrapyd-dist: {error}.") from error
        return database

    def _make_tables(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the store {self.path} was written by a newer scrapyd-dist (schema {version}, this one knows"
                f" {SCHEMA_VERSION}). Upgrade scrapyd-dist here, or name another store."
            )
        if version == SCHEMA_VERSION:
            return
        with self._step():
            # Another process may have made the tables while this one waited for its turn.
            if self._db.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in _statements(files(__package__).joinpath("schema.sql").read_text("utf-8")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _step(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"the store {self.path} failed: {error}.") from error

    def close(self) -> None:
        self._db.close()

    # crawls

    def add_crawl(self, crawl: Crawl) -> None:
        row = {field.name: getattr(crawl, field.name) for field in fields(Crawl)}
        names = ", ".join(row)
        marks = ", ".join(f":{name}" for name in row)
        with self._step():
            if self._db.execute("SELECT 1 FROM crawls WHERE id = ?", (crawl.id,)).fetchone():
                raise NameTaken(f"there is a crawl {crawl.id} already; give this one another name.")
            self._db.execute(f"INSERT INTO crawls ({names}) VALUES ({marks})", _stored(row))  # noqa: S608 - own names

    def crawl(self, crawl: str) -> Crawl:
        row = self._db.execute("SELECT * FROM crawls WHERE id = ?", (crawl,)).fetchone()
        if row is None:
            raise NothingMatched(f"there is no crawl {crawl!r} in {self.path}; `sdist crawls` lists those there are.")
        return _crawl(row)

    def crawls(self) -> list[Crawl]:
        return [_crawl(row) for row in self._db.execute("SELECT * FROM crawls ORDER BY created DESC, rowid DESC")]

    def update_crawl(self, crawl: str, **changes: Any) -> None:
        unknown = changes.keys() - _CRAWL_FIELDS
        if unknown:
            raise StoreError(f"a crawl has no {', '.join(sorted(unknown))}")
        assignments = ", ".join(f"{name} = :{name}" for name in changes)
        with self._step():
            self._db.execute(f"UPDATE crawls SET {assignments} WHERE id = :id", {**_stored(changes), "id": crawl})  # noqa: S608 - own names

    def forget(self, crawl: str) -> None:
        with self._step():
            self._db.execute("DELETE FROM crawls WHERE id = ?", (crawl,))

    # counts

    def count(self, crawl: str, counts: Mapping[str, int]) -> None:
        with self._step():
            self._count(crawl, counts)

    def _count(self, crawl: str, counts: Mapping[str, int]) -> None:
        self._db.executemany(
            "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
            [(crawl, name, value) for name, value in counts.items() if value],
        )

    def counts(self, crawl: str) -> dict[str, int]:
        return dict(self._db.execute("SELECT name, value FROM counts WHERE crawl = ?", (crawl,)).fetchall())

    # shards

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        rows = [(crawl, s.number, s.url, s.first_page, s.last_page, s.state.value) for s in shards]
        with self._step():
            self._db.executemany("INSERT INTO shards VALUES (?, ?, ?, ?, ?, ?)", rows)

    def shards(self, crawl: str) -> list[Shard]:
        rows = self._db.execute("SELECT * FROM shards WHERE crawl = ? ORDER BY number", (crawl,))
        return [
            Shard(
                number=row["number"],
                url=row["url"],
                first_page=row["first_page"],
                last_page=row["last_page"],
                state=ShardState(row["state"]),
            )
            for row in rows
        ]

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        with self._step():
            self._db.executemany(
                "UPDATE shards SET state = ? WHERE crawl = ? AND number = ?",
                [(ShardState.FINISHED.value, crawl, number) for number in numbers],
            )

    def walk_again(self, crawl: str) -> None:
        with self._step():
            self._db.execute("DELETE FROM misses WHERE crawl = ? AND batch = 0", (crawl,))
            self._db.execute("DELETE FROM counts WHERE crawl = ? AND name != 'sealed'", (crawl,))

    # batches

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
        with self._step():
            last = self._db.execute("SELECT max(number) FROM batches WHERE crawl = ?", (crawl,)).fetchone()[0]
            batch = Batch(number=(last or 0) + 1, size=size, sealed_at=now)
            self._db.execute(
                "INSERT INTO batches (crawl, number, size, state, sealed_at) VALUES (?, ?, ?, ?, ?)",
                (crawl, batch.number, size, batch.state.value, now),
            )
            self._db.execute("INSERT INTO payloads VALUES (?, ?, ?)", (crawl, batch.number, json.dumps(dict(payload))))
            self._db.executemany(
                "INSERT OR IGNORE INTO fingerprints VALUES (?, ?)", [(crawl, print_) for print_ in fingerprints]
            )
            self._count(crawl, counts)
        return batch

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        for row in self._db.execute("SELECT fingerprint FROM fingerprints WHERE crawl = ?", (crawl,)):
            yield row[0]

    def batch(self, crawl: str, number: int) -> Batch:
        row = self._db.execute("SELECT * FROM batches WHERE crawl = ? AND number = ?", (crawl, number)).fetchone()
        if row is None:
            raise NothingMatched(f"crawl {crawl} has no batch {number}.")
        return _batch(row)

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        where, values = _in_states(states)
        query = f"SELECT * FROM batches WHERE crawl = ?{where} ORDER BY number"  # noqa: S608 - only marks are added
        return [_batch(row) for row in self._db.execute(query, (crawl, *values))]

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        row = self._db.execute(
            "SELECT settings FROM payloads WHERE crawl = ? AND batch = ?", (crawl, number)
        ).fetchone()
        if row is None:
            raise NothingMatched(f"crawl {crawl} has no batch {number}.")
        settings: dict[str, str] = json.loads(row[0])
        return settings

    # attempts

    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        with self._step():
            self._move(crawl, attempt.batch, BatchState.SENT, attempts=attempt.number)
            old = self._attempt_state(crawl, attempt.batch, attempt.number)
            if old is not None:
                check_attempt_step(old, AttemptState.SENDING)
            self._db.execute(
                "INSERT INTO attempts (crawl, batch, number, job, node, url, state, sent_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (crawl, batch, number) DO UPDATE SET node = excluded.node, url = excluded.url,"
                " state = excluded.state, sent_at = excluded.sent_at, ended_at = NULL, reason = ''",
                (
                    crawl,
                    attempt.batch,
                    attempt.number,
                    attempt.job,
                    attempt.node,
                    attempt.url,
                    attempt.state.value,
                    attempt.sent_at,
                ),
            )

    def sent(self, crawl: str, batch: int, attempt: int) -> None:
        with self._step():
            self._attempt(crawl, batch, attempt, AttemptState.SENT)

    def refused(self, crawl: str, batch: int, attempt: int, reason: str, now: float) -> None:
        with self._step():
            self._move(crawl, batch, BatchState.SEALED, attempts=attempt - 1, reason=reason)
            self._attempt(crawl, batch, attempt, AttemptState.REFUSED, reason=reason, ended_at=now)

    def running(self, crawl: str, batch: int, attempt: int) -> None:
        with self._step():
            self._move(crawl, batch, BatchState.RUNNING)
            self._attempt(crawl, batch, attempt, AttemptState.RUNNING)

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
        text = json.dumps(dict(report))
        with self._step():
            self._move(crawl, batch, BatchState.DONE)
            self._attempt(crawl, batch, attempt, AttemptState.ACCEPTED, ended_at=now, report=text, part=part)
            self._add_misses(crawl, misses)

    def fail(self, crawl: str, batch: int, attempt: int, *, reason: str, now: float, max_attempts: int) -> BatchState:
        with self._step():
            self._move(crawl, batch, BatchState.FAILED, reason=reason)
            self._attempt(crawl, batch, attempt, AttemptState.FAILED, reason=reason, ended_at=now)
            if attempt < max_attempts:
                return BatchState.FAILED
            self._move(crawl, batch, BatchState.DEAD)
            return BatchState.DEAD

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        where, values = _in_states(states)
        query = f"SELECT * FROM attempts WHERE crawl = ?{where} ORDER BY sent_at, batch, number"  # noqa: S608 - only marks are added
        return [_attempt(row) for row in self._db.execute(query, (crawl, *values))]

    def _move(self, crawl: str, batch: int, state: BatchState, **changes: Any) -> None:
        row = self._db.execute("SELECT state FROM batches WHERE crawl = ? AND number = ?", (crawl, batch)).fetchone()
        if row is None:
            raise NothingMatched(f"crawl {crawl} has no batch {batch}.")
        check_step(BatchState(row["state"]), state)
        changes["state"] = state.value
        assignments = ", ".join(f"{name} = :{name}" for name in changes)
        self._db.execute(
            f"UPDATE batches SET {assignments} WHERE crawl = :crawl AND number = :number",  # noqa: S608 - own names
            {**_storable(changes), "crawl": crawl, "number": batch},
        )

    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None:
        row = self._db.execute(
            "SELECT state FROM attempts WHERE crawl = ? AND batch = ? AND number = ?", (crawl, batch, number)
        ).fetchone()
        return None if row is None else AttemptState(row["state"])

    def _attempt(self, crawl: str, batch: int, number: int, state: AttemptState, **changes: Any) -> None:
        old = self._attempt_state(crawl, batch, number)
        if old is None:
            raise NothingMatched(f"batch {batch} of crawl {crawl} has no attempt {number}.")
        check_attempt_step(old, state)
        changes["state"] = state.value
        assignments = ", ".join(f"{name} = :{name}" for name in changes)
        self._db.execute(
            f"UPDATE attempts SET {assignments} WHERE crawl = :crawl AND batch = :batch AND number = :number",  # noqa: S608 - own names
            {**_storable(changes), "crawl": crawl, "batch": batch, "number": number},
        )

    # misses

    def add_misses(self, crawl: str, misses: Sequence[Miss]) -> None:
        with self._step():
            self._add_misses(crawl, misses)

    def _add_misses(self, crawl: str, misses: Sequence[Miss]) -> None:
        self._db.executemany(
            "INSERT INTO misses VALUES (?, ?, ?, ?, ?)",
            [(crawl, miss.batch, _text(miss.url), miss.kind, _text(miss.reason)) for miss in misses],
        )

    def misses(self, crawl: str) -> list[Miss]:
        rows = self._db.execute("SELECT * FROM misses WHERE crawl = ? ORDER BY rowid", (crawl,))
        return [Miss(url=r["url"], kind=r["kind"], reason=r["reason"], batch=r["batch"]) for r in rows]


def _statements(script: str) -> Iterator[str]:
    # executescript() would commit the transaction that guards the making of the tables.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _in_states(states: Collection[BatchState] | Collection[AttemptState]) -> tuple[str, list[str]]:
    if not states:
        return "", []
    return f" AND state IN ({', '.join('?' * len(states))})", [state.value for state in states]


def _text(text: str) -> str:
    """Text that a database can hold: error messages of spiders may have halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _text(value) if isinstance(value, str) else value for name, value in row.items()}


def _stored(row: Mapping[str, Any]) -> dict[str, Any]:
    stored = _storable(row)
    for name in ("options", "summary"):
        if name in stored:
            stored[name] = json.dumps(dict(stored[name]))
    if "state" in stored:
        stored["state"] = CrawlState(stored["state"]).value
    return stored


def _crawl(row: sqlite3.Row) -> Crawl:
    values = dict(row)
    values["state"] = CrawlState(values["state"])
    values["options"] = json.loads(values["options"])
    values["summary"] = json.loads(values["summary"])
    return Crawl(**values)


def _batch(row: sqlite3.Row) -> Batch:
    values = dict(row)
    del values["crawl"]
    values["state"] = BatchState(values["state"])
    return Batch(**values)


def _attempt(row: sqlite3.Row) -> Attempt:
    values = dict(row)
    del values["crawl"]
    values["state"] = AttemptState(values["state"])
    values["report"] = json.loads(values["report"])
    return Attempt(**values)
