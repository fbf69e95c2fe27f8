"""`sdist crawls wait`: waits until crawls are at their end, or jobs are over."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import PARTIAL, ConfigError
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.jobs.job_rows import place_row, verdict_row
from scrapyd_dist.jobs.job_wait import JobWait, wait_until_over
from scrapyd_dist.jobs.judged_job import JudgedJob
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress.summary_document import summary_of

from ..context import Context
from ..crawls.producer_process import crawl_or_latest
from ..crawls.watcher import LOOK, ProducerDied, interruptible_pause, watch_row
from ..options import Nodes, argument, crawls, option, span
from ..output import Output, complain

#: what is said of a job by how it ended
_HOW_ENDED = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.KILLED: "was killed",
    Outcome.DIED: "died",
}


def wait(
    *,
    context: Context,
    crawl: Annotated[
        list[str] | None, argument("CRAWL", "Names of crawls; the newest if left out.", crawls)
    ] = None,
    job: Annotated[
        list[str] | None, option("Wait for this job instead. Repeatable.", metavar="JOB")
    ] = None,
    timeout: Annotated[
        float | None, span("--timeout", "Wait at most this long (90, 30m, 2h). Exit code 124.")
    ] = None,
    node: Nodes = None,
    output: Output,
) -> int:
    """Wait until crawls are at their end, or jobs are over; say nothing before that.

    A crawl is at its end when no batch waits or runs and its output is closed, or
    when it was stopped. The exit code is the crawl's own. Of several it is 0 when
    all are good, 3 when only some are, else that of the first. A job is judged by
    what it really did: 0 when it finished, 1 otherwise.

    Example: sdist crawls wait easy-20260102T030405Z --timeout 2h
    """
    if crawl and job:
        raise ConfigError("Wait for crawls or, with --job, for jobs; not for both at once.")
    deadline = time.monotonic() + timeout if timeout is not None else float("inf")
    if job:
        code, document = wait_for_jobs(context, job, context.nodes(node), deadline)
        output.document(document)
        return code
    return _wait_for_crawls(context, crawl or [None], deadline, output)


def combined(codes: Iterable[int]) -> int:
    """Return one exit code for several: 0 when all are, 3 when only some are, else the first."""
    every = list(codes)
    if not any(every):
        return 0
    if len(every) > 1 and (0 in every or PARTIAL in every):
        return PARTIAL
    return every[0]


def _wait_for_crawls(
    context: Context, names: Sequence[str | None], deadline: float, output: Output
) -> int:
    store = context.store
    ids = []
    for name in dict.fromkeys(names):
        crawl = crawl_or_latest(store, name)
        ids.append(crawl.id)
    waited = _WaitedCrawls(context, ids)
    wait_until_over(
        waited.find_left,
        interruptible_pause,
        every=LOOK,
        deadline=deadline,
        kind="crawl",
        see="sdist watch",
    )
    rows = []
    codes = []
    complaints = []
    for crawl_id in ids:
        crawl = store.crawl(crawl_id)
        code = waited.codes[crawl_id]
        rows.append({**summary_of(crawl), "exit_code": code})
        codes.append(code)
        if code and crawl_id not in waited.died:
            ended = f"The crawl {crawl_id} {crawl.state.value} with exit code {code}."
            complaints.append(crawl.message or ended)
    output.document({"crawls": rows})
    for text in complaints:
        complain(text)
    return combined(codes)


class _WaitedCrawls:
    """The crawls that are waited for, and the exit codes of those that are at their end."""

    def __init__(self, context: Context, names: Sequence[str]) -> None:
        self.codes: dict[str, int] = {}
        self.died = set[str]()  #: the crawls whose producers died, which has been said
        self._states: dict[str, Iterator[Crawl]] = {}
        for name in names:
            self._states[name] = watch_row(context.root, context.store, name)

    def find_left(self) -> list[str]:
        """Look at each crawl once, and return those that are not at their end."""
        left = []
        for name, states in self._states.items():
            if name in self.codes:
                continue
            try:
                crawl = next(states)
            except ProducerDied as error:
                complain(str(error))
                self.died.add(name)
                self.codes[name] = 1
                continue
            if crawl.state.ended:
                self.codes[name] = 1
                if crawl.exit_code is not None:
                    self.codes[name] = crawl.exit_code
            else:
                left.append(name)
        return left


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
    return combined(codes), {"jobs": rows}


def _bad_end(job: JudgedJob) -> str:
    how = _HOW_ENDED.get(job.verdict.outcome, "left nothing that tells how it ended")
    reason = ""
    if job.verdict.reason:
        reason = f": {job.verdict.reason}".rstrip(".")
    return f"The job {job.row.job} on {job.row.node.name} {how}{reason}."
