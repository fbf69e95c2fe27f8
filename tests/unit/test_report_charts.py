"""What charts are made of: round ticks, lengths of time, numbers, names; and their places are within the plot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.made_crawls import made_up

from scrapyd_dist.report import charts
from scrapyd_dist.report.charts import amount, percent, short_names, span, ticks, time_ticks
from scrapyd_dist.report.series import Bar, Gantt, series


@given(st.floats(min_value=0.001, max_value=1e12), st.integers(min_value=1, max_value=8))
def test_ticks_are_few_and_go_to_the_end(high: float, count: int) -> None:
    found = ticks(high, count)
    assert found[0] == 0
    assert found[-1] >= high * 0.999
    assert found == sorted(found)
    assert 2 <= len(found) <= count + 2


@pytest.mark.parametrize(
    ("high", "expected"), [(3, [0, 1, 2, 3]), (7, [0, 2, 4, 6, 8]), (0, [0, 1]), (5200, [0, 2000, 4000, 6000])]
)
def test_ticks_of_whole_things_are_whole(high: float, expected: list[float]) -> None:
    assert ticks(high) == expected


@given(st.floats(min_value=0.01, max_value=1e8), st.integers(min_value=2, max_value=12))
def test_times_are_few_and_within(seconds: float, count: int) -> None:
    found = time_ticks(seconds, count)
    assert found[0] == 0
    assert found[-1] <= seconds
    assert len(found) <= count + 1
    assert time_ticks(seconds, count, beyond=True)[-1] >= seconds


def test_lengths_of_time() -> None:
    texts = {0: "0", 0.4: "0", 40: "40 s", 90: "1:30 min", 120: "2 min", 7200: "2 h", 3900: "1:05 h", 3599.9: "1 h",
             300_000: "3 d 11 h", 259_200: "3 d"}  # fmt: skip
    assert {seconds: span(seconds) for seconds in texts} == texts


def test_amounts() -> None:
    texts = {0: "0", 2.5: "2.5", 0.25: "0.25", 950: "950", 9500: "9,500", 12_000: "12k", 12_500: "12.5k",
             3_400_000: "3.4M", 2e9: "2G"}  # fmt: skip
    assert {value: amount(value) for value in texts} == texts
    assert [amount(value, 10_000) for value in (0, 2500, 5000, 10_000)] == ["0", "2.5k", "5k", "10k"], "of one axis"


def test_a_place_stays_on_the_plot() -> None:
    assert [percent(value, 8) for value in (0, 4, 8, 20, -5)] == [0, 50, 100, 100, 0]
    assert percent(1, 0) == 0


def test_names_are_cut_where_they_are_the_same() -> None:
    assert short_names(["web-eu-1.shop", "web-eu-12.shop"]) == ["web-eu-1.shop", "web-eu-12.shop"]
    assert short_names(["node-eu-1.example.com", "node-eu-12.example.com"]) == ["node-eu-1", "node-eu-12"]
    assert short_names(["crawler-of-the-north-1.x", "crawler-of-the-north-12.x"]) == ["…1", "…12"]
    assert short_names(["the-same-node.example.com"] * 2) == ["the-same-node.example.com"] * 2


def test_every_piece_of_a_chart_lies_within_its_plot() -> None:
    data = series(made_up(lives=True, batches=60, nodes=3))
    assert data.heat
    assert data.jobs
    rows = [charts.heat(data.heat), charts.jobs(data.jobs, 72), charts.status_codes(data.statuses)]
    pieces = [piece for chart in rows for row in chart.rows for lane in row.lanes for piece in lane]
    assert len(pieces) > 50
    assert all(piece.at >= 0 and piece.length >= 0 and piece.at + piece.length <= 100.02 for piece in pieces)


def test_thousands_of_jobs_are_joined_where_they_touch() -> None:
    bars = [Bar(lane=0, begin=n / 10, end=n / 10 + 0.1, outcome="done", name="") for n in range(5000)]
    (row,) = charts.jobs(Gantt(lanes=("web1",), bars=tuple(bars)), 500.0).rows
    assert len(row.lanes[0]) <= 130
    assert sum(piece.length for piece in row.lanes[0]) == pytest.approx(100, abs=1)
