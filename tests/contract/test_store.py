"""What every store has to do; a new engine is one more parameter of the fixture `where`."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from scrapyd_dist.batches import (
    ATTEMPT_STEPS,
    STEPS,
    Attempt,
    AttemptState,
    BatchState,
    Crawl,
    CrawlState,
    Miss,
    Shard,
    ShardState,
    job_id,
)
from scrapyd_dist.errors import ConfigError, NothingMatched, StepRefused, StoreError
from scrapyd_dist.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CRAWL = Crawl(id="c", project="p", spider="s", created=1.5, options={"args": {"a": "ü"}}, pid=7)


@pytest.fixture(params=["sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of each engine."""
    return {"sqlite": f"sqlite://{tmp_path / 'folder' / 'store.db'}"}[request.param]


@pytest.fixture
def opened(where: str) -> Iterator[Callable[[], Store]]:
    """Opens the store, as often as wanted."""
    with contextlib.ExitStack() as stack:

        def open_one() -> Store:
            one = open_store(where)
            stack.callback(one.close)
            return one

        yield open_one


@pytest.fixture
def store(opened: Callable[[], Store]) -> Store:
    """A store with one crawl."""
    one = opened()
    one.add_crawl(CRAWL)
    return one


def seal(store: Store, size: int = 2, crawl: str = "c", **options: Any) -> int:
    values: dict[str, Any] = {"size": size, "fingerprints": (), "now": 10.0, "counts": {}, **options}
    return store.seal(crawl, {"A": "1"}, **values).number


def attempt(number: int = 1, batch: int = 1, node: str = "one") -> Attempt:
    url = f"http://{node}:6800"
    return Attempt(
        batch=batch, number=number, job=job_id("c", batch, number), node=node, url=url, sent_at=float(number)
    )


def accept(store: Store, batch: int = 1, number: int = 1, misses: tuple[Miss, ...] = ()) -> None:
    store.accept("c", batch, number, report={"items": 2}, part=f"{number}.jl", misses=misses, now=20.0)


def fail(store: Store, batch: int = 1, number: int = 1, most: int = 9) -> BatchState:
    return store.fail("c", batch, number, reason="broken", now=20.0, max_attempts=most)


# crawls, counts, shards


def test_a_crawl_comes_back_as_it_was(store: Store, opened: Callable[[], Store]) -> None:
    assert store.crawl("c") == opened().crawl("c") == CRAWL


def test_a_name_is_taken_once(store: Store) -> None:
    with pytest.raises(StoreError, match="there is a crawl c already"):
        store.add_crawl(replace(CRAWL, spider="other"))
    assert store.crawl("c").spider == "s"


def test_crawls_come_newest_first(store: Store) -> None:
    for name, created in (("old", 1.0), ("new", 3.0), ("newer", 3.0)):
        store.add_crawl(replace(CRAWL, id=name, created=created))
    assert [crawl.id for crawl in store.crawls()] == ["newer", "new", "c", "old"]


def test_fields_of_a_crawl_change_by_name(store: Store) -> None:
    changes: dict[str, Any] = {
        "state": CrawlState.STOPPED,
        "ended": 2.0,
        "exit_code": 3,
        "summary": {"items": 1},
        "pid": None,
    }
    store.update_crawl("c", **changes, message="half \ud83d of a pair")
    assert store.crawl("c") == replace(CRAWL, **changes, message="half ? of a pair")
    with pytest.raises(StoreError, match="no colour"):
        store.update_crawl("c", colour="red")


@pytest.mark.parametrize("ask", [lambda s: s.crawl("x"), lambda s: s.batch("c", 9), lambda s: s.payload("c", 9)])
def test_what_is_not_there_is_told(store: Store, ask: Callable[[Store], object]) -> None:
    with pytest.raises(NothingMatched):
        ask(store)


def test_counts_add_up_and_belong_to_one_crawl(store: Store) -> None:
    store.add_crawl(replace(CRAWL, id="d"))
    store.count("c", {"offsite": 2, "local": 0})
    store.count("c", {"offsite": 3})
    store.count("d", {"offsite": 1})
    seal(store, counts={"sealed": 2, "offsite": 1})
    assert store.counts("c") == {"offsite": 6, "sealed": 2}


def test_shards_are_kept_and_finished_by_number(store: Store) -> None:
    shards = [Shard(number=0, url="u", first_page=0, last_page=4), Shard(number=1, url="v"), Shard(number=2, url="w")]
    store.add_shards("c", shards)
    store.finish_shards("c", [0, 2])
    assert store.shards("c") == [
        replace(s, state=ShardState.OPEN if s.number == 1 else ShardState.FINISHED) for s in shards
    ]
    with pytest.raises(StoreError):
        store.add_shards("c", [Shard(number=3, url="x"), Shard(number=0, url="y")])
    assert len(store.shards("c")) == 3


# sealing


def test_a_sealed_batch_has_its_number_its_payload_and_its_fingerprints(
    store: Store, opened: Callable[[], Store]
) -> None:
    first = store.seal(
        "c", {"A": "ü", "B": "="}, size=3, fingerprints=[b"1", b"2", b"1"], now=10.0, counts={"sealed": 3}
    )
    second = store.seal("c", {"A": "2"}, size=1, fingerprints=[b"2", b"\0"], now=11.0, counts={})
    assert (first.number, first.size, first.state, first.attempts, first.sealed_at) == (
        1,
        3,
        BatchState.SEALED,
        0,
        10.0,
    )
    other = opened()
    assert other.batches("c") == [first, second]
    assert other.batch("c", 2) == second
    assert other.payload("c", 1) == {"A": "ü", "B": "="}
    assert sorted(other.fingerprints("c")) == [b"\0", b"1", b"2"]


def test_numbers_begin_at_one_in_each_crawl(store: Store) -> None:
    store.add_crawl(replace(CRAWL, id="d"))
    assert [seal(store), seal(store), seal(store, crawl="d"), seal(store)] == [1, 2, 1, 3]
    assert list(store.fingerprints("d")) == []


def test_a_crawl_that_is_not_there_has_no_batches(store: Store) -> None:
    with pytest.raises(StoreError):
        seal(store, crawl="nobody")


def test_a_seal_that_fails_leaves_nothing(store: Store) -> None:
    def prints() -> Iterator[bytes]:
        yield b"1"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        seal(store, fingerprints=prints(), counts={"sealed": 2})
    with pytest.raises((StoreError, OverflowError)):
        seal(store, fingerprints=[b"1"], counts={"sealed": 2, "offsite": 1 << 80})  # the last thing that is written
    assert (store.batches("c"), list(store.fingerprints("c")), store.counts("c")) == ([], [], {})
    assert seal(store) == 1


SEALER = """
import sys
from scrapyd_dist.store import open_store
store, who, count = open_store(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for n in range(count):
    batch = store.seal("c", {"WHO": who, "PAD": "x" * 20000}, size=50, now=1.0, counts={"sealed": 50},
                       fingerprints=[f"{who}.{n}.{k}".encode() for k in range(50)])
    print(batch.number, flush=True)
"""


def start_sealer(where: str, who: str, count: int) -> subprocess.Popen[str]:
    """A process that is ready to seal; it begins at the first line it is sent."""
    line = [sys.executable, "-c", SEALER, where, who, str(count)]
    sealer = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert sealer.stdout
    assert sealer.stdout.readline() == "ready\n"
    return sealer


def go(sealer: subprocess.Popen[str]) -> None:
    assert sealer.stdin
    sealer.stdin.write("go\n")
    sealer.stdin.flush()


def test_two_processes_that_seal_at_once_get_different_numbers(where: str, store: Store) -> None:
    sealers = [start_sealer(where, who, 150) for who in ("one", "two")]
    for sealer in sealers:
        go(sealer)
    answers = [sealer.communicate(timeout=60) for sealer in sealers]
    assert [errors for _, errors in answers] == ["", ""]
    numbers = [[int(line) for line in told.split()] for told, _ in answers]
    assert sorted(itertools.chain(*numbers)) == list(range(1, 301))
    for who, own in zip(("one", "two"), numbers, strict=True):
        assert own == sorted(own)
        assert own[-1] - own[0] > 149, "they did not seal at the same time"
        assert {store.payload("c", number)["WHO"] for number in own} == {who}
    assert store.counts("c") == {"sealed": 15_000}


def test_processes_that_open_a_new_store_at_once_all_can(where: str) -> None:
    script = "import sys; from scrapyd_dist.store import open_store; sys.stdin.read(); open_store(sys.argv[1]).crawls()"
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", script, where], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    errors = [opener.communicate("go", timeout=60)[1] for opener in openers]
    assert errors == [""] * 6


@pytest.mark.parametrize("kill_after", [1, 4, 9])
def test_a_process_that_is_killed_while_it_seals_leaves_whole_batches(
    where: str, store: Store, kill_after: int
) -> None:
    with start_sealer(where, "me", 10_000) as sealer:
        assert sealer.stdout
        go(sealer)
        told = [int(sealer.stdout.readline()) for _ in range(kill_after)]
        sealer.send_signal(signal.SIGKILL)
    batches = store.batches("c")
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
    assert len(batches) >= told[-1]
    by_batch = Counter(print_.rsplit(b".", 1)[0] for print_ in store.fingerprints("c"))
    assert by_batch == {f"me.{n}".encode(): 50 for n in range(len(batches))}
    assert all(store.payload("c", batch.number)["WHO"] == "me" for batch in batches)
    assert store.counts("c") == {"sealed": 50 * len(batches)}
    assert seal(store) == len(batches) + 1


def test_a_reader_is_not_held_up_by_a_writer_and_sees_whole_steps_only(
    store: Store, opened: Callable[[], Store]
) -> None:
    reader, stop, seen = opened(), Event(), []

    def read() -> None:
        while not stop.is_set():
            batches = reader.batches("c")
            seen.append(len(batches))
            assert all(reader.payload("c", batch.number) == {"A": "1"} for batch in batches[-3:])

    thread = Thread(target=read)
    thread.start()
    sealed = 0
    while len(set(seen)) < 5 and sealed < 5000 and thread.is_alive():
        sealed = seal(store, fingerprints=[str(sealed).encode()])
    stop.set()
    thread.join()
    assert seen == sorted(seen)
    assert len(set(seen)) >= 5  # it read between the writer's steps
    assert len(reader.batches("c")) == sealed


# the steps of a batch


def bring_to(store: Store, state: BatchState) -> int:
    """A new batch in this state; the number of its last attempt."""
    number = seal(store)
    if state is BatchState.SEALED:
        return 0
    store.open_attempt("c", attempt(1, number))
    if state is BatchState.RUNNING:
        store.running("c", number, 1)
    if state is BatchState.DONE:
        accept(store, number)
    if state in {BatchState.FAILED, BatchState.DEAD}:
        fail(store, number, most=1 if state is BatchState.DEAD else 2)
    return 1


#: what leads into a state
INTO: dict[BatchState, Callable[[Store, int], object]] = {
    BatchState.SEALED: lambda store, last: store.refused("c", 1, last, "no", 1.0),
    BatchState.SENT: lambda store, last: store.open_attempt("c", attempt(last + 1)),
    BatchState.RUNNING: lambda store, last: store.running("c", 1, last),
    BatchState.DONE: lambda store, last: accept(store, 1, last),
    BatchState.FAILED: lambda store, last: fail(store, 1, last),
}
#: allowed by the table, and done by no verb of the store: a person's requeue
NO_VERB = {
    (BatchState.DEAD, BatchState.SEALED),
    (BatchState.SEALED, BatchState.DEAD),
    (BatchState.FAILED, BatchState.DEAD),
}


@pytest.mark.parametrize("new", INTO)
@pytest.mark.parametrize("old", BatchState)
def test_every_step_of_the_table_can_be_made_and_no_other(store: Store, old: BatchState, new: BatchState) -> None:
    last = bring_to(store, old)
    before = (store.batch("c", 1), store.attempts("c"), store.misses("c"))
    assert before[0].state is old
    if new in STEPS[old] and (old, new) not in NO_VERB:
        INTO[new](store, last)
        assert store.batch("c", 1).state is new
        return
    with pytest.raises((StepRefused, NothingMatched)):
        INTO[new](store, last)
    assert (store.batch("c", 1), store.attempts("c"), store.misses("c")) == before


ATTEMPT_VERBS: dict[AttemptState, Callable[[Store], object]] = {
    AttemptState.SENDING: lambda store: store.open_attempt("c", attempt(1, node="two")),
    AttemptState.SENT: lambda store: store.sent("c", 1, 1),
    AttemptState.RUNNING: lambda store: store.running("c", 1, 1),
    AttemptState.ACCEPTED: accept,
    AttemptState.FAILED: fail,
    AttemptState.REFUSED: lambda store: store.refused("c", 1, 1, "no", 1.0),
}


@pytest.mark.parametrize("new", AttemptState)
@pytest.mark.parametrize("old", AttemptState)
def test_every_step_of_an_attempt_can_be_made_and_no_other(store: Store, old: AttemptState, new: AttemptState) -> None:
    seal(store)
    store.open_attempt("c", attempt())
    if old is not AttemptState.SENDING:
        ATTEMPT_VERBS[old](store)
    before = (store.batch("c", 1), store.attempts("c"))
    assert before[1][0].state is old
    if new in ATTEMPT_STEPS[old]:
        ATTEMPT_VERBS[new](store)
        assert store.attempts("c")[0].state is new
        return
    with pytest.raises(StepRefused):
        ATTEMPT_VERBS[new](store)
    assert (store.batch("c", 1), store.attempts("c")) == before


@pytest.mark.parametrize("verb", [accept, fail, lambda s: s.sent("c", 1, 1), lambda s: s.running("c", 1, 1)])
def test_an_attempt_that_was_never_opened_moves_nothing(store: Store, verb: Callable[[Store], object]) -> None:
    seal(store)
    store.open_attempt("c", replace(attempt(2), number=2))
    with pytest.raises(NothingMatched):
        verb(store)
    assert store.batch("c", 1).state is BatchState.SENT


def test_one_attempt_is_accepted_and_no_other_ever(store: Store) -> None:
    seal(store)
    store.open_attempt("c", attempt(1))
    fail(store)
    store.open_attempt("c", attempt(2))
    with pytest.raises(StepRefused):
        accept(store, number=1)  # the one that was given up
    accept(store, number=2, misses=(Miss(url="u", kind="gone", reason="HTTP 404", batch=1),))
    for number in (1, 2):
        with pytest.raises(StepRefused):
            accept(store, number=number, misses=(Miss(url="v", kind="gone", reason="", batch=1),))
    first, second = store.attempts("c")
    assert (first.state, second.state, second.part, second.report) == (
        AttemptState.FAILED, AttemptState.ACCEPTED, "2.jl", {"items": 2},
    )  # fmt: skip
    assert store.attempts("c", {AttemptState.ACCEPTED}) == [second]
    assert [miss.url for miss in store.misses("c")] == ["u"]


def test_a_refused_post_counts_as_no_attempt_and_its_number_is_used_again(store: Store) -> None:
    seal(store)
    store.open_attempt("c", attempt(1, node="one"))
    store.refused("c", 1, 1, "connection refused", 5.0)
    batch = store.batch("c", 1)
    assert (batch.state, batch.attempts, batch.reason) == (BatchState.SEALED, 0, "connection refused")
    store.open_attempt("c", attempt(1, node="two"))
    assert store.batch("c", 1).attempts == 1
    (again,) = store.attempts("c")
    assert (again.node, again.url, again.state, again.reason, again.ended_at, again.job) == (
        "two", "http://two:6800", AttemptState.SENDING, "", None, "c.b1.a1",
    )  # fmt: skip


def test_a_refused_second_attempt_keeps_the_first(store: Store) -> None:
    seal(store)
    store.open_attempt("c", attempt(1))
    fail(store)
    store.open_attempt("c", attempt(2))
    store.refused("c", 1, 2, "no", 5.0)
    assert store.batch("c", 1).attempts == 1
    assert [a.state for a in store.attempts("c")] == [AttemptState.FAILED, AttemptState.REFUSED]


def test_a_batch_is_dead_after_its_last_attempt(store: Store) -> None:
    seal(store)
    answers = []
    for number in (1, 2, 3):
        store.open_attempt("c", attempt(number))
        answers.append(fail(store, number=number, most=3))
    assert answers == [BatchState.FAILED, BatchState.FAILED, BatchState.DEAD]
    assert (store.batch("c", 1).state, store.batch("c", 1).reason) == (BatchState.DEAD, "broken")
    assert store.batches("c", {BatchState.DEAD, BatchState.SEALED}) == [store.batch("c", 1)]
    assert store.batches("c", {BatchState.DONE}) == []


def test_misses_keep_their_order_and_any_text(store: Store) -> None:
    misses = [Miss(url=f"http://web/{n}", kind="failed", reason="ü\0'\";--", batch=n) for n in (3, 1, 2)]
    store.add_misses("c", misses)
    store.add_misses("c", [Miss(url="x", kind="index", reason="half \udcff of a pair")])
    assert store.misses("c") == [*misses, Miss(url="x", kind="index", reason="half ? of a pair")]


# the file


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


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"newer scrapyd-dist \(schema 99"):
        open_store(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (99,)


@pytest.mark.parametrize(
    "content", [b"items,of,a\nspreadsheet\n" * 100, b"x" * 10, b"SQLite format 3\0" + b"\1" * 5000]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "items.csv"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"items\.csv"):
        open_store(path)
    assert path.read_bytes() == content


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(tmp_path)


def test_a_place_below_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(tmp_path / "file" / "store.db")


def test_an_address_that_nobody_knows_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match="redis://") as caught:
        open_store("redis://:secret@host/0")
    assert "secret" not in str(caught.value)


def test_what_is_kept_is_json(store: Store, where: str) -> None:
    seal(store)
    with contextlib.closing(sqlite3.connect(where.removeprefix("sqlite://"))) as database:
        assert json.loads(database.execute("SELECT settings FROM payloads").fetchone()[0]) == {"A": "1"}
        assert json.loads(database.execute("SELECT options FROM crawls").fetchone()[0]) == {"args": {"a": "ü"}}
