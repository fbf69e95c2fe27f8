"""What a worker that leases batches is told (the setting `DISTRIBUTED_PULL`, JSON), and the call that posts it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapyd_dist.frontier.values import UNFAIR
from scrapyd_dist.scrapyd import api
from scrapyd_dist.store.address import is_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.coordination.posting import JobSpec
    from scrapyd_dist.managing.frontdesk import Worker
    from scrapyd_dist.store.reach import Way


@dataclass(frozen=True, kw_only=True)
class WorkerTerms:
    """What every worker of a crawl is told; 0 is no limit."""

    lease: float = 60.0  #: seconds for which a batch is a worker's without a word from it
    ahead: int = 1  #: batches that it has beyond the one it works on
    max_batches: int = 0
    max_requests: int = 0
    max_time: float = 0.0  #: seconds
    idle: float = 0.0  #: seconds without work at a standing frontier
    batch_size: int = 100  #: requests in a batch of what it finds, at most
    fair: str = UNFAIR  #: how workers share the slots, one of `frontier.values.FAIR`
    start: str = "skip"  #: what becomes of the spider's own start requests: `skip`, or made `first`


#: what makes a job harmless whose code is no worker: a project without ours cannot start, and older code of ours has a
#: batch without a request
HARMLESS = {"ADDONS": '{"scrapyd_dist.Addon": 500}', "DISTRIBUTED_START_URLS": "[]"}
#: settings of ours that are about the fleet, so that another project's workers get them too
EVERYWHERE = frozenset({"DISTRIBUTED_KEEP_DAYS", "DISTRIBUTED_MIN_FREE", "DISTRIBUTED_LABELS"})


def call_for_worker(
    spec: JobSpec, worker: Worker, terms: WorkerTerms, told: Mapping[str, Any], *, version: str | None = None
) -> api.Call[str]:
    """The post of one worker.

    Args:
        spec: what all jobs of the crawl have in common.
        worker: the worker.
        terms: what every one is told.
        told: of the store, and of the crawl's key.
        version: of another project, which has its own settings and no arguments of ours; None for the crawl's own.
    """
    pull = {**_orders(spec, worker, terms), "version": version or spec.version or "", **told}
    return _post(spec, worker, version or spec.version, spec.settings if version is None else _elsewhere(spec), pull)


def call_for_introduction(spec: JobSpec, worker: Worker, terms: WorkerTerms, way: Way) -> api.Call[str]:
    """The post of a job that only says whose it is; of the store it is told nothing but what it needs for it."""
    is_server = "store_sealed" in way.told or is_url(way.told.get("store", ""))
    pull = {**_orders(spec, worker, terms), "version": worker.version, "introduce": True, "needs_client": is_server}
    return _post(spec, worker, worker.version, HARMLESS, pull)


def _elsewhere(spec: JobSpec) -> dict[str, str]:
    """The crawl's slots and limits are the same for all; what else was said with -s is for its own project."""
    return {**{name: text for name, text in spec.settings.items() if name in EVERYWHERE}, **spec.shared}


def _orders(spec: JobSpec, worker: Worker, terms: WorkerTerms) -> dict[str, Any]:
    node = worker.member.node
    return {
        "crawl": spec.crawl,
        "worker": worker.batch.number,
        "home": spec.home,
        "node": node.name,
        "url": node.url,
        "slots": list(worker.slots),
        "lease": terms.lease,
        "collected": list(spec.collected),
        "start_by": round(worker.start_by + worker.member.skew, 1),
        "max_batches": terms.max_batches,
        "max_requests": terms.max_requests,
        "max_time": terms.max_time,
        "idle": terms.idle,
        "ahead": terms.ahead,
        "batch_size": terms.batch_size,
        "fair": terms.fair,
        "start": terms.start,
    }


def _post(
    spec: JobSpec, worker: Worker, version: str | None, settings: Mapping[str, str], pull: Mapping[str, Any]
) -> api.Call[str]:
    return api.schedule(
        worker.project or worker.member.node.project or spec.project,
        worker.spider or spec.spider,
        jobid=worker.job,
        version=version,
        settings={**settings, "DISTRIBUTED_PULL": json.dumps(pull, separators=(",", ":"))},
        args={} if worker.spider else spec.args,
    )
