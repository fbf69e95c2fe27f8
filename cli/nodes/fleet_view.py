"""`sdist watch --fleet`, `sdist status --fleet`: all nodes and their running jobs, drawn in place or as lines."""

import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scrapyd_dist.batches import home_of
from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import INTERRUPTED, TIME_UP, ConfigError, NodeError, StoreError
from scrapyd_dist.joblogs.log_reads import look
from scrapyd_dist.joblogs.verdict import STALL, Place
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import Rate
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.scrapyd.jobs import is_others
from scrapyd_dist.transports import Sender, sweep
from scrapyd_dist.transports.event_hook import EventHook

from ..context import Context, exit_code
from ..crawls.watcher import WatchOptions, live_view, looked_out_for, remark
from ..crawls.wording import clock
from ..jobs.job_list import TIMEOUT, fetch_report, jobs_of
from ..node_status import recognise
from ..output import COLOURS, LINE_EVERY, Output, complain_each, on_terminal, one_line, say, table
from ..silence import heard
from .fleet_screen import ROWS, describe_rest, sort_by_urgency

#: seconds between two looks at the nodes
LOOK = 2.0
#: seconds between two questions for a node's list of jobs that did not change: it echoes the batches that wait; and
#: between two looks at which nodes there are
LIST = 10.0
#: bytes of a worker's report that are read; while it runs it has no lists of URLs
REPORT_MAX = 256 * 1024
#: seconds that a rate looks back
WINDOW = 60.0
#: lines of the picture that are about neither nodes nor jobs
_OTHER_LINES = 6
#: what is told per minute -> its name in a report
_RATES = {"pages": "pages", "items": "items", "errors": "failed"}


@dataclass(kw_only=True)
class JobLook:
    """One job that runs, and what is known of it; pages, items and rates are those of a worker's report."""

    place: Place
    report: WorkerReport | None = None
    silent: float | None = None  #: seconds since its report, or its log, changed
    trouble: str = ""  #: why nothing is known
    _pace: Rate = field(default_factory=lambda: Rate(window=WINDOW))
    _changed: float | None = None

    def look(self, sender: Sender, home: str | None, now: float, timeout: float) -> None:
        """Ask its node for our worker's report, or how long its log is silent.

        home: its crawl's folder in the node's logs, if the store knows the crawl; now: by the monotonic clock.
        """
        self.trouble = ""
        place = self.place
        try:
            report = (
                fetch_report(sender, place, home, most=REPORT_MAX, timeout=timeout)
                if home
                else None
            )
            if report is not None:
                self._take(report, now)
                return
            log = look(sender, place.node, place.log, timeout=timeout)
        except NodeError as error:
            self.trouble = error.short
            return
        self.silent, self.trouble = (None, "no log yet") if log is None else (log.silent, "")

    def _take(self, report: WorkerReport, now: float) -> None:
        before, self.report = self.report, report
        if before is None or report.counts != before.counts:
            self._changed = now
        self.silent = now - (self._changed or now)
        self._pace.add(now, report.counts)

    def _per_minute(self, name: str) -> float | None:
        """How fast this count grows; until it was watched for a while, on the average of the job's life."""
        report = self.report
        if self._pace.span >= WINDOW / 6:
            return round(self._pace.rates()[name] * 60, 1)
        if report is None or report.started is None:
            return None
        return round(report.counts[name] * 60 / max(report.updated - report.started, 1.0), 1)

    def document(self) -> dict[str, Any]:
        place, report = self.place, self.report
        return {
            "job": place.job,
            "project": place.project,
            "spider": place.spider,
            "crawl": place.crawl,
            "state": "stalled" if (self.silent or 0.0) >= STALL else "running",
            "pages": report.pages if report else None,
            "items": report.items if report else None,
            "per_min": {name: self._per_minute(key) for name, key in _RATES.items()},
            "silent_s": None if self.silent is None else round(self.silent),
            "reason": self.trouble,
        }


@dataclass(kw_only=True)
class NodeLook(NodeStatus):
    """A node that is looked at again and again, and the jobs that run there."""

    jobs: dict[str, JobLook] = field(default_factory=dict)
    _listed_at: float | None = None
    _numbers: tuple[int, int, int] | None = None

    def look(self, sender: Sender, now: float, timeout: float) -> None:
        """Ask the node how much it has to do, and what, where that changed."""
        self.load, self.error, self.wedged = None, None, False
        try:
            load = self.ask_load(sender, timeout)
            numbers = load.pending, load.running, load.finished
            if numbers != self._numbers or self._listed_at is None or now - self._listed_at >= LIST:
                rows = jobs_of(sender, self.node, timeout=timeout)
                running = [row for row in rows if row.state is JobState.RUNNING]
                self.jobs = {
                    row.job: self.jobs.get(row.job) or JobLook(place=row) for row in running
                }
                self._numbers, self._listed_at = numbers, now
        except NodeError as error:
            self.load, self.error = None, error

    def row(self) -> dict[str, Any]:
        """The node and its jobs, for `--json`."""
        row = self.document()
        jobs = [job.document() for job in self.jobs.values()] if self.load else []
        known = {
            name: row[name]
            for name in ("name", "url", "state", "reason", "slots", "pending", "draining")
        }
        return {**known, "running": len(self.jobs) if self.load else None, "jobs": jobs}


class FleetLook:
    """All nodes, looked at again and again."""

    def __init__(self, context: Context) -> None:
        self._context, self.nodes = context, [NodeLook(node=node) for node in context.nodes()]
        self._homes: dict[str | None, str | None] = {}  #: crawl -> its folder in the nodes' logs
        self._named = time.monotonic()  #: when the names of the nodes were read

    def _renew(self, now: float) -> None:
        """Take in nodes that have joined, and leave out those that are gone; where that cannot be read, all stay."""
        self._named = now
        known = {one.node: one for one in self.nodes}
        with suppress(ConfigError, StoreError):
            self.nodes = [
                known.get(node) or NodeLook(node=node) for node in self._context.nodes_now()
            ]

    def look(self) -> None:
        now, sender = time.monotonic(), self._context.sender
        if now - self._named >= LIST:
            self._renew(now)
        list(sweep(self.nodes, lambda one: one.look(sender, now, TIMEOUT)))
        recognise(self._context, sender, self.nodes, TIMEOUT)
        jobs = [job for one in self.nodes if one.load for job in one.jobs.values()]
        new = {job.place.crawl for job in jobs} - {None} - self._homes.keys()
        with suppress(StoreError):  # it is asked once for each crawl, and again when it was away
            store = self._context.store_if_any if new else None
            known = (
                {row.id: home_of(row.id, row.created) for row in store.crawls()}
                if store is not None
                else {}
            )
            self._homes |= (
                {crawl: known.get(crawl or "") for crawl in new} if store is not None else {}
            )
        homes = self._homes
        list(
            sweep(
                jobs,
                lambda job: job.look(sender, _home_of(job.place, homes), now, TIMEOUT),
                threads=8,
            )
        )

    def document(self) -> dict[str, Any]:
        """How the fleet stands, as `--json` gives it."""
        nodes = [one.row() for one in self.nodes]
        rates = [job["per_min"] for node in nodes for job in node["jobs"]]
        totals = {name: float(round(sum(rate[name] or 0 for rate in rates), 1)) for name in _RATES}
        return {
            "nodes": nodes,
            "running": sum(node["running"] or 0 for node in nodes),
            "pending": sum(node["pending"] or 0 for node in nodes),
            "per_min": totals,
        }


def _home_of(place: Place, homes: Mapping[str | None, str | None]) -> str | None:
    """The folder with its report; None for a job of no crawl, or of another one than that of its name here."""
    home = homes.get(place.crawl)
    return None if home is None or is_others(place.job, {place.crawl or "": home}) else home


def status(context: Context, output: Output) -> int:
    """Say how the fleet stands, once; gives the exit code."""
    looks = FleetLook(context)
    looks.look()
    document = looks.document()
    if not output.document(document):
        nodes = _sorted_nodes(document)
        table(
            ("node", "state", "running", "pending", ""), [_node_row(node) for node in nodes[:ROWS]]
        )
        if rest := describe_rest([str(node["state"]) for node in nodes[ROWS:]]):
            say(rest)
        jobs = [_job_row(node, job) for node in nodes for job in node["jobs"]]
        if jobs:
            table(
                ("node", "job", "spider", "pages", "/min", "items", "/min", "errors/min", ""),
                jobs[:ROWS],
            )
        if len(jobs) > ROWS:
            say(f"and {counted(len(jobs) - ROWS, 'more job')}: sdist jobs --state running")
        say(_line(document))
    errors = list(heard(context, {one.node: one.error for one in looks.nodes}).values())
    complain_each(errors)
    return exit_code(len(errors), errors)


def watch(context: Context, watched: WatchOptions, on_trouble: str | None = None) -> int:
    """Watch the fleet until Ctrl-C, which is its good end, or until the time is over; gives the exit code.

    on_trouble: the command or address that is told of troubles.
    """
    looks, alarm = FleetLook(context), None
    if on_trouble:
        from .fleet_alarm import FleetAlarm  # it loads what judges crawls

        hook = EventHook(target=on_trouble, option="--on-trouble", event="a trouble of the fleet")
        hook.check()
        alarm = FleetAlarm(context, hook)
    deadline = time.monotonic() + watched.timeout if watched.timeout is not None else float("inf")
    plain = nullcontext((lambda _document, _now: None) if watched.silent else PlainFleet().show)
    with (
        live_view(frame) if on_terminal() and not watched.silent else plain as show,
        looked_out_for() as pause,
    ):
        try:
            while True:
                began = time.monotonic()
                looks.look()
                document = looks.document()
                show(document, time.monotonic())
                if alarm is not None:
                    alarm.look(document, time.monotonic())
                if time.monotonic() >= deadline:
                    code = TIME_UP
                    break
                pause(
                    min(
                        max(0.0, began + LOOK - time.monotonic()),
                        max(0.0, deadline - time.monotonic()),
                    )
                )
        except KeyboardInterrupt:
            code = INTERRUPTED
    watched.document(looks.document())
    return code


class PlainFleet:
    """A line about the fleet now and then, and one for each node whose state changes."""

    def __init__(self) -> None:
        self._said: float | None = None
        self._states: dict[str, str] = {}

    def show(self, subject: Mapping[str, Any], now: float) -> None:
        for node in subject["nodes"]:
            if self._states.get(node["name"], "up") != node["state"]:
                say(
                    f"{node['name']}: {node['state']}{': ' + node['reason'] if node['reason'] else ''}"
                )
            self._states[node["name"]] = node["state"]
        if self._said is None or now - self._said >= LINE_EVERY:
            self._said = now
            say(_line(subject))


def _sorted_nodes(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sort_by_urgency(
        document["nodes"], lambda node: str(node["state"]), lambda node: node["running"]
    )


def frame(document: Mapping[str, Any], lines: int = 66) -> RenderableType:
    """One picture of a document of `FleetLook`, of so many lines at most; nodes in trouble and jobs with errors first.

    Where nodes have no row, a line says how many there are in which state.
    """
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for heading in (
        "node",
        "state / job",
        "spider",
        "pages",
        "/min",
        "items",
        "/min",
        "errors/min",
        "",
    ):
        right, gives_way = (
            heading in {"pages", "items", "/min", "errors/min"},
            heading in {"state / job", ""},
        )
        grid.add_column(heading, justify="right" if right else "left", no_wrap=not gives_way)
    room = max(3, lines - _OTHER_LINES)
    nodes = _sorted_nodes(document)
    shown_nodes = nodes if len(nodes) <= room else nodes[: room - 1]
    room -= len(shown_nodes) + (len(shown_nodes) < len(nodes))
    jobs = sorted(
        (job for node in shown_nodes for job in node["jobs"]),
        key=lambda job: -(job["per_min"]["errors"] or 0),
    )
    drawn = {id(job) for job in (jobs if len(jobs) <= room else jobs[: max(0, room - 1)])}
    for node in shown_nodes:
        name, state, running, pending, reason = _node_row(node)
        load = "" if running is None else f"{running} running, {pending} pending"
        grid.add_row(
            Text(one_line(str(name)), style="bold"),
            Text(
                f"{state}  {load}".rstrip(),
                style=COLOURS.get(str(state), ""),
                no_wrap=True,
                overflow="ellipsis",
            ),
            *[""] * 6,
            remark(str(reason)),
        )
        for job in node["jobs"]:
            if id(job) in drawn:
                _, *cells, why = _job_row(node, job)
                grid.add_row("", *(_cell(cell) for cell in cells), remark(why))
    foot = list[Text]()
    if unseen := describe_rest([str(node["state"]) for node in nodes[len(shown_nodes) :]]):
        foot.append(Text(unseen, style="dim"))
    rest = sum(len(node["jobs"]) for node in nodes) - len(drawn)
    if rest:
        foot.append(Text(f"and {counted(rest, 'more job')}", style="dim"))
    return Group(grid, *foot, Text(_line(document), style="cyan"))


def _cell(value: object) -> Text:
    text = "" if value is None else f"{value:,}" if isinstance(value, int) else one_line(str(value))
    return Text(text, no_wrap=True, overflow="ellipsis")


def _node_row(node: Mapping[str, Any]) -> tuple[object, ...]:
    reason = str(node["reason"]).partition(". ")[0].rstrip(".")
    return node["name"], node["state"], node["running"], node["pending"], reason


def _job_row(node: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[Any, ...]:
    pages, items, errors = (_rate(job["per_min"][name]) for name in _RATES)
    silent = f"no progress for {clock(job['silent_s'])}" if job["state"] == "stalled" else ""
    numbers = job["pages"], pages, job["items"], items, errors
    return node["name"], job["job"], job["spider"], *numbers, job["reason"] or silent


def _rate(rate: float | None) -> str | None:
    if rate is None:
        return None
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def _line(document: Mapping[str, Any]) -> str:
    nodes, rates = document["nodes"], document["per_min"]
    up = sum(node["state"] in {"up", "draining"} for node in nodes)
    pieces = [
        f"nodes {up}/{len(nodes)}",
        f"{document['running']:,} running",
        f"{document['pending']:,} pending",
        *(f"{name} {_rate(rates[name])}/min" for name in _RATES),
    ]
    return " · ".join(pieces)
