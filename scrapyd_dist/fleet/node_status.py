"""How one node is, as far as it was asked: load, versions, clock, and what is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from scrapyd_dist.errors import NodeError, NoReply
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.scrapyd.versions import content_or_name, current
from scrapyd_dist.time_spans import format_moment


class NodeHealth(str, Enum):
    """How a node is, as `sdist nodes` says it."""

    UP = "up"
    DOWN = "down"
    REFUSED = "refused"  #: it refuses us: user name, password, certificate
    BUSY = "busy"  #: connected, but no answer in time: it imports a project, or hangs
    DRAINING = "draining"  #: it gets no new work
    DRAINED = "drained"  #: nor has it any left
    WEDGED = "wedged"  #: jobs wait there, and none is ever started


#: the states that tell that a node gets no new work
_DRAINS = (NodeHealth.DRAINING, NodeHealth.DRAINED)


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node, as far as it is known. None means unknown."""

    node: Node
    load: Load | None = None
    error: NodeError | None = None
    latency: float | None = None  #: seconds
    skew: float | None = None  #: its clock minus ours, seconds
    versions: tuple[str, ...] | None = None  #: of the project
    #: when versions were sent whose names do not tell it
    known: Mapping[str, float] = field(default_factory=dict)
    draining: float | None = None  #: since when, seconds since the epoch
    wedged: bool = False  #: whether jobs wait there, and none is ever started

    @property
    def state(self) -> NodeHealth:
        """The health of the node; of several troubles the one that goes before the others."""
        if self.error is not None:
            return self._find_health_by(self.error)
        if self.wedged:  # goes before draining
            return NodeHealth.WEDGED
        if self.draining is None:
            return NodeHealth.UP
        return NodeHealth.DRAINED if self.empty else NodeHealth.DRAINING

    @property
    def states(self) -> list[NodeHealth]:
        """The health of the node and, where that does not tell it, that it gets no new work."""
        return _with_drain(self.state, is_draining=self.draining is not None)

    def _find_health_by(self, error: NodeError) -> NodeHealth:
        if error.exit_code == 6:
            return NodeHealth.REFUSED
        if isinstance(error, NoReply):
            return NodeHealth.BUSY
        return NodeHealth.DOWN

    @property
    def empty(self) -> bool:
        """Whether no job runs or waits there."""
        return self.load is not None and not (self.load.running or self.load.pending)

    @property
    def idle(self) -> bool:
        """Whether jobs wait there and none runs."""
        return self.load is not None and bool(self.load.pending) and not self.load.running

    @property
    def version(self) -> str | None:
        """The version that counts as the project's code there."""
        return current(self.versions or (), self.known)

    @property
    def reason(self) -> str:
        """What is wrong with it, in a sentence; empty if nothing is."""
        if self.error is not None:
            return str(self.error).removeprefix(f"{self.node}: ")
        if self.wedged:
            return "jobs wait and none is ever started; `sdist doctor` says what to do"
        return ""

    @property
    def short(self) -> str:
        """What is wrong with it, in a few words; empty if nothing is."""
        if self.error is not None:
            return self.error.short
        return "nothing is started" if self.wedged else ""

    def document(self, newest: str | None = None) -> dict[str, Any]:
        """Return the node as `sdist nodes --json` gives it; newest: the fleet's version."""
        load = self.load
        version = None
        drift = None
        if self.versions is not None:
            version = self.version
            if newest is not None:
                drift = content_or_name(version) != content_or_name(newest)
        latency_ms = None
        if self.latency is not None:
            latency_ms = round(self.latency * 1000, 1)
        return {
            "name": self.node.name,
            "url": self.node.url,
            "state": self.state.value,
            "reason": self.reason,
            "slots": self.node.slots,
            "running": load.running if load else None,
            "pending": load.pending if load else None,
            "finished": load.finished if load else None,
            "latency_ms": latency_ms,
            "skew_s": self.skew,
            "version": version,
            "drift": drift,
            "draining": format_moment(self.draining),
            "wedged": self.wedged,
        }


def _with_drain(state: NodeHealth, *, is_draining: bool) -> list[NodeHealth]:
    if not is_draining or state in _DRAINS:
        return [state]
    if state is NodeHealth.WEDGED:
        return [state, NodeHealth.DRAINING]
    return [state, NodeHealth.DRAINED]  # what it has left is not known


def show_state(node: Mapping[str, Any]) -> str:
    """Return the state of a node for people: `down, drained` where a drain holds beside it.

    node: what `NodeStatus.document` gives.
    """
    is_draining = bool(node.get("draining"))
    states = _with_drain(NodeHealth(node["state"]), is_draining=is_draining)
    return ", ".join([state.value for state in states])
