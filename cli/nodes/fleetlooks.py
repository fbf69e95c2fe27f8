"""Looks at all nodes and at each job that runs there, again and again.

The rules it keeps: of a log little is read at once, and no more kept than its counts; a node that does not answer
delays no other.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.account.pace import Pace
from scrapyd_dist.errors import NodeError
from scrapyd_dist.jobs.jobrates import LogCounts, Rates, is_told
from scrapyd_dist.jobs.judged import STALL, Place
from scrapyd_dist.scrapyd.api import JobState

from ..jobs.joblist import Listed
from .looks import Seen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.jobs.logreads import LogTap
    from scrapyd_dist.jobs.outcome import Report
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Jobs
    from scrapyd_dist.transports import Sender

#: seconds between two questions for a node's list of jobs that did not change: it echoes the batches that wait
LIST = 10.0
#: bytes of a log's end in which Scrapy's word of the last minute is looked for
REACH = 1024 * 1024
#: blocks of a log that are read in one look; of a log that grows faster, the end is read
BLOCKS = 8
#: bytes of a worker's report that are read; while it runs it has no lists of URLs
REPORT_MAX = 256 * 1024
#: logs that are read at the same time
READERS = 8
#: seconds that a rate looks back
WINDOW = 60.0


@dataclass(kw_only=True)
class JobLook:
    """One job that runs, and what is known of it."""

    row: Listed
    pages: int | None = None
    items: int | None = None
    rates: Rates = field(default_factory=Rates)
    silent: float | None = None  #: seconds since its log, or its report, changed
    trouble: str = ""  #: why nothing is known
    _tap: LogTap | None = None
    _counts: LogCounts = field(default_factory=LogCounts)
    _pace: Pace = field(default_factory=lambda: Pace(window=WINDOW))
    _changed: float | None = None
    _report: Report | None = None

    def look(self, sender: Sender, home: str | None, now: float, timeout: float) -> None:
        """Ask its node: for our worker's report, or for the end of its log.

        Args:
            sender: what asks.
            home: the folder of its crawl in the node's logs, where it is a job of one that the store knows.
            now: seconds, of a clock that does not jump.
            timeout: seconds for each answer.
        """
        self.trouble = ""
        try:
            report = self._fetch_report(sender, home, timeout) if home else None
            if report is not None:
                self._by_report(report, now)
            else:
                self._by_log(sender, now, timeout)
        except NodeError as error:
            self.trouble = error.short

    def _fetch_report(self, sender: Sender, home: str, timeout: float) -> Report | None:
        from scrapyd_dist.jobs.outcome import BadReport, read_report, report_path
        from scrapyd_dist.scrapyd import api

        place = self.row.place
        call = api.fetch(report_path(home, place.job), start=0, limit=REPORT_MAX)
        chunk = sender.send(place.node, call, timeout=timeout)
        try:
            return read_report(chunk.body) if chunk is not None else None
        except BadReport:
            return None

    def _by_report(self, report: Report, now: float) -> None:
        self.pages, self.items = report.pages, report.items
        before, self._report = self._report, report
        if before is None and report.started is not None:
            minutes = max(report.updated - report.started, 1.0) / 60
            self.rates = Rates(
                pages=report.pages / minutes, items=report.items / minutes, errors=report.failed_requests / minutes
            )
        counted = report.pages, report.items, report.failed_requests
        if before is None or counted != (before.pages, before.items, before.failed_requests):
            self._changed = now
        self.silent = now - (self._changed or now)
        self._take(now, *counted)

    def _by_log(self, sender: Sender, now: float, timeout: float) -> None:
        place = self.row.place
        if self._tap is None:
            from scrapyd_dist.jobs.logreads import LogTap, look

            seen = look(sender, place.node, place.log, timeout=timeout)
            if seen is None:
                self.trouble = "no log yet"
                return
            self._tap = LogTap(sender, place.node, place.log, timeout=timeout)
            self._tap.seek_last(1, is_told, max(0, seen.total - REACH))
            self._read(self._tap)
            self.silent = seen.silent
            self.rates = self._counts.rates(seen.silent or 0.0)
            self._changed = now - (seen.silent or 0.0)
        elif self._read(self._tap):
            self._changed = now
        self.silent = now - (self._changed or now)
        self.pages, self.items = self._counts.all_pages, self._counts.all_items
        self._take(now, self._counts.pages, self._counts.items, self._counts.errors)

    def _read(self, tap: LogTap) -> bool:
        """Read on to the end; whether there was anything."""
        for block in range(BLOCKS):
            lines = tap.more()
            if lines is None:
                return block > 0
            for line in lines:
                self._counts.take(line)
        tap.begin_at(tap.size(), torn=True)
        return True

    def _take(self, now: float, pages: int, items: int, errors: int) -> None:
        """Once it was watched for a while, what was counted meanwhile tells more than the first look did."""
        self._pace.add(now, pages, items, errors)
        if self._pace.span < WINDOW / 6:
            return
        per_minute = [rate * 60 for rate in self._pace.rates()]
        if self._report is None and not self._counts.detailed:
            said = self._counts.rates(self.silent or 0.0)
            self.rates = Rates(pages=said.pages, items=said.items, errors=per_minute[2])
        else:
            self.rates = Rates(pages=per_minute[0], items=per_minute[1], errors=per_minute[2])

    @property
    def stalled(self) -> bool:
        return (self.silent or 0.0) >= STALL

    def document(self) -> dict[str, Any]:
        """As `--json` gives it."""
        place, rates = self.row.place, self.rates
        return {
            "job": place.job,
            "project": place.project,
            "spider": place.spider,
            "crawl": place.crawl,
            "state": "stalled" if self.stalled else "running",
            "pages": self.pages,
            "items": self.items,
            "per_min": {"pages": _short(rates.pages), "items": _short(rates.items), "errors": _short(rates.errors)},
            "silent_s": None if self.silent is None else round(self.silent),
            "reason": self.trouble,
        }


def _short(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


@dataclass(kw_only=True)
class NodeLook:
    """One node, its jobs, and when they were listed last."""

    seen: Seen
    jobs: dict[str, JobLook] = field(default_factory=dict)
    _listed_at: float | None = None
    _load: tuple[int, int, int] | None = None

    def look(self, sender: Sender, now: float, timeout: float) -> None:
        """Ask the node how much it has to do, and what, where that changed."""
        from scrapyd_dist.scrapyd import api

        self.seen = Seen(node=self.seen.node)
        try:
            load = sender.send(self.seen.node, api.daemonstatus(), timeout=timeout)
            numbers = load.pending, load.running, load.finished
            if numbers != self._load or self._listed_at is None or now - self._listed_at >= LIST:
                self._take(sender.send(self.seen.node, api.listjobs(), timeout=timeout))
                self._load, self._listed_at = numbers, now
            self.seen.load = load
        except NodeError as error:
            self.seen.error = error

    def _take(self, jobs: Jobs) -> None:
        running = {job.id: job for job in jobs.running}
        for gone in self.jobs.keys() - running.keys():
            del self.jobs[gone]
        for name, job in running.items():
            place = Place(node=self.seen.node, project=job.project, spider=job.spider, job=name)
            row = Listed(place=place, state=JobState.RUNNING, started=job.start_time)
            self.jobs.setdefault(name, JobLook(row=row))

    def document(self) -> dict[str, Any]:
        """As `--json` gives it."""
        seen = self.seen
        reason = str(seen.error).removeprefix(f"{seen.node}: ") if seen.error else ""
        return {
            "name": seen.node.name,
            "url": seen.node.url,
            "state": seen.state.value,
            "reason": "jobs wait and none is ever started" if seen.wedged else reason,
            "slots": seen.node.slots,
            "running": len(self.jobs) if seen.load else None,
            "pending": seen.load.pending if seen.load else None,
            "jobs": [job.document() for job in self.jobs.values()] if seen.load else [],
        }


@dataclass(kw_only=True)
class FleetLook:
    """All nodes, looked at again and again."""

    root: Path
    sender: Sender
    nodes: Sequence[Node]
    timeout: float
    _looks: dict[str, NodeLook] = field(default_factory=dict)  #: by base address
    _homes: dict[str, str | None] = field(default_factory=dict)  #: crawl -> its folder in the nodes' logs

    def look(self) -> None:
        """Look once at every node and every job that runs there."""
        from scrapyd_dist.scrapyd.sweep import sweep

        from .records import recognise

        now = time.monotonic()
        looks = [self._looks.setdefault(node.url, NodeLook(seen=Seen(node=node))) for node in self.nodes]
        for _ in sweep(looks, lambda one: one.look(self.sender, now, self.timeout)):
            pass
        recognise(self.root, self.sender, [one.seen for one in looks], self.timeout)
        jobs = [job for one in looks if one.seen.load for job in one.jobs.values()]
        self._learn_homes({job.row.place.crawl for job in jobs} - {None})
        for _ in sweep(jobs, lambda job: job.look(self.sender, self._home(job), now, self.timeout), threads=READERS):
            pass

    def _home(self, job: JobLook) -> str | None:
        crawl = job.row.place.crawl
        return self._homes.get(crawl) if crawl else None

    def _learn_homes(self, crawls: set[str | None]) -> None:
        """Where workers of these crawls leave their reports; the store is asked once for each of them."""
        from scrapyd_dist.batches import home_of

        from ..storing import maybe_store

        new = {crawl for crawl in crawls if crawl and crawl not in self._homes}
        store = maybe_store(self.root) if new else None
        if store is not None:
            with closing(store):
                known = {row.id: home_of(row.id, row.created) for row in store.crawls()}
            self._homes |= {crawl: known.get(crawl) for crawl in new}

    def errors(self) -> list[NodeError]:
        """Of the nodes that did not answer."""
        return [one.seen.error for one in self._looks.values() if one.seen.error is not None]

    def document(self) -> dict[str, Any]:
        """How the fleet stands, as `--json` gives it."""
        nodes = [self._looks[node.url].document() for node in self.nodes]
        jobs = [job for node in nodes for job in node["jobs"]]
        totals = {name: _total(job["per_min"][name] for job in jobs) for name in ("pages", "items", "errors")}
        return {
            "nodes": nodes,
            "running": sum(node["running"] or 0 for node in nodes),
            "pending": sum(node["pending"] or 0 for node in nodes),
            "per_min": totals,
        }


def _total(rates: Any) -> float:
    return float(round(sum(rate for rate in rates if rate is not None), 1))
