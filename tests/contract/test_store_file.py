"""The SQLite file: who may read it, what it is taken for, how an old one becomes a new one."""

import contextlib
import os
import sqlite3
import stat
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from rig.oldstores import KEY_OF_OLD, STORES, check_old, check_workers_taken_over
from rig.stores import CRAWL, LESSEE, accept, add, lease_next, seal

from scrapyd_dist.batches import BatchState, CrawlState
from scrapyd_dist.errors import ConfigError, ForeignRow, NoPlaceForStore, StoreError
from scrapyd_dist.store import open_store, sqlite_file


def run(path: Path, *statements: str) -> list[tuple[int]]:
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


def test_a_file_of_an_older_schema_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript((STORES / "sqlite-schema-6.sql").read_text("utf-8"))
    with contextlib.closing(open_store(path, key=KEY_OF_OLD)) as store:
        check_old(store)
        check_workers_taken_over(store)


def test_a_store_that_a_newer_version_took_over_is_refused_and_left_alone_also_where_it_is_open(tmp_path: Path) -> None:
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
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
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
    with pytest.raises(NoPlaceForStore, match=r"cannot be opened: it is a folder\. Name another file") as caught:
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
def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path, statements: tuple[str, ...]) -> None:
    path = tmp_path / "shop.db"
    run(path, *statements)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="database of another program") as caught:
        open_store(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["shop.db"]


#: batches 1 to 8 of a crawl of the first version, each of as many requests as its number
STATES = ["sent", "sealed", "running", "done", "failed", "dead", "split", "sealed"]


def version_1(path: Path) -> None:
    """A file as the first version left it in the middle of a crawl: batches in every state."""
    script = (files("scrapyd_dist.store") / "schema" / "1.sql").read_text("utf-8")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(f"PRAGMA journal_mode = WAL; {script} PRAGMA user_version = 1;")
        crawl = (
            "INSERT INTO crawls (id, project, spider, state, created, options) VALUES (?, 'p', 's', 'working', ?, ?)"
        )
        database.executemany(crawl, [("c", 1.5, '{"args": {"a": "\\u00fc"}}'), ("d", 1.5, "{}")])
        batch = "INSERT INTO batches (crawl, number, size, state, attempts, sealed_at) VALUES (?, ?, ?, ?, ?, 10)"
        rows = [("c", number, number, state, number == 1) for number, state in enumerate(STATES, 1)]
        database.executemany(batch, [*rows, ("d", 5, 2, "dead", 0)])
        payloads = [(crawl, number) for crawl, number, *_ in rows] + [("d", 5)]
        database.executemany('INSERT INTO payloads VALUES (?, ?, \'{"A": "1"}\')', payloads)
        database.execute(
            "INSERT INTO attempts (crawl, batch, number, job, node, url, state, sent_at)"
            " VALUES ('c', 1, 1, 'c.b1.a1', 'one', 'http://one:6800', 'sent', 1)"
        )
        database.executemany("INSERT INTO fingerprints VALUES (?, ?)", [("c", b"\1"), ("c", b"\2"), ("d", b"\1")])
        database.execute("INSERT INTO misses VALUES ('c', 0, 'u', 'index', 'HTTP 500')")
        database.execute("INSERT INTO counts VALUES ('c', 'sealed', 2)")
        database.commit()


def test_a_store_of_the_first_version_is_brought_to_this_one_with_all_it_has(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    version_1(path)
    with contextlib.closing(open_store(path)) as store:
        old = replace(CRAWL, state=CrawlState.WORKING, pid=None)
        assert store.crawls() == [replace(old, id="d", options={}), old]
        assert sorted(store.fingerprints("c")) == [b"\1", b"\2"]
        assert list(store.fingerprints("d")) == [b"\1"]
        assert store.payload("c", 1) == {"A": "1"}
        assert store.counts("c") == {"sealed": 2}
        assert [miss.kind for miss in store.misses("c")] == ["index"]
        (slot,) = store.backlog("c").slots
        assert (slot.slot, slot.batches) == ("", Counter(STATES))
        assert slot.requests == {"sent": 1, "sealed": 10, "running": 3, "done": 4, "failed": 5, "dead": 6, "split": 7}
        accept(store)
        assert seal(store, fingerprints=[b"\2", b"\3"]) == 9
        assert sorted(store.fingerprints("c")) == [b"\1", b"\2", b"\3"]
        leased = lease_next(store, "c", LESSEE, seconds=9.0, limit=9)
        assert [one.batch.number for one in leased] == [2, 5, 8, 9]
        store.drop_batch("d", 5, forget=True)
        assert store.backlog("d").slots == []
        assert (add(store), seal(store, crawl="d")) == (10, 6)
        store.add_crawl(replace(CRAWL, id="new", created=9.0))
        assert [crawl.id for crawl in store.crawls()] == ["new", "d", "c"]
    with contextlib.closing(open_store(path)) as again:
        assert again.batch("c", 1).state is BatchState.DONE


def test_a_migration_that_fails_leaves_the_old_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    version_1(path)
    run(path, "CREATE TABLE samples (name TEXT)")  # in the way of a later statement of the script
    with pytest.raises(StoreError, match="samples already exists"):
        open_store(path)
    assert run(path, "PRAGMA user_version") == [(1,)]
    assert run(path, "SELECT count(*) FROM fingerprints") == [(3,)]
    assert run(path, "SELECT 1 FROM sqlite_master WHERE name = 'nodes'") == []


def test_a_forgotten_crawl_gives_its_room_back(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with contextlib.closing(open_store(path)) as store:
        store.add_crawl(CRAWL)
        for number in range(60):
            seal(store, fingerprints=[os.urandom(20) for _ in range(500)], counts={"sealed": number})
    full = path.stat().st_size
    with contextlib.closing(open_store(path)) as store:
        store.forget("c")
    assert path.stat().st_size < full / 4


def test_a_store_opens_while_another_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
