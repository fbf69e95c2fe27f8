"""One look at every node, all at once: load, versions, clock; and which nodes are draining or start nothing."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import DistError, NodeError, StoreError
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import IdleWatch, moved_since, start_delay_of
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
    """Ask all nodes at the same time, and give a node whenever more is known of it.

    project: whose versions are wanted, None = none; timeout: seconds for each answer; known: when versions were sent
    whose names do not tell it, seconds since the epoch.
    """
    seen = [NodeStatus(node=node, known=known or {}) for node in nodes]
    # Versions are a question of their own, so that a sweep takes as long as one answer. All loads come first.
    names = [None] if project is None else [None, project]

    def ask(question: tuple[NodeStatus, str | None]) -> None:
        one, name = question
        if name is None:
            one.ask_load(sender, timeout)
        else:
            one.ask_versions(sender, name, timeout)

    for answer in sweep([(one, name) for name in names for one in seen], ask):
        one, _ = answer.asked
        if one.load is not None or one.error is not None:
            yield one


def look(
    sender: Sender,
    fleet: Sequence[Node],
    project: str | None,
    timeout: float,
    known: Mapping[str, float] | None = None,
) -> list[NodeStatus]:
    """Ask all nodes at once, and show on a terminal how they answer; in the nodes' order."""
    seen: dict[Node, NodeStatus] = {}
    with waiting(first=NEVER) as show:
        for one in ask_nodes(sender, fleet, project, timeout, known):
            seen[one.node] = one
            show(
                f"{len(seen)} of {len(fleet)} nodes answered … {one.node.name}: {one.state.value} {one.short}".rstrip()
            )
    return [seen[node] for node in fleet]


def newest_of(seen: Iterable[NodeStatus]) -> str | None:
    """The newest deployment of the whole fleet; where none tells its time, the version that most nodes have."""
    having = [one for one in seen if one.versions]
    if not having:
        return None
    by_time = newest((name for one in having for name in one.versions or ()), having[0].known)
    return by_time or Counter(one.version for one in having).most_common(1)[0][0]


def exit_code_of(seen: Sequence[NodeStatus]) -> int:
    """0 when all work, 3 when some do not, else what keeps all of them away; a drained one need not answer."""
    counted = [one for one in seen if one.error is None or one.draining is None] or seen
    code = exit_code(len(counted), [one.error for one in counted])
    return 3 if code == 0 and any(one.wedged for one in seen) else code


def recognise(context: Context, sender: Sender, seen: Sequence[NodeStatus], timeout: float) -> None:
    """Tell draining and wedged nodes, by what was remembered and what was seen now, and remember that."""
    try:
        known = context.node_records(one.node for one in seen)
    except StoreError as error:
        complain(f"{error} So it is not known which nodes are draining or wedged.")
        return
    delays = start_delays(context, {one.node.url: one.skew or 0.0 for one in seen if one.idle})
    changes: dict[str, dict[str, Any]] = {}
    for one in seen:
        record = known[one.node.name]
        one.draining = record.draining
        if one.load is None:
            continue
        delay = max(record.start_delay, delays.get(one.node.url, 0.0))
        watch, now = IdleWatch(start_delay=delay, looks=record.idle_looks), time.time()
        watch.saw(one.load, now)
        if watch.since is not None and _moved(sender, one, now - watch.since, timeout):
            watch.looks = (now,)
        one.wedged = watch.wedged
        if (watch.looks, delay) != (record.idle_looks, record.start_delay):
            changes[one.node.name] = {"idle_looks": watch.looks, "start_delay": delay}
    # Nothing was asked to be written: where that is impossible, the next look knows less, and that is all.
    with suppress(DistError):
        context.remember(changes)


def start_delays(context: Context, skews: Mapping[str, float]) -> dict[str, float]:
    """The longest time from sent to started in the last crawls, by address, as are the nodes' skews; seconds."""
    store = context.store_if_any if skews else None
    if store is None:
        return {}
    times: dict[str, list[tuple[float, float]]] = {}
    for crawl in store.crawls()[:CRAWLS]:
        for attempt in store.attempts(crawl.id):
            started = attempt.report.get("started")
            if isinstance(started, (int, float)) and attempt.sent_at and not attempt.worker:
                times.setdefault(attempt.url, []).append((attempt.sent_at, float(started)))
    return {url: start_delay_of(pairs, skews.get(url, 0.0)) for url, pairs in times.items()}


def _moved(sender: Sender, seen: NodeStatus, span: float, timeout: float) -> bool:
    """Whether jobs came and went between the looks, so that they only happened to fall into the gaps."""
    try:
        jobs = sender.send(seen.node, api.listjobs(), timeout=timeout)
    except NodeError:
        return False
    here = datetime.now(timezone.utc).astimezone().utcoffset() or timedelta()
    times = [at for job in (*jobs.running, *jobs.finished) for at in (job.start_time, job.end_time)]
    node_now = seen.load.date if seen.load else None
    return moved_since(times, span=span, node_now=node_now, offsets={here, timedelta()})
