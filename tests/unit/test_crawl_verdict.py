"""What is said of a finished crawl that has left something out, and its exit code."""

from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from scrapyd_dist.middlewares.producer import crawl_verdict
from scrapyd_dist.middlewares.producer.crawl_findings import found_trait
from scrapyd_dist.middlewares.producer.crawl_verdict import CrawlVerdict
from scrapyd_dist.middlewares.producer.index_walk import IndexWalk
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions
from scrapyd_dist.middlewares.producer.run_delivery import Delivered

from scrapyd_dist.batches import Attempt, AttemptState, FinishReason, Miss
from scrapyd_dist.differences import Trait
from scrapyd_dist.items.delivery import Delivery

#: a job in which one of two components was off
JOB = Attempt(
    batch=1,
    number=1,
    job="",
    node="",
    url="",
    state=AttemptState.ACCEPTED,
    report={"components": ["p.Names"]},
)


class Crawl:
    """A crawl of ten requests that is at its end."""

    def __init__(self) -> None:
        self.index = IndexWalk([], None)
        self.warnings: list[str] = []
        state = MagicMock(ends_early=False, closed_by="", stray_items=0, own_items=0)
        self.reporter = MagicMock(index=self.index, scheduler=MagicMock(state=state))
        self.reporter.warn = lambda *texts: self.warnings.extend(texts)
        self.reporter.snapshot.output = ()
        self.reporter.snapshot.differences = []
        self.reporter.repository.counts = {"sealed": 10}
        self.reporter.repository.earlier_versions = ()
        self.reporter.repository.lost_requests = AsyncMock(return_value=0)

    def verdict(
        self,
        *,
        misses: tuple[Miss, ...] = (),
        lost: int = 0,
        start_fault: str = "",
        components: tuple[str, ...] = (),
    ) -> CrawlVerdict:
        delivery = Delivery(items=10, outputs=(), misses=None, lost=lost)
        return CrawlVerdict(
            reporter=self.reporter,
            options=ProducerOptions(limit=10),
            delivered=Delivered(delivery=delivery, accepted=[JOB], misses=misses, logins=[]),
            attributes=MagicMock(kept_in_jobs=lambda *_: []),
            callbacks=(),
            leaves_links=False,
            index_pages=(),
            start_fault=start_fault,
            has_wrong_values=False,
            components=components,
            passed_components=[name for name in components if name.startswith("p.")],
        )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (FinishReason.LIMITED.value, "The crawl was limited to 10 target requests"),
        ("enough news", "The spider has closed the walk over the index: enough news."),
        ("closespider_itemcount", "as the settings say: CLOSESPIDER_ITEMCOUNT."),
    ],
)
async def test_a_walk_that_ended_early_is_told_with_its_reason(reason: str, words: str) -> None:
    crawl = Crawl()
    crawl.index.end_early(reason)
    await crawl.verdict().report()
    assert len(crawl.warnings) == 1
    assert words in crawl.warnings[0]


async def test_a_whole_crawl_is_told_nothing_of() -> None:
    crawl = Crawl()
    await crawl.verdict().report()
    assert crawl.warnings == []


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({}, 0),
        ({"lost": 1}, 3),
        ({"misses": (Miss(url="http://web/", kind="failed", reason="HTTP 403"),) * 6}, 3),
        ({"misses": (Miss(url="http://web/", kind="failed", reason="HTTP 403"),) * 5}, 0),
        ({"start_fault": "The spider's start failed."}, 0),
        ({"components": ("p.Names",)}, 0),
        ({"components": ("p.Names", "p.Rates")}, 3),
        ({"components": ("p.Names", "extensions.Alarm")}, 0),
    ],
)
async def test_what_speaks_against_a_crawl_is_in_its_exit_code(
    found: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawl_verdict, "crawl_exit_code", lambda *_, **__: 0)
    monkeypatch.setattr(crawl_verdict, "judge_items", AsyncMock(return_value=([], "")))
    assert await Crawl().verdict(**found).decide_exit_code() == code


async def test_what_code_holds_back_is_in_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl_verdict, "crawl_exit_code", lambda *_, **__: 0)
    monkeypatch.setattr(crawl_verdict, "judge_items", AsyncMock(return_value=([], "")))
    crawl = Crawl()
    crawl.reporter.snapshot.differences = [found_trait(Trait.REMEMBERS, "seen")]
    assert await crawl.verdict().decide_exit_code() == 0
    crawl.reporter.snapshot.differences.append(found_trait(Trait.HOLDS_BACK, "Chunk.wait"))
    assert await crawl.verdict().decide_exit_code() == 3


async def test_items_of_the_workers_own_pages_are_told_and_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crawl_verdict, "crawl_exit_code", lambda *_, **__: 0)
    monkeypatch.setattr(crawl_verdict, "judge_items", AsyncMock(return_value=([], "")))
    crawl = Crawl()
    crawl.reporter.scheduler.state.own_items = 2
    assert await crawl.verdict().decide_exit_code() == 0
    (warning,) = crawl.warnings
    assert warning.startswith("2 items of start requests and logins are not collected")


async def test_too_few_items_are_no_success_and_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl_verdict, "crawl_exit_code", lambda *_, **__: 0)
    monkeypatch.setattr(crawl_verdict, "judge_items", AsyncMock(return_value=([], "Too few.")))
    crawl = Crawl()
    assert await crawl.verdict(start_fault="No start.").decide_exit_code() == 1
    assert crawl.reporter.snapshot.message == "Too few. No start."
