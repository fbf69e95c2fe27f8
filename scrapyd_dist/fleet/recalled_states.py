"""Adds to what nodes answer what is remembered of them: which are draining, which start nothing."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from scrapyd_dist.errors import DistError, NodeError, StoreError
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.messenger import Messenger
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.scheduling.liveness import WedgeWatch, moved_since, start_delay_of
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.transports import Sender

#: crawls whose attempts tell how long nodes take to start a job
CRAWLS = 5


def recall_states(
    workspace: Workspace,
    sender: Sender,
    statuses: Sequence[NodeStatus],
    timeout: float,
    messenger: Messenger,
) -> list[NodeStatus]:
    """Return the statuses, with those marked that are draining or wedged.

    Both are known by what was remembered and by what is seen now, which is remembered too. A store
    that does not answer is complained of. timeout: seconds that a node gets for an answer.
    """
    try:
        records = workspace.node_records(status.node for status in statuses)
    except StoreError as error:
        messenger.complain(f"{error} So it is not known which nodes are draining or wedged.")
        return [*statuses]
    delays = start_delays(workspace, _skews_of_idle(statuses))
    changes: dict[str, dict[str, Any]] = {}
    recalled = []
    for status in statuses:
        record = records[status.node.name]
        recalled_status = replace(status, draining=record.draining)
        if status.load is not None:
            delay = max(record.start_delay, delays.get(status.node.url, 0.0))
            watch = _watch_idling(sender, status, status.load, record, delay, timeout)
            recalled_status = replace(recalled_status, wedged=watch.wedged)
            if (watch.looks, delay) != (record.idle_looks, record.start_delay):
                changes[status.node.name] = {"idle_looks": watch.looks, "start_delay": delay}
        recalled.append(recalled_status)
    # Nothing was asked to be written: where that is impossible, the next look knows less, and that
    # is all.
    with suppress(DistError):
        workspace.remember(changes)
    return recalled


def _watch_idling(
    sender: Sender, status: NodeStatus, load: Load, record: NodeRecord, delay: float, timeout: float
) -> WedgeWatch:
    """Return the watch of whether a node starts jobs, with the look that has just been taken."""
    watch = WedgeWatch(start_delay=delay, looks=record.idle_looks)
    now = time.time()
    watch.saw(load, now)
    if watch.since is not None and _has_moved(sender, status, now - watch.since, timeout):
        watch.restart(now)
    return watch


def _skews_of_idle(statuses: Sequence[NodeStatus]) -> dict[str, float]:
    """Return by how much the clocks of nodes go ahead that have jobs and start none."""
    skews = {}
    for status in statuses:
        if status.idle:
            skews[status.node.url] = status.skew or 0.0
    return skews


def start_delays(workspace: Workspace, skews: Mapping[str, float]) -> dict[str, float]:
    """Return the longest time from sent to started in the last crawls, by address; in seconds.

    skews: by how much the clock of each node goes ahead, by address, in seconds.
    """
    store = workspace.store_if_any if skews else None
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


def _has_moved(sender: Sender, status: NodeStatus, span: float, timeout: float) -> bool:
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
