"""Whether a node answers, starts the jobs that it takes, and has the right time; the clock is turned, nothing is asked."""

from datetime import datetime, timedelta, timezone

import pytest
from rig.members import load, member

from scrapyd_dist.scheduling import liveness
from scrapyd_dist.scheduling.liveness import Liveness, WedgeWatch

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def row(*times: float, start_delay: float = 0.0) -> WedgeWatch:
    """Looks at these times, each with work waiting and nothing running."""
    watch = WedgeWatch(start_delay=start_delay)
    for now in times:
        watch.saw(load(0, 2), now)
    return watch


def test_three_looks_far_enough_apart() -> None:
    assert row(100, 106).since is None
    assert row(100, 106, 112).looks == (100, 106, 112)
    assert row(100, 106, 112).since == 100


def test_looks_close_together_count_as_one() -> None:
    every_second = [100 + second for second in range(13)]
    assert row(*every_second[:12]).looks == (100, 106)
    assert row(*every_second).looks == (100, 106, 112)


def test_a_node_that_was_seen_to_start_late_gets_more_time() -> None:
    assert not row(100, 106, 112, 118, start_delay=30).wedged
    assert row(100, 131, 162, start_delay=30).wedged
    # learned later: looks that were two by the old measure are one by the new
    assert not WedgeWatch(looks=(100, 106, 112), start_delay=30).wedged
    assert WedgeWatch(looks=(100, 106, 112, 131, 140, 162), start_delay=30).wedged


def test_a_node_that_starts_slowly_is_not_taken_for_a_wedged_one() -> None:
    slow, quick = (
        member("slow", liveness=Liveness(wedge_watch=WedgeWatch(start_delay=30.0))),
        member("quick"),
    )
    for at in (100.0, 106.0, 112.0, 118.0):
        for one in (slow, quick):
            one.weighed(load(0, 2), 0, at)
    assert not slow.liveness.wedged
    assert quick.liveness.wedged


@pytest.mark.parametrize(
    ("pending", "running", "moved"), [(0, 0, False), (2, 1, False), (0, 3, False), (2, 0, True)]
)
def test_anything_that_moves_ends_the_row(pending: int, running: int, moved: bool) -> None:
    watch = row(100, 106)
    watch.saw(load(running, pending), 112, moved=moved)
    assert watch.looks == ()


def test_a_clock_that_was_set_back_begins_anew() -> None:
    assert row(5000, 5006, 100).looks == (100,)


def test_not_more_looks_are_kept_than_needed() -> None:
    assert len(row(*range(0, 6000, 6)).looks) == liveness.KEPT


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
    assert liveness.moved_since(times, span=30, node_now=NOON, offsets=offsets) is moved
    assert not liveness.moved_since(times, span=30, node_now=None, offsets=offsets)


def test_the_longest_delay_by_one_clock() -> None:
    assert liveness.start_delay_of([(100, 104), (100, 112)]) == 12
    assert liveness.start_delay_of([(100, 3704)], skew=3600) == 4
    # a clock that is wrong by an unknown hour tells nothing
    assert liveness.start_delay_of([(100, 3704), (100, 90)]) == 0


def test_the_clock_of_a_node() -> None:
    ours = NOON.timestamp()
    assert liveness.skew_of(NOON, ours + 0.5) == 0
    assert liveness.skew_of(NOON + timedelta(hours=1), ours) == 3600.5
    assert liveness.skew_of(None, ours) is None


def test_a_node_that_is_missed_is_down_since_the_first_time_and_up_when_it_answers() -> None:
    node = Liveness()
    node.missed("refused", 5.0)
    node.missed("timed out", 9.0)
    assert (node.up, node.down_since, node.down_reason) == (False, 5.0, "timed out")
    node.answered()
    assert (node.up, node.down_reason) == (True, "")
