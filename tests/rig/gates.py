"""What the throttle sees of a Scrapy process: a crawler whose engine and downloader do nothing by themselves."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.settings import Settings
from scrapy.signalmanager import SignalManager
from scrapyd_dist.middlewares.throttle.gate import Gate
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions


class FakeCrawler:
    """Its statistics are in `counts`; `woken` is how often the engine was to look into its queues."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        usual = {"DISTRIBUTED_ENABLED": False, "DISTRIBUTED_CRAWL": "c"}
        self.settings = Settings({**usual, **(settings or {})})
        self.signals, self.spider = SignalManager(self), SimpleNamespace(name="s")
        self.counts: dict[str, float] = {}
        self.stats = SimpleNamespace(inc_value=self._count)
        self.woken = 0
        downloader = SimpleNamespace(
            slots={}, active=set(), total_concurrency=16, domain_concurrency=8, per_slot_settings={}, _delay=0.0,
            get_slot_key=lambda request: urlsplit(request.url).hostname or "",
        )  # fmt: skip
        slot = SimpleNamespace(
            nextcall=SimpleNamespace(schedule=self._wake), closing=None, inprogress=set()
        )
        self.engine = SimpleNamespace(downloader=downloader, _slot=slot)

    def _count(self, name: str, number: float = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def _wake(self) -> None:
        self.woken += 1


def as_any(fake: object) -> Any:
    """For where the real thing is meant."""
    return fake


class GateBench:
    """A gate of such a process, which asks this store; the queue is the test's own.

    `settings` are those of a job, if it is one.
    """

    queue: Any

    def __init__(
        self,
        store: Any,
        options: ThrottleOptions,
        settings: Mapping[str, str] | None = None,
        **clock: Any,
    ) -> None:
        self.crawler = as_any(FakeCrawler(settings))
        self.gate = Gate(self.crawler, options, **clock)
        Gate._all[self.crawler] = self.gate
        self.gate.open(store)

    def push(self, *urls: str, **meta: Any) -> None:
        for url in urls:
            self.queue.push(Request(url if "//" in url else f"http://{url}/", meta=dict(meta)))

    async def said(self) -> None:
        """Until the store has heard all."""
        assert self.gate._client
        while self.gate._client._talking is not None:
            await asyncio.wait_for(asyncio.wait([self.gate._client._talking]), 10)

    async def look(self) -> None:
        """Until the gate knows the rules as they are now."""
        assert self.gate._client
        self.gate._client.check_rules()
        assert self.gate._client._talking is not None
        await self.said()
