"""How many requests a crawl will have made, and how sure that is."""

from typing import Any

import pytest

from scrapyd_dist.progress.outlook import KnownTotals, estimate_outlook


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pages": 9, "total_pages": 100}, (3000, KnownTotals.AT_LEAST, 15.0)),
        ({"pages": 10, "total_pages": 100}, (30000, KnownTotals.ESTIMATE, 285.0)),
        (
            {"pages": 50, "total_pages": None},
            (3000, KnownTotals.AT_LEAST, 15.0),
        ),  # it is not known how long the index is
        ({"pages": 0, "total_pages": 1}, (3000, KnownTotals.AT_LEAST, 15.0)),
        (
            {"pages": 200, "total_pages": 100},
            (3000, KnownTotals.ESTIMATE, 15.0),
        ),  # never fewer than are found
        ({"pages": 9, "total_pages": 100, "finding": False}, (3000, KnownTotals.KNOWN, 15.0)),
        ({"finding": False, "rate": 0.0}, (3000, KnownTotals.KNOWN, None)),
        ({"finding": False, "done": 3000}, (3000, KnownTotals.KNOWN, None)),
    ],
)
def test_the_outlook(
    fields: dict[str, Any], expected: tuple[int, KnownTotals, float | None]
) -> None:
    values = {"found": 3000, "done": 1500, "rate": 100.0, "finding": True, **fields}
    assert tuple(estimate_outlook(**values).values()) == expected
