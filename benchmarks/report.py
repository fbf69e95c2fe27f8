"""What a benchmark says: medians, the spread, ratios pair by pair; as a table for people and as JSON."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from kinds import Way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ways import Run


def machine() -> dict[str, Any]:
    """The size of this machine, and the versions that were measured."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "memory_gib": round(pages * size / 2**30, 1),
        "processor": _processor(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("scrapy", "scrapyd", "twisted")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": round(median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


#: what the others are compared with, by kind of way: the word for it in a summary's keys
BASES = {"bound": "bound", "scrapy-redis": "scrapy_redis"}


def summary(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Way -> its wall and CPU seconds, and their ratios to those of the bound and of scrapy-redis.

    A ratio is of the same pair: `wall_to_bound`, `cpu_to_scrapy_redis`. There is none to what was not run.
    """
    by_way: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_way[run.way].append(run)
    found: dict[str, dict[str, Any]] = {}
    for way, rows in by_way.items():
        found[way] = {
            "runs": len(rows),
            "wall_s": spread([row.wall_s for row in rows]),
            "cpu_s": spread([row.cpu_s for row in rows]),
            "site_cpu_s": spread([row.site_cpu_s for row in rows]),
            "refetched": sum(row.refetched for row in rows),
        }
    for base, rows in by_way.items():
        word = BASES.get(Way.named(base).kind)
        if word is not None:
            for way, others in by_way.items():
                found[way].update(_ratios(others, rows, word))
    return found


def _ratios(rows: Sequence[Run], base: Sequence[Run], word: str) -> dict[str, dict[str, float]]:
    """The ratios of a way to another one, pair by pair."""
    bases = {run.pair: run for run in base}
    paired = [(row, bases[row.pair]) for row in rows if row.pair in bases]
    if not paired:
        return {}
    return {
        f"wall_to_{word}": spread([row.wall_s / basis.wall_s for row, basis in paired]),
        f"cpu_to_{word}": spread([row.cpu_s / basis.cpu_s for row, basis in paired]),
    }


def shown(values: dict[str, float] | None, digits: int) -> str:
    """A spread as a table shows it: the median, with the least and the most behind it."""
    if values is None:
        return "-"
    return f"{values['median']:.{digits}f} ({values['min']:.{digits}f}-{values['max']:.{digits}f})"


def table(ways: dict[str, dict[str, Any]]) -> str:
    """The summary as a Markdown table: medians, with the smallest and largest value behind them."""
    lines = [
        "| way | wall s | CPU s | wall / bound | CPU / bound | wall / scrapy-redis | CPU / scrapy-redis | runs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ratios = [f"{measured}_to_{word}" for word in BASES.values() for measured in ("wall", "cpu")]
    for way, row in ways.items():
        cells = [Way.named(way).says, shown(row["wall_s"], 1), shown(row["cpu_s"], 1)]
        cells += [shown(row.get(name), 2) for name in ratios]
        cells.append(str(row["runs"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
