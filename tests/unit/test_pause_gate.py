"""A process whose crawl rests lets no request leave, and one that ends meanwhile waits for none."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from rig.scheduling import run
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapyd_dist.middlewares.pause_gate import HeldBack, PauseGate


class Engine:
    """As much of Scrapy's engine as the gate knows."""

    def __init__(self, handlers: Any) -> None:
        self.downloader, self.paused = SimpleNamespace(handlers=handlers), False
        self._slot = SimpleNamespace(closing=None)

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False


class Crawler:
    def __init__(self, *, old: bool) -> None:
        self.left: list[str] = []

        async def download(request: str, *_: Any) -> str:
            self.left.append(request)
            return f"response of {request}"

        def download_old(request: str, *rest: Any) -> Any:
            return deferred_from_coro(download(request, *rest))

        one = {"download_request": download_old} if old else {"download_request_async": download}
        self.handlers = SimpleNamespace(**one)
        self.engine = Engine(self.handlers)

    async def fetch(self, request: str) -> Any:
        if hasattr(self.handlers, "download_request_async"):
            return await self.handlers.download_request_async(request)
        return await maybe_deferred_to_future(self.handlers.download_request(request, "spider"))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("old", [False, True], ids=["Scrapy 2.14", "Scrapy 2.13"])
def test_requests_wait_until_the_crawl_goes_on(old: bool) -> None:
    async def play() -> None:
        crawler: Any = Crawler(old=old)
        gate = PauseGate.for_crawler(crawler)
        assert PauseGate.for_crawler(crawler) is gate
        assert await crawler.fetch("a") == "response of a"
        gate.rest(True)
        assert PauseGate.closed(crawler) and crawler.engine.paused
        waits = asyncio.ensure_future(crawler.fetch("b"))
        await turns()
        assert crawler.left == ["a"]
        gate.rest(False)
        assert await asyncio.wait_for(waits, 5) == "response of b"
        assert not crawler.engine.paused

    run(play())


@pytest.mark.parametrize("old", [False, True], ids=["Scrapy 2.14", "Scrapy 2.13"])
def test_what_is_held_is_not_made_when_the_process_ends(old: bool) -> None:
    async def play() -> None:
        crawler: Any = Crawler(old=old)
        PauseGate.for_crawler(crawler).rest(True)
        waits = asyncio.ensure_future(crawler.fetch("a"))
        await turns()
        crawler.engine._slot.closing = "shutdown"
        with pytest.raises(HeldBack):
            await asyncio.wait_for(waits, 5)
        assert crawler.left == []

    run(play())
