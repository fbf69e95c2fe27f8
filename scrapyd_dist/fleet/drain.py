"""Drains nodes: no new work, and watched until what they have is done; and gives work again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scrapyd_dist.errors import AuthRefused
from scrapyd_dist.fleet.node_poll import TIMEOUT, poll_load
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.liveness import WedgeWatch
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.transports import Sender, sweep

#: seconds between two looks at a node that is waited for
EVERY = 1.0
#: seconds in which the crawls that run have read that a node is draining
SETTLED = 3.0
#: looks in a row without an answer after which a node is waited for no more
SILENT_LOOKS = 5


@dataclass(kw_only=True)
class DrainWatch:
    """A draining node that is asked for its load again and again, until it has none."""

    status: NodeStatus
    wedge_watch: WedgeWatch = field(default_factory=WedgeWatch)
    empty_since: float | None = None  #: seconds since the epoch; None: it has jobs, or is silent
    silent: int = 0  #: looks in a row without an answer
    over: bool = False  #: nothing more is to be learned by waiting

    def saw(self, status: NodeStatus, now: float, settled: float) -> None:
        """Take in one look at the node.

        now: seconds since the epoch; settled: seconds that the node has to stay empty.
        """
        self.status = status
        if status.error is not None:
            self.empty_since = None
            self.silent += 1
            is_refused = status.error.exit_code == AuthRefused.exit_code
            self.over = self.silent >= SILENT_LOOKS or is_refused
        elif status.load is not None:
            self.silent = 0
            self._saw_load(status.load, now, settled)

    def _saw_load(self, load: Load, now: float, settled: float) -> None:
        self.wedge_watch.saw(load, now)
        if load.running or load.pending:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = now
        is_settled = self.empty_since is not None and now - self.empty_since >= settled
        self.over = self.wedge_watch.wedged or is_settled

    @property
    def stage(self) -> str:
        """Return how far the drain is: unknown, wedged, draining or drained."""
        if self.status.error is not None:
            return "unknown"
        if self.wedge_watch.wedged:
            return "wedged"
        if self.over:
            return "drained"
        return "draining"

    def text(self) -> str:
        """Return what a waiting user is shown of the node."""
        load = self.status.load
        name = self.status.node.name
        if load is None:
            return f"{name}: {self.status.short or 'not asked'}"
        return f"{name}: {load.running} running, {load.pending} waiting"


def begin_draining(workspace: Workspace, nodes: Sequence[Node]) -> list[DrainWatch]:
    """Keep in the store that the nodes are draining, and return what watches them."""
    records = workspace.node_records(nodes)
    now = time.time()
    changes: dict[str, dict[str, Any]] = {}
    for name, record in records.items():
        changes[name] = {"draining": record.draining or now}
    workspace.remember(changes)
    watches = []
    for node in nodes:
        status = NodeStatus(node=node, draining=changes[node.name]["draining"])
        wedge_watch = WedgeWatch(start_delay=records[node.name].start_delay)
        watches.append(DrainWatch(status=status, wedge_watch=wedge_watch))
    return watches


def settling_time(workspace: Workspace) -> float:
    """Return the seconds for which a node has to stay empty: a crawl may be sending a last job."""
    for crawl in workspace.store.crawls():
        if not crawl.state.ended:
            return SETTLED
    return 0.0


def wait_until_empty(
    watches: Sequence[DrainWatch],
    sender: Sender,
    settled: float,
    deadline: float,
    note: Callable[[Sequence[DrainWatch]], None],
) -> bool:
    """Ask the nodes again and again; return whether nothing more is to be learned of any.

    settled: seconds that a node has to stay empty; deadline: by the monotonic clock, and all nodes
    are asked once, even where it has passed; note: gets those that are waited for after each look.
    """
    left = list(watches)
    while True:
        for answer in sweep(left, lambda watch: poll_load(sender, watch.status, TIMEOUT)):
            if answer.value is not None:
                answer.asked.saw(answer.value, time.time(), settled)
        left = [watch for watch in left if not watch.over]
        if not left or time.monotonic() >= deadline:
            return not left
        note(left)
        time.sleep(EVERY)


@dataclass(frozen=True, kw_only=True)
class ResumedNode:
    """A node that was to get work again."""

    node: Node
    was_draining: bool


def resume_nodes(workspace: Workspace, nodes: Sequence[Node]) -> list[ResumedNode]:
    """Keep in the store that these nodes are not draining; return which were."""
    records = workspace.node_records(nodes)
    changes: dict[str, dict[str, Any]] = {}
    resumed = []
    for node in nodes:
        was_draining = records[node.name].draining is not None
        resumed.append(ResumedNode(node=node, was_draining=was_draining))
        if was_draining:
            changes[node.name] = {"draining": None, "idle_looks": ()}
    workspace.remember(changes)
    return resumed
