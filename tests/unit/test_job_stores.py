"""The stores that a job opens: it asks them beside its event loop, and closes those that it cannot use."""

import threading
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares import assignment, store_access
from scrapyd_dist.middlewares.assignment import Assignment
from scrapyd_dist.middlewares.store_access import OutOfReach
from scrapyd_dist.middlewares.worker import sent_session
from scrapyd_dist.middlewares.worker.lease_client import StoreLost
from scrapyd_dist.middlewares.worker.lease_session import LeaseSession
from scrapyd_dist.middlewares.worker.sent_session import SentSession

from scrapyd_dist.errors import StoreError

JOB = Assignment(crawl="c", batch=1, attempt=1, lease=60.0)


class Opened:
    """A store that does not serve its first call."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.closed = 0

    def lease(self, *_: object) -> bool:
        self.threads.append(threading.current_thread())
        raise StoreError("it is slow.")

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def crawler(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(assignment, "egg_key", lambda: None)
    crawler: Any = get_crawler(Spider, {})
    crawler.spider = Spider("s")
    return crawler


async def test_a_sent_job_asks_for_its_lease_in_a_thread_and_closes_a_store_that_fails(
    crawler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Opened()
    monkeypatch.setattr(sent_session, "reach", lambda _: store)
    session = SentSession(crawler, JOB, None, lambda *_: None)
    await session._hold_lease()
    assert session._no_lease == "it is slow."
    assert threading.main_thread() not in store.threads
    assert store.closed == 1


async def test_a_leasing_job_closes_what_it_has_opened_where_a_further_connection_fails(
    crawler: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = Opened()
    first = [store]

    def reach(_: Assignment) -> Any:
        if first:
            return first.pop()
        raise OutOfReach("no more connections", lasting=False)

    for module in {store_access.__name__, LeaseSession.__module__}:
        monkeypatch.setattr(f"{module}.reach", reach, raising=False)
    session = LeaseSession(crawler, JOB, tmp_path, lambda *_: None)
    with pytest.raises(StoreLost):
        await session._open()
    assert store.closed == 1
