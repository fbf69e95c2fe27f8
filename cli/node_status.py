"""Looks at all nodes at once: load, versions, clock; and which are draining or start nothing."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import repeat
from typing import Any

from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import PARTIAL, DistError, NodeError, StoreError
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.liveness import IdleWatch, moved_since, start_delay_of
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import newest
from scrapyd_dist.transports import Sender, sweep

from .context import Context, exit_code
from .output import NEVER, complain, waiting

#: seconds that a node gets to answer
TIMEOUT = 10.0
#: crawls whose attempts tell how long nodes take to start a job
CRAWLS = 5


def ask_nodes(
    sender: Sender,
    nodes: Sequence[Node],
    project: str | None,
    timeout: float,
    known: Mapping[str, float] | None = None,
) -> Iterator[NodeStatus]:
    """Ask all nodes at the same time, and generate a node whenever more is known of it.

    project: whose versions are wanted, None = none; timeout: seconds for each answer; known: when
    versions were sent whose names do not tell it, seconds since the epoch.
    """
    statuses = [NodeStatus(node=node, known=known or {}) for node in nodes]
    questions: list[tuple[NodeStatus, str | None]] = []
    # Versions are a question of their own, so that a sweep takes as long as one answer. All loads
    # come first.
    questions += zip(statuses, repeat(None), strict=False)
    if project is not None:
        questions += zip(statuses, repeat(project), strict=False)

    def send_question(question: tuple[NodeStatus, str | None]) -> None:
        status, name = question
        if name is None:
            status.ask_load(sender, timeout)
        else:
            status.ask_versions(sender, name, timeout)

    for answer in sweep(questions, send_question):
        status, _ = answer.asked
        if status.load is not None or status.error is not None:
            yield status


def poll_nodes(
    sender: Sender,
    fleet: Sequence[Node],
    project: str | None,
    timeout: float,
    known: Mapping[str, float] | None = None,
) -> list[NodeStatus]:
    """Ask all nodes at once, and show on a terminal how they answer.

    Returns them in the order of the fleet; project, timeout, known: as for `ask_nodes`.
    """
    seen: dict[Node, NodeStatus] = {}
    with waiting(first=NEVER) as show:
        for status in ask_nodes(sender, fleet, project, timeout, known):
            seen[status.node] = status
            answered = f"{len(seen)} of {len(fleet)} nodes answered"
            latest = f"{status.node.name}: {status.state.value} {status.short}"
            show(f"{answered} … {latest}".rstrip())
    return [seen[node] for node in fleet]


def newest_of(seen: Iterable[NodeStatus]) -> str | None:
    """Return the newest deployment of the whole fleet; None if no node has any version.

    Where no version tells its time, it is the one that most nodes have.
    """
    names: list[str] = []
    current = Counter[str | None]()
    known: Mapping[str, float] | None = None
    for status in seen:
        if status.versions:
            names += status.versions
            current[status.version] += 1
            if known is None:
                known = status.known
    if known is None:
        return None
    return newest(names, known) or current.most_common(1)[0][0]


def exit_code_of(seen: Sequence[NodeStatus]) -> int:
    """Return 0 when all work, 3 when some do not, else the code of what keeps all of them away.

    A drained node need not answer.
    """
    errors = []
    for status in seen:
        if status.error is not None and status.draining is not None:
            continue
        errors.append(status.error)
    if not errors:  # all are drained, and none answered
        errors = [status.error for status in seen]
    code = exit_code(len(errors), errors)
    if code == 0 and any(status.wedged for status in seen):
        return PARTIAL
    return code


def recognise(context: Context, sender: Sender, seen: Sequence[NodeStatus], timeout: float) -> None:
    """Mark nodes that are draining or wedged, by what was remembered and is seen now.

    What is seen now is remembered. timeout: seconds that a node gets for an answer.
    """
    try:
        known = context.node_records(status.node for status in seen)
    except StoreError as error:
        complain(f"{error} So it is not known which nodes are draining or wedged.")
        return
    delays = start_delays(context, _skews_of_idle(seen))
    changes: dict[str, dict[str, Any]] = {}
    for status in seen:
        record = known[status.node.name]
        status.draining = record.draining
        if status.load is None:
            continue
        delay = max(record.start_delay, delays.get(status.node.url, 0.0))
        watch = IdleWatch(start_delay=delay, looks=record.idle_looks)
        now = time.time()
        watch.saw(status.load, now)
        if watch.since is not None and _moved(sender, status, now - watch.since, timeout):
            watch.restart(now)
        status.wedged = watch.wedged
        if (watch.looks, delay) != (record.idle_looks, record.start_delay):
            changes[status.node.name] = {"idle_looks": watch.looks, "start_delay": delay}
    # Nothing was asked to be written: where that is impossible, the next look knows less, and that
    # is all.
    with suppress(DistError):
        context.remember(changes)


def _skews_of_idle(seen: Sequence[NodeStatus]) -> dict[str, float]:
    """Return by how much the clocks of nodes go ahead that have jobs and start none."""
    skews = {}
    for status in seen:
        if status.idle:
            skews[status.node.url] = status.skew or 0.0
    return skews


def start_delays(context: Context, skews: Mapping[str, float]) -> dict[str, float]:
    """Return the longest time from sent to started in the last crawls, by address; in seconds.

    skews: by how much the clock of each node goes ahead, by address, in seconds.
    """
    store = context.store_if_any if skews else None
    if store is None:
        return {}
    times: dict[str, list[tuple[float, float]]] = {}
    for crawl in store.crawls()[:CRAWLS]:
        for attempt in store.attempts(crawl.id):
            started = attempt.report.get("started")
            if isinstance(started, (int, float)) and attempt.sent_at and not attempt.worker:
                times.setdefault(attempt.url, []).append((attempt.sent_at, float(started)))
    delays = {}
    for url, pairs in times.items():
        delays[url] = start_delay_of(pairs, skews.get(url, 0.0))
    return delays


def _moved(sender: Sender, status: NodeStatus, span: float, timeout: float) -> bool:
    """Tell whether jobs came and went between the looks, and only fell into the gaps."""
    try:
        jobs = sender.send(status.node, api.listjobs(), timeout=timeout)
    except NodeError:
        return False
    here = datetime.now(timezone.utc).astimezone().utcoffset() or timedelta()
    times = []
    for job in (*jobs.running, *jobs.finished):
        times += [job.start_time, job.end_time]
    node_now = status.load.date if status.load else None
    return moved_since(times, span=span, node_now=node_now, offsets={here, timedelta()})
