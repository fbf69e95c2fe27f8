"""Counts failed workers, and decides which node and which lane get no more. Values and decisions, no IO.

Invariant: only failures in a row count; any work that was done resets the counter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

#: workers in a row that ended on one node without any work done
OF_A_NODE = 3
#: workers in a row that ended in one lane without any work done, beyond the attempts of one batch
OF_A_LANE = 4


@dataclass(kw_only=True)
class Failures:
    """Counts failures per node and per lane."""

    attempts: int  #: attempts per batch: one batch may kill this many workers
    closed: dict[str, str] = field(default_factory=dict)  #: lane -> why it gets no more workers
    unknown: set[str] = field(default_factory=set)  #: the closed lanes whose spider no node has
    unfit: set[str] = field(default_factory=set)  #: names of nodes that get no more workers
    unreached: set[str] = field(default_factory=set)  #: of these, the nodes whose workers do not reach the store
    _refusals: Counter[str] = field(default_factory=Counter)
    _nodes: Counter[str] = field(default_factory=Counter)
    _lanes: Counter[str] = field(default_factory=Counter)

    def worked(self, lane: str, node: str = "") -> None:
        """Work was done in this lane on that node."""
        self._lanes.pop(lane, None)
        self._nodes.pop(node, None)

    def failed(self, lane: str, node: str, reason: str, *, begun: bool) -> str:
        """A worker has ended without any work done.

        Args:
            lane: the worker's lane.
            node: the name of its node.
            reason: why it ended, for messages.
            begun: whether it had a batch to work on.

        Returns:
            Why this node gets no more workers; empty as long as it gets some.
        """
        self._lanes[lane] += 1
        if self._lanes[lane] >= self.attempts + OF_A_LANE:
            self.close(lane, f"the last {self._lanes[lane]} workers did nothing; the last one: {reason}")
        if begun:
            return ""
        self._nodes[node] += 1
        if self._nodes[node] < OF_A_NODE:
            return ""
        self.unfit.add(node)
        return f"the last {OF_A_NODE} workers there did nothing; the last one: {reason}"

    def out_of_reach(self, node: str) -> None:
        """Workers on this node do not reach the store."""
        self.unreached.add(node)
        self.unfit.add(node)

    def refused(self, lane: str, reason: str) -> bool:
        """A node refused a worker for another spider; True when the lane's batches are to be given up."""
        self._refusals[lane] += 1
        if self._refusals[lane] > 1:
            self.nowhere(lane, reason)
        return lane in self.unknown

    def nowhere(self, lane: str, reason: str) -> None:
        """No node can run the lane's spider: its batches are given up."""
        self.unknown.add(lane)
        self.close(lane, reason)

    def close(self, lane: str, reason: str) -> None:
        """The lane gets no more workers."""
        self.closed.setdefault(lane, reason)
