"""The watchdog's clock, and what counts as a standstill."""

import logging
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares import watchdog
from scrapyd_dist.middlewares.codec import WAITS
from scrapyd_dist.middlewares.engine_compat import is_held_up
from scrapyd_dist.middlewares.pause_gate import PauseGate
from scrapyd_dist.middlewares.watchdog import Watchdog

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.errors import ConfigError


class Clock:
    """A clock that each wait turns on by so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dog: Watchdog) -> None:
        self.now, self.step, self._dog = 0.0, 0.5, dog
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(watchdog, "_end_after", lambda seconds: None)
        monkeypatch.setattr(dog, "_closed", SimpleNamespace(wait=self._wait))

    def _wait(self, seconds: float) -> bool:
        self.now += self.step
        return False

    def tick(self, times: int, step: float = 0.5) -> FinishReason | None:
        self.step = step
        for _ in range(times):
            self._dog._tick()
        return self._dog._reason()


def dog_of(**limits: float) -> Watchdog:
    given = {"longest": math.inf, "stall": math.inf, **limits}
    return Watchdog(get_crawler(Spider), has_work=lambda: True, **given)


def test_a_job_is_over_its_time_by_the_seconds_in_which_it_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dog = dog_of(longest=10)
    clock = Clock(monkeypatch, dog)
    assert clock.tick(20) is None
    assert clock.tick(1) is FinishReason.TIMEOUT


def test_a_process_that_was_stopped_is_not_over_its_time_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dog = dog_of(stall=10, longest=100)
    clock = Clock(monkeypatch, dog)
    dog._move()
    assert clock.tick(1, step=3600.0) is None
    assert clock.tick(18) is None
    assert clock.tick(1) is FinishReason.STALLED


def test_a_job_whose_crawl_rests_is_not_over_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    dog = dog_of(stall=10, longest=100)
    clock = Clock(monkeypatch, dog)
    dog._move()
    gate: Any = SimpleNamespace(rests=True)
    PauseGate._all[dog._crawler] = gate
    assert clock.tick(1000) is None
    gate.rests = False
    assert clock.tick(21) is FinishReason.STALLED


def test_nothing_stalls_until_the_spider_has_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    dog = dog_of(stall=2)
    clock = Clock(monkeypatch, dog)
    assert clock.tick(100) is None
    dog._move()
    assert clock.tick(5) is FinishReason.STALLED


@pytest.mark.parametrize(
    ("opens", "moves_until", "ends"),
    [
        (
            False,
            0,
            [71, 81, 91],
        ),  # the limit of 10, the second tick behind it, and a minute; then ten seconds each
        (True, 0, [71, 81, 91]),
        (True, 50, [110, 120, 130]),
        (True, 5000, [611, 621, 631]),  # it brings items for ever
    ],
)
def test_an_orderly_end_gets_a_minute_from_the_last_progress_on_and_ten_in_all(
    monkeypatch: pytest.MonkeyPatch, *, opens: bool, moves_until: float, ends: list[float]
) -> None:
    dog = dog_of(longest=10)
    clock = Clock(monkeypatch, dog)
    killed: list[float] = []
    monkeypatch.setattr("os.kill", lambda pid, sign: killed.append(round(clock.now)))
    monkeypatch.setattr(watchdog, "logger", logging.getLogger("silent"))
    ticked = dog._tick

    def tick() -> bool:
        if opens and clock.now <= moves_until:
            dog._move()
        return ticked()

    monkeypatch.setattr(dog, "_tick", tick)
    try:
        dog._watch()
    finally:
        logging.disable(logging.NOTSET)
    assert killed == ends


def crawler_with(
    *,
    transferring: int = 0,
    queued: int = 0,
    active: list[Request] | None = None,
    idle: bool = True,
    pending: bool,
) -> Any:
    slots = {"a": SimpleNamespace(transferring=set(range(transferring)), queue=list(range(queued)))}
    downloader = SimpleNamespace(slots=slots, active=set(active or ()))
    scraper = SimpleNamespace(slot=SimpleNamespace(is_idle=lambda: idle))
    slot = SimpleNamespace(scheduler=SimpleNamespace(has_pending_requests=lambda: pending))
    return SimpleNamespace(
        engine=SimpleNamespace(downloader=downloader, scraper=scraper, _slot=slot)
    )


PAGE, GUEST = Request("http://web/1"), Request("http://web/robots.txt", meta={WAITS: True})


@pytest.mark.parametrize(
    ("state", "held_up"),
    [
        ({"pending": True}, True),  # all wait for permits in the scheduler
        ({"pending": False}, False),  # the start has not ended, and brings nothing
        ({"queued": 1, "active": [PAGE], "pending": True}, True),  # a delay
        (
            {"active": [PAGE, GUEST], "pending": False},
            True,
        ),  # a page waits for a robots.txt, which waits for a permit
        ({"active": [PAGE], "pending": True}, False),  # a middleware has it
        ({"transferring": 1, "queued": 1, "active": [PAGE, GUEST], "pending": True}, False),
        ({"idle": False, "pending": True}, False),  # a callback
    ],
)
def test_what_waits_for_its_turn_is_held_up(state: dict[str, Any], held_up: bool) -> None:
    assert is_held_up(crawler_with(**state)) is held_up


def test_only_a_job_on_a_node_is_watched_and_its_limits_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[float] = []
    monkeypatch.setattr(Watchdog, "start", lambda dog: begun.append(dog._stall))
    limited = get_crawler(Spider, {"DISTRIBUTED_STALL_TIMEOUT": 5})
    watchdog.install_watchdog(limited)
    assert begun == []
    monkeypatch.setattr(
        "sys.orig_argv", ["python", "-m", "scrapyd.runner", "crawl", "a", "-a", "_job=1"]
    )
    watchdog.install_watchdog(get_crawler(Spider))
    assert begun == []
    watchdog.install_watchdog(limited)
    assert begun == [5]
    with pytest.raises(
        ConfigError, match=r"DISTRIBUTED_STALL_TIMEOUT is '5x', and must be a number of seconds,"
    ):
        watchdog.install_watchdog(get_crawler(Spider, {"DISTRIBUTED_STALL_TIMEOUT": "5x"}))
