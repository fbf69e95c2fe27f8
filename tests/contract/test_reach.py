"""How a worker gets at the store: the right one or none, and why; and what it is told of it."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from rig.nodes import free_port
from rig.redis import PASSWORD
from scrapyd_dist.middlewares import assignment
from scrapyd_dist.middlewares.assignment import Assignment
from scrapyd_dist.middlewares.store_access import OutOfReach, reach

from scrapyd_dist.batches import home_of
from scrapyd_dist.nodes import Node
from scrapyd_dist.store import Store
from scrapyd_dist.store.address import VARIABLE
from scrapyd_dist.store.reach import how_to_reach, ways_to
from scrapyd_dist.store.sqlite import sqlite_engine

HERE, THERE = Node.parse("127.0.0.1"), Node.parse("192.0.2.7", name="far")
KEY = Fernet.generate_key()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(assignment, "egg_key", lambda: KEY)


def reached(told: Mapping[str, Any], *, crawl: str = "c", created: float = 1.5) -> str:
    with closing(reach(Assignment(**told, crawl=crawl, home=home_of(crawl, created)))) as store:
        spider: str = store.crawl(crawl).spider
        return spider


def why_not(told: Mapping[str, str], *, crawl: str = "c", created: float = 1.5) -> str:
    with pytest.raises(OutOfReach) as caught:
        reached(told, crawl=crawl, created=created)
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


class TestWorker:
    def test_opens_what_it_was_told(self, where: str, store: Store) -> None:
        way = how_to_reach(where, HERE, KEY)
        assert way.reason == ""
        assert PASSWORD not in str(way.job_settings)
        assert reached(way.job_settings) == "s"

    def test_its_nodes_environment_comes_first(
        self, where: str, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(VARIABLE, where)
        assert reached({}) == "s"
        assert reached({"store": "/no/such/file"}) == "s"

    def test_another_crawl_of_that_name_is_another_store(self, where: str, store: Store) -> None:
        told = how_to_reach(where, HERE, KEY).job_settings
        assert "its crawl c is another one" in why_not(told, created=2.5)
        assert "it has no crawl other" in why_not(told, crawl="other")

    def test_makes_no_file(self, tmp_path: Path) -> None:
        assert "there is no file" in why_not({"store": str(tmp_path / "none.db")})
        assert "no absolute path" in why_not({"store": "store.db"})
        assert list(tmp_path.iterdir()) == []

    def test_leaves_a_foreign_file_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "notes.txt"
        file.write_text("x" * 5000)
        assert "not a store of scrapyd-dist" in why_not({"store": str(file)})
        assert file.read_text() == "x" * 5000

    def test_says_what_it_was_not_told(self) -> None:
        assert f"{VARIABLE} is not set" in why_not({})

    def test_a_server_that_is_not_there(self) -> None:
        assert "failed" in why_not({"store": f"redis://127.0.0.1:{free_port()}/0"})

    @pytest.mark.parametrize(
        ("key", "words"),
        [(None, "carries no key"), (Fernet.generate_key(), "another key")],
        ids=["none", "another"],
    )
    def test_a_sealed_address_needs_the_key(
        self, key: bytes | None, words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = how_to_reach("redis://:hush@127.0.0.1/0", HERE, KEY).job_settings
        monkeypatch.setattr(assignment, "egg_key", lambda: key)
        assert words in why_not(told)


class TestSender:
    def test_a_file_is_for_this_machine(self, tmp_path: Path) -> None:
        where = str(tmp_path / "store.db")
        assert how_to_reach(where, HERE, None).job_settings == {"store": where}
        assert how_to_reach(where, Node.parse("localhost:6801"), None).job_settings == {
            "store": where
        }
        far = how_to_reach(where, THERE, KEY)
        assert far.job_settings == {}
        assert "far is another one" in far.reason

    def test_not_on_a_file_system_whose_locks_nobody_knows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_engine, "kind_on", lambda _: "fuse.bindfs")
        assert "fuse.bindfs" in how_to_reach(str(tmp_path / "store.db"), HERE, None).reason

    @pytest.mark.parametrize(
        "where",
        ["redis://127.0.0.1/0", "redis://localhost:7/0", "unix:///s?db=0", "redis://[::1]/0"],
    )
    def test_a_server_of_this_machine_is_for_this_machine(self, where: str) -> None:
        assert how_to_reach(where, HERE, None).job_settings == {"store": where}
        assert "on this machine only" in how_to_reach(where, THERE, None).reason

    def test_a_server_elsewhere_is_for_all(self) -> None:
        where = "redis://redis.example:6379/0?prefix=shop:"
        assert how_to_reach(where, THERE, None).job_settings == {"store": where}

    @pytest.mark.parametrize(
        "where",
        [
            "redis://:hush@redis.example/0",
            "rediss://redis.example/0?ssl_password=hush",
            "redis://me:hush@redis.example",
        ],
    )
    def test_a_secret_travels_only_sealed(self, where: str) -> None:
        way = how_to_reach(where, THERE, KEY)
        assert way.job_settings.keys() == {"store_sealed"}
        assert Fernet(KEY).decrypt(way.job_settings["store_sealed"]).decode() == where
        bare = how_to_reach(where, THERE, None)
        assert bare.job_settings == {}
        assert "has no key" in bare.reason
        assert "hush" not in bare.reason

    def test_each_node_is_looked_for_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []

        def here(host: str) -> bool:
            asked.append(host)
            return True

        monkeypatch.setattr(sqlite_engine, "is_here", here)
        ways = ways_to(str(tmp_path / "store.db"), None)
        assert ways(HERE) is ways(HERE)
        ways(THERE)
        assert asked == ["127.0.0.1", "192.0.2.7"]
