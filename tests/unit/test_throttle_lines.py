"""A line: how many permits it wants, which it may use, and which it gives up."""

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
from scrapyd_dist.middlewares.throttle.downloader_capacity import STALE

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
