"""`sdist doctor`: looks at every node for what endangers work; each finding comes with its remedy."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ..candidates import nodes
from ..selectors import Json
from .node_status import CONNECT_TIMEOUT, ConnectTimeout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.diagnostics.diagnosis import Finding, NodeDiagnosis
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

#: seconds that a node gets for each answer
TIMEOUT = 15.0
#: seconds between two looks at a node whose work may be stuck
EVERY = 1.0
#: most seconds that are spent on such looks
LOOKING = 60.0


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("doctor")(doctor)


def doctor(
    node: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="NODE", autocompletion=nodes, help="Names of nodes, or globs; all if left out."),
    ] = None,
    project: Annotated[
        Optional[str], typer.Option("--project", "-p", help="Whose code is tried: \\[deploy] project, else BOT_NAME.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show notes too.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a node gets for each answer.", min=0.1)] = TIMEOUT,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    as_json: Json = False,
) -> None:
    """Look for what endangers work on the nodes; each finding says what to do.

    It changes nothing. Looked at: user name and password, TLS and certificate,
    the url's path, clock, time to answer, /logs/ and pieces of files, items_dir,
    jobs_to_keep, Scrapyd's age, versions, whether eggs can be read, process
    slots that are lost (that takes some seconds where work waits). Exit code 1
    when something endangers work, else as with `sdist nodes`.

    Example: sdist doctor 'eu-*'
    """
    from scrapyd_dist.config import load
    from scrapyd_dist.transports.requests import RequestsTransport

    from ..selectors import chosen, known_times
    from ..target_nodes import quick_project

    found = load()
    nodes = chosen(found, node)
    sender = RequestsTransport(connect_timeout=connect_timeout)
    name = quick_project(found, project)
    known = known_times(found.root, nodes, name)
    exams = [replace(one, known=known) for one in _examined(sender, nodes, name, timeout)]
    exams = _watched(found.root, sender, exams, timeout)
    results = _judged(found, exams, every=not node)
    _tell(exams, results, as_json=as_json, verbose=verbose)
    raise typer.Exit(_exit_code(exams, results))


def _examined(sender: Sender, nodes: Sequence[Node], project: str | None, timeout: float) -> list[NodeDiagnosis]:
    """All of them at once; in their order."""
    from scrapyd_dist.scrapyd.sweep import sweep

    from ..crawls.wait_line import waiting
    from .node_examination import examine

    exams: dict[Node, NodeDiagnosis] = {}
    with waiting(30.0, terminal_only=True) as show:
        for answer in sweep(nodes, lambda one: examine(sender, one, project, timeout)):
            if answer.value is not None:
                exams[answer.asked] = answer.value
            show(f"{len(exams)} of {len(nodes)} nodes examined …")
    return [exams[node] for node in nodes]


def _watched(root: Path, sender: Sender, exams: list[NodeDiagnosis], timeout: float) -> list[NodeDiagnosis]:
    """Look again, and again, where work waits and none runs; and tell who is draining."""
    from scrapyd_dist.nodes import NodeRecord

    from ..crawls.wait_line import waiting
    from ..target_nodes import node_records
    from .drain import start_delays

    known = node_records(root)
    kept = {one.node: known.get(one.node.name) or NodeRecord(name=one.node.name) for one in exams}
    exams = [replace(one, draining=kept[one.node].draining is not None) for one in exams]
    suspects = [one for one in exams if one.load is not None and one.load.pending and not one.load.running]
    if not suspects:
        return exams
    skews = {one.node.url: one.skew or 0.0 for one in suspects}
    delays = start_delays(root, skews)
    watches = [_Watch(one, max(delays.get(one.node.url, 0.0), kept[one.node].start_delay)) for one in suspects]
    end = time.monotonic() + LOOKING
    with waiting(LOOKING, terminal_only=False) as show:
        while time.monotonic() < end and any(watch.undecided for watch in watches):
            names = ", ".join(watch.exam.node.name for watch in watches if watch.undecided)
            show(f"Work waits on {names}, and none runs; looking again for some seconds …")
            time.sleep(EVERY)
            for watch in watches:
                watch.look(sender, timeout)
    wedged = {watch.exam.node for watch in watches if watch.wedged}
    return [replace(one, wedged=one.node in wedged) for one in exams]


class _Watch:
    """Looks in a row at one node where work waits."""

    def __init__(self, exam: NodeDiagnosis, start_delay: float) -> None:
        self.exam, self._delay = exam, start_delay
        self._looks: tuple[float, ...] = (time.time(),)
        self._finished = exam.load.finished if exam.load else 0

    @property
    def wedged(self) -> bool:
        from scrapyd_dist.scheduling.node_state import is_wedged

        return is_wedged(self._looks, self._delay)

    @property
    def undecided(self) -> bool:
        return bool(self._looks) and not self.wedged

    def look(self, sender: Sender, timeout: float) -> None:
        from scrapyd_dist.errors import NodeError
        from scrapyd_dist.scheduling import node_state
        from scrapyd_dist.scrapyd import api

        if not self.undecided:
            return
        try:
            load = sender.send(self.exam.node, api.daemonstatus(), timeout=timeout)
        except NodeError:
            self._looks = ()
            return
        self._looks = node_state.looked(
            self._looks,
            now=time.time(),
            pending=load.pending,
            running=load.running,
            start_delay=self._delay,
            moved=load.finished != self._finished,
        )


def _judged(found: ProjectConfig, exams: Sequence[NodeDiagnosis], *, every: bool) -> list[Finding]:
    """All findings, the worst first."""
    from scrapyd_dist.diagnostics.diagnosis import findings, fleet_findings
    from scrapyd_dist.scrapyd.versions import current, told_content

    now = datetime.now(timezone.utc)
    latest = {one.node.name: current(one.versions, one.known) for one in exams if one.versions}
    together = fleet_findings(
        exams, found.targets if every else (), latest, lambda a, b: told_content(a) == told_content(b)
    )
    order = {one.node.name: number for number, one in enumerate(exams)}
    results = [*(result for one in exams for result in findings(one, now)), *together]
    return sorted(results, key=lambda result: (result.severity.order, order.get(result.node, len(order))))


def _tell(exams: Sequence[NodeDiagnosis], results: Sequence[Finding], *, as_json: bool, verbose: bool) -> None:
    from ..crawls.wording import counted
    from ..output import put, put_json, say

    counts = Counter(result.severity.value for result in results)
    if as_json:
        put_json({"nodes": [_node_row(one) for one in exams], "findings": [_row(result) for result in results]})
        return
    for result in results:
        if result.severity.value == "note" and not verbose:
            continue
        put(f"{result.severity.value}: {result.node}: {result.topic}: {result.text}.")
        put(f"    {result.remedy}")
    worst = [
        f"{counted(counts[name], text)}{more}"
        for name, text, more in (("danger", "danger", ""), ("warning", "warning", ""),
                                 ("note", "note", "" if verbose else " (--verbose shows them)"))
        if counts[name]
    ]  # fmt: skip
    say(f"{counted(len(exams), 'node')} examined: {', '.join(worst) or 'all is well'}.")


def _row(result: Finding) -> dict[str, Any]:
    return {
        "severity": result.severity.value,
        "node": result.node,
        "topic": result.topic,
        "text": result.text,
        "remedy": result.remedy,
    }


def _node_row(exam: NodeDiagnosis) -> dict[str, Any]:
    return {
        "name": exam.node.name,
        "url": exam.node.url,
        "state": exam.state.value,
        "latency_ms": None if exam.latency is None else round(exam.latency * 1000, 1),
        "skew_s": exam.skew,
        "versions": None if exam.versions is None else list(exam.versions),
        "logs": exam.logs,
        "ranges": exam.ranges,
        "items_dir": exam.items,
        "certificate_ends": None if exam.certificate_ends is None else exam.certificate_ends.isoformat(),
    }


def _exit_code(exams: Sequence[NodeDiagnosis], results: Sequence[Finding]) -> int:
    """1 when a node that answers endangers work; else by the nodes that do not answer."""
    from ..target_nodes import exit_code

    unreached = {one.node.name for one in exams if one.error is not None}
    if any(result.severity.value == "danger" and result.node not in unreached for result in results):
        return 1
    return exit_code(len(exams), [one.error for one in exams if one.error is not None])
