"""The SQLite file itself, which is opened, recognised and brought to the newest schema here.

It is written in whole steps only.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from scrapyd_dist.errors import NoPlaceForStore, StoreAway, StoreError
from scrapyd_dist.ownership import fault_of_file
from scrapyd_dist.store.ports.engine import Connection
from scrapyd_dist.store.ports.link_rows import LinkRows
from scrapyd_dist.store.ports.rows import Door, Signer, storable
from scrapyd_dist.store.sqlite.file_systems import check_local
from scrapyd_dist.store.sqlite.sqlite_outages import fault_passes, is_file_trouble

V = TypeVar("V")
#: seconds that a call waits for another process's transaction
BUSY_TIMEOUT = 30.0
#: pages in the log after which a worker checkpoints it: 64 MB
WORKERS_CHECKPOINT = 16_384
#: schema/1.sql makes the tables; each later schema has a script of its number, which leads to it
#: from the one before
SCHEMA_VERSION = 1
#: "sdis": how a file says that it is ours
APPLICATION_ID = 0x73646973
#: the time, in seconds since the epoch, by the database's clock
NOW = "((julianday('now') - 2440587.5) * 86400.0)"
#: rows that are removed in one step, so that no other process waits long
_ROWS = 50_000
#: pages of the file given back in one step
_PAGES = 2_000
#: tables with many rows of a crawl: the columns that tell rows apart, and whether `crawl` is the
#: crawl's number, not its name
_OF_A_CRAWL = (
    ("seen", "crawl, fingerprint", True),
    ("payloads", "crawl, batch", False),
    ("misses", "rowid", False),
    ("attempts", "crawl, batch, number", False),
    ("batches", "crawl, number", False),
)
_STRATEGYS = "strategy = ?"
#: tables with many rows of a strategy: name, key, and a condition that an index serves
_OF_A_STRATEGY = (
    ("links", "strategy, fingerprint", _STRATEGYS),
    ("link_slots", "strategy, slot, partition", _STRATEGYS),
    ("link_queue", "number", f"{_STRATEGYS} AND later = 0"),
    ("link_queue", "number", f"{_STRATEGYS} AND later = 1"),
    ("link_events", "strategy, number", _STRATEGYS),
    ("link_changes", "strategy, number", _STRATEGYS),
    ("link_domains", "strategy, domain", _STRATEGYS),
    ("strategy_processes", "strategy, name", _STRATEGYS),
    ("strategy_partitions", "strategy, partition", _STRATEGYS),
)
#: the end of messages about a file that cannot be the store
_ELSEWHERE = (
    "Name another file: DISTRIBUTED_STORE in the settings, or SDIST_STORE in the environment."
)


class SqliteConnection(Connection):
    """One connection to the store's file. It belongs to one thread at a time."""

    client_errors = (sqlite3.Error,)

    def __init__(
        self,
        path: str | Path,
        *,
        durable: bool = True,
        owned: bool = True,
        key: bytes | None = None,
    ) -> None:
        self.path = Path(path)
        self._owned = owned
        self.door = Door(Signer(key), str(self.path))
        self.link_rows = LinkRows(self.door, key, is_private=True)
        self._in_step = False
        self.db = self._connect()
        try:
            self._prepare(durable=durable)
        except BaseException as error:
            self.db.close()
            # It is in use, or cannot be read or written.
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(f"the store {self.path} cannot be opened: {error}.") from error
            if isinstance(error, sqlite3.DatabaseError):
                raise StoreError(
                    f"{self.path} is not a store of scrapyd-dist: {error}. {_ELSEWHERE}"
                ) from error
            raise

    def _connect(self) -> sqlite3.Connection:
        check_local(self.path)
        if os.path.isdir(self.path):  # noqa: PTH112 - of pathlib's, this raises nothing where it may not look
            raise NoPlaceForStore(
                f"the store {self.path} cannot be opened: it is a folder. {_ELSEWHERE}"
            )
        if os.path.exists(self.path) and not os.path.isfile(self.path):  # noqa: PTH110, PTH113 - as above
            raise NoPlaceForStore(
                f"the store {self.path} cannot be opened: it is no plain file. {_ELSEWHERE}"
            )
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            # Options and payloads may name what no other user should read. A file that is there is
            # left alone: to close any descriptor of it would drop this process's locks, and another
            # one would then throw its log away.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            return sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
            )
        except (FileNotFoundError, NotADirectoryError, FileExistsError, PermissionError) as error:
            raise NoPlaceForStore(
                f"the store {self.path} cannot be opened: {error}. {_ELSEWHERE}"
            ) from error
        except (OSError, sqlite3.Error) as error:  # a full disk, say, which may be better later
            raise StoreError(f"the store {self.path} cannot be opened: {error}.") from error

    def _check_owner(self) -> None:
        """Refuse a file that others can write, before it is opened: SQLite runs what is in it."""
        if not self._owned:
            return
        fault = fault_of_file(self.path)
        if fault:
            raise NoPlaceForStore(f"the store {self.path} is not used: {fault}")

    def _prepare(self, *, durable: bool) -> None:
        self.db.row_factory = sqlite3.Row
        self._check_ours()
        # It has an effect in a new file only, but would write to any: each opening would wait for
        # all that write.
        if not self.db.execute("PRAGMA page_count").fetchone()[0]:
            self.db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _write_ahead(self.db)
        self.db.execute("PRAGMA foreign_keys = ON")
        # What is posted was written down, even if the power fails.
        synchronous = "FULL" if durable else "NORMAL"
        self.db.execute(f"PRAGMA synchronous = {synchronous}")
        if not durable:
            # A checkpoint waits for the disk, too, and is left to other processes; but where only
            # workers are left, they have to make it.
            self.db.execute(f"PRAGMA wal_autocheckpoint = {WORKERS_CHECKPOINT}")
        self._migrate()

    def _check_ours(self) -> None:
        """Refuse another program's database, before anything is written into it."""
        # The tables first: another process may be making them, and marks the file in the same
        # transaction.
        query = "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
        tables = self.db.execute(query).fetchone()[0]
        mark = self.db.execute("PRAGMA application_id").fetchone()[0]
        is_new = mark == 0 and not tables
        if mark != APPLICATION_ID and not is_new:
            raise StoreError(
                f"{self.path} is a database of another program, not a store of scrapyd-dist;"
                f" nothing was changed in it. {_ELSEWHERE}"
            )

    def _migrate(self) -> None:
        """Bring the file to this version's schema, in one transaction."""
        if self._version() == SCHEMA_VERSION:
            return
        with self.step():
            # Another process may have done it while this one waited for its turn.
            for number in range(self._version() + 1, SCHEMA_VERSION + 1):
                for statement in _statements(schema_script(number)):
                    self.db.execute(statement)
            self.db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _check_version(self) -> None:
        version = self._version()
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the store {self.path} was written by a newer scrapyd-dist (schema {version}, this"
                f" one knows {SCHEMA_VERSION}). Upgrade scrapyd-dist here, or name another store."
            )

    def _version(self) -> int:
        version: int = self.db.execute("PRAGMA user_version").fetchone()[0]
        return version

    @contextmanager
    def step(self, *, writes: bool = True) -> Iterator[None]:
        """Make one transaction of what is done inside.

        All that is written is kept, or nothing; and all that is read is of one moment. A step
        inside of another one is a part of that.

        Raises:
            StoreAway: it failed for a reason that may pass.
            StoreError: it failed for another one, or the file is a newer version's, perhaps since
                it was opened here.
        """
        if self._in_step:
            yield
            return
        self._in_step = True
        try:
            try:
                self.db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                self._check_version()
                yield
                self.db.execute("COMMIT")
            except BaseException:
                # A full disk has ended it already, and is the error to be raised.
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
            finally:
                self._in_step = False
        except sqlite3.Error as error:
            kind = StoreAway if fault_passes(error) else StoreError
            raise kind(f"the store {self.path} failed: {error}.") from error

    def clear(self, crawl: str, number: int) -> None:
        """Remove bit by bit what there is of a crawl, but for its row.

        Strategies that are no crawl's any more are removed as well.
        """
        for table, key, by_number in _OF_A_CRAWL:
            self._remove(table, key, "crawl = ?", number if by_number else crawl)
        query = "SELECT number FROM strategies WHERE crawl IS NULL"
        for (strategy,) in self.db.execute(query).fetchall():
            for table, key, where in _OF_A_STRATEGY:
                self._remove(table, key, where, strategy)
            with self.step():
                self.db.execute("DELETE FROM strategies WHERE number = ?", (strategy,))
        self._give_back()

    def _remove(self, table: str, key: str, where: str, value: object) -> None:
        """Remove the rows of a table that meet a condition, some in each step."""
        rows = f"SELECT {key} FROM {table} WHERE {where} LIMIT {_ROWS}"  # noqa: S608 - own names
        removed = _ROWS
        while removed == _ROWS:
            with self.step():
                statement = f"DELETE FROM {table} WHERE ({key}) IN ({rows})"  # noqa: S608 - own names
                removed = self.db.execute(statement, (value,)).rowcount

    def _give_back(self) -> None:
        """Shrink the file, where it was made so that it can."""
        while True:
            free = self.db.execute("PRAGMA freelist_count").fetchone()[0]
            if not free:
                return
            with self.step():
                self.db.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
            if self.db.execute("PRAGMA freelist_count").fetchone()[0] >= free:
                return

    def is_outage(self, error: Exception) -> bool:
        """Return whether an error is about the file as a whole."""
        return is_file_trouble(error)

    def warnings(self) -> list[str]:
        """Return no warnings: whatever endangers the file refuses it."""
        return []

    def close(self) -> None:
        """Close the connection."""
        self.db.close()


def schema_script(number: int) -> str:
    """Return the statements that lead to this schema from the one before."""
    return files(__package__).joinpath("schema", f"{number}.sql").read_text("utf-8")


def _write_ahead(database: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log; the file remembers it.

    Of several processes that open a new file in one moment, one does it. SQLite refuses the others
    at once, where it would let them wait anywhere else: so they wait here.
    """
    end = time.monotonic() + BUSY_TIMEOUT
    while database.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _statements(script: str) -> Iterator[str]:
    # executescript() would commit the transaction that guards the making of the tables.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def pairs_with(first: object, values: Iterable[object]) -> Iterator[tuple[object, object]]:
    """Yield a row for each value, with the same first column before it."""
    for value in values:
        yield first, value


class SqlitePort:
    """The base of each port: the connection that all share, and statements that several need."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._file = connection
        self._db = connection.db
        self._door = connection.door

    def _value(self, query: str, *values: object) -> Any:
        """Return the first column of the first row; None where there is none."""
        row = self._db.execute(query, values).fetchone()
        return None if row is None else row[0]

    def _all(self, make: Callable[[dict[str, Any]], V], query: str, *values: object) -> list[V]:
        """Return a value for each of the rows that can be used."""
        return self._door.each(make, map(dict, self._db.execute(query, values)))

    def _change(self, query: str, *rows: Sequence[object]) -> None:
        """Make the change once for each row of values, all in one step."""
        with self._file.step():
            self._db.executemany(query, rows)

    def _insert(
        self, table: str, row: Mapping[str, Any], more: str = "", *, verb: str = "INSERT"
    ) -> int:
        """Insert a row, and return its number."""
        marks = ", ".join(f":{name}" for name in row)
        query = f"{verb} INTO {table} ({', '.join(row)}) VALUES ({marks}) {more}"
        return self._db.execute(query, storable(row)).lastrowid or 0

    def _update(self, table: str, changes: Mapping[str, Any], **key: object) -> int:
        """Set fields of the rows that have these values, and return how many they are."""
        values = storable(changes)
        assignments = ", ".join(f"{name} = :{name}" for name in changes)
        conditions = []
        for name, value in key.items():
            comparison = "IS" if value is None else "="
            conditions.append(f"{name} {comparison} :key_{name}")
            values[f"key_{name}"] = value
        query = f"UPDATE {table} SET {assignments} WHERE {' AND '.join(conditions)}"  # noqa: S608 - own names
        return self._db.execute(query, values).rowcount

    def _crawl_number(self, crawl: str) -> int:
        """Return the short name of a crawl; `NoCrawl` when it is not there."""
        number: int | None = self._value("SELECT number FROM crawls WHERE id = ?", crawl)
        if number is None:
            raise self._door.no_crawl(crawl)
        return number
