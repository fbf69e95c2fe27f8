"""A domain's queue, the open permits of a process, and the store's clock: what each wants, uses and gives up."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from scrapyd_dist.middlewares.throttle.domain_queues import (
    AHEAD,
    LAST_LOOK,
    MOST_AHEAD,
    DomainQueue,
    DomainStatus,
    QueueKey,
)
from scrapyd_dist.middlewares.throttle.downloader_capacity import FEW, STALE, TOGETHER, DownloaderCapacity
from scrapyd_dist.middlewares.throttle.throttle_client import FRESH, ClockOffset

from scrapyd_dist.throttle.permits import Permit, PermitReply


def ours(moment: float) -> float:
    return moment


def given(*moments: float, **more: Any) -> PermitReply:
    return PermitReply(permits=tuple(Permit(key="k", at=moment) for moment in moments), **more)


def line(waiting: int = 100, pages: int | None = None) -> DomainQueue:
    return DomainQueue(QueueKey("a.example", "", pages), waiting=waiting)


def test_at_first_two_are_asked_for_since_two_tell_how_far_they_lie_apart() -> None:
    it = line()
    assert it.missing(0.0, 9) == 2
    it.receive(given(1.0, 1.5), ours, 0.9)
    assert it.spacing == pytest.approx(0.5)


def test_no_more_are_asked_for_than_requests_wait() -> None:
    assert line(1).missing(0.0, 9) == 1
    assert line(0).missing(0.0, 9) == 0


@pytest.mark.parametrize(("spacing", "ahead"), [(1.0, 1), (AHEAD / 4, 5), (AHEAD / 100, MOST_AHEAD), (0.0, MOST_AHEAD)])
def test_a_quarter_of_a_second_is_taken_ahead(spacing: float, ahead: int) -> None:
    it = line()
    it.receive(given(1.0, 1.0 + spacing), ours, 0.9)
    it.permits.clear()
    assert it.missing(0.9, 9) == ahead


def test_they_are_asked_for_by_the_half_dozen() -> None:
    """A question for one costs as much as one for ten."""
    it = line()
    it.receive(given(*(1.0 + at / 40 for at in range(11))), ours, 0.9)
    assert it.missing(0.9, 9) == 0
    while len(it.permits) > 5:
        it.permits.pop(0)
        asked = it.missing(0.9, 9)
    assert asked == 6


def test_a_permit_is_good_from_its_moment_on_and_not_for_long() -> None:
    it = line()
    it.receive(given(1.0, 2.0), ours, 0.0)
    assert [it.due(now) for now in (0.999, 1.0, 1.0 + STALE / 2, 1.0 + 2 * STALE)] == [False, True, True, False]
    assert it.next_look(0.5) == 1.0
    assert it.next_look(1.1) == 1.0 + STALE
    assert [permit.at for permit in it.take_stale(1.0 + 2 * STALE)] == [1.0]
    assert [held.due for held in it.permits] == [2.0]


def test_where_nothing_can_leave_nothing_is_taken_ahead() -> None:
    it = line()
    it.cramped = True
    assert [it.missing(0.0, room) for room in (0, 1, 9)] == [0, 1, 2]
    it.receive(given(5.0), ours, 4.0)  # the limit is what it waits for
    assert not it.cramped


def test_what_no_request_waits_for_is_given_up() -> None:
    it = line(3)
    it.receive(given(1.0, 2.0, 3.0), ours, 0.0)
    it.waiting = 1
    assert sorted(permit.at for permit in it.take_surplus()) == [2.0, 3.0]


def test_new_rules_take_what_lies_ahead() -> None:
    it = line()
    it.receive(given(1.0, 2.0, 3.0), ours, 0.0)
    assert [permit.at for permit in it.withdraw(1.5)] == [2.0, 3.0]
    assert it.missing(1.5, 9) == 1  # the one that is due is still good, and two are wanted


@pytest.mark.parametrize(("answer", "standing"), [(PermitReply(free=True), "free"), (PermitReply(held=True), "held")])
def test_a_line_that_needs_no_permit_or_gets_none_asks_no_more(answer: PermitReply, standing: str) -> None:
    it = line()
    it.receive(answer, ours, 0.0)
    assert it.standing is DomainStatus(standing)
    assert it.missing(0.0, 9) == 0
    it.withdraw(1.0)
    assert it.missing(1.0, 9) == 2


def test_a_budget_is_used_up_when_it_still_is_a_second_later() -> None:
    """Pages that others had taken ahead may have come back by then."""
    it = line(pages=10)
    it.receive(given(used_up=True), ours, 5.0)
    assert it.standing == "limited"
    assert it.missing(5.1, 9) == 0
    assert it.next_look(5.1) == 5.0 + LAST_LOOK
    again = 5.1 + LAST_LOOK
    assert it.missing(again, 9) == 2
    it.receive(given(used_up=True), ours, again)
    assert it.standing == "used-up"


def test_a_budget_is_used_up_however_often_the_rules_change() -> None:
    """Each slow-down of any domain is such a change: in a broad crawl, that is each second."""
    it = line(pages=10)
    it.receive(given(used_up=True), ours, 5.0)
    it.withdraw(5.9)
    assert it.missing(5.9, 9) == 0
    it.receive(given(used_up=True), ours, 5.1 + LAST_LOOK)
    it.withdraw(7.0)
    assert it.standing is DomainStatus.USED_UP


def test_a_page_that_came_back_is_used() -> None:
    it = line(pages=10)
    it.receive(given(used_up=True), ours, 5.0)
    it.receive(given(7.0, used_up=True), ours, 6.5)
    it.receive(given(used_up=True), ours, 7.5)
    assert it.standing is DomainStatus.LIMITED


def test_what_leaves_for_no_site_is_free() -> None:
    it = DomainQueue(QueueKey(""), waiting=1)
    it.withdraw(1.0)
    assert it.standing is DomainStatus.OPEN


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


def test_before_the_first_answer_no_moment_comes() -> None:
    assert ClockOffset().ours(1.0) == math.inf


def test_the_quickest_answer_counts() -> None:
    moments = ClockOffset()
    for received, said in ((10.05, 1000.0), (10.51, 1000.5), (11.04, 1001.0)):
        moments.saw(received, said)
    assert moments.ours(1002.0) == pytest.approx(12.01)
    assert moments.stores(12.01) == pytest.approx(1002.0)


def test_a_clock_that_was_set_back_makes_nothing_early() -> None:
    moments = ClockOffset()
    moments.saw(10.0, 1000.0)
    moments.saw(11.0, 900.0)
    assert moments.ours(901.0) == pytest.approx(12.0)


def test_a_clock_that_was_set_forward_is_followed_at_once() -> None:
    moments = ClockOffset()
    moments.saw(10.0, 1000.0)
    moments.saw(11.0, 1100.0)
    assert moments.ours(1101.0) == pytest.approx(12.0)


def test_an_old_comparison_is_forgotten() -> None:
    """Else two clocks that drift apart would be taken for one that was once close."""
    moments = ClockOffset()
    moments.saw(10.0, 1000.0)
    for step in range(1, 4):
        moments.saw(10.0 + step * 1.1 * FRESH + 0.05, 1000.0 + step * 1.1 * FRESH)
    assert moments.ours(0.0) == pytest.approx(10.05 - 1000.0)
