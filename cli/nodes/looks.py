"""One look at every node, all at once: load, versions, clock; rule: each answer is told when it is there."""

from __future__ import annotations

import ast
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.coordination import health

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Load
    from scrapyd_dist.transports import Sender


@dataclass(kw_only=True)
class Seen:
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
    def state(self) -> health.State:
        return health.state_of(self.error, wedged=self.wedged, draining=self.draining is not None)

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
) -> Iterator[Seen]:
    """Ask all nodes at the same time, and give a node whenever more is known of it.

    Args:
        sender: what asks.
        nodes: whom.
        project: whose versions are wanted; None = nobody's.
        timeout: seconds for each answer.
        known: when versions were sent whose names do not tell it, seconds since the epoch.
    """
    from scrapyd_dist.scrapyd.sweep import sweep

    seen = [Seen(node=node, known=known or {}) for node in nodes]
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


def _load(sender: Sender, seen: Seen, timeout: float) -> None:
    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.scrapyd import api

    began, before = time.monotonic(), time.time()
    try:
        load = sender.send(seen.node, api.daemonstatus(), timeout=timeout)
    except NodeError as error:
        seen.error = error  # here already, so that the next question to it is not asked
        raise
    seen.latency = time.monotonic() - began
    seen.skew = health.skew_of(load.date, (before + time.time()) / 2)
    seen.load = load


def _versions(project: str) -> Any:
    from scrapyd_dist.scrapyd import api

    def ask(sender: Sender, seen: Seen, timeout: float) -> None:
        if seen.error is None:
            call = api.listversions(seen.node.project or project)
            seen.versions = sender.send(seen.node, call, timeout=timeout)

    return ask


def newest_of(seen: Iterable[Seen]) -> str | None:
    """The newest deployment of the whole fleet; where none tells its time, the version that most nodes have."""
    from scrapyd_dist.scrapyd.versions import newest

    having = [one for one in seen if one.versions]
    if not having:
        return None
    by_time = newest((name for one in having for name in one.versions or ()), having[0].known)
    return by_time or Counter(one.version for one in having).most_common(1)[0][0]


def drifts(seen: Seen, newest: str | None) -> bool | None:
    """Whether the node's newest code is another than the fleet's; None while nobody knows."""
    from scrapyd_dist.scrapyd.versions import told_content

    if seen.versions is None or newest is None:
        return None
    return told_content(seen.version) != told_content(newest)


def row(seen: Seen, newest: str | None) -> dict[str, Any]:
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


def _reason(seen: Seen) -> str:
    if seen.error is not None:
        return str(seen.error).removeprefix(f"{seen.node}: ")
    if seen.wedged:
        return "jobs wait and none is ever started; `sdist doctor` says what to do"
    return ""


def in_short(seen: Seen) -> str:
    """What is wrong with it in a few words."""
    if seen.error is not None:
        return seen.error.short
    return "nothing is started" if seen.wedged else ""


def moment(at: float | None) -> str | None:
    """A time for JSON."""
    return None if at is None else datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")


def quick_project(found: ProjectConfig, chosen: str | None = None) -> str | None:
    """Scrapyd's name of the project, where it can be told without running the project's code."""
    return chosen or found.project or _bot_name(found.root.joinpath(*found.settings_module.split(".")))


def _bot_name(module: Path) -> str | None:
    for file in (module.with_suffix(".py"), module / "__init__.py"):
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, ValueError, SyntaxError):
            continue
        names = [
            one.value.value
            for one in tree.body
            if isinstance(one, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == "BOT_NAME" for target in one.targets)
            and isinstance(one.value, ast.Constant)
        ]
        return names[-1] if names and isinstance(names[-1], str) else None
    return None
