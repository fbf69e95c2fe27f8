"""One look at every node, all at once: load, versions, clock; and which nodes are draining or start nothing.

The rule it keeps: what is drawn in place on a terminal does not stay, as the table comes after it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from scrapyd_dist.errors import DistError, NodeError, StoreError
from scrapyd_dist.nodes import Node, NodeRecord
from scrapyd_dist.scheduling import node_state
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.scrapyd.versions import current, newest, told_content
from scrapyd_dist.transports import Sender, sweep

from .context import Context, exit_code
from .output import complain, on_terminal

#: seconds that a node gets to answer
TIMEOUT = 10.0
#: most drawings in a second; lines that are drawn on a terminal whose height is not known
RATE, LINES = 4, 20
#: crawls whose attempts tell how long nodes take to start a job
CRAWLS = 5


@dataclass(kw_only=True)
class NodeStatus:
    """One node, as far as it is known."""

    node: Node
    load: Load | None = None
    error: NodeError | None = None
    latency: float | None = None  #: seconds
    skew: float | None = None  #: its clock minus ours, seconds
    versions: tuple[str, ...] | None = None  #: of the project; None = not known
    known: Mapping[str, float] = field(default_factory=dict)  #: when versions were sent whose names do not tell it
    draining: float | None = None  #: since when, seconds since the epoch
    wedged: bool = False

    def ask_load(self, sender: Sender, timeout: float) -> None:
        """Ask the node for its load; measures latency and clock skew. What goes wrong is kept as the error, too."""
        began, before = time.monotonic(), time.time()
        try:
            load = sender.send(self.node, api.daemonstatus(), timeout=timeout)
        except NodeError as error:
            self.error = error
            raise
        self.latency = time.monotonic() - began
        self.skew = node_state.skew_of(load.date, (before + time.time()) / 2)
        self.load = load

    def ask_versions(self, sender: Sender, project: str, timeout: float) -> None:
        """Ask the node for its versions of the project, unless it did not answer before."""
        if self.error is None:
            self.versions = sender.send(self.node, api.listversions(self.node.project or project), timeout=timeout)

    @property
    def state(self) -> node_state.NodeHealth:
        return node_state.state_of(self.error, wedged=self.wedged, draining=self.draining is not None)

    @property
    def idle(self) -> bool:
        """Whether jobs wait there and none runs."""
        return self.load is not None and bool(self.load.pending) and not self.load.running

    @property
    def version(self) -> str | None:
        """The version that counts as the project's code there."""
        return current(self.versions or (), self.known)

    def drifts(self, newest: str | None) -> bool | None:
        """Whether the node's newest code is another than the fleet's; None while it is not known."""
        if self.versions is None or newest is None:
            return None
        return told_content(self.version) != told_content(newest)

    @property
    def reason(self) -> str:
        """What is wrong with it, in a sentence."""
        if self.error is not None:
            return str(self.error).removeprefix(f"{self.node}: ")
        return "jobs wait and none is ever started; `sdist doctor` says what to do" if self.wedged else ""

    @property
    def short(self) -> str:
        """What is wrong with it, in a few words."""
        if self.error is not None:
            return self.error.short
        return "nothing is started" if self.wedged else ""

    def document(self, newest: str | None = None) -> dict[str, Any]:
        """The node as `sdist nodes --json` gives it; newest: the fleet's version."""
        load = self.load
        return {
            "name": self.node.name,
            "url": self.node.url,
            "state": self.state.value,
            "reason": self.reason,
            "slots": self.node.slots,
            "running": load.running if load else None,
            "pending": load.pending if load else None,
            "finished": load.finished if load else None,
            "latency_ms": None if self.latency is None else round(self.latency * 1000, 1),
            "skew_s": self.skew,
            "version": self.version if self.versions is not None else None,
            "drift": self.drifts(newest),
            "draining": moment(self.draining),
            "wedged": self.wedged,
        }


def moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")


def ask_nodes(
    sender: Sender, nodes: Sequence[Node], project: str | None, timeout: float, known: Mapping[str, float] | None = None
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
    *,
    known: Mapping[str, float] | None = None,
    shown: bool = False,
) -> list[NodeStatus]:
    """Ask all nodes at once, and draw the answers as they come; in the nodes' order."""
    seen: dict[Node, NodeStatus] = {}
    with drawing(len(fleet), shown=shown) as draw:
        for one in ask_nodes(sender, fleet, project, timeout, known):
            seen[one.node] = one
            draw(list(seen.values()))
    return [seen[node] for node in fleet]


def newest_of(seen: Iterable[NodeStatus]) -> str | None:
    """The newest deployment of the whole fleet; where none tells its time, the version that most nodes have."""
    having = [one for one in seen if one.versions]
    if not having:
        return None
    by_time = newest((name for one in having for name in one.versions or ()), having[0].known)
    return by_time or Counter(one.version for one in having).most_common(1)[0][0]


def exit_code_of(seen: Sequence[NodeStatus]) -> int:
    """0 when all work, 3 when some do not, else what keeps all of them away."""
    code = exit_code(len(seen), [one.error for one in seen])
    return 3 if code == 0 and any(one.wedged for one in seen) else code


@dataclass(kw_only=True)
class IdleWatch:
    """Looks in a row at one node that found jobs waiting and none running."""

    start_delay: float = 0.0  #: the longest time from sent to started that was seen there, seconds
    looks: tuple[float, ...] = ()  #: seconds since the epoch

    @property
    def wedged(self) -> bool:
        """Whether they show that the node starts nothing any more."""
        return node_state.wedged_since(self.looks, self.start_delay) is not None

    def saw(self, load: Load, now: float, *, moved: bool = False) -> None:
        """Take in one look; moved: a job is known to have started or ended since the last one."""
        self.looks = node_state.looked(
            self.looks, now=now, pending=load.pending, running=load.running, start_delay=self.start_delay, moved=moved
        )


def recognise(context: Context, sender: Sender, seen: Sequence[NodeStatus], timeout: float) -> None:
    """Tell draining and wedged nodes, by what was remembered and what was seen now, and remember that."""
    try:
        known = context.node_records
    except StoreError as error:
        complain(f"{error} So it is not known which nodes are draining or wedged.")
        return
    delays = start_delays(context, {one.node.url: one.skew or 0.0 for one in seen if one.idle})
    changes: dict[str, dict[str, Any]] = {}
    for one in seen:
        record = known.get(one.node.name) or NodeRecord(name=one.node.name)
        one.draining = record.draining
        if one.load is None:
            continue
        delay = max(record.start_delay, delays.get(one.node.url, 0.0))
        watch, now = IdleWatch(start_delay=delay, looks=record.idle_looks), time.time()
        watch.saw(one.load, now)
        since = node_state.wedged_since(watch.looks, delay)
        if since is not None and _moved(sender, one, now - since, timeout):
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
    return {url: node_state.start_delay_of(pairs, skews.get(url, 0.0)) for url, pairs in times.items()}


def _moved(sender: Sender, seen: NodeStatus, span: float, timeout: float) -> bool:
    """Whether jobs came and went between the looks, so that they only happened to fall into the gaps."""
    try:
        jobs = sender.send(seen.node, api.listjobs(), timeout=timeout)
    except NodeError:
        return False
    here = datetime.now(timezone.utc).astimezone().utcoffset() or timedelta()
    times = [at for job in (*jobs.running, *jobs.finished) for at in (job.start_time, job.end_time)]
    node_now = seen.load.date if seen.load else None
    return node_state.moved_since(times, span=span, node_now=node_now, offsets={here, timedelta()})


@contextmanager
def drawing(total: int, *, shown: bool) -> Iterator[Callable[[Sequence[NodeStatus]], None]]:
    """Draws the nodes that have answered, the last ones where there is no room for all; nothing off a terminal."""
    if not shown or not on_terminal():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    room = max(2, min(console.size.height - 3, LINES))
    with Live("", console=console, refresh_per_second=RATE, transient=True) as live:

        def draw(seen: Sequence[NodeStatus]) -> None:
            lines = []
            for one in seen[-room:]:
                words = one.short if one.load is None else f"running {one.load.running}, pending {one.load.pending}"
                lines.append(f"{one.node.name}  {one.state.value}  {words}".rstrip())
            lines.append(f"{len(seen)} of {total} nodes answered …")
            live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))

        draw([])
        live.refresh()
        yield draw
