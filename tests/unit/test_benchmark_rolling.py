"""Counting for the throttle's benchmark: windows, gaps, rates; and the section of a document that it writes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbers_section import put_section
from rolling import most_in_window, part_apart, per_second, percentile, within

#: a moment as clocks have it today: there, a float is good for a quarter of a microsecond
NOW = 1_795_000_000.0


def test_a_moment_exactly_one_window_later_is_outside_of_it() -> None:
    even = [NOW + number * 0.2 for number in range(60)]
    assert most_in_window(even, 4.0) == 20
    assert most_in_window([*even, NOW + 0.1], 4.0) == 21
    assert most_in_window([], 4.0) == 0


@given(st.lists(st.integers(0, 400), max_size=40), st.integers(1, 100))
def test_the_most_in_a_window_is_what_counting_each_window_says(ticks: list[int], width: int) -> None:
    counted = max((sum(first <= tick < first + width for tick in ticks) for first in ticks), default=0)
    assert most_in_window([NOW + tick / 100 for tick in ticks], width / 100) == counted


def test_gaps_that_are_long_enough() -> None:
    assert part_apart([NOW, NOW + 0.2, NOW + 0.39, NOW + 0.5, NOW + 0.69], 0.19) == 0.75
    assert part_apart([NOW], 0.19) == 1.0


def test_a_percentile_is_one_of_the_values() -> None:
    values = [number / 100 for number in range(100)]
    assert percentile(values, 0.99) == 0.99
    assert percentile(values, 0.5) == 0.5
    assert percentile(values, 1.0) == 0.99
    assert percentile([], 0.99) == 0.0


def test_rates_of_each_step() -> None:
    moments = [NOW + 0.1, NOW + 0.4, NOW + 0.5, NOW + 1.999, NOW + 2.0, NOW - 0.1]
    assert within(moments, NOW, 2.0) == [NOW + 0.1, NOW + 0.4, NOW + 0.5, NOW + 1.999]
    assert per_second(moments, NOW, 2.0) == [4.0, 2.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "# Speed\n\n## Numbers\n\nold\n\n### old\n\n## Faults\n\nx\n",
            "# Speed\n\n## Numbers\n\nnew\n\n## Faults\n\nx\n",
        ),
        ("# Speed\n\n## Numbers\nold\n", "# Speed\n\n## Numbers\n\nnew\n"),
        ("# Speed\n\nNothing yet.\n", "# Speed\n\nNothing yet.\n\n## Numbers\n\nnew\n"),
    ],
)
def test_a_section_is_replaced_and_the_rest_is_left(before: str, after: str, tmp_path: Path) -> None:
    document = tmp_path / "speed.md"
    document.write_text(before, encoding="utf-8")
    put_section(document, "Numbers", "new\n")
    assert document.read_text(encoding="utf-8") == after
