"""What tests of the stores share: an empty store of each engine, and short words for its verbs."""

import contextlib
import itertools
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from scrapyd_dist.batches import Attempt, BatchState, Crawl, Miss, job_id
from scrapyd_dist.frontier.backlog import Leased, LeaseRequest, Lessee, NewBatch
from scrapyd_dist.store import Store, open_store

from .redis import RedisServer

CRAWL = Crawl(id="c", project="p", spider="s", created=1.5, options={"args": {"a": "ü"}}, pid=7)
LESSEE = Lessee(job="c.w1.a1", node="one", url="http://one:6800")
YOU = Lessee(job="c.w2.a1", node="two", url="http://two:6800")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis server with a password, for all tests that do not hurt it."""
    with contextlib.closing(RedisServer(tmp_path_factory.mktemp("redis"))) as server:
        yield server


def copy_store(source: Path, target: Path) -> None:
    """Copy the file of a store that is in use, or put it back into one that is."""
    with (
        contextlib.closing(sqlite3.connect(source)) as one,
        contextlib.closing(sqlite3.connect(target, timeout=10)) as other,
    ):
        one.backup(other)


@contextlib.contextmanager
def lose_steps(file: Path) -> Iterator[None]:
    """At the end, let a store lose all steps made meanwhile, as after a failover."""
    before = file.with_name("before.db")
    copy_store(file, before)
    yield
    copy_store(before, file)


@pytest.fixture(params=["sqlite", "redis"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of each engine."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path / 'folder' / 'store.db'}"
    server: RedisServer = request.getfixturevalue("redis_server")
    return f"{server.url}?prefix=test{next(_numbers)}:"


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


def at_once(opened: Callable[[], Store], work: Sequence[Callable[[Store], None]]) -> None:
    """Do all of it at the same time, each in a thread and with a connection of its own."""
    start, errors = Barrier(len(work), timeout=60), []

    def run(store: Store, some: Callable[[Store], None]) -> None:
        try:
            start.wait()
            some(store)
        except Exception as error:  # noqa: BLE001 - raised again below, in the test's own thread
            errors.append(error)

    threads = [Thread(target=run, args=(opened(), some), daemon=True) for some in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def ready(script: str, *words: str) -> "subprocess.Popen[str]":
    """A process of this script that has said `ready`; it goes on at the first line that it is sent."""
    pipe = subprocess.PIPE
    line = [sys.executable, "-c", script, *words]
    process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def answers_of(processes: "Sequence[subprocess.Popen[str]]") -> list[str]:
    """Let them go on together; what each of them says then, and none of them an error."""
    for process in processes:
        go(process)
    answers = [process.communicate(timeout=120) for process in processes]
    assert [errors for _, errors in answers] == [""] * len(processes)
    return [told for told, _ in answers]


def seal(store: Store, size: int = 2, crawl: str = "c", **options: Any) -> int:
    values: dict[str, Any] = {"fingerprints": (), "counts": {}, **options}
    return store.seal(
        crawl, NewBatch(payload={"A": "1"}, size=size, sealed_at=10.0), **values
    ).number


def halves(*sizes: int) -> list[NewBatch]:
    """What a batch is split into."""
    return [NewBatch(payload={"A": str(at)}, size=size) for at, size in enumerate(sizes, 1)]


def new_batch(*prints: str, size: int = 0, slot: str = "", priority: int = 0) -> NewBatch:
    """A batch that is about to be added, with a request for each fingerprint."""
    return NewBatch(
        payload={"A": ",".join(prints)}, size=size or len(prints) or 1, slot=slot, priority=priority, sealed_at=10.0,
        fingerprints=tuple(one.encode() for one in prints),
    )  # fmt: skip


def add(store: Store, *prints: str, slot: str = "", priority: int = 0) -> int:
    """The number of one batch that was added to the frontier."""
    return store.add_batches("c", [new_batch(*prints, slot=slot, priority=priority)])[0].number


def lease_next(store: Store, crawl: str, lessee: Lessee, **more: Any) -> list[Leased]:
    values: dict[str, Any] = {"seconds": 60.0, "now": 1.0, **more}
    return store.lease_next(LeaseRequest(crawl=crawl, lessee=lessee, **values))


def lease(
    store: Store, lessee: Lessee = LESSEE, *, slots: Collection[str] = (), seconds: float = 60.0
) -> Leased:
    """The next batch that waits."""
    (leased,) = lease_next(store, "c", lessee, slots=slots, seconds=seconds, now=5.0)
    return leased


def attempt(number: int = 1, batch: int = 1, node: str = "one") -> Attempt:
    url = f"http://{node}:6800"
    return Attempt(
        batch=batch,
        number=number,
        job=job_id("c", batch, number),
        node=node,
        url=url,
        sent_at=float(number),
    )


def accept(store: Store, batch: int = 1, number: int = 1, misses: tuple[Miss, ...] = ()) -> None:
    store.accept(
        "c", batch, number, report={"items": 2}, part=f"{number}.jl", misses=misses, now=20.0
    )


def fail(store: Store, batch: int = 1, number: int = 1, most: int = 9, **given: bool) -> BatchState:
    return store.fail("c", batch, number, reason="broken", now=20.0, max_attempts=most, **given)


def bring_to(store: Store, state: BatchState) -> int:
    """A new batch in this state; the number of its last attempt."""
    number = seal(store)
    if state is BatchState.SPLIT:
        store.split("c", number, halves(1, 1))
    if state in {BatchState.SEALED, BatchState.SPLIT}:
        return 0
    store.open_attempt("c", attempt(1, number))
    if state is BatchState.RUNNING:
        store.running("c", number, 1)
    if state is BatchState.DONE:
        accept(store, number)
    if state in {BatchState.FAILED, BatchState.DEAD}:
        fail(store, number, most=1 if state is BatchState.DEAD else 2)
    return 1
