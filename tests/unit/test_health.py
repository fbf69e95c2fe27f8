"""When a node is wedged, busy or down: the clock is turned, nothing is asked."""

from datetime import datetime, timedelta, timezone

import pytest

from scrapyd_dist.errors import AuthRefused, ConnectionRefused, ConnectTimeout, NoReply, TlsRefused
from scrapyd_dist.scheduling import node_state
from scrapyd_dist.scheduling.node_state import NodeHealth, looked, state_of, wedged_since

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def row(*times: float, start_delay: float = 0.0) -> tuple[float, ...]:
    """Looks at these times, each with work waiting and nothing running."""
    looks: tuple[float, ...] = ()
    for now in times:
        looks = looked(looks, now=now, pending=2, running=0, start_delay=start_delay)
    return looks


def test_three_looks_far_enough_apart() -> None:
    assert wedged_since(row(100, 106)) is None
    assert wedged_since(row(100, 106, 112)) is not None
    assert row(100, 106, 112) == (100, 106, 112)
    assert wedged_since((100, 106, 112)) == 100


def test_looks_close_together_count_as_one() -> None:
    every_second = [100 + second for second in range(13)]
    assert row(*every_second[:12]) == (100, 106)
    assert wedged_since(row(*every_second[:12])) is None
    assert wedged_since(row(*every_second)) is not None


def test_a_node_that_was_seen_to_start_late_gets_more_time() -> None:
    assert wedged_since(row(100, 106, 112, 118, start_delay=30), 30) is None
    assert wedged_since(row(100, 131, 162, start_delay=30), 30) is not None
    # learned later: looks that were two by the old measure are one by the new
    assert wedged_since((100, 106, 112), 30) is None
    assert wedged_since((100, 106, 112, 131, 140, 162), 30) is not None


@pytest.mark.parametrize(("pending", "running", "moved"), [(0, 0, False), (2, 1, False), (0, 3, False), (2, 0, True)])
def test_anything_that_moves_ends_the_row(pending: int, running: int, moved: bool) -> None:
    assert looked((100, 106), now=112, pending=pending, running=running, moved=moved) == ()


def test_a_clock_that_was_set_back_begins_anew() -> None:
    assert looked((5000, 5006), now=100, pending=1, running=0) == (100,)


def test_not_more_looks_are_kept_than_needed() -> None:
    assert len(row(*range(0, 6000, 6))) == node_state.KEPT


@pytest.mark.parametrize(
    ("at", "moved"),
    [
        ("2026-11-20 11:59:50", True),  # the node lives by UTC
        ("2026-11-20 12:59:50", True),  # or by our own time
        ("2026-11-20 11:58:00", False),
        ("2026-11-20 06:59:50", False),
        (None, False),
    ],
)
def test_jobs_that_came_and_went_between_the_looks(at: str | None, moved: bool) -> None:
    offsets, times = {timedelta(), timedelta(hours=1)}, [datetime.fromisoformat(at) if at else None]
    assert node_state.moved_since(times, span=30, node_now=NOON, offsets=offsets) is moved
    assert not node_state.moved_since(times, span=30, node_now=None, offsets=offsets)


def test_the_longest_delay_by_one_clock() -> None:
    assert node_state.start_delay_of([(100, 104), (100, 112)]) == 12
    assert node_state.start_delay_of([(100, 3704)], skew=3600) == 4
    # a clock that is wrong by an unknown hour tells nothing
    assert node_state.start_delay_of([(100, 3704), (100, 90)]) == 0


def test_the_clock_of_a_node() -> None:
    ours = NOON.timestamp()
    assert node_state.skew_of(NOON, ours + 0.5) == 0
    assert node_state.skew_of(NOON + timedelta(hours=1), ours) == 3600.5
    assert node_state.skew_of(None, ours) is None


@pytest.mark.parametrize(
    ("error", "state"),
    [(ConnectionRefused, NodeHealth.DOWN), (ConnectTimeout, NodeHealth.DOWN), (NoReply, NodeHealth.BUSY),
     (AuthRefused, NodeHealth.REFUSED), (TlsRefused, NodeHealth.REFUSED)],
)  # fmt: skip
def test_the_state_of_one_that_does_not_answer(error: type[ConnectionRefused], state: NodeHealth) -> None:
    assert state_of(error.at("node1"), draining=True) is state


def test_the_state_of_one_that_answers() -> None:
    assert state_of(None) is NodeHealth.UP
    assert state_of(None, draining=True) is NodeHealth.DRAINING
    assert state_of(None, draining=True, wedged=True) is NodeHealth.WEDGED
