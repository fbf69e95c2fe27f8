"""Watches one job that runs: by our worker's report, else by the end of its log."""

from dataclasses import dataclass, field
from typing import Any

from scrapyd_dist.errors import NodeError
from scrapyd_dist.joblogs.joblog import LogFacts
from scrapyd_dist.joblogs.log_reads import read_log_end
from scrapyd_dist.joblogs.report_reads import fetch_report
from scrapyd_dist.joblogs.verdict import STALL, Place
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.progress.rates import Rate
from scrapyd_dist.transports import Sender

#: bytes of a worker's report that are read; while it runs it has no lists of URLs
REPORT_MAX = 256 * 1024
#: seconds that a rate looks back
WINDOW = 60.0
#: what is told per minute -> its name in a report
RATES = {"pages": "pages", "items": "items", "errors": "failed"}


@dataclass(kw_only=True)
class WatchedJob:
    """One job that runs, and what is known of it.

    Pages, items and rates are those of a worker's report; of any other job, those that Scrapy has
    logged last, each LOGSTATS_INTERVAL.
    """

    place: Place
    report: WorkerReport | None = None
    logged: LogFacts | None = None  #: of a job without a report
    silent: float | None = None  #: seconds since its report, or its log, changed
    trouble: str = ""  #: why nothing is known
    _pace: Rate = field(default_factory=lambda: Rate(window=WINDOW))
    _changed: float | None = None  #: when the report changed, by the monotonic clock

    def refresh(self, sender: Sender, home: str | None, now: float, timeout: float) -> None:
        """Ask its node for our worker's report, or for the end of its log.

        home: its crawl's folder in the node's logs, if the store knows the crawl; now: by the
        monotonic clock.
        """
        self.trouble = ""
        place = self.place
        try:
            report = None
            if home:
                report = fetch_report(sender, place, home, most=REPORT_MAX, timeout=timeout)
            if report is not None:
                self._keep_report(report, now)
                return
            log = read_log_end(sender, place.node, place.log, timeout=timeout)
        except NodeError as error:
            self.trouble = error.short
            return
        if log is None:
            self.silent = None
            self.trouble = "no log yet"
        else:
            self.silent = log.silent
            self.logged = log.facts

    def _keep_report(self, report: WorkerReport, now: float) -> None:
        before = self.report
        self.report = report
        if before is None or report.counts != before.counts:
            self._changed = now
        self.silent = now - (self._changed or now)
        self._pace.add(now, report.counts)

    def _per_minute(self, name: str) -> float | None:
        """Return how fast this count grows.

        Until it was watched for a while, that is the average of the job's life.
        """
        report = self.report
        if report is None:
            return self._logged_rates().get(name)
        if self._pace.span >= WINDOW / 6:
            return round(self._pace.rates()[name] * 60, 1)
        if report.started is None:
            return None
        return round(report.counts[name] * 60 / max(report.updated - report.started, 1.0), 1)

    def _logged_rates(self) -> dict[str, float]:
        """Return what grows by so much per minute, as Scrapy has logged it."""
        facts = self.logged
        if facts is None or facts.pages_per_min is None or facts.items_per_min is None:
            return {}
        return {"pages": float(facts.pages_per_min), "items": float(facts.items_per_min)}

    def _counts(self) -> tuple[int | None, int | None]:
        """Return its pages and items; None while they are not known."""
        if self.report is not None:
            return self.report.pages, self.report.items
        if self.logged is not None and self.logged.has_counts:
            return self.logged.pages, self.logged.items
        return None, None

    def document(self) -> dict[str, Any]:
        """Return the job as `--json` gives it."""
        place = self.place
        pages, items = self._counts()
        return {
            "job": place.job,
            "project": place.project,
            "spider": place.spider,
            "crawl": place.crawl,
            "state": "stalled" if (self.silent or 0.0) >= STALL else "running",
            "pages": pages,
            "items": items,
            "per_min": {name: self._per_minute(key) for name, key in RATES.items()},
            "silent_s": None if self.silent is None else round(self.silent),
            "reason": self.trouble,
        }
