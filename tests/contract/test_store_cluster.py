"""The contract of the Redis store on a Redis Cluster of three nodes, and on Valkey where it is installed."""

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.nodes import free_port
from rig.redis import PASSWORD, RedisServer, ServerCluster
from rig.stores import CRAWL, add, lease
from test_store import *  # type: ignore[import-not-found]  # noqa: F403 - the same contract
from test_store_fair import (  # type: ignore[import-not-found]
    test_a_slot_is_its_workers_alone_until_it_has_nothing_of_it,  # noqa: F401 - the same contract
    test_slots_take_turns_whatever_lies_in_them,  # noqa: F401 - the same contract
)
from test_store_frontier import *  # type: ignore[import-not-found]  # noqa: F403 - the same contract
from test_store_strategy import *  # type: ignore[import-not-found]  # noqa: F403 - the same contract
from test_store_strategy_crawls import (  # type: ignore[import-not-found]
    test_a_crawl_requests_every_link_once_and_ends,  # noqa: F401 - the same contract
    test_two_processes_share_the_work,  # noqa: F401 - the same contract
)
from test_store_throttle import (  # type: ignore[import-not-found]
    test_a_page_that_is_handed_back_makes_room,  # noqa: F401 - the same contract
    test_a_permit_that_was_handed_back_is_given_to_the_next,  # noqa: F401 - the same contract
    test_the_pages_of_a_budget_can_be_forgotten_and_those_of_others_stay,  # noqa: F401 - the same contract
    test_what_has_changed_since_a_version_is_told_by_domain,  # noqa: F401 - the same contract
    test_what_nobody_asks_for_is_forgotten_unless_it_counts_still,  # noqa: F401 - the same contract
)

from scrapyd_dist.errors import StoreError
from scrapyd_dist.store import open_store

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerCluster]:
    with contextlib.closing(ServerCluster(tmp_path_factory.mktemp("cluster"))) as servers:
        yield servers


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with contextlib.closing(
        RedisServer(tmp_path_factory.mktemp("valkey"), program="valkey-server")
    ) as server:
        yield server


SERVERS = ["cluster", *(["valkey"] if shutil.which("valkey-server") else [])]


# Each change is tried with a plain server; this is the same contract and the same code.
@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.full) for kind in SERVERS])
def where(request: pytest.FixtureRequest) -> str:
    """The address of an empty store; on the cluster they lie on different nodes."""
    servers: ServerCluster | RedisServer = request.getfixturevalue(request.param)
    return f"{servers.url}?prefix=test{next(_numbers)}:"


def test_a_store_lies_on_one_node_and_several_on_several(cluster: ServerCluster) -> None:
    before = [client.dbsize() for client in cluster.clients]
    for number in range(12):
        with contextlib.closing(open_store(f"{cluster.url}?prefix=shop{number}:")) as store:
            store.add_crawl(CRAWL)
            add(store, "a", slot="x")
            lease(store)
            homes = [client for client in cluster.clients if client.keys(f"{{shop{number}}}:*")]
            assert len(homes) == 1
    assert all(client.dbsize() > size for client, size in zip(cluster.clients, before, strict=True))


def test_a_prefix_with_a_tag_of_its_own_is_used_as_it_is(cluster: ServerCluster) -> None:
    with contextlib.closing(open_store(f"{cluster.url}?prefix=one{{tag}}two:")) as store:
        store.add_crawl(CRAWL)
    assert any(client.keys("one{tag}two:c:c:crawl") for client in cluster.clients)


def test_a_node_without_a_cluster_is_told_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapyd_dist.store.redis.redis_link.OPENING", 0.3)
    options = {"cluster_enabled": "yes", "cluster_port": str(free_port())}
    with (
        contextlib.closing(RedisServer(tmp_path / "alone", **options)) as alone,
        pytest.raises(StoreError, match="failed") as caught,
    ):
        open_store(alone.url)
    assert PASSWORD not in str(caught.value)
