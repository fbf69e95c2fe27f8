"""An engine is a row of one table: by that its addresses are known, and its client travels."""

from collections import Counter

import pytest
from rig.memory_engine import MEMORY_ENGINE
from scrapyd_dist.deploy.requirements import store_client

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.nodes import Node
from scrapyd_dist.store import engines, open_store
from scrapyd_dist.store.engines import (
    ENGINES,
    FIRST_CLIENT,
    client_folders,
    find_engine,
    find_engine_by_client,
)
from scrapyd_dist.store.reach import how_to_reach

HERE = Node.parse("127.0.0.1")


@pytest.mark.parametrize(
    ("where", "title"),
    [
        ("store.db", "an SQLite file"),
        ("sqlite:///data/store.db", "an SQLite file"),
        ("redis://host/0", "a Redis server"),
        ("rediss://host/0", "a Redis server"),
        ("unix:///run/redis.sock", "a Redis server"),
    ],
)
def test_an_address_names_its_engine(where: str, title: str) -> None:
    engine = find_engine(where)
    assert engine is not None
    assert engine.title == title


def test_no_scheme_belongs_to_two_engines() -> None:
    schemes = Counter(scheme for engine in ENGINES for scheme in engine.schemes)
    assert set(schemes.values()) == {1}


def test_an_address_that_no_engine_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="kind postgres:// is not known; give the path of an SQL"):
        open_store("u:geheim@postgres://host")
    assert find_engine("postgres://host") is None
    assert store_client("postgres://host") == {}


def test_the_clients_that_travel_are_those_of_the_table() -> None:
    assert client_folders() == ["redis", "async_timeout"]
    engine = find_engine_by_client(FIRST_CLIENT)
    assert engine is not None
    assert engine.title == "a Redis server"
    assert find_engine_by_client("no_such_client") is None


def test_what_a_worker_needs_is_found_with_its_way_to_the_store() -> None:
    assert how_to_reach("/data/store.db", HERE, None).client == ""
    assert how_to_reach("redis://127.0.0.1/0", HERE, None).client == "redis"
    assert how_to_reach("redis://:hush@127.0.0.1/0", HERE, None).client == ""


def test_a_third_engine_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "ENGINES", (*ENGINES, MEMORY_ENGINE))
    assert open_store("memory://third").warnings() == ["the store is in memory"]
    assert "memory of one process" in how_to_reach("memory://third", HERE, None).reason
    assert store_client("memory://third") == {}
    with pytest.raises(ConfigError, match="redis://host:6379/0, or memory://name"):
        open_store("postgres://host")
