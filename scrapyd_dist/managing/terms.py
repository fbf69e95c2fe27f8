"""What a worker that leases batches is told (the setting `DISTRIBUTED_PULL`, JSON), and the call that posts it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.frontier.values import UNFAIR
from scrapyd_dist.scrapyd import api

if TYPE_CHECKING:
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


def call_for_worker(spec: JobSpec, worker: Worker, terms: WorkerTerms, way: Way) -> api.Call[str]:
    """The post of one worker. A spider of another project has its own settings, arguments and newest version."""
    node = worker.member.node
    pull = {
        "crawl": spec.crawl,
        "worker": worker.batch.number,
        "home": spec.home,
        "node": node.name,
        "url": node.url,
        "slots": list(worker.slots),
        "lease": terms.lease,
        "version": spec.version or "",
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
        **way.told,
    }
    return api.schedule(
        worker.project or node.project or spec.project,
        worker.spider or spec.spider,
        jobid=worker.job,
        version=None if worker.project else spec.version,
        settings={**spec.settings, "DISTRIBUTED_PULL": json.dumps(pull, separators=(",", ":"))},
        args={} if worker.spider else spec.args,
    )
