"""What a pulling worker reports: one final report for each attempt that it ends, and one of its own that goes on.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from scrapyd_dist.version import PACKAGE_FILE, __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..assignment import PullJob
    from .leased import LeasedBatch

REPORT_SCHEMA = 1
#: of Scrapy's statistics those that a batch's report has a share of: what the sites answered
ANSWERS = ("downloader/response_status_count/", "downloader/request_count", "downloader/exception_count", "retry/count")
#: what a report counts, and starts from
NOTHING = {"requests": 0, "done": 0, "missed": 0, "errors": 0, "pages": 0, "items": 0}


class PullReport:
    """The words of one worker."""

    def __init__(self, job: PullJob) -> None:
        self._job = job
        self._started = time.time()
        self._ended: Counter[str] = Counter(NOTHING)  #: of batches that this worker has ended
        self._batches: Counter[str] = Counter()  #: fate of a leased batch -> how many
        self._answers: Counter[str] = Counter()  #: that reports of batches have told
        self.trouble = ""  #: of a batch that could not be ended
        self.public: str | None = None  #: of a worker that introduces itself, the public half of its egg's key
        self.unreached = False  #: the store cannot be used from here, and that will stay so

    def fate(self, batch: LeasedBatch, fate: str) -> None:
        """What became of a batch; only an acked one counts in the worker's totals from now on."""
        self._batches[fate] += 1
        if fate == "acked":
            self._ended.update(batch.account.progress())

    def of_batch(
        self, batch: LeasedBatch, part: dict[str, Any] | None, reason: str, stats: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The final report of an attempt, as a job that was sent one batch would write it.

        What the sites answered is that since the report before, of whichever batch a page was: the sum is right.
        """
        number, attempt = batch.key
        return {
            **self._head("ended", batch.started),
            "batch": number,
            "attempt": attempt,
            **batch.account.close(),
            "finish_reason": reason,
            "problem": batch.problem,
            "part": part,
            "feeds": [],
            "feeds_failed": 0,
            "stats": self._news(stats),
        }

    def _news(self, stats: Mapping[str, Any]) -> dict[str, int]:
        now = Counter({name: value for name, value in stats.items() if name.startswith(ANSWERS)})
        news, self._answers = now - self._answers, now
        return dict(news)

    def progress(self, held: Collection[LeasedBatch]) -> dict[str, Any]:
        """How far the worker is."""
        sums = Counter(self._ended)
        for batch in held:
            sums.update(batch.account.progress())
        counts = {name: sums[name] for name in NOTHING}
        return {**self._head("running", self._started), **counts, "batches": {**self._batches, "held": len(held)}}

    def final(self, reason: str, problem: str, limit: str, stats: dict[str, Any]) -> dict[str, Any]:
        """How it ended."""
        return {
            **self.progress(()),
            "state": "ended",
            "finish_reason": reason,
            "problem": problem or self.trouble,
            "limit": limit,
            "unreached": self.unreached,
            **({} if self.public is None else {"public": self.public}),
            "part": None,
            "stats": {name: value for name, value in stats.items() if isinstance(value, (int, float, str))},
        }

    def _head(self, state: str, started: float) -> dict[str, Any]:
        return {
            "schema": REPORT_SCHEMA,
            "state": state,
            "crawl": self._job.crawl,
            "worker": self._job.name,
            "pid": os.getpid(),
            "started": started,
            "updated": time.time(),
            "code": {"version": __version__, "file": PACKAGE_FILE, "egg": self._job.version},
        }
