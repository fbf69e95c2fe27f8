"""Looks at all nodes and at each job that runs there, again and again; a node that does not answer delays no other."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.account.pace import Pace
from scrapyd_dist.errors import NodeError
from scrapyd_dist.jobs.judged import STALL, Place
from scrapyd_dist.scrapyd.api import JobState

from ..jobs.joblist import Listed
from .looks import Seen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.jobs.outcome import Report
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Jobs
    from scrapyd_dist.transports import Sender

#: seconds between two questions for a node's list of jobs that did not change: it echoes the batches that wait
LIST = 10.0
#: bytes of a worker's report that are read; while it runs it has no lists of URLs
REPORT_MAX = 256 * 1024
#: jobs that are asked about at the same time
READERS = 8
#: seconds that a rate looks back
WINDOW = 60.0


@dataclass(kw_only=True)
class JobLook:
    """One job that runs, and what is known of it; pages, items and rates are those of a worker's report."""

    row: Listed
    report: Report | None = None
    silent: float | None = None  #: seconds since its report, or its log, changed
    trouble: str = ""  #: why nothing is known
    _rates: tuple[float, ...] | None = None  #: pages, items and failed requests per minute
    _pace: Pace = field(default_factory=lambda: Pace(window=WINDOW))
    _changed: float | None = None

    def look(self, sender: Sender, home: str | None, now: float, timeout: float) -> None:
        """Ask its node for our worker's report, or how long its log is silent.

        Args:
            sender: what asks.
            home: the folder of its crawl in the node's logs, where it is a job of one that the store knows.
            now: seconds, of a clock that does not jump.
            timeout: seconds for each answer.
        """
        from scrapyd_dist.jobs.logreads import look

        self.trouble = ""
        place = self.row.place
        try:
            report = self._fetch_report(sender, home, timeout) if home else None
            if report is not None:
                self._take(report, now)
                return
            log = look(sender, place.node, place.log, timeout=timeout)
        except NodeError as error:
            self.trouble = error.short
            return
        self.silent, self.trouble = (None, "no log yet") if log is None else (log.silent, "")

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

    def _take(self, report: Report, now: float) -> None:
        before, self.report = self.report, report
        counted = report.pages, report.items, report.failed_requests
        if before is None or counted != (before.pages, before.items, before.failed_requests):
            self._changed = now
        self.silent = now - (self._changed or now)
        self._pace.add(now, *counted)
        # Until the job has been watched for a while, the average of its whole life is the better number.
        if self._pace.span >= WINDOW / 6:
            self._rates = tuple(rate * 60 for rate in self._pace.rates())
        elif self._rates is None and report.started is not None:
            minutes = max(report.updated - report.started, 1.0) / 60
            self._rates = tuple(number / minutes for number in counted)

    @property
    def stalled(self) -> bool:
        return (self.silent or 0.0) >= STALL

    def document(self) -> dict[str, Any]:
        """As `--json` gives it."""
        place, report = self.row.place, self.report
        rates = [_short(rate) for rate in self._rates] if self._rates else [None, None, None]
        return {
            "job": place.job,
            "project": place.project,
            "spider": place.spider,
            "crawl": place.crawl,
            "state": "stalled" if self.stalled else "running",
            "pages": report.pages if report else None,
            "items": report.items if report else None,
            "per_min": dict(zip(("pages", "items", "errors"), rates, strict=True)),
            "silent_s": None if self.silent is None else round(self.silent),
            "reason": self.trouble,
        }


def _short(rate: float) -> float:
    return round(rate, 1)


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
