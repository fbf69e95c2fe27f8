"""What a remembered URL costs, measured beside scrapy-redis' way; `benchmarks/fingerprints.py` with fewer URLs."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fingerprints.py"


@pytest.mark.black_box
def test_a_fingerprint_costs_at_most_half_of_scrapy_redis_and_the_producer_at_most_60_bytes() -> None:
    told = subprocess.run(
        [sys.executable, str(SCRIPT), "--urls", "100000"], capture_output=True, text=True, check=True, timeout=200
    ).stdout
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in told.splitlines()[2:]]
    cost = {row[0]: float(row[2]) for row in rows}
    assert {row[4] for row in rows} == {"yes"}
    assert len(cost) == 5
    assert cost["Redis store, used memory"] < cost["scrapy-redis dupefilter, used memory"] / 2
    assert cost["Redis store, used memory"] < 50
    assert cost["producer, scrapyd-dist"] < min(60, cost["producer, a Python set"] / 2)
    assert cost["SQLite store, the file"] < 50
