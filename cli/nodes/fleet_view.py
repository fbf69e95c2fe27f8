"""`sdist watch --fleet`, `sdist status --fleet`: all nodes and the jobs that run there."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scrapyd_dist.batches import home_of
from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import INTERRUPTED, TIME_UP, ConfigError, NodeError, StoreError
from scrapyd_dist.joblogs.log_reads import read_log_end
from scrapyd_dist.joblogs.verdict import STALL, Place
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.jobs.job_list import TIMEOUT, fetch_report, list_node_jobs
from scrapyd_dist.node_answers import exit_code
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import Rate
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.scrapyd.jobs import is_others
from scrapyd_dist.transports import Sender, sweep
from scrapyd_dist.transports.event_hook import EventHook

from ..context import Context
from ..crawls.watcher import Show, WatchOptions, interruptible_pause, live_view, remark
from ..crawls.wording import clock
from ..node_status import recognise
from ..output import COLOURS, LINE_EVERY, Output, complain_each, on_terminal, one_line, say, table
from ..silence import without_drained
from .fleet_screen import ROWS, describe_rest, sort_by_urgency

#: seconds between two looks at the nodes
LOOK = 2.0
#: seconds between two questions for a node's list of jobs that did not change, since it echoes the
#: batches that wait; and between two looks at which nodes there are
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
    """One job that runs, and what is known of it.

    Pages, items and rates are those of a worker's report.
    """

    place: Place
    report: WorkerReport | None = None
    silent: float | None = None  #: seconds since its report, or its log, changed
    trouble: str = ""  #: why nothing is known
    _pace: Rate = field(default_factory=lambda: Rate(window=WINDOW))
    _changed: float | None = None  #: when the report changed, by the monotonic clock

    def refresh(self, sender: Sender, home: str | None, now: float, timeout: float) -> None:
        """Ask its node for our worker's report, or how long its log is silent.

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
        if self._pace.span >= WINDOW / 6:
            return round(self._pace.rates()[name] * 60, 1)
        if report is None or report.started is None:
            return None
        return round(report.counts[name] * 60 / max(report.updated - report.started, 1.0), 1)

    def document(self) -> dict[str, Any]:
        """Return the job as `--json` gives it."""
        place = self.place
        pages = None
        items = None
        if self.report:
            pages = self.report.pages
            items = self.report.items
        return {
            "job": place.job,
            "project": place.project,
            "spider": place.spider,
            "crawl": place.crawl,
            "state": "stalled" if (self.silent or 0.0) >= STALL else "running",
            "pages": pages,
            "items": items,
            "per_min": {name: self._per_minute(key) for name, key in _RATES.items()},
            "silent_s": None if self.silent is None else round(self.silent),
            "reason": self.trouble,
        }


@dataclass(kw_only=True)
class NodeLook(NodeStatus):
    """A node that is looked at again and again, and the jobs that run there."""

    jobs: dict[str, JobLook] = field(default_factory=dict)  #: by their ids
    _listed_at: float | None = None  #: when they were listed, by the monotonic clock
    _numbers: tuple[int, int, int] | None = None  #: pending, running, finished jobs at that time

    def refresh(self, sender: Sender, now: float, timeout: float) -> None:
        """Ask the node how much it has to do, and what, where that changed."""
        self.load = None
        self.error = None
        self.wedged = False
        try:
            load = self.ask_load(sender, timeout)
            numbers = (load.pending, load.running, load.finished)
            if numbers != self._numbers or self._listed_at is None or now - self._listed_at >= LIST:
                self._list_jobs(sender, timeout)
                self._numbers = numbers
                self._listed_at = now
        except NodeError as error:
            self.load = None
            self.error = error

    def _list_jobs(self, sender: Sender, timeout: float) -> None:
        jobs = {}
        for place in list_node_jobs(sender, self.node, timeout=timeout):
            if place.state is JobState.RUNNING:
                jobs[place.job] = self.jobs.get(place.job) or JobLook(place=place)
        self.jobs = jobs

    def row(self) -> dict[str, Any]:
        """Return the node and its jobs, for `--json`."""
        document = self.document()
        row: dict[str, Any] = {}
        for name in ("name", "url", "state", "reason", "slots", "pending", "draining"):
            row[name] = document[name]
        row["running"] = len(self.jobs) if self.load else None
        row["jobs"] = self._job_documents()
        return row

    def _job_documents(self) -> list[dict[str, Any]]:
        """Return the jobs, for `--json`; none where the node did not answer."""
        if not self.load:
            return []
        return [job.document() for job in self.jobs.values()]


class FleetLook:
    """All nodes, looked at again and again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.nodes = [NodeLook(node=node) for node in context.nodes()]
        self._homes: dict[str | None, str | None] = {}  #: crawl -> its folder in the nodes' logs
        self._named = time.monotonic()  #: when the names of the nodes were read

    def poll(self) -> None:
        """Ask all nodes, and of the jobs that run there how they stand."""
        now = time.monotonic()
        sender = self._context.sender
        if now - self._named >= LIST:
            self._renew(now)
        list(sweep(self.nodes, lambda node: node.refresh(sender, now, TIMEOUT)))
        recognise(self._context, sender, self.nodes, TIMEOUT)
        jobs: list[JobLook] = []
        for node in self.nodes:
            if node.load:
                jobs += node.jobs.values()
        self._learn_homes({job.place.crawl for job in jobs})
        homes = self._homes

        def refresh(job: JobLook) -> None:
            """Ask how a job stands."""
            job.refresh(sender, _home_of(job.place, homes), now, TIMEOUT)

        list(sweep(jobs, refresh, threads=8))

    def _renew(self, now: float) -> None:
        """Take in nodes that have joined, and leave out those that are gone.

        Where that cannot be read, all stay.
        """
        self._named = now
        known = {asked.node: asked for asked in self.nodes}
        with suppress(ConfigError, StoreError):
            nodes = self._context.nodes_now()
            self.nodes = [known.get(node) or NodeLook(node=node) for node in nodes]

    def _learn_homes(self, crawls: set[str | None]) -> None:
        """Ask the store where these crawls have their folders: once, and again when it was away."""
        new = crawls - {None} - self._homes.keys()
        if not new:
            return
        with suppress(StoreError):
            store = self._context.store_if_any
            if store is None:
                return
            known = {row.id: home_of(row.id, row.created) for row in store.crawls()}
            for crawl in new:
                self._homes[crawl] = known.get(crawl or "")

    def document(self) -> dict[str, Any]:
        """Return how the fleet stands, as `--json` gives it."""
        nodes = []
        running = 0
        pending = 0
        totals = dict.fromkeys(_RATES, 0.0)
        for node in self.nodes:
            row = node.row()
            nodes.append(row)
            running += row["running"] or 0
            pending += row["pending"] or 0
            for job in row["jobs"]:
                for name in _RATES:
                    totals[name] += job["per_min"][name] or 0
        totals = {name: float(round(total, 1)) for name, total in totals.items()}
        return {"nodes": nodes, "running": running, "pending": pending, "per_min": totals}


def _home_of(place: Place, homes: Mapping[str | None, str | None]) -> str | None:
    """Return the folder with its report.

    None for a job of no crawl, or of another crawl than the one that has its name here.
    """
    home = homes.get(place.crawl)
    if home is None or is_others(place.job, {place.crawl or "": home}):
        return None
    return home


def status(context: Context, output: Output) -> int:
    """Say how the fleet stands, once; gives the exit code."""
    looks = FleetLook(context)
    looks.poll()
    document = looks.document()
    if not output.document(document):
        _put_fleet(document)
    answers = {asked.node: asked.error for asked in looks.nodes}
    errors = list(without_drained(context, answers).values())
    complain_each(errors)
    return exit_code(len(errors), errors)


def _put_fleet(document: Mapping[str, Any]) -> None:
    """Print a table of the nodes, one of their jobs, and a line about all of it."""
    nodes = _sorted_nodes(document)
    table(("node", "state", "running", "pending", ""), list(map(_node_row, nodes[:ROWS])))
    if rest := _describe_unseen(nodes[ROWS:]):
        say(rest)
    rows: list[tuple[Any, ...]] = []
    for node in nodes:
        rows += [_job_row(node, job) for job in node["jobs"]]
    if rows:
        table(
            ("node", "job", "spider", "pages", "/min", "items", "/min", "errors/min", ""),
            rows[:ROWS],
        )
    if len(rows) > ROWS:
        say(f"and {counted(len(rows) - ROWS, 'more job')}: sdist jobs --state running")
    say(_line(document))


def watch(context: Context, watched: WatchOptions, on_trouble: str | None = None) -> int:
    """Watch the fleet until Ctrl-C, which is its good end, or until the time is over.

    Gives the exit code. on_trouble: the command or address that is told of troubles.
    """
    looks = FleetLook(context)
    alarm = None
    if on_trouble:
        from .fleet_alarm import FleetAlarm  # it loads what judges crawls

        hook = EventHook(target=on_trouble, option="--on-trouble", event="a trouble of the fleet")
        hook.check()
        alarm = FleetAlarm(context, hook)
    deadline = float("inf")
    if watched.timeout is not None:
        deadline = time.monotonic() + watched.timeout
    with _view(watched) as show, interruptible_pause() as pause:
        try:
            while True:
                began = time.monotonic()
                looks.poll()
                document = looks.document()
                show(document, time.monotonic())
                if alarm is not None:
                    alarm.check(document, time.monotonic())
                if time.monotonic() >= deadline:
                    code = TIME_UP
                    break
                next_look = max(0.0, began + LOOK - time.monotonic())
                time_left = max(0.0, deadline - time.monotonic())
                pause(min(next_look, time_left))
        except KeyboardInterrupt:
            code = INTERRUPTED
    watched.document(looks.document())
    return code


def _view(watched: WatchOptions) -> AbstractContextManager[Show]:
    """Return what shows a document of `FleetLook`, at a time of the monotonic clock."""
    if watched.silent:
        return nullcontext(lambda _document, _now: None)
    if on_terminal():
        return live_view(frame)
    return nullcontext(PlainFleet().show)


class PlainFleet:
    """A line about the fleet now and then, and one for each node whose state changes."""

    def __init__(self) -> None:
        self._last_line_at: float | None = (
            None  #: when the last line about all was, by the monotonic clock
        )
        self._states: dict[str, str] = {}  #: the last state of each node, by its name

    def show(self, subject: Mapping[str, Any], now: float) -> None:
        """Say what has changed; subject: of `FleetLook`, now: by the monotonic clock."""
        for node in subject["nodes"]:
            if self._states.get(node["name"], "up") != node["state"]:
                reason = ""
                if node["reason"]:
                    reason = f": {node['reason']}"
                say(f"{node['name']}: {node['state']}{reason}")
            self._states[node["name"]] = node["state"]
        if self._last_line_at is None or now - self._last_line_at >= LINE_EVERY:
            self._last_line_at = now
            say(_line(subject))


def _sorted_nodes(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sort_by_urgency(
        document["nodes"], lambda node: str(node["state"]), lambda node: node["running"]
    )


def _describe_unseen(nodes: Sequence[Mapping[str, Any]]) -> str:
    return describe_rest([str(node["state"]) for node in nodes])


def frame(document: Mapping[str, Any], lines: int = 66) -> RenderableType:
    """Draw one picture of a document of `FleetLook`, of so many lines at most.

    Nodes in trouble and jobs with errors come first. Where nodes have no row, a line says how many
    there are in which state.
    """
    room = max(3, lines - _OTHER_LINES)
    nodes = _sorted_nodes(document)
    shown_nodes = nodes if len(nodes) <= room else nodes[: room - 1]
    unseen_nodes = nodes[len(shown_nodes) :]
    room -= len(shown_nodes) + bool(unseen_nodes)
    drawn = _jobs_with_a_row(shown_nodes, room)
    grid = _empty_grid()
    for node in shown_nodes:
        _draw_node(grid, node)
        for job in node["jobs"]:
            if id(job) in drawn:
                _draw_job(grid, node, job)
    foot: list[Text] = []
    if unseen := _describe_unseen(unseen_nodes):
        foot.append(Text(unseen, style="dim"))
    jobs = 0
    for node in nodes:
        jobs += len(node["jobs"])
    if jobs > len(drawn):
        foot.append(Text(f"and {counted(jobs - len(drawn), 'more job')}", style="dim"))
    return Group(grid, *foot, Text(_line(document), style="cyan"))


def _jobs_with_a_row(nodes: Iterable[Mapping[str, Any]], room: int) -> set[int]:
    """Return the `id()` of each job that is drawn, those with most errors first."""
    jobs: list[Mapping[str, Any]] = []
    for node in nodes:
        jobs += node["jobs"]
    if len(jobs) > room:
        jobs.sort(key=lambda job: -(job["per_min"]["errors"] or 0))
        del jobs[max(0, room - 1) :]
    return set(map(id, jobs))


def _empty_grid() -> Table:
    numbers = {"pages", "items", "/min", "errors/min"}
    headings = ("node", "state / job", "spider", "pages", "/min", "items", "/min", "errors/min", "")
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        gives_way = heading in {"state / job", ""}
        side: Literal["left", "right"] = "right" if heading in numbers else "left"
        grid.add_column(heading, justify=side, no_wrap=not gives_way)
    return grid


def _draw_node(grid: Table, node: Mapping[str, Any]) -> None:
    name, state, running, pending, reason = _node_row(node)
    load = "" if running is None else f"{running} running, {pending} pending"
    colour = COLOURS.get(str(state), "")
    grid.add_row(
        Text(one_line(str(name)), style="bold"),
        Text(f"{state}  {load}".rstrip(), style=colour, no_wrap=True, overflow="ellipsis"),
        *[""] * 6,
        remark(str(reason)),
    )


def _draw_job(grid: Table, node: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    _, *values, why = _job_row(node, job)
    grid.add_row("", *map(_cell, values), remark(why))


def _cell(value: object) -> Text:
    if value is None:
        text = ""
    elif isinstance(value, int):
        text = f"{value:,}"
    else:
        text = one_line(str(value))
    return Text(text, no_wrap=True, overflow="ellipsis")


def _node_row(node: Mapping[str, Any]) -> tuple[object, ...]:
    reason = str(node["reason"]).partition(". ")[0].rstrip(".")
    return node["name"], node["state"], node["running"], node["pending"], reason


def _job_row(node: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[Any, ...]:
    rates = job["per_min"]
    silent = ""
    if job["state"] == "stalled":
        silent = f"no progress for {clock(job['silent_s'])}"
    return (
        node["name"],
        job["job"],
        job["spider"],
        job["pages"],
        _rate(rates["pages"]),
        job["items"],
        _rate(rates["items"]),
        _rate(rates["errors"]),
        job["reason"] or silent,
    )


def _rate(rate: float | None) -> str | None:
    if rate is None:
        return None
    if rate >= 10 or not rate:
        return f"{rate:,.0f}"
    return f"{rate:.1f}"


def _line(document: Mapping[str, Any]) -> str:
    nodes = document["nodes"]
    up = sum(node["state"] in {"up", "draining"} for node in nodes)
    pieces = [
        f"nodes {up}/{len(nodes)}",
        f"{document['running']:,} running",
        f"{document['pending']:,} pending",
    ]
    pieces += [f"{name} {_rate(document['per_min'][name])}/min" for name in _RATES]
    return " · ".join(pieces)
