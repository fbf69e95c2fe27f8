"""How a process begins and ends, and its faults in words."""

import logging
import signal
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest
from rig.scheduling import run as run_async
from scrapy import Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.producer import crawl_check, filler, lifecycle
from scrapyd_dist.middlewares.producer.lifecycle import (
    Fault,
    Faults,
    ProcessExit,
    Signals,
    ending,
    faults,
    signals,
)
from scrapyd_dist.middlewares.producer.producer import Producer


def test_the_reason_is_the_error_before_that_of_the_closing_engine() -> None:
    closing = RuntimeError("Engine slot not assigned")
    closing.__context__ = OSError("no such\ndatabase")
    assert str(Fault.from_exception(closing)) == "OSError: no such database"


def test_the_last_exception_counts_that_is_not_of_one_page() -> None:
    heard = Faults()
    for name, error in (
        ("scrapy.core.engine", KeyError("x")),
        ("scrapy.core.scraper", ValueError("one page")),
    ):
        heard.emit(
            logging.LogRecord(name, logging.ERROR, "", 0, "Error", None, (type(error), error, None))
        )
    assert str(heard.last) == "KeyError: 'x'"


@pytest.mark.parametrize(
    ("reason", "signal_came", "fault", "code", "words"),
    [
        ("shutdown", True, Fault(kind="KeyError", text="x"), 130, "interrupted"),
        (
            "shutdown",
            False,
            Fault(kind="KeyError", text="x"),
            1,
            "KeyError: x. The whole traceback is in a.log",
        ),
        ("shutdown", False, None, 1, "not by a signal"),
        ("closespider_timeout", False, None, 3, "closespider_timeout"),
    ],
)
def test_only_a_signal_interrupts(
    reason: str,
    signal_came: bool,
    fault: Fault | None,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "came", signal_came)
    monkeypatch.setattr(faults, "last", fault)
    text, ended_with = ending(reason, "a.log")
    assert ended_with == code
    assert words in text


def test_a_signal_is_noticed_and_does_what_it_did() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        seen = Signals()
        seen.look_out()
        signal.raise_signal(signal.SIGTERM)
        assert (seen.came, got) == (True, [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("ours")


async def nothing() -> AsyncIterator[Any]:
    for one in list[Any]():
        yield one


@pytest.mark.parametrize(
    ("module", "middleware"),
    [(crawl_check, Producer), (filler, filler.Filler)],
    ids=["crawl", "frontier"],
)
def test_a_fault_at_the_start_is_told_with_its_traceback(
    module: ModuleType,
    middleware: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    exits = ProcessExit()
    monkeypatch.setattr(exits, "_leave", lambda: None)  # this process is not to end with it
    monkeypatch.setattr(lifecycle, "process_exit", exits)
    monkeypatch.setattr(module, "read_options", broken)

    async def begin(crawler: Any) -> None:
        assert not [one async for one in middleware(crawler).process_start(nothing())]

    crawler = get_crawler(Spider, {"DISTRIBUTED_FRONTIER": "shop"})
    crawler.spider = Spider(name="easy")
    run_async(begin(crawler))
    assert "scrapyd-dist itself failed: ZeroDivisionError: ours" in exits.refusal
    tracebacks = [
        one for one in caplog.records if one.exc_info and one.exc_info[0] is ZeroDivisionError
    ]
    assert [one.levelno for one in tracebacks] == [logging.ERROR]
