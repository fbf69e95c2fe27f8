"""The benchmarks of the throttle and of fair work run, and what they measure keeps the limit; with `--short`."""

from __future__ import annotations

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
        assert row["most_grants"] <= 20, row
        assert row["most_hits"] <= 20, row
        assert row["granted"] > 0.7, row  # a worker that gets no processor time for long loses some
        assert row["asks"] <= 1, row
        assert row["denied"] == 0, row
    assert theirs["asks"] > 10, "eager pollers ask again at once"


def test_a_broad_crawl_is_measured_on_real_nodes(tmp_path: Path) -> None:
    rows = run(tmp_path, "broad.py")["rows"]
    assert [(row["way"], row["nodes"]) for row in rows] == [("round-robin", 1), ("spread", 1)]
    assert all(row["items"] > 0 and row["seconds"] > 0 for row in rows), rows
