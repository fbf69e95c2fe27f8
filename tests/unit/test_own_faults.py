"""A fault of our own is in the log, once, with its traceback; and the user hears of it."""

import logging
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest
from rig.scheduling import run as run_async
from scrapy import Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.producer import crawl_start, filler, lifecycle
from scrapyd_dist.middlewares.producer.lifecycle import ExitCode
from scrapyd_dist.middlewares.producer.producer import Producer


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("ours")


async def nothing() -> AsyncIterator[Any]:
    for one in list[Any]():
        yield one


@pytest.mark.parametrize(
    ("module", "middleware"), [(crawl_start, Producer), (filler, filler.Filler)], ids=["crawl", "frontier"]
)
def test_a_fault_at_the_start_is_told_with_its_traceback(
    module: ModuleType, middleware: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exits = ExitCode()
    exits._registered = True  # this process is not to end with it
    monkeypatch.setattr(lifecycle, "exit_code", exits)
    monkeypatch.setattr(module, "read_options", broken)

    async def begin(crawler: Any) -> None:
        assert not [one async for one in middleware(crawler).process_start(nothing())]

    crawler = get_crawler(Spider, {"DISTRIBUTED_FRONTIER": "shop"})
    crawler.spider = Spider(name="easy")
    run_async(begin(crawler))
    assert "scrapyd-dist itself failed: ZeroDivisionError: ours" in exits.refusal
    tracebacks = [one for one in caplog.records if one.exc_info and one.exc_info[0] is ZeroDivisionError]
    assert [one.levelno for one in tracebacks] == [logging.ERROR]
