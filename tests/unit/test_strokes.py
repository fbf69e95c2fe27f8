"""Requests leave in strokes: only where the processor is the limit, never for long, and never against a pause."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_twisted
from rig.waiting import wait_for
from scrapy import Spider
from scrapy.core.downloader import Downloader
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares import strokes
from scrapyd_dist.middlewares.strokes import BUSY, STROKE, WINDOW, Load, Strokes, had_work
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable

Later = list[tuple[float, "Callable[[], object]"]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Scrapy's own downloader was told to send, by the names of the slots."""
    told: list[str] = []
    monkeypatch.setattr(Downloader, "_process_queue", lambda _, slot: told.append(slot.name))
    return told


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """What was put off."""
    off: Later = []

    def call_later(seconds: float, function: Callable[[], object]) -> Any:
        off.append((seconds, function))
        return SimpleNamespace(cancel=off.clear)

    monkeypatch.setattr(strokes, "_call_later", call_later)
    return off


@dataclass(eq=False)
class Slot:
    """What of a slot of the downloader is looked at."""

    name: str
    transferring: set[int]
    queue: deque[int]
    delay: float


def slot(name: str = "site", *, transferring: int = 1, queued: int = 1, delay: float = 0.0) -> Any:
    return Slot(name=name, transferring=set(range(transferring)), queue=deque(range(queued)), delay=delay)


def downloader(monkeypatch: pytest.MonkeyPatch, *, full: bool = True, **settings: Any) -> Strokes:
    made = Strokes(get_crawler(Spider, {"DISTRIBUTED_ENABLED": False, **settings}))
    monkeypatch.setattr(made._load, "full", lambda: full)
    return made


def test_where_the_processor_is_the_limit_requests_wait_for_the_answers_that_are_out(
    monkeypatch: pytest.MonkeyPatch, sent: list[str], later: Later
) -> None:
    made, one, other = downloader(monkeypatch), slot("one"), slot("other")
    for each in (one, other, one):
        made._process_queue(each)
    assert not sent
    ((seconds, stroke),) = later
    assert seconds == STROKE <= 0.005
    stroke()
    assert sent == ["one", "other"]
    made._process_queue(one)
    assert len(later) == 2


def test_when_the_last_answer_is_read_they_leave_at_once(
    monkeypatch: pytest.MonkeyPatch, sent: list[str], later: Later
) -> None:
    made, site = downloader(monkeypatch), slot()
    made._process_queue(site)
    site.transferring.clear()
    made._process_queue(site)
    assert sent == ["site"]
    later[0][1]()
    assert sent == ["site"]


@pytest.mark.parametrize(
    ("full", "settings", "delay"), [(False, {}, 0.0), (True, {"DISTRIBUTED_THROTTLE": True}, 0.0), (True, {}, 0.25)]
)
def test_nobody_waits_who_waits_for_the_site_or_for_a_moment_of_his_own(
    monkeypatch: pytest.MonkeyPatch, sent: list[str], later: Later, full: bool, settings: dict[str, Any], delay: float
) -> None:
    made = downloader(monkeypatch, full=full, **settings)
    made._process_queue(slot(delay=delay))
    assert sent == ["site"]
    assert not later


def test_a_downloader_that_is_closed_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, sent: list[str], later: Later
) -> None:
    made = downloader(monkeypatch)
    made._process_queue(slot())
    assert len(later) == 1
    made.close()
    assert not later
    assert not sent


def test_a_thread_that_sleeps_is_not_full_and_one_that_works_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, worked = [100.0], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(strokes, "had_work", lambda: worked[0])
    load = Load()
    assert not load.full()
    for share, full in ((1.0, True), (0.4, False), (1.0, True)):
        clock[0] += WINDOW * 2
        worked[0] += WINDOW * 2 * share
        assert load.full() is full
        clock[0] += WINDOW / 2
        worked[0] += WINDOW / 2 * (not full)
        assert load.full() is full  # until the next look


@pytest.mark.parametrize("told", [True, False])
def test_work_is_the_threads_own(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    if not told:
        monkeypatch.setattr(strokes, "Path", lambda _: SimpleNamespace(read_text=_not_there))

    def works(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    def share_of(what: Callable[[], object]) -> float:
        began, before = time.monotonic(), had_work()
        what()
        return (had_work() - before) / (time.monotonic() - began)

    def while_others_work() -> None:
        other = threading.Thread(target=works, args=(0.2,))
        other.start()
        other.join()

    before = had_work()
    works(0.2)
    assert had_work() - before >= 0.19
    wait_for(lambda: share_of(while_others_work) < BUSY, what="a moment in which this thread sleeps")


def _not_there(**_: Any) -> str:
    raise FileNotFoundError


@pytest_twisted.ensureDeferred
async def test_a_stroke_comes_by_the_loops_own_clock() -> None:
    done: Deferred[None] = Deferred()
    strokes._call_later(STROKE, lambda: done.callback(None))
    await done
