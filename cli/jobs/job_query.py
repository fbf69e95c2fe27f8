"""Reads the options that say whose jobs a command is about."""

from collections.abc import Sequence
from dataclasses import dataclass

from scrapyd_dist.jobs.job_list import TIMEOUT, JobFilter
from scrapyd_dist.nodes import Node

from ..context import Context
from ..options import JobProject, Nodes, Spider, Timeout


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """The options of a command that say whose jobs are meant."""

    node: Nodes = None
    project: JobProject = None
    spider: Spider = None
    timeout: Timeout = TIMEOUT

    def job_filter(self, context: Context, nodes: Sequence[Node] | None = None) -> JobFilter:
        """Return whose jobs are meant; without nodes, those of --node, or all, are asked."""
        if nodes is None:
            nodes = context.known_nodes(self.node)
        return JobFilter(
            nodes=nodes,
            narrowed=bool(self.node),
            project=self.project,
            spider=self.spider,
            timeout=self.timeout,
        )
