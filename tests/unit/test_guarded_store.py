"""A store has every verb of its ports, and what others have written becomes `ForeignRow` there."""

from abc import ABC
from typing import Any

import pytest
from rig.memory_data import MemoryConnection, MemoryPort
from rig.memory_engine import MEMORY_ENGINE

from scrapyd_dist.errors import ForeignRow, NothingMatched, StoreError
from scrapyd_dist.store.guarded_store import Store
from scrapyd_dist.store.ports.batch_store import BatchStore
from scrapyd_dist.store.ports.crawl_store import CrawlStore
from scrapyd_dist.store.ports.engine import Connection, StoreRequest
from scrapyd_dist.store.ports.job_store import JobStore
from scrapyd_dist.store.ports.strategy_store import StrategyStore
from scrapyd_dist.store.ports.throttle_store import ThrottleStore

#: the attribute of a store -> the port that is there
PORTS: dict[str, type[ABC]] = {
    "crawl_port": CrawlStore,
    "batch_port": BatchStore,
    "throttle_port": ThrottleStore,
    "job_port": JobStore,
    "strategy_port": StrategyStore,
}


class ClientError(Exception):
    """What a client raises."""


def a_store(where: str) -> Store:
    return Store(MEMORY_ENGINE.open_ports(StoreRequest(where=where)))


def failing_with(error: Exception) -> Any:
    def verb(*_: Any) -> None:
        raise error

    return verb


@pytest.mark.parametrize("port", PORTS)
def test_each_verb_of_a_port_is_one_of_the_store_and_reaches_that_port(
    port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs = {name for name in vars(PORTS[port]) if not name.startswith("_")}
    assert verbs
    store = a_store("memory://verbs")
    for name in verbs:
        monkeypatch.setattr(getattr(store, port), name, lambda *given, name=name: (name, given))
        assert getattr(store, name)("c") == (name, ("c",))


def test_a_port_without_its_verbs_cannot_be_made_and_mypy_says_so_too() -> None:
    class Forgetful(MemoryPort, JobStore):
        def job_revision(self) -> int:
            return 0

    with pytest.raises(TypeError, match=r"abstract.* forget_jobs.* keep_jobs.* verdicts"):
        Forgetful(MemoryConnection(StoreRequest(where="memory://x")))  # type: ignore[abstract]


@pytest.mark.parametrize(
    "error", [TypeError("a"), ValueError("b"), KeyError("c"), OverflowError("d"), RecursionError()]
)
def test_what_reading_trips_over_is_a_foreign_row(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store("memory://tripped")
    monkeypatch.setattr(store.job_port, "jobs", failing_with(error))
    with pytest.raises(ForeignRow, match=f"cannot jobs there: {type(error).__name__}") as caught:
        store.jobs()
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("passing", "kind", "words"),
    [(True, StoreError, "the store failed: gone"), (False, ForeignRow, "ClientError: gone")],
)
def test_an_error_of_the_client_is_an_outage_or_a_foreign_row_as_the_engine_says(
    passing: bool, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store("memory://client")
    monkeypatch.setattr(store.job_port, "jobs", failing_with(ClientError("gone")))
    with pytest.raises(ClientError):
        store.jobs()
    monkeypatch.setattr(store.connection, "client_errors", (ClientError,))
    if not passing:
        monkeypatch.setattr(store.connection, "is_outage", lambda _: False)
    with pytest.raises(kind, match=words) as caught:
        store.jobs()
    assert type(caught.value) is kind


def test_our_own_errors_stay_as_they_are() -> None:
    with pytest.raises(NothingMatched):
        a_store("memory://own").crawl("c")


def test_a_connection_says_of_no_error_that_it_is_about_a_row() -> None:
    assert not Connection.is_outage(a_store("memory://x").connection, ValueError())
