"""What the throttle sees of a Scrapy process: a crawler whose engine and downloader do nothing by themselves."""

from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from scrapy.settings import Settings
from scrapy.signalmanager import SignalManager


class FakeCrawler:
    """Its statistics are in `counts`; `woken` is how often the engine was to look into its queues."""

    def __init__(self) -> None:
        self.settings = Settings({"DISTRIBUTED_ENABLED": False, "DISTRIBUTED_CRAWL": "c"})
        self.signals, self.spider = SignalManager(self), SimpleNamespace(name="s")
        self.counts: dict[str, float] = {}
        self.stats = SimpleNamespace(inc_value=self._count)
        self.woken = 0
        downloader = SimpleNamespace(
            slots={}, active=set(), total_concurrency=16, domain_concurrency=8, per_slot_settings={}, _delay=0.0,
            get_slot_key=lambda request: urlsplit(request.url).hostname or "",
        )  # fmt: skip
        slot = SimpleNamespace(nextcall=SimpleNamespace(schedule=self._wake), closing=None, inprogress=set())
        self.engine = SimpleNamespace(downloader=downloader, _slot=slot)

    def _count(self, name: str, number: float = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def _wake(self) -> None:
        self.woken += 1


def as_any(fake: object) -> Any:
    """For where the real thing is meant."""
    return fake
