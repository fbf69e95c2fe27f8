"""The delivery of a run: parts first, then files and feeds; and what is said when one is not done."""

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from scrapyd_dist.middlewares.producer import run_delivery
from scrapyd_dist.middlewares.producer.feed_outputs import CrawlOutputs
from scrapyd_dist.middlewares.producer.merged_feeds import FeedsNotStored
from scrapyd_dist.middlewares.producer.run_delivery import NotDelivered, RunDelivery

from scrapyd_dist.batches import Miss
from scrapyd_dist.items.delivery import Delivery
from scrapyd_dist.items.merging import OutputNotWritten

LEFT = Delivery(items=7, outputs=("out.jl",), misses=None)
MISS = Miss(url="http://web/", kind="gone", reason="HTTP 404")


class Parts:
    """The items of the crawl's own pages."""

    count = 3

    def parts(self) -> list[Path]:
        return [Path("own-0.jl")]


@pytest.fixture
def reporter() -> Any:
    stored = {"attempts": [], "misses": [MISS]}
    reporter = MagicMock(published=AsyncMock(return_value=""))
    reporter.repository.for_delivery = AsyncMock(return_value=stored)
    return reporter


def new_delivery(reporter: Any, own: Any = None) -> RunDelivery:
    return RunDelivery(reporter=reporter, outputs=CrawlOutputs(), host=None, key=b"k", own=own)


async def test_parts_are_delivered_before_files_and_both_are_noted(
    reporter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver_to = AsyncMock(return_value=LEFT)
    monkeypatch.setattr(run_delivery, "deliver_to", deliver_to)
    delivered = await new_delivery(reporter, Parts()).deliver()
    reporter.published.assert_awaited_once_with([Path("own-0.jl")])
    assert deliver_to.await_args is not None
    named = deliver_to.await_args.kwargs
    assert (named["own"], named["own_items"]) == ([Path("own-0.jl")], 3)
    reporter.note_files.assert_called_once_with(LEFT)
    assert delivered.delivery is LEFT
    assert list(delivered.misses) == [MISS]


async def test_own_items_that_are_made_again_are_merged_and_not_delivered(
    reporter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver_to = AsyncMock(return_value=LEFT)
    monkeypatch.setattr(run_delivery, "deliver_to", deliver_to)
    await new_delivery(reporter, Parts()).deliver(publishes_own=False)
    reporter.published.assert_awaited_once_with(())
    assert deliver_to.await_args is not None
    assert deliver_to.await_args.kwargs["own"] == [Path("own-0.jl")]


async def test_nothing_is_written_while_parts_are_not_delivered(
    reporter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter.published.return_value = "2 parts could not be delivered."
    deliver_to = AsyncMock()
    monkeypatch.setattr(run_delivery, "deliver_to", deliver_to)
    with pytest.raises(NotDelivered, match="2 parts") as refused:
        await new_delivery(reporter).deliver()
    assert refused.value.again == "delivers"
    deliver_to.assert_not_awaited()
    reporter.repository.for_delivery.assert_not_awaited()


@pytest.mark.parametrize("error", [FeedsNotStored("no bucket"), OutputNotWritten("no bucket")])
async def test_an_output_that_is_not_written_is_no_delivery(
    error: Exception, reporter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_delivery, "deliver_to", AsyncMock(side_effect=error))
    with pytest.raises(NotDelivered, match="no bucket") as refused:
        await new_delivery(reporter).deliver()
    assert refused.value.again == "writes"
    reporter.note_files.assert_not_called()
