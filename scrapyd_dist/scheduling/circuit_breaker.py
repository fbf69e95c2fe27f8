"""Counts workers that fail, and decides which node and which pool get no more. No IO."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.batches import FinishReason, meaning

if TYPE_CHECKING:
    from scrapyd_dist.joblogs.worker_report import WorkerReport
    from scrapyd_dist.scheduling.base import SchedulerState
    from scrapyd_dist.scheduling.foreign_projects import ForeignProjects
    from scrapyd_dist.scheduling.node_state import NodeState, WorkerRun

#: workers in a row that ended on one node without any work done
OF_A_NODE = 3
#: workers in a row that ended in one pool without any work done, beyond the attempts of one batch
OF_A_LANE = 4


@dataclass(kw_only=True)
class CircuitBreaker:
    """Counts failures per node and per pool."""

    attempts: int  #: attempts per batch: one batch may kill this many workers
    closed: dict[str, str] = field(default_factory=dict)  #: pool -> why it gets no more workers
    unknown: set[str] = field(default_factory=set)  #: the closed pools whose spider no node has
    unfit: set[str] = field(default_factory=set)  #: names of nodes that get no more workers
    unreached: set[str] = field(default_factory=set)  #: of these, the nodes whose workers do not reach the store
    _refusals: Counter[str] = field(default_factory=Counter)
    _nodes: Counter[str] = field(default_factory=Counter)
    _pools: Counter[str] = field(default_factory=Counter)

    def worked(self, pool: str, node: str = "") -> None:
        """Work was done in this pool on that node."""
        self._pools.pop(pool, None)
        self._nodes.pop(node, None)

    def failed(self, pool: str, node: str, reason: str, *, begun: bool) -> str:
        """A worker has ended without any work done.

        Args:
            pool: the worker's pool.
            node: the name of its node.
            reason: why it ended, for messages.
            begun: whether it had a batch to work on.

        Returns:
            Why this node gets no more workers; empty as long as it gets some.
        """
        self._pools[pool] += 1
        if self._pools[pool] >= self.attempts + OF_A_LANE:
            self.close(pool, f"the last {self._pools[pool]} workers did nothing; the last one: {reason}")
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

    def refused(self, pool: str, reason: str) -> bool:
        """A node refused a worker for another spider; True when the pool's batches are to be given up."""
        self._refusals[pool] += 1
        if self._refusals[pool] > 1:
            self.nowhere(pool, reason)
        return pool in self.unknown

    def nowhere(self, pool: str, reason: str) -> None:
        """No node can run the pool's spider: its batches are given up."""
        self.unknown.add(pool)
        self.close(pool, reason)

    def close(self, pool: str, reason: str) -> None:
        """The pool gets no more workers."""
        self.closed.setdefault(pool, reason)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """Judges each worker that has ended."""

    state: SchedulerState
    breaker: CircuitBreaker
    others: ForeignProjects

    def ended(self, worker: WorkerRun, reason: str, *, begun: bool) -> None:
        """A worker has ended.

        Args:
            worker: the worker.
            reason: why it failed; empty when it did not.
            begun: whether it had a batch to work on.
        """
        report, node = worker.report, worker.member.node
        if worker.introduces:
            self.others.heard(worker, reason)
        elif report is not None and report.ended_requests:
            self.breaker.worked(worker.pool, node.name)
        elif report is not None and report.unreached and worker.project:
            self.others.cannot(worker, report.problem)
        elif report is not None and report.unreached:
            self.out_of_reach(worker.member, report.problem)
        elif not worker.at_once:
            pass  # a worker of an earlier process may have run another spider, or code that was mended since
        elif reason and worker.member.up and not worker.dismissed:
            logger.warning("worker %s did nothing: %s", worker.job, reason)
            unfit = self.breaker.failed(worker.pool, node.name, reason, begun=begun or bool(worker.spider))
            is_lost = report is not None and report.finish_reason == FinishReason.STORE_LOST
            if unfit and is_lost and self.state.sends:
                self.out_of_reach(worker.member, unfit)
            elif unfit:
                self.unfit(worker.member, unfit)

    def out_of_reach(self, member: NodeState, reason: str) -> None:
        """Workers on this node do not reach the store: it is sent its batches, where that can be, or gets none."""
        if self.state.sends:
            member.unreached = reason
            logger.info("%s: its workers do not reach the store, so it is sent its batches: %s", member.node, reason)
            self.state.news.set()
        else:
            self.breaker.out_of_reach(member.node.name)
            self.unfit(member, reason)

    def unfit(self, member: NodeState, reason: str) -> None:
        """The node gets no more workers."""
        member.unfit = reason
        logger.error("%s gets no more workers: %s", member.node, reason)
        self.state.check_unfit()


def why(report: WorkerReport) -> str:
    """Why a worker that ended in order counts as failed; empty when it does not."""
    if report.problem:
        return report.problem
    return "" if meaning(report.finish_reason).in_order else f"the worker ended early ({report.finish_reason})"
