"""Troubles of a store that pass are waited for; one that has lost a crawl says so."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import redis
from rig.nodemodel import model
from rig.redis import RedisServer
from rig.scheduling import run, sending, until
from rig.stores import redis_server  # noqa: F401 - a fixture

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import StoreAway, StoreEmptied
from scrapyd_dist.store import open_store
from scrapyd_dist.store.outages import passes
from scrapyd_dist.store.worker_thread import StoreThread

CRAWL = Crawl(id="c", project="p", spider="s", created=1.0)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.ReadOnlyError("You can't write against a read only replica."),
        redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        redis.exceptions.ResponseError(
            "MISCONF Errors writing to the AOF file: No space left on device"
        ),
        redis.exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
        sqlite3.OperationalError("database or disk is full"),
        sqlite3.OperationalError("disk I/O error"),
    ],
)
def test_what_passes_is_known_by_name_or_word(error: Exception) -> None:
    assert passes(error)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.ResponseError(
            "WRONGTYPE Operation against a key holding the wrong kind of value"
        ),
        redis.exceptions.ResponseError("BUSYKEY Target key name already exists."),
        sqlite3.DatabaseError("file is not a database"),
        sqlite3.OperationalError("no such table: crawls"),
    ],
)
def test_all_else_is_no_matter_of_time(error: Exception) -> None:
    assert not passes(error)


def test_a_server_that_cannot_keep_anything_is_waited_for(redis_server: RedisServer) -> None:  # noqa: F811 - as above
    address = f"{redis_server.url}?prefix=outage:"
    with (
        closing(redis.Redis.from_url(redis_server.url)) as admin,
        closing(open_store(address)) as store,
    ):
        admin.config_set("maxmemory", 1)
        later = threading.Timer(0.5, admin.config_set, ("maxmemory", 0))
        later.start()
        try:
            store.add_crawl(CRAWL)
        finally:
            later.join()
            admin.config_set("maxmemory", 0)
        assert store.crawl("c").id == "c"


def test_a_full_disk_is_waited_for_where_a_thread_has_patience() -> None:
    tries = list[int]()

    def verb() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise StoreAway("the store x failed: database or disk is full.")
        return "kept"

    class Store:
        def close(self) -> None:
            pass

    async def asked(patience: float) -> str:
        thread = StoreThread(Store(), patience=patience)  # type: ignore[arg-type]  # it is only closed
        try:
            return await thread(verb)
        finally:
            thread.close()

    with pytest.raises(StoreAway):
        run(asked(0.0))
    assert run(asked(10.0)) == "kept"


async def test_a_store_that_was_emptied_stops_the_crawl_in_words_and_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sending(tmp_path, model("one", quick=False)) as b:
        await b.seal()
        await until(lambda: len(b.posts()) == 1, "it is posted")
        b.store.forget("c")
        await b.scheduler.ended()
        assert isinstance(b.state.status.fault, StoreEmptied)
        assert b.state.stopped.startswith("The store has lost this crawl with all that was in it")
        assert b.scheduler.stop_code == 1
        assert "Traceback" not in caplog.text
