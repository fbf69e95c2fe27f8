"""Which earlier crawls one is compared with: the same ones for its warning, its report and the list of crawls."""

from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

from rig.scheduling import run
from scrapyd_dist.middlewares.producer.completion_hooks import judge_items

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.progress.earlier_runs import RUNS, earlier_runs
from scrapyd_dist.report.facts import Facts
from scrapyd_dist.report.series import find_usual_items, runs


def row(number: int, **fields: Any) -> Crawl:
    values: dict[str, Any] = {
        "id": f"c{number}", "project": "p", "spider": "easy", "created": float(number), "state": CrawlState.FINISHED,
        "options": {"args": {"shop": "a"}}, "summary": {"items": number},
    }  # fmt: skip
    return Crawl(**{**values, **fields})


ROWS = [
    row(100),
    row(99, state=CrawlState.STOPPED),
    row(98, spider="other"),
    row(97, project="other"),
    row(96, options={"args": {"shop": "b"}}),
    row(95, options={}),
    row(94, summary={}),
    row(93, summary={"items": 93, "goal": "items"}),
    row(92, summary={"items": 92, "closed_by": "enough"}),
    row(91, options={"args": {"shop": "a"}, "settings": {"DISTRIBUTED_LIMIT": 5}}),
    row(90, options={"args": {"shop": "a"}, "settings": {"DISTRIBUTED_PAGES": 3}}),
    *(row(number) for number in range(80, 60, -1)),
    row(101),
]


def test_a_crawl_is_compared_with_whole_ones_of_its_kind_before_it() -> None:
    found = [crawl.id for crawl in earlier_runs(ROWS, ROWS[0])]
    assert found == [*(f"c{number}" for number in range(62, 81)), "c90"]
    assert len(found) == RUNS


def test_the_warning_the_report_and_the_list_name_one_median() -> None:
    last = row(100, summary={"items": 1})
    rows = [last, *ROWS[1:]]

    async def thread(verb: Callable[..., Any], *args: Any) -> Any:
        return verb(*args)

    thread.store = Mock(crawls=lambda: rows)  # type: ignore[attr-defined]
    repository: Any = Mock(id="c100", thread=thread, read_row=AsyncMock(return_value=last))
    ((warning,), _) = run(judge_items(Mock(limit=0, min_items=0), repository, 1))
    assert "the median of the last 20 crawls of this spider is 72." in warning
    shown = runs(Facts(crawl=last, now=0.0, runs=(*earlier_runs(rows, last), last)))
    assert shown is not None
    assert shown.median == find_usual_items(rows, [last])["c100"] == 71.5
