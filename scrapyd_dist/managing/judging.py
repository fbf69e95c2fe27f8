"""Judges what a worker's end says of its node, of its lane, or of another project's code. Makes no calls.

Invariant: a node is closed for faults of the node, never for what one spider cannot do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.reasons import meaning

if TYPE_CHECKING:
    from scrapyd_dist.coordination.fleet import Member
    from scrapyd_dist.jobs.outcome import Report
    from scrapyd_dist.managing.failures import Failures
    from scrapyd_dist.managing.frontdesk import FrontDesk, Worker
    from scrapyd_dist.managing.others import Others

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Judging:
    """Judges each worker that has ended."""

    desk: FrontDesk
    failures: Failures
    others: Others

    def ended(self, worker: Worker, reason: str, *, begun: bool) -> None:
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
            self.failures.worked(worker.lane, node.name)
        elif report is not None and report.unreached and worker.project:
            self.others.cannot(worker, report.problem)
        elif report is not None and report.unreached:
            self.failures.out_of_reach(node.name)
            self.unfit(worker.member, report.problem)
        elif not worker.at_once:
            pass  # a worker of an earlier process may have run another spider, or code that was mended since
        elif reason and worker.member.up and not worker.dismissed:
            logger.warning("worker %s did nothing: %s", worker.job, reason)
            unfit = self.failures.failed(worker.lane, node.name, reason, begun=begun or bool(worker.spider))
            if unfit:
                self.unfit(worker.member, unfit)

    def unfit(self, member: Member, reason: str) -> None:
        """The node gets no more workers."""
        member.unfit = reason
        logger.error("%s gets no more workers: %s", member.node, reason)
        self.desk.check_unfit()


def why(report: Report) -> str:
    """Why a worker that ended in order counts as failed; empty when it does not."""
    if report.problem:
        return report.problem
    return "" if meaning(report.finish_reason).in_order else f"the worker ended early ({report.finish_reason})"
