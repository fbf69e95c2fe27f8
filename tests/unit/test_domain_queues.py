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
from scrapyd_dist.middlewares.throttle.downloader_capacity import (
    FEW,
    STALE,
    TOGETHER,
    DownloaderCapacity,
)
from scrapyd_dist.middlewares.throttle.throttle_client import FRESH, ClockOffset

from scrapyd_dist.throttle.permits import Permit, PermitReply


def ours(moment: float) -> float:
    return moment


def given(*moments: float, **more: Any) -> PermitReply:
    return PermitReply(permits=tuple(Permit(key="k", at=moment) for moment in moments), **more)


def line(
    waiting: int = 100, pages: int | None = None, *, has: tuple[float, ...] = (), now: float = 0.0
) -> DomainQueue:
    """A queue of so many requests, which has got permits for these moments."""
    made = DomainQueue(QueueKey("a.example", "", pages), waiting=waiting)
    if has:
        made.receive(given(*has), ours, now)
    return made


def test_at_first_two_are_asked_for_since_two_tell_how_far_they_lie_apart() -> None:
    it = line()
    assert [it.missing(0.0, 9), line(1).missing(0.0, 9), line(0).missing(0.0, 9)] == [2, 1, 0]
    it.receive(given(1.0, 1.5), ours, 0.9)
    assert it.spacing == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("spacing", "ahead"), [(1.0, 1), (AHEAD / 4, 5), (AHEAD / 100, MOST_AHEAD), (0.0, MOST_AHEAD)]
)
def test_a_quarter_of_a_second_is_taken_ahead(spacing: float, ahead: int) -> None:
    it = line(has=(1.0, 1.0 + spacing), now=0.9)
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
    it = line(has=(1.0, 2.0))
    assert [it.due(now) for now in (0.999, 1.0, 1.0 + STALE / 2, 1.0 + 2 * STALE)] == [
        False,
        True,
        True,
        False,
    ]
    assert it.next_look(0.5) == 1.0
    assert it.next_look(1.1) == 1.0 + STALE
    assert [held.due for held in it.take_stale(1.0 + 2 * STALE)] == [1.0]
    assert [held.due for held in it.permits] == [2.0]


def test_where_nothing_can_leave_nothing_is_taken_ahead() -> None:
    it = line()
    it.cramped = True
    assert [it.missing(0.0, room) for room in (0, 1, 9)] == [0, 1, 2]
    it.receive(given(5.0), ours, 4.0)  # the limit is what it waits for
    assert not it.cramped


def test_what_no_request_waits_for_or_new_rules_may_change_is_given_up() -> None:
    it = line(3, has=(1.0, 2.0, 3.0))
    it.waiting = 2
    assert [held.due for held in it.take_surplus()] == [3.0]
    assert [held.due for held in it.withdraw(1.5)] == [2.0]
    assert it.missing(1.5, 9) == 1  # the one that is due is still good, and two are wanted


@pytest.mark.parametrize(
    ("answer", "standing"), [(PermitReply(free=True), "free"), (PermitReply(held=True), "held")]
)
def test_a_line_that_needs_no_permit_or_gets_none_asks_no_more(
    answer: PermitReply, standing: str
) -> None:
    it = line()
    it.receive(answer, ours, 0.0)
    assert it.standing is DomainStatus(standing)
    assert it.missing(0.0, 9) == 0
    it.withdraw(1.0)
    assert it.missing(1.0, 9) == 2
    it.withdraw(2.0, ruled=False)
    assert (it.standing, it.missing(2.0, 9)) == (DomainStatus.OPEN, 0)


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


def test_a_budget_is_used_up_however_often_the_rules_change_and_a_page_that_came_back_is_used() -> (
    None
):
    """Each slow-down of any domain is such a change: in a broad crawl, that is each second."""
    it = line(pages=10)
    it.receive(given(used_up=True), ours, 5.0)
    it.withdraw(5.9)
    assert it.missing(5.9, 9) == 0
    it.receive(given(used_up=True), ours, 5.1 + LAST_LOOK)
    it.withdraw(7.0)
    assert it.standing is DomainStatus.USED_UP
    it = line(pages=10)
    it.receive(given(used_up=True), ours, 5.0)
    it.receive(given(7.0, used_up=True), ours, 6.5)
    it.receive(given(used_up=True), ours, 7.5)
    assert it.standing is DomainStatus.LIMITED


def places(of_engine: int, a_second: int, now: list[float]) -> DownloaderCapacity:
    """With so much room, where so many left in the second before `now`, which the test turns."""
    downloader = SimpleNamespace(total_concurrency=1000, active=range(1000 - of_engine))
    crawler: Any = SimpleNamespace(engine=SimpleNamespace(downloader=downloader))
    now[0] -= 1.0
    it = DownloaderCapacity(crawler, lambda: now[0])
    for _ in range(a_second):
        it.departed()
    now[0] += 1.0
    return it


@pytest.mark.parametrize(
    ("room", "a_second", "open_now", "quota"),
    [
        *((room, 0, 0, few) for room, few in ((-1, 0), (0, 0), (1, 1), (8, 8), (100, FEW))),  # as the engine has room
        *((8, 0, open_now, quota) for open_now, quota in ((7, 1), (8, 0), (9, 0))),
        (0, 300, 0, 30), (5, 300, 5, 25), (100, 300, 0, 30),  # as many as leave in a tenth of a second
        (0, 300, 20, TOGETHER), (0, 300, 21, 0),  # a busy engine asks for many at once,
        (25, 300, 24, 6),  # but not where it would have nothing to do
        (0, 9, 0, 0), (0, 10, 0, 1),  # where hardly anything leaves, nothing is asked for ahead
    ],
)  # fmt: skip
def test_how_many_permits_are_asked_for(
    room: int, a_second: int, open_now: int, quota: int
) -> None:
    assert places(room, a_second, [1.0]).quota(open_now) == quota


def test_the_longer_an_answer_takes_the_more_are_asked_for_ahead() -> None:
    """Or a store that is far away would set the pace: each question has to bring more than leave until its answer."""
    now = [1.0]
    it = places(0, 300, now)
    for seconds, ahead in {0.0: 30, 0.2: 90, 60.0: 330}.items():
        it.note_answer_time(seconds)
        assert it.quota(0) == ahead
    now[0] = 2.0  # what left long ago counts no more
    assert it.quota(0) == 0


@pytest.mark.parametrize(
    ("seen", "moment", "by_ours"),
    [
        ([], 1.0, math.inf),
        ([(10.05, 1000.0), (10.51, 1000.5), (11.04, 1001.0)], 1002.0, 12.01),
        ([(10.0, 1000.0), (11.0, 900.0)], 901.0, 12.0),
        ([(10.0, 1000.0), (11.0, 1100.0)], 1101.0, 12.0),
        ([(10.0, 1000.0), *((10.05 + at * FRESH, 1000.0 + at * FRESH) for at in (1.1, 2.2, 3.3))], 0.0, 10.05 - 1000.0),
    ],
    ids=["before the first answer no moment comes", "the quickest answer counts", "set back, it makes nothing early",
         "set forward, it is followed at once", "an old comparison is forgotten, as clocks drift apart"],
)  # fmt: skip
def test_the_stores_clock(seen: list[tuple[float, float]], moment: float, by_ours: float) -> None:
    clocks = ClockOffset()
    for received, said in seen:
        clocks.saw(received, said)
    assert clocks.ours(moment) == pytest.approx(by_ours)
    assert math.isinf(by_ours) or clocks.stores(by_ours) == pytest.approx(moment)
