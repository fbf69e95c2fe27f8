"""Watches nodes for a while where work waits and none runs: their process slots may be lost."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from scrapyd_dist.errors import NodeError
from scrapyd_dist.fleet.diagnosis import NodeDiagnosis
from scrapyd_dist.fleet.recalled_states import start_delays
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.nodes import Node, NodeRecord
from scrapyd_dist.scheduling.liveness import WedgeWatch
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender

#: seconds between two looks at a node whose work may be stuck
EVERY = 1.0
#: most seconds that are spent on such looks
LOOKING = 60.0
#: opens what is told, before each look, of the nodes that are watched still
WaitProgress = Callable[[], AbstractContextManager[Callable[[Sequence[NodeDiagnosis]], None]]]


def watch_waiting_work(
    workspace: Workspace,
    sender: Sender,
    exams: Sequence[NodeDiagnosis],
    timeout: float,
    progress: WaitProgress,
) -> list[NodeDiagnosis]:
    """Return the diagnoses with what is remembered of the nodes, and which are wedged.

    Where work waits and none runs, the node is asked again, and again, until that is known.
    timeout: seconds for each answer.
    """
    records = workspace.node_records([exam.node for exam in exams])
    own = workspace.local_nodes
    recalled = []
    for exam in exams:
        record = records[exam.node.name]
        start_delay = 0.0 if exam.node in own else record.start_delay
        recalled.append(replace(exam, draining=record.draining, start_delay=start_delay))
    waiting = [exam for exam in recalled if exam.idle]
    if not waiting:
        return recalled
    deadline = time.monotonic() + LOOKING
    watches = _wedge_watches(workspace, waiting, records)
    with progress() as note:
        _watch_until(deadline, sender, waiting, watches, timeout, note)
    watched = []
    for exam in recalled:
        watch = watches.get(exam.node)
        watched.append(replace(exam, wedged=watch is not None and watch.wedged))
    return watched


def _watch_until(
    deadline: float,
    sender: Sender,
    waiting: Sequence[NodeDiagnosis],
    watches: Mapping[Node, WedgeWatch],
    timeout: float,
    note: Callable[[Sequence[NodeDiagnosis]], None],
) -> None:
    """Look at these nodes until each moves, is wedged, or is silent; deadline: monotonic clock."""
    left = [*waiting]
    while left and time.monotonic() < deadline:
        note(left)
        time.sleep(EVERY)
        undecided = []
        for exam in left:
            watch = watches[exam.node]
            _look_again(sender, exam, watch, timeout)
            if watch.looks and not watch.wedged:
                undecided.append(exam)
        left = undecided


def _wedge_watches(
    workspace: Workspace, exams: Sequence[NodeDiagnosis], records: Mapping[str, NodeRecord]
) -> dict[Node, WedgeWatch]:
    delays = start_delays(workspace, {exam.node.url: exam.skew or 0.0 for exam in exams})
    watches = {}
    for exam in exams:
        delay = max(delays.get(exam.node.url, 0.0), records[exam.node.name].start_delay)
        watches[exam.node] = WedgeWatch(start_delay=delay, looks=(time.time(),))
    return watches


def _look_again(sender: Sender, exam: NodeDiagnosis, watch: WedgeWatch, timeout: float) -> None:
    """Look at a node whose work waits; without an answer it is not looked at any more."""
    try:
        load = sender.send(exam.node, api.daemonstatus(), timeout=timeout)
    except NodeError:
        watch.restart()
        return
    has_moved = exam.load is not None and load.finished != exam.load.finished
    watch.saw(load, time.time(), moved=has_moved)
