"""A store that has lost rules of the throttle lets no request leave that knew them, and says so.

A job that begins after that knows what the scheduler knew when it was sent.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

import pytest
from rig.gates import GateBench
from rig.scheduling import until
from scrapy.squeues import FifoMemoryQueue, LifoMemoryQueue
from scrapyd_dist.middlewares.throttle import gate, throttle_client
from scrapyd_dist.middlewares.throttle.queue import HeedingQueue, ThrottledQueue
from scrapyd_dist.middlewares.throttle.throttle_client import PermitStore
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions

from scrapyd_dist.store import Store, open_store
from scrapyd_dist.throttle.known_rules import KnownRules
from scrapyd_dist.throttle.permits import DomainLook, Limit, Rule, SiteNews

RULED = "http://ruled.example/"
RULES = {"ruled.example": Rule(hits=10, window=3600.0)}
NewStore = Callable[[], Store]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a process does not wait for a store that has lost the rules."""
    monkeypatch.setattr(gate, "PATIENCE", 0.3)


@pytest.fixture
def new_store(where: str) -> Iterator[NewStore]:
    """Opens another store of the engine, which is empty."""
    with ExitStack() as stack:

        def open_one() -> Store:
            address = (
                where.replace("prefix=test", "prefix=new") if "prefix=" in where else f"{where}.new"
            )
            return stack.enter_context(closing(open_store(address)))

        yield open_one


class Scene(GateBench):
    """A process that heeds the rules of this store, and may find another one in its place."""

    def __init__(self, store: Store, *, on: bool, given: KnownRules | None = None) -> None:
        limit = Limit(hits=5, window=3600.0)
        job = {"crawl": "c", "rules": given.document} if given else {}
        super().__init__(
            store,
            ThrottleOptions(on=True, limit=limit) if on else ThrottleOptions(heeds=True),
            {"DISTRIBUTED_START_URLS": "[]", "DISTRIBUTED_JOB": json.dumps(job)} if given else None,
        )
        kind = ThrottledQueue if on else HeedingQueue
        self.queue = kind(self.crawler, LifoMemoryQueue, "", start_queue_cls=FifoMemoryQueue)

    async def have(self, store: Store) -> None:
        """The store comes back with what this one has."""
        client = self.gate._client
        assert client
        client._store = client._thread.store = store

    async def looked(self) -> None:
        """One look, whatever comes of it."""
        client = self.gate._client
        assert client
        client._is_look_due = True
        await client._turn()


@pytest.mark.parametrize("on", [False, True], ids=["heeds rules", "has limits of its own"])
async def test_it_waits_for_the_rules_and_goes_on_with_them(
    store: Store, new_store: NewStore, caplog: pytest.LogCaptureFixture, *, on: bool
) -> None:
    for hits in (1, 2, 10):
        store.change_rules({"ruled.example": Rule(hits=hits, window=3600.0)})
    it = Scene(store, on=on)
    await it.looked()
    empty = new_store()
    await it.have(empty)
    with caplog.at_level(logging.WARNING):
        it.push(*[RULED + str(number) for number in range(20)])
        await it.looked()
        await it.looked()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith(
        "The store has lost the throttle's rules for ruled.example: their version was 3 and is 0."
    )
    assert it.queue.pop() is None
    empty.change_rules(RULES)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await it.looked()
    assert "rules of an earlier time, which hold from now on" in caplog.text
    await it.gate._closed()


async def test_news_of_a_site_are_told_once_to_a_store_that_has_lost_the_rules(
    store: Store, new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rest that a site has asked for would begin anew with each question."""
    for hits in (1, 2, 3):
        store.change_rules({"ruled.example": Rule(hits=hits, window=3600.0)})
    it = Scene(store, on=False)
    await it.looked()
    empty = new_store()
    tell = empty.tell_sites
    told: list[SiteNews] = []

    def listen(news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        told.extend(news)
        return tell(news, known)

    monkeypatch.setattr(empty, "tell_sites", listen)
    await it.have(empty)
    client = it.gate._client
    assert client is not None
    news = SiteNews(domain="slow.example", retry_after=60.0)
    client.report_site(news, at_once=False)
    for _ in range(3):
        await it.looked()
    assert told == [news]
    empty.change_rules(RULES)
    await it.looked()
    await it.gate._closed()
    assert told == [news]


async def test_after_a_minute_the_process_ends(
    store: Store, new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle_client, "LOST", -1.0)
    ended = list[bool]()
    store.change_rules(RULES)
    it = Scene(store, on=False)
    await it.looked()
    monkeypatch.setattr(it.gate, "failed", lambda: ended.append(True))
    await it.have(new_store())
    await it.looked()
    assert ended == [True]


async def test_a_store_without_rules_may_come_back_as_it_likes(
    store: Store, new_store: NewStore
) -> None:
    store.change_rules(RULES)
    store.change_rules({"ruled.example": None})
    it = Scene(store, on=False)
    await it.looked()
    await it.have(new_store())
    await it.looked()
    assert it.gate._client is not None
    assert not it.gate._client._away
    await it.gate._closed()


GIVEN = KnownRules(version=3, domains=frozenset({"ruled.example"}))
PAGES = [RULED + str(number) for number in range(20)]


@pytest.mark.parametrize("on", [False, True], ids=["heeds rules", "has limits of its own"])
@pytest.mark.parametrize("climbed", [0, 3, 5], ids="version {}".format)
async def test_a_job_that_begins_after_the_loss_waits_for_the_rules(
    new_store: NewStore, caplog: pytest.LogCaptureFixture, *, on: bool, climbed: int
) -> None:
    """Whatever else the store has been told of since, by other processes."""
    store = new_store()
    for hits in range(1, climbed + 1):
        store.change_rules({"other.example": Rule(hits=hits, window=3600.0)})
    it = Scene(store, on=on, given=GIVEN)
    it.push(*PAGES)
    with caplog.at_level(logging.WARNING):
        await it.gate._opened()
        await it.looked()
    assert "The store has lost the throttle's rules for ruled.example" in caplog.text
    assert it.queue.pop() is None
    store.change_rules(RULES)
    await it.looked()
    assert it.gate._client is not None
    assert not it.gate._client._away
    await it.gate._closed()


async def test_a_rule_that_was_removed_meanwhile_is_not_lost(store: Store) -> None:
    store.change_rules(RULES)
    given = KnownRules.from_rules(store.rules())
    store.change_rules({"ruled.example": None})
    it = Scene(store, on=False, given=given)
    it.push(*PAGES)
    await it.gate._opened()
    await it.look()
    assert it.gate._client is not None
    assert not it.gate._client._away
    assert it.queue.pop() is not None
    await it.gate._closed()


async def test_a_running_process_sees_a_loss_whose_version_has_grown_while_the_store_was_away(
    store: Store, new_store: NewStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.change_rules(RULES)
    it = Scene(store, on=False)
    await it.looked()
    assert it.gate._client is not None
    it.gate._client._missed("its server is down")
    empty = new_store()
    empty.change_rules({"other.example": Rule(hits=1, window=3600.0)})
    await it.have(empty)
    it.push(*PAGES)
    with caplog.at_level(logging.ERROR):
        await it.looked()
    assert it.gate._client._away
    assert it.queue.pop() is None
    await it.gate._closed()


async def _job_without_a_store(
    store: Store, monkeypatch: pytest.MonkeyPatch, *found: PermitStore
) -> tuple[Scene, list[bool]]:
    """A job that knows of a rule, and finds these in turn; and what says that it has ended."""
    rest = list(found)
    ended = list[bool]()

    async def find(_: object) -> PermitStore:
        return rest.pop(0)

    monkeypatch.setattr(gate, "find_beside", find)
    monkeypatch.setattr(gate, "LOOK", 0.01)
    store.change_rules(RULES)
    it = Scene(store, on=False, given=KnownRules.from_rules(store.rules()))
    it.gate._client = None
    monkeypatch.setattr(it.gate, "failed", lambda: ended.append(True))
    it.push(*PAGES, "http://free.example/")
    await it.gate._opened()
    await until(lambda: len(rest) < len(found), "it has looked for the store")
    return it, ended


async def test_a_job_whose_store_has_lost_the_crawl_as_well_makes_no_request_and_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Redis came back without any data: to the job that is another store."""
    lost = PermitStore(why="it has no crawl c", lasting=True, is_other=True)
    it, ended = await _job_without_a_store(store, monkeypatch, lost)
    await until(lambda: ended == [True], "it ends")
    first = it.queue.pop()
    assert first is not None
    assert first.url == "http://free.example/"
    assert it.queue.pop() is None


async def test_a_job_whose_store_is_away_as_it_begins_makes_no_request_to_a_ruled_domain(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = PermitStore(why="its server is down")
    it, ended = await _job_without_a_store(store, monkeypatch, away, PermitStore(store=store))
    first = it.queue.pop()
    assert first is not None
    assert first.url == "http://free.example/"
    assert it.queue.pop() is None
    await until(lambda: it.gate._client is not None, "the store is found")
    await it.look()
    await until(lambda: it.queue.pop() is not None, "a request leaves")
    assert ended == []
    await it.gate._closed()


async def test_a_job_that_cannot_reach_the_store_at_all_runs_without_rules_as_it_would_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = PermitStore(why="there is no file where this worker runs", lasting=True)
    it, ended = await _job_without_a_store(store, monkeypatch, nowhere)
    await until(lambda: not it.gate._ruled, "it gives up")
    assert [it.queue.pop() is not None for _ in range(21)] == [True] * 21
    assert ended == []
