"""`sdist watch --fleet`, `sdist status --fleet`: all nodes and what runs there, drawn in place or as lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..crawls.words import clock, counted
from ..fleet import chosen_nodes
from ..jobs.joblist import TIMEOUT, make_sender
from ..speaking import one_line
from .fleetlooks import FleetLook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType
    from rich.text import Text

    from scrapyd_dist.config import ProjectConfig

    from ..crawls.watching import Manner

#: seconds between two looks at the nodes
LOOK = 2.0
#: jobs that are drawn; lines of the picture that are about neither nodes nor jobs
_OTHER_LINES = 6


def status(project: ProjectConfig, *, as_json: bool) -> int:
    """Say how the fleet stands, once; gives the exit code."""
    from ..fleet import exit_code
    from ..render import table
    from ..speaking import complain, put_json, say

    looks = _looks(project)
    looks.look()
    document = looks.document()
    if as_json:
        put_json(document)
    else:
        table(("node", "state", "running", "pending", ""), [_node_row(node) for node in document["nodes"]])
        jobs = [_job_row(node, job) for node in document["nodes"] for job in node["jobs"]]
        if jobs:
            table(("node", "job", "spider", "pages", "/min", "items", "/min", "errors/min", ""), jobs)
        say(_line(document))
    for error in looks.errors():
        complain(str(error))
    return exit_code(len(looks.nodes), looks.errors())


def watch(project: ProjectConfig, manner: Manner) -> int:
    """Watch the fleet until Ctrl-C, which is its good end, or until the time is over; gives the exit code."""
    from contextlib import closing

    from ..crawls.interrupts import looked_out_for
    from ..speaking import put_json

    looks = _looks(project)
    deadline = time.monotonic() + manner.timeout if manner.timeout is not None else float("inf")
    with closing(_view(manner)) as view, looked_out_for() as ctrl_c:
        try:
            while True:
                began = time.monotonic()
                looks.look()
                view.show(looks.document(), time.monotonic())
                if time.monotonic() >= deadline:
                    code = 124
                    break
                ctrl_c.pause(min(max(0.0, began + LOOK - time.monotonic()), max(0.0, deadline - time.monotonic())))
        except KeyboardInterrupt:
            code = 130
    if manner.as_json:
        put_json(looks.document())
    return code


def _looks(project: ProjectConfig) -> FleetLook:
    return FleetLook(root=project.root, sender=make_sender(), nodes=chosen_nodes(project, None), timeout=TIMEOUT)


def _view(manner: Manner) -> Any:
    from ..speaking import on_terminal

    if manner.quiet or not manner.progress:
        return PlainFleet(every=float("inf"))
    return LiveFleet() if on_terminal() else PlainFleet()


class PlainFleet:
    """A line about the fleet now and then, and one for each node whose state changes."""

    def __init__(self, every: float = 30.0) -> None:
        self._every = every
        self._said: float | None = None
        self._states: dict[str, str] = {}

    def show(self, document: Mapping[str, Any], now: float) -> None:
        from ..speaking import say

        if self._every == float("inf"):
            return
        for node in document["nodes"]:
            if self._states.get(node["name"], "up") != node["state"]:
                say(f"{node['name']}: {node['state']}{': ' + node['reason'] if node['reason'] else ''}")
            self._states[node["name"]] = node["state"]
        if self._said is None or now - self._said >= self._every:
            self._said = now
            say(_line(document))

    def close(self) -> None: ...


class LiveFleet:
    """Draws the fleet in place, on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, document: Mapping[str, Any], now: float) -> None:  # noqa: ARG002 - drawn at each look
        self._live.update(frame(document, lines=self._console.height - _OTHER_LINES), refresh=True)

    def close(self) -> None:
        self._live.stop()


def frame(document: Mapping[str, Any], *, lines: int = 60) -> RenderableType:
    """One picture of the fleet.

    Args:
        document: as `FleetLook.document` gives it.
        lines: how many nodes and jobs may be drawn; of more jobs, those with errors come first.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ..crawls.live import remark

    grid = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("node", "state / job", "spider", "pages", "/min", "items", "/min", "errors/min", ""):
        right, gives_way = heading in {"pages", "items", "/min", "errors/min"}, heading in {"state / job", ""}
        grid.add_column(heading, justify="right" if right else "left", no_wrap=not gives_way)
    room = max(3, lines) - len(document["nodes"])
    jobs = sorted(
        (job for node in document["nodes"] for job in node["jobs"]), key=lambda job: -(job["per_min"]["errors"] or 0)
    )
    drawn = {id(job) for job in (jobs if len(jobs) <= room else jobs[: max(0, room - 1)])}
    for node in document["nodes"]:
        name, state, running, pending, reason = _node_row(node)
        load = "" if running is None else f"{running} running, {pending} pending"
        grid.add_row(
            Text(one_line(str(name)), style="bold"),
            Text(f"{state}  {load}".rstrip(), style=_STYLES.get(str(state), ""), no_wrap=True, overflow="ellipsis"),
            *[""] * 6,
            remark(str(reason)),
        )
        for job in node["jobs"]:
            if id(job) in drawn:
                _, *cells, why = _job_row(node, job)
                grid.add_row("", *(_cell(cell) for cell in cells), remark(why))
    rest = len(jobs) - len(drawn)
    foot = [Text(f"and {counted(rest, 'more job')}", style="dim")] if rest else []
    return Group(grid, *foot, Text(_line(document), style="cyan"))


def _cell(value: object) -> Text:
    from rich.text import Text

    text = "" if value is None else f"{value:,}" if isinstance(value, int) else one_line(str(value))
    return Text(text, no_wrap=True, overflow="ellipsis")


_STYLES = {"up": "green", "down": "red", "refused": "red", "wedged": "red", "draining": "yellow", "busy": "yellow"}


def _node_row(node: Mapping[str, Any]) -> tuple[object, ...]:
    reason = str(node["reason"]).partition(". ")[0].rstrip(".")
    return node["name"], node["state"], node["running"], node["pending"], reason


def _job_row(node: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[Any, ...]:
    rates = job["per_min"]
    silent = f"no progress for {clock(job['silent_s'])}" if job["state"] == "stalled" else ""
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
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def _line(document: Mapping[str, Any]) -> str:
    """The fleet in one line."""
    nodes, rates = document["nodes"], document["per_min"]
    up = sum(node["state"] in {"up", "draining"} for node in nodes)
    pieces = [
        f"nodes {up}/{len(nodes)}",
        f"{document['running']:,} running",
        f"{document['pending']:,} pending",
        *(f"{name} {_rate(rates[name])}/min" for name in ("pages", "items", "errors")),
    ]
    return " · ".join(pieces)
