"""Builds the calls that start workers: what each one is told in the setting `DISTRIBUTED_PULL` (JSON)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from scrapyd_dist.frontier.backlog import UNFAIR
from scrapyd_dist.scrapyd import api
from scrapyd_dist.settings import LABELS, Travels, travelling
from scrapyd_dist.store.address import is_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.scheduling.job_request import JobRequest
    from scrapyd_dist.scheduling.node_state import WorkerRun
    from scrapyd_dist.store.reach import Way


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """What every worker of a crawl is told; 0 is no limit."""

    lease: float = 60.0  #: seconds after which a lease that is not renewed expires
    ahead: int = 1  #: batches leased beyond the one in work
    max_batches: int = 0
    max_requests: int = 0
    max_time: float = 0.0  #: seconds
    idle: float = 0.0  #: seconds without work after which it ends, at a standing frontier
    batch_size: int = 100  #: most requests in a batch of what it finds
    fair: str = UNFAIR  #: how workers share the slots, one of `FAIR`
    start: str = "skip"  #: the spider's own start requests: `skip` them, or make them `first`


#: settings that make a job harmless whose code is no worker: a project without scrapyd-dist cannot start, and an older
#: version of it gets an empty batch
HARMLESS = {"ADDONS": '{"scrapyd_dist.Addon": 500}', "DISTRIBUTED_START_URLS": "[]"}


def call_for_worker(
    spec: JobRequest, worker: WorkerRun, terms: WorkerRequest, told: Mapping[str, Any], *, version: str | None = None
) -> api.Call[str]:
    """The call that posts a worker.

    Args:
        spec: what all jobs of the crawl have in common.
        worker: the worker.
        terms: what every worker is told.
        told: of the store, and of the crawl's key.
        version: of another project, which gets its own settings and no arguments; None for the crawl's own.
    """
    pull = {**_orders(spec, worker, terms), "version": version or spec.version or "", **told}
    return _post(spec, worker, version or spec.version, spec.settings if version is None else _elsewhere(spec), pull)


def call_for_introduction(spec: JobRequest, worker: WorkerRun, terms: WorkerRequest, way: Way) -> api.Call[str]:
    """The call that posts a handshake; of the store it is told only what it needs for that."""
    is_server = "store_sealed" in way.told or is_url(way.told.get("store", ""))
    pull = {**_orders(spec, worker, terms), "version": worker.version, "introduce": True, "needs_client": is_server}
    return _post(spec, worker, worker.version, HARMLESS, pull)


def _elsewhere(spec: JobRequest) -> dict[str, str]:
    """The settings for another project: the crawl's slots and limits, and nothing that was set with -s."""
    everywhere = (LABELS, *travelling(Travels.FLEET))
    return {**{name: text for name, text in spec.settings.items() if name in everywhere}, **spec.shared}


def _orders(spec: JobRequest, worker: WorkerRun, terms: WorkerRequest) -> dict[str, Any]:
    node = worker.member.node
    return {
        "crawl": spec.crawl,
        "worker": worker.batch.number,
        "home": spec.home,
        "node": node.name,
        "url": node.url,
        "slots": list(worker.slots),
        "collected": list(spec.collected),
        "start_by": round(worker.start_by + worker.member.skew, 1),
        **asdict(terms),
    }


def _post(
    spec: JobRequest, worker: WorkerRun, version: str | None, settings: Mapping[str, str], pull: Mapping[str, Any]
) -> api.Call[str]:
    return api.schedule(
        worker.project or worker.member.node.project or spec.project,
        worker.spider or spec.spider,
        jobid=worker.job,
        version=version,
        settings={**settings, "DISTRIBUTED_PULL": json.dumps(pull, separators=(",", ":"))},
        args={} if worker.spider else spec.args,
    )
