"""Builds the calls that start jobs on nodes: for sent batches, and for workers that lease.

A job gets its part in one setting (JSON): `DISTRIBUTED_JOB`, or `DISTRIBUTED_PULL` of a worker.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from scrapyd_dist.frontier.backlog import WorkerRequest
from scrapyd_dist.frontier.worklists import arguments_in
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import JobRun, WorkerRun
from scrapyd_dist.scheduling.scaling_policy import ALL
from scrapyd_dist.scrapyd import api
from scrapyd_dist.store.engines import FIRST_CLIENT
from scrapyd_dist.store.reach import Way

#: characters of a row of arguments that name its job
ROW_WORDS = 1_000
#: settings that make a job harmless whose code is no worker: a project without scrapyd-dist cannot
#: start, and another version of it gets an empty batch
HARMLESS = {"ADDONS": '{"scrapyd_dist.Addon": 500}', "DISTRIBUTED_START_URLS": "[]"}


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Says what all jobs of a crawl have in common."""

    crawl: str
    home: str  #: the crawl's folder in the nodes' logs
    project: str
    spider: str
    version: str | None  #: pinned, so that every attempt runs the same code
    settings: Mapping[str, str] = field(default_factory=dict)
    #: those of workers of other projects, which get no others
    foreign_settings: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, str] = field(default_factory=dict)
    feed: bool = False  #: items go to a feed URL
    typed: bool = False  #: items keep their classes, and values that JSON lacks
    #: folders of other crawls, whose files on the nodes may be deleted
    collected: tuple[str, ...] = ()
    #: seconds for which workers that reach the store lease their attempts; 0: no leases
    lease: float = 0.0
    #: of the whole crawl, as `Goals.limits`
    goals: Mapping[str, float] = field(default_factory=dict)
    #: a batch is one row of arguments, and its job a whole run of the spider with them
    rows: bool = False
    ways: Callable[[Node], Way] | None = None  #: how a node's workers reach the store; may block

    def project_at(self, node: Node, other: str = "") -> str:
        """Return the project of a job on this node.

        `other` is the job's, where it is not the crawl's own.
        """
        return other or node.project or self.project


def call_for(
    spec: JobRequest, out: JobRun, payload: Mapping[str, str], store: Mapping[str, Any]
) -> api.Call[str]:
    """Return the call that posts one attempt.

    `store` says how its worker reaches the store, and what is known of the rules there.
    """
    job: dict[str, Any] = {
        "batch": out.batch.number,
        "attempt": out.number,
        "feed": spec.feed,
        "lease": spec.lease,
    }
    if out.allowance is not None and (allowance := out.allowance.document):
        job["allowance"] = allowance
    job.update(store)
    args: Mapping[str, str] = {}
    if spec.rows:
        words, args = arguments_in(payload)
        job["row"] = words[:ROW_WORDS]  # the arguments carry the rest; a setting has a size limit
    settings = {**spec.settings, **payload}
    return _post(spec, out, spec.version, settings, "DISTRIBUTED_JOB", job, args)


def call_for_worker(
    spec: JobRequest,
    worker: WorkerRun,
    terms: WorkerRequest,
    store: Mapping[str, Any],
    *,
    version: str | None = None,
) -> api.Call[str]:
    """Return the call that posts a worker.

    `store` says how it reaches the store, what is known of the rules there, and has the crawl's key
    if it is sealed. `version` is
    that of another project, which gets its own settings and no arguments; None for the crawl's own.
    """
    settings = spec.settings if version is None else spec.foreign_settings
    pull = {**_orders(worker, terms), **store}
    return _post(spec, worker, version or spec.version, settings, "DISTRIBUTED_PULL", pull)


def call_for_introduction(
    spec: JobRequest, worker: WorkerRun, terms: WorkerRequest, way: Way
) -> api.Call[str]:
    """Return the call that posts a handshake; of the store it names only what that needs."""
    pull = {**_orders(worker, terms), "introduce": True, "needs_client": bool(way.client)}
    if way.client not in {"", FIRST_CLIENT}:
        pull["client"] = way.client
    return _post(spec, worker, worker.version, HARMLESS, "DISTRIBUTED_PULL", pull)


def _orders(worker: WorkerRun, terms: WorkerRequest) -> dict[str, Any]:
    """Return who a worker is, what it leases, and on which terms."""
    node = worker.member.node
    return {
        "worker": worker.batch.number,
        "node": node.name,
        "url": node.url,
        "slots": [] if worker.pool == ALL else [worker.pool],
        **asdict(terms),
    }


def _post(
    spec: JobRequest,
    out: JobRun,
    version: str | None,
    settings: Mapping[str, str],
    name: str,
    own: Mapping[str, Any],
    args: Mapping[str, str] = MappingProxyType({}),
) -> api.Call[str]:
    """Return the call that posts a job.

    `own` is what the setting `name` has besides what all jobs get in it.
    """
    job: dict[str, Any] = {
        "crawl": spec.crawl,
        "home": spec.home,
        "collected": list(spec.collected),
        "start_by": round(out.start_by + out.member.liveness.skew, 1),
        "version": version or "",
    }
    if spec.goals:
        job["goals"] = dict(spec.goals)
    if spec.typed:
        job["typed"] = True
    job.update(own)
    if not out.spider:  # another spider gets none of the crawl's arguments
        args = {**spec.args, **args}
    return api.schedule(
        spec.project_at(out.member.node, out.project),
        out.spider or spec.spider,
        jobid=out.job,
        version=version,
        settings={**settings, name: json.dumps(job, separators=(",", ":"))},
        args=args,
    )
