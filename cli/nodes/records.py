"""What the project's store remembers of nodes: who is draining, who was seen with work that does not start.

The rule it keeps: looking makes no store; one is made only when there is something to remember.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from scrapyd_dist.coordination import health
from scrapyd_dist.errors import DistError, NodeError, StoreError
from scrapyd_dist.nodes import NodeRecord

from ..fleet import node_records
from ..speaking import complain
from ..storing import maybe_store, project_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.store import Store
    from scrapyd_dist.transports import Sender

    from .looks import Seen

#: crawls whose attempts tell how long nodes take to start a job
CRAWLS = 5


def note(root: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Remember this of these nodes."""
    if not changes:
        return
    with closing(project_store(root)) as store:
        for name, fields in changes.items():
            store.update_node(name, **fields)


def recognise(root: Path, sender: Sender, seen: Sequence[Seen], timeout: float) -> None:
    """Tell draining and wedged nodes, by what was remembered and what was seen now, and remember that."""
    try:
        known = node_records(root)
    except StoreError as error:
        complain(f"{error} So it is not known which nodes are draining or wedged.")
        return
    suspects = [one for one in seen if one.load is not None and one.load.pending and not one.load.running]
    delays = start_delays(root, {one.node.url: one.skew or 0.0 for one in suspects}) if suspects else {}
    changes: dict[str, dict[str, Any]] = {}
    for one in seen:
        record = known.get(one.node.name) or NodeRecord(name=one.node.name)
        one.draining = record.draining
        if one.load is not None:
            delay = max(record.start_delay, delays.get(one.node.url, 0.0))
            looks = _looks(sender, one, record.idle_looks, delay, timeout)
            one.wedged = health.is_wedged(looks, delay)
            if (looks, delay) != (record.idle_looks, record.start_delay):
                changes[one.node.name] = {"idle_looks": looks, "start_delay": delay}
    # Nobody asked to write anything: where that is impossible, the next look knows less, and that is all.
    with suppress(DistError):
        note(root, changes)


def _looks(sender: Sender, seen: Seen, before: Sequence[float], delay: float, timeout: float) -> tuple[float, ...]:
    """The node's row of looks that found work waiting and nothing running, after this one."""
    now = time.time()
    load = seen.load
    if load is None:
        return tuple(before)
    looks = health.looked(before, now=now, pending=load.pending, running=load.running, start_delay=delay)
    since = health.row_of(looks, delay)
    return (now,) if since is not None and _moved(sender, seen, now - since, timeout) else looks


def start_delays(root: Path, skews: Mapping[str, float]) -> dict[str, float]:
    """The longest time from sent to started in the last crawls, by the node's address; seconds."""
    store = maybe_store(root)
    if store is None:
        return {}
    times: dict[str, list[tuple[float, float]]] = {}
    with closing(store):
        for sent, started, url in _starts(store):
            times.setdefault(url, []).append((sent, started))
    return {url: health.start_delay_of(pairs, skews.get(url, 0.0)) for url, pairs in times.items()}


def _starts(store: Store) -> Iterable[tuple[float, float, str]]:
    for crawl in store.crawls()[:CRAWLS]:
        for attempt in store.attempts(crawl.id):
            started = attempt.report.get("started")
            if isinstance(started, (int, float)) and attempt.sent_at and not attempt.worker:
                yield attempt.sent_at, float(started), attempt.url


def _moved(sender: Sender, seen: Seen, span: float, timeout: float) -> bool:
    """Whether jobs came and went between the looks, so that they only happened to fall into the gaps."""
    from scrapyd_dist.scrapyd import api

    try:
        jobs = sender.send(seen.node, api.listjobs(), timeout=timeout)
    except NodeError:
        return False
    here = datetime.now(timezone.utc).astimezone().utcoffset() or timedelta()
    times = [at for job in (*jobs.running, *jobs.finished) for at in (job.start_time, job.end_time)]
    node_now = seen.load.date if seen.load else None
    return health.moved_since(times, span=span, node_now=node_now, offsets={here, timedelta()})
