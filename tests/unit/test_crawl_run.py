"""A crawl that is closed while its clock ticks ends once."""

import asyncio
from unittest.mock import AsyncMock, MagicMock

import pytest
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer import crawl_run
from scrapyd_dist.middlewares.producer.crawl_run import CrawlRun


async def test_what_the_spider_has_closed_is_not_crawled_again_for_a_lost_part() -> None:
    """`sdist resume` would crawl all that was left, and not only what is lost."""
    reporter = MagicMock(publisher=None)
    reporter.scheduler.state.closed_by = "quota_used_up"
    run = CrawlRun(
        MagicMock(settings=Settings()),
        MagicMock(),
        MagicMock(),
        reporter,
        MagicMock(),
        on_finish="",
    )
    assert not await run._is_to_crawl_again([MagicMock()])
    reporter.scheduler.reopen.assert_not_called()


async def test_a_tick_while_the_spider_closes_does_not_complete_the_crawl_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        crawl_run, "process_exit", MagicMock()
    )  # the code of this process is pytest's
    monkeypatch.setattr(crawl_run, "notify_on_finish", lambda *_: "")
    reporter = MagicMock(write_down=AsyncMock(), write_status=AsyncMock(), sample=AsyncMock())
    repository, scheduler = reporter.repository, reporter.scheduler
    repository.wanted, repository.end = AsyncMock(return_value=""), AsyncMock()
    scheduler.enough = scheduler.state.stopped = scheduler.state.goal = ""
    scheduler.state.paused = False
    reporter.capture.cutter.due.return_value = reporter.capture.cutter.take.return_value = []
    crawler = MagicMock(settings=Settings())
    run = CrawlRun(crawler, MagicMock(), MagicMock(), reporter, MagicMock(), on_finish="")

    async def stop(why: str) -> None:
        scheduler.state.stopped = why
        await run.tick()
        for _ in range(9):  # turns of the loop, for a task that was started
            await asyncio.sleep(0)

    scheduler.stop = stop
    await run.close("shutdown")
    assert repository.end.await_count == 1
