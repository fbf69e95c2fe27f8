"""What a plan forecasts, from numbers to numbers."""

from dataclasses import replace

import pytest

from scrapyd_dist.forecast import (
    BEGIN,
    BOOKKEEPING,
    END,
    QUEUE,
    CrawlShape,
    PageCost,
    Probed,
    forecast,
)

PROBED = Probed(
    index=PageCost(pages=10, latency=0.01, processor=0.004), detail=PageCost(pages=10, latency=0.01, processor=0.0015),
    targets=300, whole=False, lanes=20, concurrency=16, spacing=0.0, start=0.5,
)  # fmt: skip
SHAPE = CrawlShape(pages=100, limit=0, workers=2, local=2, cores=2)
AROUND = BEGIN * 0.5 + QUEUE + END


def test_local_workers_share_the_processor_with_the_index() -> None:
    told = forecast(PROBED, SHAPE)
    assert (told.expected, told.targets_per_page, told.bottleneck) == (3000, 30, "processor")
    assert (round(told.index_rate, 6), round(told.worker_rate, 6)) == (250, 500)
    assert told.seconds == pytest.approx(
        AROUND + (2 * 0.5 + 100 * 0.004 + 3000 * (0.0015 + BOOKKEEPING)) / 2
    )


def test_elsewhere_the_slower_of_index_and_workers_decides() -> None:
    slow = replace(PROBED, detail=replace(PROBED.detail, latency=1.0))
    away = replace(SHAPE, local=0)
    told = forecast(slow, away)
    assert (told.worker_rate, told.bottleneck) == (16, "detail")
    assert told.seconds == pytest.approx(AROUND + 0.5 + 3000 / 32)
    told = forecast(replace(PROBED, lanes=1, index=replace(PROBED.index, latency=0.096)), away)
    assert (told.index_rate, told.bottleneck, told.seconds) == (10, "index", AROUND - QUEUE + 10)
    told = forecast(
        slow, replace(away, batch=100)
    )  # 15 jobs one after the other, on each of two slots
    assert told.seconds == pytest.approx(AROUND - QUEUE + 15 * (QUEUE + 0.5) + 3000 / 32)
    assert forecast(replace(PROBED, spacing=0.5), away).worker_rate == 2


def test_without_a_number_of_pages_only_a_limit_or_the_whole_index_tells_the_end() -> None:
    unknown = replace(SHAPE, pages=None)
    told = forecast(PROBED, unknown)
    assert (told.expected, told.seconds, round(told.worker_rate)) == (None, None, 500)
    assert forecast(PROBED, replace(unknown, limit=600)).expected == 600
    assert forecast(PROBED, replace(SHAPE, limit=600)).seconds == pytest.approx(
        AROUND + (1 + 0.08 + 1.2) / 2
    )
    assert forecast(replace(PROBED, whole=True), unknown).expected == 300
