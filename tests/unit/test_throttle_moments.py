"""The store's moments by our clock: the answer with the least delay counts, and never too early."""

import math

import pytest
from scrapyd_dist.middlewares.throttle.throttle_client import FRESH, ClockOffset


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
