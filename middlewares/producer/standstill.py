"""Notices that a crawl gets on no more, which is told once."""

from collections.abc import Mapping
from typing import Any

from scrapyd_dist.progress.summary_document import count_in, is_paused

#: seconds in which nothing has come, after which that is told
PATIENCE = 300.0
#: what grows while a crawl gets on
_GROWING = (("urls_found",), ("pages",), ("items",), ("batches", "done"), ("requests", "done"))


class StandstillWatch:
    """Compares the summaries of a crawl."""

    def __init__(self, now: float) -> None:
        """now: seconds by the monotonic clock."""
        self._moved = now  #: when something was new
        self._counts: list[int] = []
        self._is_told = False

    def note(self, summary: Mapping[str, Any], now: float) -> str:
        """Return a warning the first time that nothing has come for long; else nothing."""
        counts = [count_in(summary, *names) for names in _GROWING]
        if counts != self._counts or is_paused(summary):
            self._counts = counts
            self._moved = now
        if self._is_told or now - self._moved < PATIENCE:
            return ""
        self._is_told = True
        return (
            f"For {PATIENCE / 60:g} minutes nothing has come from the nodes: no page, no item."
            " Their jobs may wait behind others (sdist jobs), for a site or its limits (sdist"
            " throttle), or in a callback for what only another process does. --stall-timeout"
            " SECONDS ends jobs that stand still."
        )
