"""The SQLite file: who may read it, what it is taken for, how it is brought to the next schema."""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from rig.stores import CRAWL, seal

from scrapyd_dist.errors import ConfigError, ForeignRow, NoPlaceForStore, StoreError
from scrapyd_dist.store import open_store
from scrapyd_dist.store.sqlite import sqlite_file


def run(path: Path, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements on the file as another program does; the rows that the last one gives."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        return [database.execute(statement).fetchall() for statement in statements][-1]


def test_it_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store.db"
    old = os.umask(0)
    try:
        store = open_store(path)
        store.add_crawl(CRAWL)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(old)
    store.close()
    assert "store.db-wal" in modes
    assert set(modes.values()) == {0o600}


def test_a_store_that_a_newer_version_took_over_is_refused_and_left_alone_also_where_it_is_open(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    with contextlib.closing(open_store(path)) as older:
        older.add_crawl(CRAWL)
        run(path, "PRAGMA user_version = 99")
        with pytest.raises(StoreError, match=r"newer scrapyd-dist \(schema 99"):
            older.update_crawl(CRAWL.id, message="written as it is not read any more")
        assert older.crawl(CRAWL.id).message == CRAWL.message
        with pytest.raises(StoreError, match=r"newer scrapyd-dist \(schema 99"):
            open_store(path)
        assert run(path, "PRAGMA user_version") == [(99,)]


@pytest.mark.parametrize(
    "content", [b"items,of,a\nspreadsheet\n" * 100, b"x" * 10, b"SQLite format 3\0" + b"\1" * 5000]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "items.csv"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"items\.csv"):
        open_store(path)
    assert path.read_bytes() == content


def test_a_read_that_fails_for_now_is_told_apart_from_foreign_data(tmp_path: Path) -> None:
    store: Any = open_store(tmp_path / "store.db")
    with contextlib.closing(store):
        store.add_crawl(CRAWL)
        seal(store)
        run(tmp_path / "store.db", "UPDATE batches SET reason = cast(x'1b5b33316dff' AS TEXT)")
        with pytest.raises(ForeignRow, match="Could not decode"):
            store.batches(CRAWL.id)
        store.connection.db.set_progress_handler(lambda: 1, 1)
        with pytest.raises(StoreError, match="the store failed: interrupted") as caught:
            store.batches(CRAWL.id)
    assert type(caught.value) is StoreError


def test_a_folder_is_no_store_and_that_is_said_as_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(
        NoPlaceForStore, match=r"cannot be opened: it is a folder\. Name another file"
    ) as caught:
        open_store(tmp_path)
    assert caught.value.exit_code == ConfigError.exit_code


def test_a_place_below_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NoPlaceForStore, match=r"cannot be opened: .*SDIST_STORE"):
        open_store(tmp_path / "file" / "store.db")


def test_an_address_that_nobody_knows_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match="postgres://") as caught:
        open_store("postgres://:secret@host/0")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE orders (id INTEGER)", "PRAGMA user_version = 1"),
        ("PRAGMA application_id = 7", "CREATE TABLE crawls (id INTEGER)"),
    ],
    ids=["unmarked", "marked"],
)
def test_a_database_of_another_program_is_refused_and_left_alone(
    tmp_path: Path, statements: tuple[str, ...]
) -> None:
    path = tmp_path / "shop.db"
    run(path, *statements)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="database of another program") as caught:
        open_store(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["shop.db"]


#: leads from schema 1 to an invented schema 2
NEXT_SCHEMA = """
-- An invented schema.
ALTER TABLE crawls ADD COLUMN motto TEXT NOT NULL DEFAULT 'none';
CREATE TABLE mottos (crawl TEXT PRIMARY KEY, motto TEXT NOT NULL);

CREATE TRIGGER motto_goes AFTER DELETE ON crawls BEGIN
    DELETE FROM mottos WHERE crawl = old.id;
END;

INSERT INTO mottos SELECT id, spider || '!' FROM crawls;
"""


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the program be a version later, whose schema 2 this script leads to."""

    def begin(script: str) -> None:
        first = sqlite_file.schema_script(1)
        monkeypatch.setattr(sqlite_file, "SCHEMA_VERSION", 2)
        monkeypatch.setattr(sqlite_file, "schema_script", {1: first, 2: script}.__getitem__)

    return begin


def filled(path: Path) -> None:
    with contextlib.closing(open_store(path)) as store:
        store.add_crawl(CRAWL)
        seal(store, fingerprints=[b"1", b"2"])


def test_a_new_file_has_the_first_schema(tmp_path: Path) -> None:
    open_store(tmp_path / "store.db").close()
    assert run(tmp_path / "store.db", "PRAGMA user_version") == [(1,)]
    assert run(tmp_path / "store.db", "PRAGMA application_id") == [(sqlite_file.APPLICATION_ID,)]


def test_a_store_is_brought_to_the_next_schema_with_all_it_has(
    tmp_path: Path, next_version: Callable[[str], None]
) -> None:
    path = tmp_path / "store.db"
    filled(path)
    with contextlib.closing(open_store(path)) as open_before:
        next_version(NEXT_SCHEMA)
        with contextlib.closing(open_store(path)) as store:
            assert store.crawls() == [CRAWL]
            assert sorted(store.fingerprints("c")) == [b"1", b"2"]
            assert seal(store, fingerprints=[b"3"]) == 2
        assert run(path, "SELECT motto FROM crawls") == [("none",)]
        assert run(path, "SELECT * FROM mottos") == [("c", "s!")]
        assert run(path, "PRAGMA user_version") == [(2,)]
        # Read once more, nothing is done twice; and one that is open from before goes on, if it knows the schema.
        open_store(path).close()
        assert run(path, "SELECT count(*) FROM mottos") == [(1,)]
        open_before.forget("c")
    assert run(path, "SELECT * FROM mottos") == []


def test_a_new_file_of_a_later_version_has_both_schemas(
    tmp_path: Path, next_version: Callable[[str], None]
) -> None:
    next_version(NEXT_SCHEMA)
    filled(tmp_path / "store.db")
    assert run(tmp_path / "store.db", "SELECT motto FROM crawls") == [("none",)]


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, next_version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    filled(path)
    tables = run(path, "SELECT sql FROM sqlite_master ORDER BY name")
    next_version(f"{NEXT_SCHEMA} CREATE TABLE samples (name TEXT);")  # which is there already
    with pytest.raises(StoreError, match="samples already exists"):
        open_store(path)
    assert run(path, "PRAGMA user_version") == [(1,)]
    assert run(path, "SELECT sql FROM sqlite_master ORDER BY name") == tables
    monkeypatch.undo()
    with contextlib.closing(open_store(path)) as store:
        assert store.crawls() == [CRAWL]


def test_of_several_that_open_a_store_of_an_earlier_schema_one_migrates_it(
    tmp_path: Path, next_version: Callable[[str], None]
) -> None:
    path = tmp_path / "store.db"
    filled(path)
    next_version(NEXT_SCHEMA)
    together = Barrier(8, timeout=60)

    def open_it(_: int) -> None:
        together.wait()
        open_store(path).close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(open_it, range(8)))
    assert run(path, "SELECT * FROM mottos") == [("c", "s!")]


def test_a_migration_does_not_begin_while_another_process_writes(
    tmp_path: Path, next_version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    filled(path)
    next_version(NEXT_SCHEMA)
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT", 0.0)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            open_store(path)
    open_store(path).close()
    assert run(path, "PRAGMA user_version") == [(2,)]


def test_a_forgotten_crawl_gives_its_room_back(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with contextlib.closing(open_store(path)) as store:
        store.add_crawl(CRAWL)
        for number in range(60):
            seal(
                store, fingerprints=[os.urandom(20) for _ in range(500)], counts={"sealed": number}
            )
    full = path.stat().st_size
    with contextlib.closing(open_store(path)) as store:
        store.forget("c")
    assert path.stat().st_size < full / 3


def test_a_store_opens_while_another_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    with contextlib.closing(open_store(path)) as store:
        store.add_crawl(CRAWL)
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT", 0.0)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with contextlib.closing(open_store(path)) as store:
            assert store.crawl(CRAWL.id).id == CRAWL.id


def test_processes_that_open_a_new_file_in_one_moment_wait_for_one_another(tmp_path: Path) -> None:
    count = 8
    together = Barrier(count, timeout=60)

    def open_it(path: Path) -> None:
        together.wait()
        open_store(path).close()

    with ThreadPoolExecutor(count) as pool:
        for number in range(20):  # SQLite refused one of them about once in forty such rounds
            list(pool.map(open_it, [tmp_path / f"{number}.db"] * count))
