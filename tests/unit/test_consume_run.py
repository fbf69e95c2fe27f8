"""What is said of a frontier whose work is done, and the exit code."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from scrapyd_dist.middlewares.producer.consume_run import ConsumeRun
from scrapyd_dist.middlewares.producer.run_delivery import Delivered

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.items.delivery import Delivery

#: reports of jobs in which a component was off, and on
OFF = {"components": [], "disabled": ["p.Rates: no file"]}
ON = {"components": ["p.Rates"]}
SUMMARY = {
    "state": "finished",
    "requests": {"done": 10, "total": 10},
    "batches": {"total": 1, "done": 1},
    "items": 10,
    "index_failed": [],
}


@pytest.mark.parametrize(
    ("stray", "own", "reports", "code", "said"),
    [
        (0, 0, [], 0, []),
        (3, 0, [], 3, ["3 items are lost: workers scraped them for pages that a timer"]),
        (0, 2, [], 0, ["2 items of start requests and logins are not collected"]),
        (0, 0, [OFF], 0, ["Components of the project were off (p.Rates in all jobs: no file)"]),
        (0, 0, [OFF, ON], 3, ["Components of the project were off (p.Rates in some jobs"]),
    ],
)
async def test_what_items_lack_is_told(
    stray: int, own: int, reports: list[dict[str, Any]], code: int, said: list[str]
) -> None:
    warnings: list[str] = []
    reporter = MagicMock()
    reporter.warn = lambda *texts: warnings.extend(texts)
    reporter.summary.return_value = SUMMARY
    reporter.write_status = AsyncMock()
    scheduler = reporter.scheduler
    for name in ("ended", "left", "make_parts_whole", "stop"):
        setattr(scheduler, name, AsyncMock())
    scheduler.incomplete = False
    scheduler.state = MagicMock(stopped="", goal="", stray_items=stray, own_items=own)
    reporter.repository.thread = AsyncMock(return_value=MagicMock(drained=True, finished=True))
    reporter.repository.wanted = AsyncMock(return_value="")
    reporter.repository.end = AsyncMock()
    reporter.repository.is_mine = AsyncMock(return_value=True)
    delivery = Delivery(items=10, outputs=(), misses=None)
    accepted = [
        Attempt(batch=1, number=1, job="", node="", url="", state=AttemptState.ACCEPTED, report=one)
        for one in reports
    ]
    delivered = Delivered(delivery=delivery, accepted=accepted, misses=(), logins=[])
    run = ConsumeRun(
        MagicMock(rows=False, strategy=None),
        reporter,
        MagicMock(deliver=AsyncMock(return_value=delivered)),
        strategy=None,
        interrupted=asyncio.Event(),
        max_failed=0,
    )
    assert await run.keep() == code
    assert len(warnings) == len(said)
    assert all(text.startswith(words) for text, words in zip(warnings, said, strict=True))
