"""What the two kinds of worker share: their files, how they end, and what their reports have in common.

Part of the worker half: imports Scrapy and the standard library only, because it travels in the egg.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from scrapy.spiders import CrawlSpider

from scrapyd_dist.finish_reasons import FinishReason
from scrapyd_dist.version import PACKAGE_FILE, __version__

from ..setting_reader import SettingReader
from .part import ReportFile, crawl_folder, remove_old

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..assignment import Assignment, PullAssignment

REPORT_SCHEMA = 1
#: seconds between two looks at the folder with the part, and at the disk
LOOK = 2.0
NO_LOGS = "This node writes no log files, so there is no way home for items."
#: why a request of a batch is gone that Scrapy's filter of duplicates dropped
SAME_PAGE = "the same page as another request of this batch"


def report_head(state: str, crawl: str, version: str, started: float, **more: object) -> dict[str, Any]:
    """What every report begins with: of a `running` or `ended` worker, or of one of its batches."""
    return {
        "schema": REPORT_SCHEMA,
        "state": state,
        "crawl": crawl,
        **more,
        "pid": os.getpid(),
        "started": started,
        "updated": time.time(),
        "code": {"version": __version__, "file": PACKAGE_FILE, "egg": version},
    }


def plain_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Those of Scrapy's statistics that have a JSON form."""
    return {name: value for name, value in stats.items() if isinstance(value, (int, float, str))}


def in_callback(error: Exception) -> str:
    """Why a request failed whose callback has raised this."""
    return f"{type(error).__name__} in the callback: {str(error)[:200]}"


def follows_rule(crawler: Crawler, request: Request) -> bool:
    """Whether a rule of a CrawlSpider follows this link: that is the producer's, or each worker would crawl on."""
    spider = crawler.spider
    return isinstance(spider, CrawlSpider) and request.callback == spider._callback  # noqa: SLF001 - how Scrapy marks its own


class BaseWorker:
    """A worker's files in its node's log folder, and why it ends.

    Args:
        crawler: the process.
        unit: what comes too late when another one has taken its place: this `attempt` or `worker`.
        problem: why it cannot work; empty when it can.
    """

    def __init__(self, crawler: Crawler, unit: str, problem: str = "") -> None:
        self._crawler, self._settings = crawler, SettingReader(crawler.settings)
        self._late = f"This {unit} came too late: another one has taken its place."
        self._problem, self._reason = problem, ""
        self._report_file: ReportFile | None = None

    def _find_folder(self, job: Assignment | PullAssignment) -> Path | None:
        """The crawl's folder in this node's logs; None, and a problem, where there is none."""
        folder = crawl_folder(self._crawler.settings.get("LOG_FILE"), job.home or job.crawl)
        if folder is None:
            self._problem = self._problem or NO_LOGS
        elif job.start_by and time.time() > job.start_by:
            self._supersede()
        return folder

    def _start_report(
        self, folder: Path, job: Assignment | PullAssignment, progress: Callable[[], dict[str, Any]]
    ) -> None:
        """Write the report from now on, and remove the files of older crawls."""
        self._report_file = ReportFile(folder, job.name, progress)
        self._report_file.start()
        remove_old(folder, job.collected, self._settings.value("DISTRIBUTED_KEEP_DAYS"))

    def _supersede(self) -> None:
        self._problem, self._reason = self._late, FinishReason.SUPERSEDED.value

    def _closed(self, reason: str) -> None:
        self._reason = self._reason or (FinishReason.REFUSED.value if self._problem else reason)
