"""Starts plain jobs: places each on a node, writes it down, and posts it.

The rule it keeps: a job is in the store before it is posted, under an id of ours, so that a lost
answer is no lost job.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from scrapyd_dist.errors import ConfigError, NodeError, StoreError
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.messenger import Messenger
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.jobs import job_id
from scrapyd_dist.settings import LABELS
from scrapyd_dist.store import Store
from scrapyd_dist.transports import Sender, job_state, sweep

from .job_fleet import JobFleet
from .job_list import NOWHERE

#: the spider argument with the number of the attempt, of a job that is tried again if it fails
ATTEMPT = "attempt"
#: seconds
_DAY = 86_400.0
#: stands for the store where a job has no node yet
_STORE = Node(name=NOWHERE, url="")


@dataclass(frozen=True, kw_only=True)
class JobOrder:
    """One job that is asked for, or what holds for all jobs that are asked for together."""

    spider: str  #: its name, or a pattern that means several
    node: str | None = None  #: the name of the one node that will do
    priority: float | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    labels: tuple[str, ...] = ()

    def record(self, job: str, version: str, now: float, **more: Any) -> JobRecord:
        """Return what is remembered of the job; more: fields of the record that are not here."""
        names = tuple(sorted(self.settings))
        return JobRecord(
            id=job,
            spider=self.spider,
            version=version,
            created=now,
            labels=self.labels,
            args=self.args,
            settings=names,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class PlacedJob:
    """One job that has a node, or is skipped, and what came of its post."""

    order: JobOrder
    node: Node
    job: str = ""  #: its id; empty where it is skipped
    reason: str = ""  #: why it was skipped or failed
    error: NodeError | None = None  #: set when its node did not answer that it has the job
    lost: bool = False  #: its node may have it all the same

    @property
    def state(self) -> str:
        """In a word: `scheduled`, `skipped` or `failed`."""
        if not self.job:
            return "skipped"
        return "scheduled" if self.error is None else "failed"

    def record(self, version: str, now: float) -> JobRecord:
        """Return what is remembered of it, as it stands after the attempt to send it."""
        where = {"project": self.node.project or "", "node": self.node.name, "url": self.node.url}
        record = self.order.record(self.job, version, now, posted=now, **where)
        if self.error is None or self.lost:
            return record
        reason = f"not started: {self.reason}"
        return record.end(Outcome.FAILED, now, reason)


def name_each_spider(orders: Sequence[JobOrder], fleet: JobFleet) -> list[JobOrder]:
    """Return one order for each spider that an order's pattern means."""
    single: list[JobOrder] = []
    for order in orders:
        for name in fleet.spiders(order.spider):
            named = replace(order, spider=name)
            single.append(named)
    return single


def place_jobs(
    orders: Sequence[JobOrder],
    fleet: JobFleet,
    store: Store | None,
    *,
    all_nodes: bool = False,
    unless_running: bool = False,
) -> list[PlacedJob]:
    """Return which job goes where; one that is left out has its reason.

    store: has the jobs that wait; all_nodes: whether each job goes to every node; unless_running:
    whether a spider that waits or runs is left out, with `all_nodes` on the nodes where it does.
    """
    waiting: Collection[str] = ()
    busy: Mapping[str, Sequence[Node]] = {}
    if unless_running:
        waiting = _list_waiting_spiders(store)
        busy = fleet.busy_spiders(all_nodes=all_nodes)
    now = datetime.now(timezone.utc)
    jobs: list[PlacedJob] = []
    for order in orders:
        if order.spider in waiting:
            jobs.append(PlacedJob(order=order, node=_STORE, reason="it waits in the store"))
            continue
        busy_nodes = busy.get(order.spider, ())
        if busy_nodes and not all_nodes:
            jobs.append(_skip_on(busy_nodes[0], order))
            continue
        for node in fleet.places(order.node, all_nodes=all_nodes):
            if node in busy_nodes:
                jobs.append(_skip_on(node, order))
            else:
                job = job_id(order.spider, fleet.version, now)
                jobs.append(PlacedJob(order=order, node=node, job=job))
    return jobs


def _skip_on(node: Node, order: JobOrder) -> PlacedJob:
    return PlacedJob(order=order, node=node, reason=f"it waits or runs on {node.name}")


def _list_waiting_spiders(store: Store | None) -> set[str]:
    """Return the spiders of which jobs wait in the store."""
    waiting = set[str]()
    if store is not None:
        for record in store.jobs(OPEN_ONLY):
            if record.state is Outcome.WAITING:
                waiting.add(record.spider)
    return waiting


@dataclass(frozen=True, kw_only=True)
class JobPoster:
    """Posts placed jobs, and keeps them in the store."""

    fleet: JobFleet
    #: gives the project's store, made where there is none
    make_store: Callable[[], Store]
    keep_days: float  #: for which jobs are remembered
    messenger: Messenger

    def post_jobs(self, jobs: Sequence[PlacedJob]) -> list[PlacedJob]:
        """Post the jobs that are not skipped, and return all of them with what came of that.

        Raises:
            ConfigError: a node would lose a job; nothing was posted.
        """
        posted: dict[str, PlacedJob] = {}
        calls = self._calls(jobs)
        now = time.time()
        self._remember([job for job, _ in calls], now)  # before anything is posted
        # So that no node is run over.
        for answer in sweep(calls, self._post, threads=4 * len(self.fleet.nodes)):
            if answer.value is not None:
                posted[answer.value.job] = answer.value
        every = [posted.get(job.job, job) for job in jobs]
        self._remember([job for job in every if job.error is not None], now)
        return every

    def _calls(self, jobs: Sequence[PlacedJob]) -> list[tuple[PlacedJob, Call[str]]]:
        """Return what posts each job that is not skipped; ConfigError if a node would lose it."""
        calls = []
        for job in jobs:
            if job.job:
                record = job.record(self.fleet.version, 0.0)
                record = replace(record, priority=job.order.priority)
                calls.append((job, call_of(record, job.order.settings)))
        return calls

    def _remember(self, jobs: Sequence[PlacedJob], now: float) -> None:
        """Write the jobs down, and forget old ones.

        A store that cannot be written keeps no plain job from starting.
        """
        if not jobs:
            return
        records = [job.record(self.fleet.version, now) for job in jobs]
        try:
            store = self.make_store()
            store.forget_jobs(time.time() - self.keep_days * _DAY)
            store.keep_jobs(records)
        except (StoreError, ConfigError, OSError) as error:
            self.messenger.complain(f"The jobs are not remembered: {error}")

    def _post(self, posting: tuple[PlacedJob, Call[str]]) -> PlacedJob:
        """Post one job; what was refused or lost is written into what is returned."""
        job, call = posting
        error, lost = post_job(self.fleet.sender, job.node, call, job.job, self.fleet.timeout)
        if error is None:
            return job
        return replace(job, error=error, lost=lost, reason=error.short)


def call_of(record: JobRecord, settings: Mapping[str, str]) -> Call[str]:
    """Return what posts the job; ConfigError if a node would lose it."""
    args = dict(record.args)
    if record.retries:
        args[ATTEMPT] = str(record.attempt)
    settings = dict(settings)
    if record.labels:
        settings[LABELS] = ",".join(record.labels)
    return api.schedule(
        record.project,
        record.spider,
        jobid=record.id,
        version=record.version,
        settings=settings,
        args=args,
        priority=record.priority,
    )


def post_job(
    sender: Sender, node: Node, call: Call[str], job: str, timeout: float
) -> tuple[NodeError | None, bool]:
    """Post a job.

    Returns the error if its node did not take it, and whether it may have it all the same.
    """
    try:
        sender.send(node, call, timeout=timeout)
    except NodeError as error:
        if not error.maybe_accepted:
            return error, False
        try:  # the answer was lost, and perhaps not the job: only the node knows
            state = job_state(sender, node, job, node.project, timeout)
        except NodeError as silence:
            return silence, True
        return (error if state is None else None), False
    return None, False
