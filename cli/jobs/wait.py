"""Waits until jobs are over, for `sdist watch --job` and `sdist jobs schedule`."""

from collections.abc import Sequence
from typing import Any

from scrapyd_dist.job_record import Outcome
from scrapyd_dist.jobs.job_rows import place_row, verdict_row
from scrapyd_dist.jobs.job_wait import JobWait
from scrapyd_dist.jobs.judged_job import JudgedJob
from scrapyd_dist.nodes import Node

from ..context import Context
from ..crawls.crawl_wait import combine_codes
from ..crawls.watcher import interruptible_pause
from ..output import complain

#: what is said of a job by how it ended
_HOW_ENDED = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.KILLED: "was killed",
    Outcome.DIED: "died",
}


def wait_for_jobs(
    context: Context, names: Sequence[str], nodes: Sequence[Node], deadline: float = float("inf")
) -> tuple[int, dict[str, Any]]:
    """Wait until these jobs are over, with their later attempts, and say which ended badly.

    deadline: by `time.monotonic`; StillRuns when it has come.
    Returns the exit code, and what the last attempt of each did, as a document for `--json`.
    """
    wait = JobWait(
        site=context.job_site, nodes=nodes, pauses=interruptible_pause, deadline=deadline
    )
    rows = []
    codes = []
    for job in wait.wait_for(names):
        verdict = job.verdict
        rows.append({**place_row(job.row), **verdict_row(verdict), "reason": verdict.reason})
        codes.append(int(verdict.outcome is not Outcome.FINISHED))
        if verdict.outcome is not Outcome.FINISHED:
            complain(_bad_end(job))
    return combine_codes(codes), {"jobs": rows}


def _bad_end(job: JudgedJob) -> str:
    how = _HOW_ENDED.get(job.verdict.outcome, "left nothing that tells how it ended")
    reason = ""
    if job.verdict.reason:
        reason = f": {job.verdict.reason}".rstrip(".")
    return f"The job {job.row.job} on {job.row.node.name} {how}{reason}."
