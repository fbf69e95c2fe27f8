"""What the project's own handlers of `spider_idle` ask for: anew in each round, and with a batch that can tell of it."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.fernet import Fernet
from rig.scheduling import run
from scrapy import Request, Spider
from scrapy.signals import spider_idle
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.classifier import Disposition, FoundRequests
from scrapyd_dist.middlewares.slot_routing import SlotRouting
from scrapyd_dist.middlewares.worker import idle_requests
from scrapyd_dist.middlewares.worker.idle_handlers import IdleHandlers
from scrapyd_dist.middlewares.worker.idle_requests import IdleRequests
from scrapyd_dist.middlewares.worker.lease_client import Notifier
from scrapyd_dist.middlewares.worker.link_events import PageLinks, StrategyBatch
from scrapyd_dist.middlewares.worker.work_unit import BatchUnit

from scrapyd_dist.frontier.sealed_intake import SealedIntake

KEY = Fernet.generate_key()
POLLED = "http://web/news"


class Asking(Spider):
    """Asks for one page whenever it is idle."""

    name = "asking"

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.ask, spider_idle)
        crawler.engine = SimpleNamespace(_slot=None, scraper=SimpleNamespace(slot=object()))
        return spider

    def ask(self) -> None:
        """As `RequestTracker` would do it with what goes to the engine."""
        rounds: Any = self.rounds  # type: ignore[attr-defined]
        rounds.tracker.idle_finds.keep(Request(POLLED, **rounds.fields))


def crawler_of(rounds: "Rounds") -> Any:
    """One that is not crawling."""
    settings: dict[str, Any] = {}
    if rounds.strategy:
        settings["DISTRIBUTED_STRATEGY"] = "shop:News"
    crawler: Any = get_crawler(Asking, settings)
    spider: Any = Asking.from_crawler(crawler)
    spider.rounds = rounds
    crawler.spider = spider
    # in the place of the real one
    crawler.get_downloader_middleware = {}.get
    return crawler


class Rounds:
    """A worker whose batches are over as soon as it has them."""

    def __init__(self, *, strategy: bool = False, **fields: Any) -> None:
        self.strategy = strategy
        self.fields = fields  #: of what the handler asks for
        self.held: dict[Any, Any] = {}
        self.tracker = SimpleNamespace(idle_finds=None)
        self.crawler = crawler_of(self)
        tracker: Any = self.tracker
        self.handlers = IdleHandlers(
            self.crawler,
            self.held,
            tracker=tracker,
            notifier=Notifier(),
            make_finds=self.finds,
        )

    def finds(self, salt: str) -> FoundRequests:
        slotting = SlotRouting(project="shop", spider="asking")
        if self.strategy:
            return PageLinks(crawler=self.crawler, key=None, slotting=slotting)
        return FoundRequests(crawler=self.crawler, key=None, slotting=slotting, salt=salt)

    def make(self, *readable: bool) -> list[Any]:
        """A round with these batches, in which the handler is called until it asks for nothing new."""
        kind = StrategyBatch if self.strategy else BatchUnit
        batches: list[Any] = []
        self.handlers.begin_round()
        for number, is_readable in enumerate(readable, 1):
            values: list[Any] = []
            if is_readable:
                values = [{"url": f"http://web/{number}"}]
            batch = kind(number, 1, values, None, finds=self.finds(f"b{number}:"))
            batch.todo.clear()
            batch.problem = "" if is_readable else "it cannot be read"
            self.held[batch.key] = batch
            batches.append(batch)
        run(self.handlers.end_round())
        self.held.clear()
        return batches


def told(batch: StrategyBatch) -> list[str]:
    """The links that the events of a batch have."""
    urls: list[str] = []
    for event in batch.events(is_good=not batch.problem):
        urls.extend(link.request["url"] for link in event.links)
    return urls


def fingerprints(batches: Iterable[BatchUnit]) -> list[bytes]:
    """Those of the requests that go to the frontier with these batches."""
    prints: list[bytes] = []
    for batch in batches:
        assert batch.finds
        prints.extend(found.fingerprint for found in batch.finds.found)
    return prints


def test_a_handler_may_ask_a_strategy_for_the_same_page_in_each_round() -> None:
    rounds = Rounds(strategy=True)
    assert [told(*rounds.make(True)) for _ in range(3)] == [[POLLED]] * 3


def test_what_was_found_in_an_earlier_round_is_not_remembered() -> None:
    """A worker may run for days."""
    rounds = Rounds()
    assert [len(fingerprints(rounds.make(True))) for _ in range(3)] == [1, 1, 1]


def test_what_is_not_to_be_filtered_is_new_in_each_round() -> None:
    rounds = Rounds(dont_filter=True)
    calls = iter([True, False] * 3)
    ask = rounds.crawler.spider.ask
    rounds.crawler.signals.disconnect(ask, spider_idle)

    def ask_once() -> None:
        if next(calls):
            ask()

    rounds.crawler.signals.connect(ask_once, spider_idle)
    batches = [batch for _ in range(3) for batch in rounds.make(True)]
    assert len(set(fingerprints(batches))) == 3


@pytest.mark.parametrize(
    ("readable", "tells"),
    [((True, True), 1), ((True, False), 0), ((True, False, True, False), 2), ((False,), 0)],
)
@pytest.mark.parametrize("strategy", [True, False])
def test_what_a_handler_asks_for_goes_with_the_last_batch_that_can_be_read(
    readable: tuple[bool, ...], tells: int, strategy: bool
) -> None:
    batches = Rounds(strategy=strategy).make(*readable)
    if strategy:
        has_any = [bool(batch.finds.of_no_page) for batch in batches]
    else:
        has_any = [bool(batch.finds.found) for batch in batches]
    assert [index for index, has in enumerate(has_any) if has] == [tells]


def test_what_has_no_room_in_a_report_or_no_key_is_crawled_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crawler = Rounds().crawler
    request = Request(POLLED)
    without_key = IdleRequests(crawler=crawler, key=None)
    assert (without_key.keep(request), without_key.seal()) == (Disposition.LOCAL, "")
    monkeypatch.setattr(idle_requests, "SEALED_BYTES", 10)
    asked = IdleRequests(crawler=crawler, key=KEY)
    kept = [asked.keep(request), asked.keep(Request(POLLED + "/2"))]
    assert kept == [Disposition.SEALED, Disposition.LOCAL]
    intake = SealedIntake.unseal(asked.seal(), KEY)
    assert [found.value["url"] for found in intake.requests] == [POLLED]
    assert intake.counts == {"local": 1}
