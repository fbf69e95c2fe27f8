"""The benchmarks of the throttle and of fair work run, and what they measure keeps the limit; with `--short`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.black_box


def run(tmp_path: Path, program: str, *options: str) -> dict[str, Any]:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / program, "--short", "--json", figures, *options],
        check=False, capture_output=True, text=True, cwd=tmp_path, timeout=230,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(figures.read_text(encoding="utf-8"))
    return found


def test_workers_keep_to_the_limit_and_use_it(tmp_path: Path) -> None:
    rows = run(tmp_path, "throttle.py", "--ways", "cluster,sqlite,redis")["rows"]
    theirs, *ours = rows
    assert [row["way"] for row in rows] == ["cluster", "sqlite", "redis"]
    for row in ours:
        assert row["most_grants"] == 20, row
        assert row["most_hits"] <= 20, row
        assert row["asks"] <= 1, row
        assert row["denied"] == 0, row
    assert theirs["asks"] > 10, "eager pollers ask again at once"


def test_where_some_sites_hardly_answer_round_robin_waits_for_them_and_fair_leases_do_not(tmp_path: Path) -> None:
    """B7: on a real node, counted at the site; nothing there is short of processor time."""
    rows = run(tmp_path, "broad.py")["rows"]
    assert [(row["way"], row["nodes"]) for row in rows] == [("round-robin", 1), ("spread", 1)]
    in_turn, fair = (row["items"] / row["seconds"] for row in rows)
    assert in_turn > 0, rows
    assert fair > 2 * in_turn, rows


def test_a_broad_crawl_asks_for_many_domains_at_once(tmp_path: Path) -> None:
    ways = run(tmp_path, "throttle_cost.py", "--ways", "off,redis")["ways"]
    (without,), (throttled,) = ways["off"], ways["redis"]
    assert without["pages"] == throttled["pages"] == 300
    assert without["asks"] == 0
    assert throttled["steps"] < 300 / 4, throttled
