"""Follows the lists of nodes while a crawl runs.

New nodes join, and nodes that leave are drained, never cut off.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from scrapyd_dist.nodes import Node, NodeRecord
from scrapyd_dist.scheduling.monitor import NodeMonitor
from scrapyd_dist.scheduling.node_state import AbandonedJob, NodeState
from scrapyd_dist.scheduling.scheduler_state import SchedulerState
from scrapyd_dist.scheduling.worker_supervisor import WorkerSupervisor

#: the nodes that are listed now, given the store's records; None when that is not known at the
#: moment
Listed = Callable[[Sequence[NodeRecord]], Awaitable[Sequence[Node] | None]]

logger = logging.getLogger(__name__)

#: factor by which a start delay must exceed the stored one to be stored
LONGER = 1.5


@dataclass(kw_only=True)
class Membership:
    """Follows the lists of nodes, and what users ask of nodes in the store."""

    state: SchedulerState
    monitor: NodeMonitor
    supervisor: WorkerSupervisor
    listed: Listed | None = None  #: None: the fleet never changes
    #: URL of a node outside the fleet -> abandoned jobs there
    given_up: dict[str, list[AbandonedJob]] = field(default_factory=dict)
    _begun: bool = False  #: whether nodes that join are watched at once
    _has_warned: bool = False  #: that all nodes are drained; until one is not

    def cancel_on_return(self, url: str, job: AbandonedJob) -> None:
        """Have a job cancelled when its node, at this address, joins the fleet again."""
        self.given_up.setdefault(url, []).append(job)

    def follow(self) -> None:
        """Poll the store and the lists until the crawl is over, each in its own task."""
        self._begun = True
        self.state.spawn(self._repeat(self._read_records))
        if self.listed:
            self.state.spawn(self._repeat(self._read_lists))

    async def _repeat(self, poll: Callable[[], Awaitable[None]]) -> None:
        while not self.state.status.over.is_set():
            await poll()
            self.supervisor.vacate_nodes()
            self.state.pump()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.state.status.over.wait(), self.state.limits.poll)

    async def read_lists(self) -> None:
        """Read the lists of nodes and the store's records of them once."""
        await self._read_lists()
        await self._read_records()

    async def _read_lists(self) -> None:
        """Let nodes join or leave."""
        records = await self.state.store(self.state.db.nodes)
        nodes = await self.listed(records) if self.listed else None
        if nodes is not None:
            self._compare(nodes)

    async def _read_records(self) -> None:
        """Do what users want of nodes."""
        records = await self.state.store(self.state.db.nodes)
        by_name = {record.name: record for record in records}
        await self._apply(by_name)
        self._warn_if_drained()
        self.monitor.check_dark()

    # members

    def _compare(self, nodes: Sequence[Node]) -> None:
        """Let the nodes join that are listed now, and drain the others."""
        known = {member.node.url: member for member in self.state.members}
        for node in nodes:
            member = known.pop(node.url, None)
            if member is None:
                logger.info("%s joins the crawl", node)
                member = NodeState(node=node, cancel_later=self.given_up.pop(node.url, []))
                self.state.join(member)
            else:
                self._update(member, node)
            if self._begun:
                self.monitor.begin(member)
        for member in known.values():
            if not member.left:
                member.leave()
                logger.warning(
                    "%s is in no list of nodes any more; it gets no new work, "
                    "and its %d jobs are seen to their end",
                    member.node,
                    len(member.out),
                )

    def _update(self, member: NodeState, node: Node) -> None:
        """Update a node that is still listed, or again.

        Its name, password or number of slots may have changed.
        """
        if _entry(node) != _entry(member.node):
            member.readiness.start_over()
        is_back = member.left
        member.enter(node)
        if is_back:
            logger.info("%s is back in the list of nodes", node)

    # what users ask of nodes

    async def _apply(self, records: dict[str, NodeRecord]) -> None:
        """Drain or resume nodes by their records, and share what is known of their start delays."""
        for member in self.state.members:
            record = records.get(member.node.name)
            self._set_draining(member, record is not None and record.draining is not None)
            await self._share_delay(member, record.start_delay if record else 0.0)

    def _set_draining(self, member: NodeState, draining: bool) -> None:
        if draining != member.draining:
            member.drain(draining=draining)
            now = "is drained: it gets no new work" if draining else "gets work again"
            logger.warning("%s %s", member.node, now)

    async def _share_delay(self, member: NodeState, stored: float) -> None:
        """Store the start delay of a node if it is much longer than the stored one, in seconds."""
        watch = member.liveness.wedge_watch
        if watch.start_delay > max(stored, 1.0) * LONGER:
            await self.state.store(
                self.state.db.update_node,
                member.node.name,
                start_delay=round(watch.start_delay, 1),
            )
        watch.learn_delay(stored)

    def _warn_if_drained(self) -> None:
        """Warn once when batches wait and every node is drained."""
        waiting = self.state.backlog.waiting
        is_stuck = bool(waiting) and self._are_all_drained()
        if is_stuck and not self._has_warned:
            logger.warning(
                "All nodes that could work are drained, and %d batches wait; "
                "go on with: sdist nodes resume NODE",
                waiting,
            )
        self._has_warned = is_stuck

    def _are_all_drained(self) -> bool:
        """Whether every node that could work is drained, and there is one."""
        found = False
        for member in self.state.members:
            if member.able and not member.left:
                if not member.draining:
                    return False
                found = True
        return found


def _entry(node: Node) -> tuple[object, ...]:
    """Return how a node is entered; nodes with the same URL compare equal otherwise."""
    return (node.username, node.password, node.verify, node.ca, node.tls_name, node.project)
