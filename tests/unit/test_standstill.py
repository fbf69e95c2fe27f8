"""A crawl that gets on no more is told once."""

from typing import Any

import pytest
from scrapyd_dist.middlewares.producer.standstill import PATIENCE, StandstillWatch


def summary(**counts: Any) -> dict[str, Any]:
    return {"state": "finding", "paused": False, "pages": 3, "items": 2, **counts}


def test_it_is_told_once_that_nothing_has_come_for_long() -> None:
    watch = StandstillWatch(0.0)
    assert watch.note(summary(), 1.0) == ""
    assert watch.note(summary(), PATIENCE) == ""
    assert "For 5 minutes nothing has come" in watch.note(summary(), PATIENCE + 1.0)
    assert watch.note(summary(), 3 * PATIENCE) == ""


@pytest.mark.parametrize(
    "news",
    [{"pages": 4}, {"items": 3}, {"urls_found": 1}, {"batches": {"done": 1}}, {"paused": True}],
)
def test_what_is_new_counts_and_so_does_a_pause(news: dict[str, Any]) -> None:
    watch = StandstillWatch(0.0)
    watch.note(summary(), 1.0)
    watch.note(summary(**news), PATIENCE)
    assert watch.note(summary(**news), PATIENCE + 2.0) == ""
    assert watch.note(summary(**{**news, "paused": False}), 3 * PATIENCE) != ""
