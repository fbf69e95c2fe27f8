"""The benchmarks run in their short forms, and what they measure is what is promised; or they say what is wrong."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from measure import RunError, run_all
from ways import Bench, Options

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def output_of(tmp_path: Path, program: str, *options: object) -> str:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / program, *map(str, options)],
        check=False, capture_output=True, text=True, cwd=tmp_path, timeout=230,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures_of(tmp_path: Path, program: str, *options: str) -> dict[str, Any]:
    """What its short form measures; its tables, too, as `printed`."""
    path = tmp_path / "figures.json"
    printed = output_of(tmp_path, program, "--short", "--json", path, *options)
    return {**json.loads(path.read_text(encoding="utf-8")), "printed": printed}


def table_of(text: str) -> list[list[str]]:
    """The cells of a Markdown table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


@pytest.mark.full
@pytest.mark.parametrize(
    "ways", [["plain", "bound"], ["sdist2", "sdist2-fast"], ["sdist2-redis", "scrapy-redis2"]]
)
def test_the_short_benchmark_measures_and_checks_every_way(ways: list[str], tmp_path: Path) -> None:
    """Every way brings exactly the site's items home."""
    if "scrapy-redis2" in ways:
        pytest.importorskip("scrapy_redis", reason="of the dependency group `bench`")
    found = figures_of(tmp_path, "run.py", "--ways", ",".join(ways), "--timeout", "120")
    assert [run["way"] for run in found["runs"]] == ways
    for run in found["runs"]:
        assert (run["refetched"], run["index_fetched"]) == (0, 10), run
        assert run["wall_s"] > 0
        # 300 pages cost more than this even on a fast machine: less would mean that a process was not counted.
        assert run["cpu_s"] > 0.5
        assert run["site_cpu_s"] < run["cpu_s"] / 5, (
            "the site is to be far faster than the crawlers"
        )


def test_a_run_that_lost_an_item_is_no_measurement(tmp_path: Path) -> None:
    options = Options(
        items=20, per_page=10, url_style="numbered", shards=2, batch_size=10, max_proc=1, poll_interval=0.5,
        index_weight=0, timeout=60,
    )  # fmt: skip
    with closing(Bench(tmp_path, options)) as bench:
        bench.prepare("plain")
        bench.site.behave({bench.site.site.detail_path(7): "gone"})
        with pytest.raises(RunError, match=r"19 items home.*'missing': \['7'\]"):
            bench.run("plain", 0)


def test_a_failed_or_endless_command_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ended with 3 after"):
        run_all([["sh", "-c", "exit 3"]], cwd=tmp_path, output=tmp_path, timeout=20)
    with pytest.raises(RunError, match="ended with -9 after"):
        run_all([["sleep", "100"]], cwd=tmp_path, output=tmp_path, timeout=0.2)


def test_cpu_seconds_of_what_a_command_leaves_behind_are_counted(tmp_path: Path) -> None:
    burn = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.5: pass'"
    # A process of its own, because it becomes the parent of orphans.
    program = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(BENCHMARKS)!r}, {str(BENCHMARKS.parent / "tests")!r}]
from measure import adopt_orphans, run_all
adopt_orphans()
command = ["setsid", "sh", "-c", {burn + " & exit 0"!r}]
print(run_all([command], cwd=Path("."), output=Path("."), timeout=20).cpu)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert 0.45 < float(done.stdout) < 5


@pytest.mark.full
def test_the_short_benchmark_of_roll_outs(tmp_path: Path) -> None:
    found = figures_of(tmp_path, "deploys.py", "--timeout", "120")
    assert [(run["way"], run["pair"]) for run in found["runs"]] == [("bound", 0), ("sdist", 0)]
    # Two nodes import the project: less would mean that their processes were not counted.
    assert all(run["cpu_s"] > 0.5 for run in found["runs"]), found["runs"]
    assert found["ways"]["sdist"]["wall_ratio"]["median"] > 0.5
    assert "| `sdist deploy --all` |" in found["printed"]


@pytest.mark.full
def test_the_short_benchmark_of_phases(tmp_path: Path) -> None:
    found = figures_of(tmp_path, "phases.py", "--timeout", "120")
    assert [line.split("|")[1].split()[0] for line in found["lines"]] == [
        "ms", "the", "first", "seconds", "500", "pages/s",
    ]  # fmt: skip
    assert "| pages/s with 1 slots, of 32 |" in found["printed"]


@pytest.mark.full
def test_the_short_benchmark_of_the_profile(tmp_path: Path) -> None:
    found = figures_of(tmp_path, "worker.py", "--ways", "gc,log,fast")
    assert list(found["ways"]) == ["none", "gc", "log", "fast"]
    figures = {"page_ms", "page_ratio", "start_s", "start_ratio", "whole_ratio"}
    assert all(set(way) == figures for way in found["ways"].values()), found["ways"]
    assert "| **the profile `fast`** |" in found["printed"]


@pytest.mark.full
def test_where_some_sites_hardly_answer_round_robin_waits_for_them_and_fair_leases_do_not(
    tmp_path: Path,
) -> None:
    """B7: on a real node, counted at the site; nothing there is short of processor time."""
    rows = figures_of(tmp_path, "broad.py")["rows"]
    assert [(row["way"], row["nodes"]) for row in rows] == [("round-robin", 1), ("spread", 1)]
    in_turn, fair = (row["items"] / row["seconds"] for row in rows)
    assert in_turn > 0, rows
    assert fair > 2 * in_turn, rows


@pytest.mark.full
def test_a_request_takes_a_fifth_of_scrapy_redis_memory_and_the_cost_does_not_grow(
    tmp_path: Path,
) -> None:
    """What a frontier costs in the store."""
    sizes, times = map(table_of, output_of(tmp_path, "frontier_store.py", "--short").split("\n\n"))
    cost = {row[0]: float(row[4]) for row in sizes}
    rate = {row[0]: float(row[2].replace(",", "")) for row in sizes}
    theirs = "scrapy-redis, Redis, in memory alone"
    assert len(cost) == 5
    assert (
        max(cost["SQLite store"], cost["scrapyd-dist, Redis, in memory alone"]) < cost[theirs] / 5
    )
    assert (
        rate["scrapyd-dist, Redis, in memory alone"] > 2 * rate[theirs]
    )  # more on an idle machine: docs/internals/store.md
    assert len(times) == 8
    # A look takes fractions of a millisecond: the other load of a machine is seen in it.
    grown = {row[0]: float(row[3]) for row in times if float(row[2]) - float(row[1]) > 0.3}
    assert all(ratio < 2 for ratio in grown.values()), grown
