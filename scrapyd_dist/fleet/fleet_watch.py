"""Watches a fleet: asks all nodes again and again how they are, and the jobs that run there."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from scrapyd_dist.batches import home_of
from scrapyd_dist.errors import ConfigError, NodeError, StoreError
from scrapyd_dist.fleet.node_poll import poll_load
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.fleet.recalled_states import recall_states
from scrapyd_dist.fleet.watched_jobs import RATES, WatchedJob
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.messenger import NO_MESSENGER, Messenger
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.scrapyd.jobs import is_others
from scrapyd_dist.transports import Sender, sweep

#: seconds that a node gets for each answer
TIMEOUT = 15.0
#: seconds between two questions for a node's list of jobs that did not change, since it echoes the
#: batches that wait; and between two looks at which nodes there are
LIST = 10.0


@dataclass(kw_only=True)
class WatchedNode:
    """A node that is asked again and again, and the jobs that run there."""

    status: NodeStatus
    jobs: dict[str, WatchedJob] = field(default_factory=dict)  #: by their ids
    _listed_at: float | None = None  #: when they were listed, by the monotonic clock
    _numbers: tuple[int, int, int] | None = None  #: pending, running, finished jobs at that time

    @property
    def running_jobs(self) -> Iterable[WatchedJob]:
        """The jobs that run there; none where the node did not answer."""
        return self.jobs.values() if self.status.load else ()

    def refresh(self, sender: Sender, now: float, timeout: float) -> None:
        """Ask the node how much it has to do, and what, where that changed.

        now: by the monotonic clock; timeout: seconds for each answer.
        """
        unknown = NodeStatus(node=self.status.node, draining=self.status.draining)
        self.status = poll_load(sender, unknown, timeout)
        load = self.status.load
        if load is None or not self._must_list(load, now):
            return
        try:
            self._list_jobs(sender, timeout)
        except NodeError as error:
            self.status = replace(self.status, load=None, error=error)
            return
        self._numbers = _numbers_of(load)
        self._listed_at = now

    def _must_list(self, load: Load, now: float) -> bool:
        """Return whether its list of jobs has to be asked for."""
        if self._listed_at is None or now - self._listed_at >= LIST:
            return True
        return _numbers_of(load) != self._numbers

    def _list_jobs(self, sender: Sender, timeout: float) -> None:
        node = self.status.node
        jobs = {}
        for job in sender.send(node, api.listjobs(), timeout=timeout).running:
            place = Place(node=node, project=job.project, spider=job.spider, job=job.id)
            jobs[job.id] = self.jobs.get(job.id) or WatchedJob(place=place)
        self.jobs = jobs

    def row(self) -> dict[str, Any]:
        """Return the node and its jobs, for `--json`."""
        document = self.status.document()
        row: dict[str, Any] = {}
        for name in ("name", "url", "state", "reason", "slots", "pending", "draining"):
            row[name] = document[name]
        row["running"] = len(self.jobs) if self.status.load else None
        row["jobs"] = [job.document() for job in self.running_jobs]
        return row


def _numbers_of(load: Load) -> tuple[int, int, int]:
    return load.pending, load.running, load.finished


class FleetWatch:
    """All nodes of a project, asked again and again.

    messenger: gets what could not be found out.
    """

    def __init__(self, workspace: Workspace, messenger: Messenger = NO_MESSENGER) -> None:
        self._workspace = workspace
        self._messenger = messenger
        self.nodes = [_unknown(node) for node in workspace.known_nodes()]
        self._homes: dict[str | None, str | None] = {}  #: crawl -> its folder in the nodes' logs
        self._named = time.monotonic()  #: when the names of the nodes were read

    def poll(self) -> None:
        """Ask all nodes, and of the jobs that run there how they stand."""
        now = time.monotonic()
        sender = self._workspace.sender
        if now - self._named >= LIST:
            self._renew(now)
        list(sweep(self.nodes, lambda node: node.refresh(sender, now, TIMEOUT)))
        self._recall(sender)
        jobs: list[WatchedJob] = []
        for node in self.nodes:
            jobs += node.running_jobs
        self._learn_homes({job.place.crawl for job in jobs})
        homes = self._homes

        def refresh(job: WatchedJob) -> None:
            """Ask how a job stands."""
            job.refresh(sender, _home_of(job.place, homes), now, TIMEOUT)

        list(sweep(jobs, refresh, threads=8))

    def _recall(self, sender: Sender) -> None:
        """Add what is remembered of the nodes to what they answered."""
        answered = [node.status for node in self.nodes]
        recalled = recall_states(self._workspace, sender, answered, TIMEOUT, self._messenger)
        for node, status in zip(self.nodes, recalled, strict=True):
            node.status = status

    def _renew(self, now: float) -> None:
        """Take in nodes that have joined, and leave out those that are gone.

        Where that cannot be read, all stay.
        """
        self._named = now
        known = {watched.status.node: watched for watched in self.nodes}
        with suppress(ConfigError, StoreError):
            nodes = self._workspace.read_anew().known_nodes()
            self.nodes = [known.get(node) or _unknown(node) for node in nodes]

    def _learn_homes(self, crawls: set[str | None]) -> None:
        """Ask the store where these crawls have their folders: once, and again when it was away."""
        new = crawls - {None} - self._homes.keys()
        if not new:
            return
        with suppress(StoreError):
            store = self._workspace.store_if_any
            if store is None:
                return
            known = {row.id: home_of(row.id, row.created) for row in store.crawls()}
            for crawl in new:
                self._homes[crawl] = known.get(crawl or "")

    def document(self) -> dict[str, Any]:
        """Return how the fleet stands, as `--json` gives it."""
        nodes = []
        running = 0
        pending = 0
        totals = dict.fromkeys(RATES, 0.0)
        for node in self.nodes:
            row = node.row()
            nodes.append(row)
            running += row["running"] or 0
            pending += row["pending"] or 0
            for job in row["jobs"]:
                for name in RATES:
                    totals[name] += job["per_min"][name] or 0
        totals = {name: float(round(total, 1)) for name, total in totals.items()}
        return {"nodes": nodes, "running": running, "pending": pending, "per_min": totals}


def _unknown(node: Node) -> WatchedNode:
    return WatchedNode(status=NodeStatus(node=node))


def _home_of(place: Place, homes: Mapping[str | None, str | None]) -> str | None:
    """Return the folder with its report.

    None for a job of no crawl, or of another crawl than the one that has its name here.
    """
    home = homes.get(place.crawl)
    if home is None or is_others(place.job, {place.crawl or "": home}):
        return None
    return home
