"""One look at every node, all at once: load, versions, clock; each answer is shown when it comes.

The rule it keeps: what is drawn in place on a terminal does not stay, as the table comes after it.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scrapyd_dist.scheduling import node_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.text import Text

    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Load
    from scrapyd_dist.transports import Sender

#: seconds that a node gets to answer
TIMEOUT = 10.0
#: seconds in which a connection has to come about; a SYN that was lost is sent again after 1 and 3 s
CONNECT_TIMEOUT = 4.0
#: most drawings in a second
RATE = 4
#: lines that are drawn on a terminal whose height is not known
LINES = 20

ConnectTimeout = Annotated[
    float, typer.Option("--connect-timeout", help="Seconds in which a connection has to come about.", min=0.1)
]


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

    @property
    def answered(self) -> bool:
        return self.load is not None or self.error is not None

    @property
    def state(self) -> node_state.NodeHealth:
        return node_state.state_of(self.error, wedged=self.wedged, draining=self.draining is not None)

    @property
    def version(self) -> str | None:
        """The version that counts as the project's code there."""
        from scrapyd_dist.scrapyd.versions import current

        return current(self.versions or (), self.known)


def ask_nodes(
    sender: Sender,
    nodes: Sequence[Node],
    project: str | None,
    timeout: float,
    known: Mapping[str, float] | None = None,
) -> Iterator[NodeStatus]:
    """Ask all nodes at the same time, and give a node whenever more is known of it.

    Args:
        sender: what asks.
        nodes: whom.
        project: whose versions are wanted; None = nobody's.
        timeout: seconds for each answer.
        known: when versions were sent whose names do not tell it, seconds since the epoch.
    """
    from scrapyd_dist.scrapyd.sweep import sweep

    seen = [NodeStatus(node=node, known=known or {}) for node in nodes]
    # Versions are a question of their own, so that a sweep takes as long as one answer. All loads come first.
    questions = [(one, _load) for one in seen]
    if project is not None:
        questions += [(one, _versions(project)) for one in seen]
    for answer in sweep(questions, lambda question: question[1](sender, question[0], timeout)):
        one, ask = answer.asked
        if answer.error is not None and ask is _load:
            one.error = answer.error
        if one.answered:
            yield one


def _load(sender: Sender, seen: NodeStatus, timeout: float) -> None:
    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.scrapyd import api

    began, before = time.monotonic(), time.time()
    try:
        load = sender.send(seen.node, api.daemonstatus(), timeout=timeout)
    except NodeError as error:
        seen.error = error  # here already, so that the next question to it is not asked
        raise
    seen.latency = time.monotonic() - began
    seen.skew = node_state.skew_of(load.date, (before + time.time()) / 2)
    seen.load = load


def _versions(project: str) -> Any:
    from scrapyd_dist.scrapyd import api

    def ask(sender: Sender, seen: NodeStatus, timeout: float) -> None:
        if seen.error is None:
            call = api.listversions(seen.node.project or project)
            seen.versions = sender.send(seen.node, call, timeout=timeout)

    return ask


def newest_of(seen: Iterable[NodeStatus]) -> str | None:
    """The newest deployment of the whole fleet; where none tells its time, the version that most nodes have."""
    from scrapyd_dist.scrapyd.versions import newest

    having = [one for one in seen if one.versions]
    if not having:
        return None
    by_time = newest((name for one in having for name in one.versions or ()), having[0].known)
    return by_time or Counter(one.version for one in having).most_common(1)[0][0]


def drifts(seen: NodeStatus, newest: str | None) -> bool | None:
    """Whether the node's newest code is another than the fleet's; None while nobody knows."""
    from scrapyd_dist.scrapyd.versions import told_content

    if seen.versions is None or newest is None:
        return None
    return told_content(seen.version) != told_content(newest)


def row(seen: NodeStatus, newest: str | None) -> dict[str, Any]:
    """The node as `sdist nodes --json` gives it."""
    load = seen.load
    return {
        "name": seen.node.name,
        "url": seen.node.url,
        "state": seen.state.value,
        "reason": _reason(seen),
        "slots": seen.node.slots,
        "running": load.running if load else None,
        "pending": load.pending if load else None,
        "finished": load.finished if load else None,
        "latency_ms": None if seen.latency is None else round(seen.latency * 1000, 1),
        "skew_s": seen.skew,
        "version": seen.version if seen.versions is not None else None,
        "drift": drifts(seen, newest),
        "draining": moment(seen.draining),
        "wedged": seen.wedged,
    }


def _reason(seen: NodeStatus) -> str:
    if seen.error is not None:
        return str(seen.error).removeprefix(f"{seen.node}: ")
    if seen.wedged:
        return "jobs wait and none is ever started; `sdist doctor` says what to do"
    return ""


def in_short(seen: NodeStatus) -> str:
    """What is wrong with it in a few words."""
    if seen.error is not None:
        return seen.error.short
    return "nothing is started" if seen.wedged else ""


def moment(at: float | None) -> str | None:
    """A time for JSON."""
    return None if at is None else datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")


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


def exit_code_of(seen: Sequence[NodeStatus]) -> int:
    """0 when all work, 3 when some do not, else what keeps all of them away."""
    from ..target_nodes import exit_code

    code = exit_code(len(seen), [one.error for one in seen if one.error is not None])
    return 3 if code == 0 and any(one.wedged for one in seen) else code


@contextmanager
def drawing(total: int, *, shown: bool) -> Iterator[Callable[[Sequence[NodeStatus]], None]]:
    """Draws the nodes that have answered, the last ones where there is no room for all; nothing off a terminal."""
    from ..output import on_terminal

    if not shown or not on_terminal():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    room = max(2, min(console.size.height - 3, LINES))
    with Live("", console=console, refresh_per_second=RATE, transient=True) as live:
        live.update(_picture([], total, room), refresh=True)
        yield lambda seen: live.update(_picture(seen, total, room))


def _picture(seen: Sequence[NodeStatus], total: int, room: int) -> Text:
    from rich.text import Text

    lines = [_line(one) for one in seen[-room:]]
    return Text("\n".join([*lines, f"{len(seen)} of {total} nodes answered …"]), no_wrap=True, overflow="ellipsis")


def _line(seen: NodeStatus) -> str:
    words = [seen.node.name, seen.state.value]
    if seen.load is not None:
        words.append(f"running {seen.load.running}, pending {seen.load.pending}")
    elif seen.error is not None:
        words.append(seen.error.short)
    return "  ".join(words)
