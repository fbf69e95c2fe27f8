"""What a producer has found stays in its process until the store has it."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import cast

import pytest
from scrapyd_dist.middlewares.producer import filler
from scrapyd_dist.middlewares.producer.filler import FrontierWriter

from scrapyd_dist.batches import Miss
from scrapyd_dist.errors import StoreError
from scrapyd_dist.frontier.intake import FrontierIntake, FrontierProducer
from scrapyd_dist.store import Store
from scrapyd_dist.store.worker_thread import StoreThread

MISS = Miss(url="http://web/", kind="dead", reason="none such")


def found(count: int) -> list[FrontierIntake]:
    return [FrontierIntake(value={"url": f"http://web/{n}"}, fingerprint=str(n).encode()) for n in range(count)]


class Frontier:
    """A producer whose store can be away."""

    def __init__(self) -> None:
        self.away: Exception | None = None
        self.requests: list[FrontierIntake] = []
        self.counts: list[dict[str, int]] = []
        self.misses: list[Miss] = []

    def renew(self) -> None: ...

    def close(self) -> None: ...

    def keep(
        self, found: Sequence[FrontierIntake], counts: Mapping[str, int], misses: Sequence[Miss]
    ) -> dict[str, int]:
        if self.away is not None:
            raise self.away
        self.requests += found
        self.counts.append(dict(counts))
        self.misses += misses
        return {**counts, "sealed": len(found)}


@pytest.fixture
def frontier() -> Frontier:
    return Frontier()


@pytest.fixture
def writer(frontier: Frontier) -> Iterator[FrontierWriter]:
    with closing(StoreThread(cast("Store", frontier))) as thread:
        yield FrontierWriter(cast("FrontierProducer", frontier), thread)


async def test_everything_is_written_once_in_order_with_its_account(
    frontier: Frontier, writer: FrontierWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filler, "STEP", 4)
    writer.take(found(6), {"offsite": 2})
    writer.take(found(10)[6:], {"offsite": 1, "local": 1}, [MISS])
    await writer.write()
    assert (writer.waiting, writer.fault) == (0, "")
    assert writer.totals == {"offsite": 3, "local": 1, "sealed": 10}
    assert frontier.requests == found(10)
    assert frontier.counts == [{"offsite": 3, "local": 1}, {}, {}]
    assert frontier.misses == [MISS]


@pytest.mark.parametrize("error", [StoreError("the store is away."), ConnectionError("reset")])
async def test_what_the_store_does_not_take_is_kept_for_the_next_time(
    error: Exception, frontier: Frontier, writer: FrontierWriter
) -> None:
    writer.take(found(3), {"offsite": 2}, [MISS])
    frontier.away = error
    await writer.write()
    assert str(error).rstrip(".") in writer.fault
    assert (writer.waiting, writer.totals) == (3, {})
    frontier.away = None
    await writer.write()
    assert (writer.waiting, writer.fault) == (0, "")
    assert (frontier.requests, frontier.misses) == (found(3), [MISS])


async def test_while_too_much_waits_scrapy_waits_too(writer: FrontierWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler, "ROOM", 5)
    await asyncio.wait_for(writer.room(), 10)
    writer.take(found(5), {})
    waits = asyncio.ensure_future(writer.room())
    await asyncio.wait([waits], timeout=0)
    assert not waits.done()
    await writer.write()
    await asyncio.wait_for(waits, 10)
