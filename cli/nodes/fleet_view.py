"""`sdist watch --fleet`, `sdist status --fleet`: all nodes and the jobs that run there."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scrapyd_dist.errors import INTERRUPTED, TIME_UP
from scrapyd_dist.fleet.fleet_alarm import FleetAlarm
from scrapyd_dist.fleet.fleet_screen import ROWS, describe_rest, sort_by_urgency
from scrapyd_dist.fleet.fleet_watch import FleetWatch
from scrapyd_dist.fleet.node_status import show_state
from scrapyd_dist.fleet.present_troubles import RECENT
from scrapyd_dist.fleet.watched_jobs import RATES
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.jobs.job_judge import settle_jobs
from scrapyd_dist.node_answers import answers_exit_code
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.rates import describe_rate, rate_number
from scrapyd_dist.time_spans import describe_span
from scrapyd_dist.transports.event_hook import EventHook

from ..context import Context
from ..crawls.crawl_picture import remark
from ..crawls.watcher import Show, WatchOptions, interruptible_pause, live_view
from ..output import (
    LINE_EVERY,
    Output,
    colour_of,
    complain_each,
    on_terminal,
    one_line,
    say,
    table,
)
from ..silence import without_drained

#: seconds between two looks at the nodes
LOOK = 2.0
#: lines of the picture that are about neither nodes nor jobs
_OTHER_LINES = 6


def status(context: Context, output: Output) -> int:
    """Say how the fleet stands, once; gives the exit code."""
    fleet = FleetWatch(context, context.messenger)
    fleet.poll()
    document = fleet.document()
    if not output.document(document):
        _put_fleet(document)
    answers = {node.status.node: node.status.error for node in fleet.nodes}
    errors = list(without_drained(context, answers).values())
    complain_each(errors)
    return answers_exit_code(len(errors), errors)


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
            below=("job",),
        )
    if len(rows) > ROWS:
        say(f"and {counted(len(rows) - ROWS, 'more job')}: sdist jobs --state running")
    say(_line(document))


def watch(context: Context, watched: WatchOptions, on_trouble: str | None = None) -> int:
    """Watch the fleet until Ctrl-C, which is its good end, or until the time is over.

    Gives the exit code. on_trouble: the command or address that is told of troubles.
    """
    fleet = FleetWatch(context, context.messenger)
    alarm = None
    if on_trouble:
        hook = EventHook(target=on_trouble, option="--on-trouble", event="a trouble of the fleet")
        hook.check()
        alarm = FleetAlarm(context, hook, partial(_recent_jobs, context), context.messenger)
    deadline = watched.deadline_from_now()
    with _view(watched) as show, interruptible_pause() as pause:
        try:
            while True:
                began = time.monotonic()
                fleet.poll()
                document = fleet.document()
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
    watched.document(fleet.document())
    return code


def _recent_jobs(context: Context) -> Iterable[JobRecord]:
    """Return what is remembered of plain jobs that are open, or have ended in the last day."""
    nodes = context.known_nodes()
    return settle_jobs(context.job_site, nodes, since=time.time() - RECENT).records


def _view(watched: WatchOptions) -> AbstractContextManager[Show]:
    """Return what shows a document of `FleetWatch`, at a time of the monotonic clock."""
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
        """Say what has changed; subject: of `FleetWatch`, now: by the monotonic clock."""
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
    """Draw one picture of a document of `FleetWatch`, of so many lines at most.

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
    colour = colour_of(str(state))
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
    return node["name"], show_state(node), node["running"], node["pending"], reason


def _job_row(node: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[Any, ...]:
    rates = job["per_min"]
    silent = ""
    if job["state"] == "stalled":
        silent = f"no progress for {describe_span(job['silent_s'])}"
    return (
        node["name"],
        job["job"],
        job["spider"],
        job["pages"],
        _known_rate(rates["pages"]),
        job["items"],
        _known_rate(rates["items"]),
        _known_rate(rates["errors"]),
        job["reason"] or silent,
    )


def _known_rate(per_minute: float | None) -> str | None:
    return None if per_minute is None else rate_number(per_minute)


def _line(document: Mapping[str, Any]) -> str:
    nodes = document["nodes"]
    up = sum(node["state"] in {"up", "draining", "drained"} for node in nodes)
    pieces = [
        f"nodes {up}/{len(nodes)}",
        f"{document['running']:,} running",
        f"{document['pending']:,} pending",
    ]
    pieces += [f"{name} {describe_rate(document['per_min'][name])}" for name in RATES]
    return " · ".join(pieces)
