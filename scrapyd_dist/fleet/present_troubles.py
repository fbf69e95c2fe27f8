"""What is wrong in a fleet now, in sentences: for the alarm that tells of it, and for a page."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.fleet.live_crawls import alive_state
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.progress.crawl_outcome import ended_in_words, next_command
from scrapyd_dist.progress.summary_document import DIED, UNUSUAL, summary_of
from scrapyd_dist.time_spans import describe_span

#: seconds for which a plain job that has ended is looked at
RECENT = 86400.0
#: ends of a job that are no trouble
_UNTOLD = {Outcome.FINISHED, Outcome.CANCELLED, Outcome.UNKNOWN}


def node_trouble(node: Mapping[str, Any]) -> str:
    """Return what is wrong with a node of a watch's document; empty if it works, or is drained."""
    name = node["name"]
    if node["running"] is None and not node.get("draining"):
        return f"The node {name} does not work: {node['reason'] or node['state']}"
    if node["state"] == "wedged":
        return f"The node {name}: {node['reason']}"
    return ""


def job_trouble(job: Mapping[str, Any], node: str) -> str:
    """Return what is wrong with a job of a watch's document; empty if it makes progress."""
    if job["state"] != "stalled":
        return ""
    return f"The job {job['job']} on {node} makes no progress for {describe_span(job['silent_s'])}."


def failure_of_job(record: JobRecord) -> str:
    """Return how a plain job that has ended failed; empty if it did not."""
    if record.state in _UNTOLD:
        return ""
    reason = f": {record.reason}" if record.reason else ""
    job = f"The job {record.id} of {record.spider} on {record.node}"
    return f"{job} {record.state.value}{reason}."


def find_failed_spiders(records: Iterable[JobRecord]) -> list[str]:
    """Return a sentence for each spider that is in trouble, by its last plain job that ended.

    Jobs that were cancelled, and those of which that is not known, say nothing of their spider.
    """
    failures: dict[tuple[str, str], str] = {}
    for record in sorted(records, key=lambda record: record.ended or 0.0):
        if not record.state.over:
            continue
        spider = (record.project, record.spider)
        if failure := failure_of_job(record):
            failures[spider] = failure
        elif record.state is Outcome.FINISHED:
            failures.pop(spider, None)
    return list(failures.values())


def death_of_crawl(crawl: Crawl) -> str:
    """Return that the process of a crawl is gone; empty if it is not."""
    if alive_state(crawl) != DIED:
        return ""
    return f"The process of the crawl {crawl.id} is gone. Go on with: sdist resume {crawl.id}"


def failure_of_crawl(crawl: Crawl) -> str:
    """Return how a crawl has ended badly, as its exit code says; empty if it did not.

    One that somebody has stopped did not.
    """
    if not crawl.exit_code or crawl.state is CrawlState.STOPPED:
        return ""
    document = summary_of(crawl)
    ended = f"The crawl {crawl.id} of {crawl.spider} has ended: {ended_in_words(document)}."
    if crawl.message:
        return f"{ended} {crawl.message}"
    command = next_command(document)
    return f"{ended} Go on with: sdist {command}" if command else ended


def shortage_of_items(crawl: Crawl) -> str:
    """Return what is wrong with the number of items; empty where it is as usual."""
    for warning in crawl.summary.get("warnings") or ():
        if UNUSUAL in str(warning):
            return f"The crawl {crawl.id}: {warning}"
    return ""


def find_present_troubles(fleet: Mapping[str, Any], crawls: Iterable[Crawl]) -> list[str]:
    """Return a sentence for each thing that is wrong now.

    fleet: the document of `FleetWatch`; crawls: the newest first; of each spider the last one tells
    whether it has as many items as usual.
    """
    found = [*_fleet_troubles(fleet)]
    seen = set[tuple[str, str]]()
    for crawl in crawls:
        if crawl.kind != "frontier":
            found.append(death_of_crawl(crawl))
        if crawl.state.ended and (crawl.project, crawl.spider) not in seen:
            seen.add((crawl.project, crawl.spider))
            found.append(shortage_of_items(crawl))
    return list(filter(None, found))


def _fleet_troubles(fleet: Mapping[str, Any]) -> Iterator[str]:
    for node in fleet["nodes"]:
        yield node_trouble(node)
        for job in node["jobs"]:
            yield job_trouble(job, node["name"])
