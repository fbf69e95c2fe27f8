"""A crawl that is closed while its clock ticks ends once."""

import asyncio
from unittest.mock import AsyncMock, MagicMock

import pytest
from rig.members import at_work
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer import crawl_run
from scrapyd_dist.middlewares.producer.crawl_run import CrawlRun
from scrapyd_dist.middlewares.producer.lifecycle import signals

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import INTERRUPTED
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import NodeState


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
    repository.read_row = AsyncMock(return_value=Crawl(id="c", project="p", spider="s", created=0))
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


@pytest.mark.parametrize(
    ("wanted", "why"), [("cancel", "stopped by a user"), ("", "interrupted by a signal")]
)
async def test_a_crawl_that_is_stopped_says_by_whom_and_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, wanted: str, why: str
) -> None:
    monkeypatch.setattr(crawl_run, "process_exit", MagicMock())
    monkeypatch.setattr(signals, "came", True)
    reporter = MagicMock(sample=AsyncMock())
    repository, scheduler = reporter.repository, reporter.scheduler
    repository.id = "easy-1"
    repository.wanted, repository.end = AsyncMock(return_value=wanted), AsyncMock()
    member = NodeState(node=Node.parse("http://one:6800", name="one"))
    at_work(member, 3, done=18)
    scheduler.state.members = [member]
    run = CrawlRun(
        MagicMock(settings=Settings()),
        MagicMock(),
        MagicMock(),
        reporter,
        MagicMock(),
        on_finish="",
    )
    reason, code = await run._explain_end("shutdown")
    assert (why in reason, code) == (True, INTERRUPTED)
    await run._stop(reason, code)
    message = reporter.snapshot.message
    assert "18 requests were done in batches under way" in message
    assert message.endswith("; go on with: sdist resume easy-1")
