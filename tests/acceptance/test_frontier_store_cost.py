"""What a frontier costs in the store, and that it does not grow; `benchmarks/frontier_store.py` with fewer requests."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "frontier_store.py"


@pytest.mark.black_box
def test_a_request_takes_a_fifth_of_scrapy_redis_memory_and_the_cost_does_not_grow() -> None:
    told = subprocess.run(
        [sys.executable, str(SCRIPT), "--short"], capture_output=True, text=True, check=True, timeout=230
    ).stdout
    sizes, times = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        for table in told.split("\n\n")
    )
    cost = {row[0]: float(row[4]) for row in sizes}
    rate = {row[0]: float(row[2].replace(",", "")) for row in sizes}
    theirs = "scrapy-redis, Redis, in memory alone"
    assert len(cost) == 5
    assert max(cost["SQLite store"], cost["scrapyd-dist, Redis, in memory alone"]) < cost[theirs] / 5
    assert rate["scrapyd-dist, Redis, in memory alone"] > 2 * rate[theirs]  # more on an idle machine: docs/store.md
    assert len(times) == 10
    # A look takes fractions of a millisecond: the other load of a machine is seen in it.
    grown = {row[0]: float(row[3]) for row in times if float(row[2]) - float(row[1]) > 0.3}
    assert all(ratio < 2 for ratio in grown.values()), grown
