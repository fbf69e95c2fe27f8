"""How many permits are open at once: as many as the engine has room for, and as leave soon."""

from types import SimpleNamespace
from typing import Any

from scrapyd_dist.middlewares.throttle.downloader_capacity import FEW, TOGETHER, DownloaderCapacity


class Clock:
    """Turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def places(of_engine: int, a_second: int = 0, clock: Clock | None = None) -> DownloaderCapacity:
    """With so much room, where so many left in the last second."""
    clock = clock or Clock()
    downloader = SimpleNamespace(total_concurrency=1000, active=range(1000 - of_engine))
    crawler: Any = SimpleNamespace(engine=SimpleNamespace(downloader=downloader))
    it = DownloaderCapacity(crawler, clock)
    for _ in range(a_second):
        it.departed()
    clock.now = 1.0
    return it


def test_at_first_there_are_as_many_as_the_engine_has_room_for_and_few_at_once() -> None:
    assert [places(room).quota(0) for room in (-1, 0, 1, 8, 100)] == [0, 0, 1, 8, FEW]
    assert [places(8).quota(open_now) for open_now in (7, 8, 9)] == [1, 0, 0]


def test_as_many_as_leave_in_a_tenth_of_a_second_are_asked_for_ahead() -> None:
    assert places(0, a_second=300).quota(0) == 30
    assert places(5, a_second=300).quota(5) == 25
    assert places(100, a_second=300).quota(0) == 30


def test_the_longer_an_answer_takes_the_more_are_asked_for_ahead() -> None:
    """Or a store that is far away would set the pace: each question has to bring more than leave until its answer."""
    it = places(0, a_second=300)
    wanted = {0.0: 30, 0.2: 90, 60.0: 330}
    for seconds, ahead in wanted.items():
        it.took(seconds)
        assert it.quota(0) == ahead


def test_a_busy_engine_asks_for_many_at_once() -> None:
    assert [places(0, a_second=300).quota(open_now) for open_now in (20, 21)] == [TOGETHER, 0]
    assert places(25, a_second=300).quota(24) == 6  # but not where it would have nothing to do


def test_where_hardly_anything_leaves_nothing_is_asked_for_ahead() -> None:
    assert places(0, a_second=9).quota(0) == 0
    assert places(0, a_second=10).quota(0) == 1


def test_what_left_long_ago_counts_no_more() -> None:
    clock = Clock()
    it = places(0, a_second=300, clock=clock)
    assert it.quota(0) == 30
    clock.now = 2.0
    assert it.quota(0) == 0
