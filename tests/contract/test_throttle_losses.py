"""A store that has lost rules of the throttle lets no request leave that knew them, and says so."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from rig.gates import GateBench
from scrapy.squeues import FifoMemoryQueue, LifoMemoryQueue
from scrapyd_dist.middlewares.throttle import throttle_client
from scrapyd_dist.middlewares.throttle.queue import HeedingQueue, ThrottledQueue
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions

from scrapyd_dist.store import Store, open_store
from scrapyd_dist.throttle.permits import Limit, Rule

RULED = "http://ruled.example/"
RULES = {"ruled.example": Rule(hits=10, window=3600.0)}
NewStore = Callable[[], Store]


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

    def __init__(self, store: Store, *, on: bool) -> None:
        limit = Limit(hits=5, window=3600.0)
        super().__init__(
            store, ThrottleOptions(on=True, limit=limit) if on else ThrottleOptions(heeds=True)
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
