"""Reads how remembered jobs ended on nodes that are about to leave the fleet, while they answer."""

from collections.abc import Sequence

from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.nodes import Node

from .job_judge import JobJudge
from .job_list import TIMEOUT, JobFilter
from .job_memory import JobMemory
from .job_site import JobSite


def read_last_ends(
    site: JobSite, nodes: Sequence[Node], *, timeout: float = TIMEOUT
) -> list[JobRecord]:
    """Write down how the remembered jobs on these nodes ended; return those that are still open.

    timeout: seconds that a node gets for each answer; of one that does not answer nothing is known.
    """
    urls = {node.url for node in nodes}
    memory = JobMemory(site.store, OPEN_ONLY, site.messenger, nodes=nodes)
    if not any(_is_out(record, urls) for record in memory.records.values()):
        return []
    wanted = JobFilter(nodes=nodes, narrowed=True, timeout=timeout)
    listed = wanted.list_jobs(site)
    rows = [row for row in listed.jobs if memory.record_of(row) is not None]
    rows += memory.unlisted(listed, wanted)
    JobJudge(site, rows, memory, timeout=timeout).all(rows)
    return [record for record in memory.records.values() if _is_out(record, urls)]


def _is_out(record: JobRecord, urls: set[str]) -> bool:
    """Tell whether a job was posted to a node at one of these addresses, and has no end yet."""
    return record.url in urls and not record.state.over and record.state is not Outcome.WAITING
