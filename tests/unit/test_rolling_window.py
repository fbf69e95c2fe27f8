"""Moments against a limit: the most in a rolling window, and gaps that are long enough."""

from hypothesis import given
from hypothesis import strategies as st
from rig.rolling_window import most_in_window, part_apart

#: a moment as clocks have it today: there, a float is good for a quarter of a microsecond
NOW = 1_795_000_000.0


def test_a_moment_exactly_one_window_later_is_outside_of_it() -> None:
    even = [NOW + number * 0.2 for number in range(60)]
    assert most_in_window(even, 4.0) == 20
    assert most_in_window([*even, NOW + 0.1], 4.0) == 21
    assert most_in_window([], 4.0) == 0


@given(st.lists(st.integers(0, 400), max_size=40), st.integers(1, 100))
def test_the_most_in_a_window_is_what_counting_each_window_says(
    ticks: list[int], width: int
) -> None:
    counted = max(
        (sum(first <= tick < first + width for tick in ticks) for first in ticks), default=0
    )
    assert most_in_window([NOW + tick / 100 for tick in ticks], width / 100) == counted


def test_gaps_that_are_long_enough() -> None:
    assert part_apart([NOW, NOW + 0.2, NOW + 0.39, NOW + 0.5, NOW + 0.69], 0.19) == 0.75
    assert part_apart([NOW], 0.19) == 1.0
