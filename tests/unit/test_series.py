"""The series behind the report, and what charts make of them: ticks, lengths of time, numbers, names, places."""

import json
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.made_crawls import BEGUN, made_up

from scrapyd_dist.batches import Attempt, AttemptState, Crawl, CrawlState
from scrapyd_dist.progress import earlier_runs
from scrapyd_dist.report import charts, series
from scrapyd_dist.report.charts import amount, percent, short_names, span, ticks, time_ticks
from scrapyd_dist.report.facts import Facts, gather, natural
from scrapyd_dist.report.series import document
from scrapyd_dist.store import open_store

T = TypeVar("T")


def known(value: T | None) -> T:
    assert value is not None
    return value


def crawl(**fields: Any) -> Crawl:
    return Crawl(
        **{
            "id": "c",
            "project": "p",
            "spider": "s",
            "created": BEGUN,
            "state": CrawlState.FINISHED,
            **fields,
        }
    )


def sampled(*rows: tuple[float, dict[str, Any]], **fields: Any) -> Facts:
    samples = [(BEGUN + at, values) for at, values in rows]
    return Facts(**{"crawl": crawl(), "now": BEGUN + rows[-1][0], "samples": samples, **fields})


def attempt(number: int = 1, **fields: Any) -> Attempt:
    told = {
        "batch": 1,
        "job": "j",
        "node": "web1",
        "url": "http://web1",
        "state": AttemptState.ACCEPTED,
    }
    return Attempt(**{**told, "number": number, "sent_at": BEGUN, "ended_at": BEGUN + 10, **fields})


def test_a_line_never_goes_back_though_a_batch_is_done_again_and_a_time_without_work_is_marked() -> (
    None
):
    data = known(series.burn_up(sampled((0, {"done": 5}), (1, {"done": 3}), (2, {"done": 6}))))
    assert data.done == (5, 5, 6)
    assert data.forecast is None
    data = known(series.burn_up(sampled((0, {}), (1, {}), (2, {}), (500, {}), (501, {}))))
    assert data.gaps == ((2, 500),)


def test_a_line_has_a_bounded_number_of_points_and_keeps_both_ends() -> None:
    data = known(series.burn_up(sampled(*((n, {"done": n}) for n in range(2000)))))
    assert len(data.at) <= series.POINTS
    assert (data.done[0], data.done[-1]) == (0, 1999)


def test_the_forecast_lies_between_the_paces_of_the_past_and_the_goal_is_judged_by_the_index_while_it_is_walked() -> (
    None
):
    rows = [
        (t, {"sealed": 1000, "done": 10 * t if t < 50 else 500 + 5 * (t - 50), "index": [5, 5]})
        for t in range(81)
    ]
    running = crawl(state=CrawlState.WORKING)
    data = known(series.burn_up(sampled(*rows, crawl=running, lives=True)))
    forecast = known(data.forecast)
    assert forecast.requests == 1000
    assert forecast.latest == pytest.approx(80 + 350 / 5, abs=1)
    assert 80 + 350 / 10 <= forecast.soonest < forecast.latest
    # While the index is walked, the goal is judged by it.
    rows = [(t, {"sealed": 10 * t, "done": 5 * t, "index": [t, 40]}) for t in range(1, 21)]
    data = known(series.burn_up(sampled(*rows, crawl=crawl(state=CrawlState.FINDING), lives=True)))
    forecast = known(data.forecast)
    assert (forecast.requests, forecast.sure) == (400, "estimate")


def test_pages_of_a_node_by_the_minute() -> None:
    rows = [
        (t, {"nodes": {"web2": [10 * t, 0, 1, "up"], "web10": [0, 0, 0, "down"]}})
        for t in range(21)
    ]
    data = known(series.heat(sampled(*rows)))
    assert data.nodes == ("web2", "web10")
    assert [set(cells) for cells in data.cells] == [{600.0}, {0.0}]
    assert (data.pages, data.most) == ((200.0, 0.0), 600.0)


def test_no_number_of_nodes_makes_the_map_endless_and_the_slow_ones_are_shown() -> None:
    rows = [(t, {"nodes": {f"n{i}": [i * t, 0, 0, "up"] for i in range(200)}}) for t in range(3)]
    data = known(series.heat(sampled(*rows)))
    assert (len(data.nodes), data.hidden, data.nodes[0]) == (series.ROWS, 200 - series.ROWS, "n0")


def test_jobs_at_one_time_lie_on_lanes_of_their_own() -> None:
    times = ((0, 10), (2, 5), (6, 9), (11, 12))
    rows = [attempt(n, sent_at=BEGUN + a, ended_at=BEGUN + b) for n, (a, b) in enumerate(times)]
    data = known(
        series.gantt(
            Facts(crawl=crawl(), now=BEGUN + 20, attempts=[*rows, attempt(9, node="web0")])
        )
    )
    assert data.lanes == ("web0", "web1", "web1")
    assert [bar.lane for bar in data.bars] == [0, 1, 2, 2, 1]
    running = attempt(state=AttemptState.RUNNING, ended_at=None)
    assert series.span_of(running, BEGUN + 20) == (BEGUN, BEGUN + 20), "it ends now"
    refused = attempt(state=AttemptState.REFUSED)
    assert series.gantt(Facts(crawl=crawl(), now=BEGUN, attempts=[refused])) is None, (
        "it was no job"
    )


@pytest.mark.parametrize(
    ("started", "updated", "expected"),
    [
        (BEGUN + 2, BEGUN + 8, (2, 8)),  # the clocks agree
        (
            BEGUN + 3602,
            BEGUN + 3608,
            (4, 10),
        ),  # the node's is an hour ahead: as late as it can have been
        (BEGUN - 3600, BEGUN - 3594, (0, 6)),
        (BEGUN, BEGUN + 11, (0, 10)),  # longer than it can have been
        (None, BEGUN, (0, 10)),
        (float("nan"), float("inf"), (0, 10)),
        ("soon", [], (0, 10)),
    ],
)
def test_a_nodes_clock_does_not_move_its_jobs(
    started: Any, updated: Any, expected: tuple[float, float]
) -> None:
    begin, end = series.span_of(
        attempt(report={"started": started, "updated": updated}), BEGUN + 20
    )
    assert (begin - BEGUN, end - BEGUN) == pytest.approx(expected)


def test_the_straggler_factor_is_the_greatest_by_the_median() -> None:
    data = known(series.spread([("a", 2.0), ("b", 8.0), ("c", 4.0)]))
    assert (data.names, data.values, data.median, data.factor) == (("b", "c", "a"), (8, 4, 2), 4, 2)
    assert known(series.spread([("a", 0.0)])).factor is None
    assert series.spread([]) is None


def test_a_shard_is_as_it_was_told_of_last() -> None:
    first, later = (
        {"0": [1, 5, BEGUN, BEGUN + 1], "1": [1, 9, BEGUN, BEGUN + 1]},
        {"0": [2, 11, BEGUN, BEGUN + 3]},
    )
    facts = sampled(
        (1, {"shards": first}), (2, {"shards": later}), (3, {"shards": {"2": "nonsense", "3": [1]}})
    )
    every = series.series(facts)
    sizes, times = known(every.shard_sizes), known(every.shard_times)
    assert dict(zip(sizes.names, sizes.values, strict=True)) == {"shard 0": 11, "shard 1": 9}
    assert dict(zip(times.names, times.values, strict=True)) == {"shard 0": 3, "shard 1": 1}


def test_status_codes_are_added_up_by_node() -> None:
    stats = {
        "downloader/response_status_count/200": 8, "downloader/response_status_count/403": 1,
        "downloader/response_status_count/999": 1, "downloader/response_status_count/x": 5,
        "downloader/request_count": 20, "downloader/exception_count": 2, "retry/count": 5,
    }  # fmt: skip
    rows = [
        attempt(n, node=node, report={"stats": stats})
        for n, node in enumerate(("web1", "web1", "web0"))
    ]
    web0, web1 = series.statuses(Facts(crawl=crawl(), now=BEGUN, attempts=rows))
    assert (web0.node, web1.node) == ("web0", "web1")
    assert web1.codes == {"200": 16, "403": 2, "999": 2}
    assert web1.groups == {
        "2xx": 16,
        "3xx": 0,
        "403 and 429": 2,
        "other 4xx": 0,
        "5xx": 2,
        "no answer": 4,
    }
    assert web1.retry_rate == 0.25


def test_runs_are_compared_with_those_that_came_to_their_end() -> None:
    rows = [crawl(id=str(n), summary={"items": n}) for n in (10, 12, 30)]
    data = known(
        series.runs(Facts(crawl=crawl(), now=BEGUN, runs=[*rows, crawl(summary={"items": 3})]))
    )
    assert (data.items, data.median, data.mad) == ((10, 12, 30, 3), 12, 2)
    assert series.runs(Facts(crawl=crawl(), now=BEGUN, runs=[crawl(summary={"items": 3})])) is None


def test_versions_by_node() -> None:
    rows = [
        attempt(n, node=node, report={"code": {"egg": egg, "version": "1"}})
        for n, (node, egg) in enumerate((("web1", "a"), ("web1", "b"), ("web0", "a")))
    ]
    data = known(series.versions(Facts(crawl=crawl(), now=BEGUN, attempts=rows)))
    assert (data.versions, data.nodes) == (("a", "b"), {"web0": {"a": 1}, "web1": {"a": 1, "b": 1}})


def test_the_store_has_what_a_report_needs(tmp_path: Any) -> None:
    store = open_store(tmp_path / "store.db")
    for n, state in enumerate(
        (CrawlState.FINISHED, CrawlState.STOPPED, CrawlState.FINISHED, CrawlState.STOPPED)
    ):
        store.add_crawl(crawl(id=f"c{n}", created=BEGUN + n, state=state, summary={"items": n}))
    store.add_crawl(crawl(id="other", spider="o", summary={"items": 1}))
    store.add_sample("c3", BEGUN + 5, {"found": 1})
    facts = gather(store, "c3", now=BEGUN + 9, lives=False)
    assert [run.id for run in facts.runs] == ["c0", "c2", "c3"]
    assert facts.samples == ((BEGUN + 5, {"found": 1}),)
    store.close()


def test_the_document_is_json_and_tells_no_password() -> None:
    facts = made_up(lives=True, batches=20)
    told = replace(
        facts, crawl=replace(facts.crawl, message="at http://u:secret@web1/ and ftp://v:secret@x")
    )
    text = json.dumps(document(told))
    assert ("secret" in text, "http://***@web1/" in text) == (False, True)


@given(st.floats(min_value=0.001, max_value=1e12), st.integers(min_value=1, max_value=8))
def test_ticks_are_few_and_go_to_the_end(high: float, count: int) -> None:
    found = ticks(high, count)
    assert found[0] == 0
    assert found[-1] >= high * 0.999
    assert found == sorted(found)
    assert 2 <= len(found) <= count + 2


@pytest.mark.parametrize(
    ("high", "expected"),
    [(3, [0, 1, 2, 3]), (7, [0, 2, 4, 6, 8]), (0, [0, 1]), (5200, [0, 2000, 4000, 6000])],
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


def test_lengths_of_time_and_amounts() -> None:
    times = {0: "0", 0.4: "0", 40: "40 s", 90: "1:30 min", 120: "2 min", 7200: "2 h", 3900: "1:05 h", 3599.9: "1 h",
             300_000: "3 d 11 h", 259_200: "3 d"}  # fmt: skip
    assert {seconds: span(seconds) for seconds in times} == times
    texts = {0: "0", 2.5: "2.5", 0.25: "0.25", 950: "950", 9500: "9,500", 12_000: "12k", 12_500: "12.5k",
             3_400_000: "3.4M", 2e9: "2G"}  # fmt: skip
    assert {value: amount(value) for value in texts} == texts
    assert [amount(value, 10_000) for value in (0, 2500, 5000, 10_000)] == [
        "0",
        "2.5k",
        "5k",
        "10k",
    ], "of one axis"


def test_a_place_stays_on_the_plot() -> None:
    assert [percent(value, 8) for value in (0, 4, 8, 20, -5)] == [0, 50, 100, 100, 0]
    assert percent(1, 0) == 0


def test_names_are_sorted_as_people_do_and_cut_where_they_are_the_same() -> None:
    assert sorted(["web10", "web2", "a", "10"], key=natural) == ["10", "a", "web2", "web10"]
    assert short_names(["web-eu-1.shop", "web-eu-12.shop"]) == ["web-eu-1.shop", "web-eu-12.shop"]
    assert short_names(["node-eu-1.example.com", "node-eu-12.example.com"]) == [
        "node-eu-1",
        "node-eu-12",
    ]
    assert short_names(["crawler-of-the-north-1.x", "crawler-of-the-north-12.x"]) == ["…1", "…12"]
    assert short_names(["the-same-node.example.com"] * 2) == ["the-same-node.example.com"] * 2


def test_every_piece_of_a_chart_lies_within_its_plot() -> None:
    data = series.series(made_up(lives=True, batches=60, nodes=3))
    rows = [
        charts.heat(known(data.heat)),
        charts.jobs(known(data.jobs), 72),
        charts.status_codes(data.statuses),
    ]
    pieces = [piece for chart in rows for row in chart.rows for lane in row.lanes for piece in lane]
    assert len(pieces) > 50
    assert all(
        piece.at >= 0 and piece.length >= 0 and piece.at + piece.length <= 100.02
        for piece in pieces
    )


@pytest.mark.parametrize("state", sorted({*AttemptState} - {AttemptState.REFUSED}))
def test_a_job_is_in_the_picture_in_each_of_its_states(state: AttemptState) -> None:
    made = Facts(crawl=crawl(), now=BEGUN + 9, attempts=[attempt(1, state=state)])
    assert [bar.name for bar in known(series.gantt(made)).bars] == ["batch 1, attempt 1"]


def test_thousands_of_jobs_are_joined_where_they_touch() -> None:
    bars = [
        series.Bar(lane=0, begin=n / 10, end=n / 10 + 0.1, outcome="done", name="")
        for n in range(5000)
    ]
    (row,) = charts.jobs(series.Gantt(lanes=("web1",), bars=tuple(bars)), 500.0).rows
    assert len(row.lanes[0]) <= 130
    assert sum(piece.length for piece in row.lanes[0]) == pytest.approx(100, abs=1)


def test_what_is_usual_is_told_of_many_crawls_by_one_look_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = [CrawlState.FINISHED, CrawlState.FINISHED, CrawlState.STOPPED]
    # Some began in the same second.
    crawls = [
        crawl(id=str(n), spider=f"s{n % 2}", created=BEGUN + n // 3, state=states[n % 3],
              summary={"items": n * 7 % 50})
        for n in range(300)
    ]  # fmt: skip
    before = {
        last.id: series.runs(
            Facts(crawl=last, now=BEGUN, runs=(*earlier_runs.earlier_runs(crawls, last), last))
        )
        for last in crawls
    }
    medians = {name: None if found is None else found.median for name, found in before.items()}
    looks: list[str] = []
    is_whole = earlier_runs.is_whole

    def noted(row: Crawl) -> bool:
        looks.append(row.id)
        return is_whole(row)

    monkeypatch.setattr(earlier_runs, "is_whole", noted)
    monkeypatch.setattr(series, "is_whole", noted)
    assert series.find_usual_items(crawls, crawls) == medians
    assert len(looks) <= len(crawls) * 3 * earlier_runs.RUNS
    looks.clear()
    series.find_usual_items(crawls, [])
    assert len(looks) == len(crawls)


def test_a_slow_site_is_at_work_between_its_pages_too() -> None:
    cells = (0.0, 30.0, 0.0, 0.0, None, 30.0, 0.0)
    data = series.Heat(step=2.0, nodes=("web1",), cells=(cells,), pages=(2.0,))
    assert [*charts.heat(data).table] == [("web1", 2, 15.0, 30.0, 8)]


def test_the_axis_reaches_the_end_of_the_forecast_and_both_limits_go_straight_to_it() -> None:
    forecast = series.Forecast(requests=100, sure="known", soonest=80.0, latest=100.0)
    data = series.BurnUp(
        at=(0.0, 10.0), found=(0.0, 10.0), sent=(0.0, 10.0), done=(0.0, 10.0), forecast=forecast
    )
    assert charts.burn_up(data).band == "M10 90L80 0L100 0z"
    far = replace(data, forecast=replace(forecast, soonest=1000.0, latest=1000.0))
    # The plot ends at 200 s, when 27 of 100 requests may be done.
    assert charts.burn_up(far).band.startswith("M5 90L100 72.73")


def test_two_limits_of_one_text_are_one() -> None:
    forecast = series.Forecast(requests=9, sure="known", soonest=66.1, latest=66.4)
    assert charts.time_to_end(10.0, forecast) == "56 s"
    assert charts.time_to_end(10.0, replace(forecast, latest=70.0)) == "56 s to 1 min"
