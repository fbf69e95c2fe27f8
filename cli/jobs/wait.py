"""`sdist wait`: silent until crawls or jobs are over; then the exit code tells.

The rule it keeps: it changes nothing, and a node that does not answer decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Optional

import typer

from scrapyd_dist.errors import ConfigError, NodeError
from scrapyd_dist.joblogs.log_reads import look
from scrapyd_dist.joblogs.verdict import Outcome
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress.summary import told
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.transports import Sender

from ..context import Context
from ..crawls import producer_process
from ..crawls.watcher import ALIVE_EVERY, StillRuns, died, looked_out_for
from ..options import Nodes, crawls, seconds
from ..output import Output, complain, complain_each, poll_until
from .job_list import TIMEOUT, Listed, ask_jobs, place_row
from .jobs_table import Judge, verdict_row

#: seconds between two looks at the store
LOOK = 0.25
#: seconds between two questions to the nodes
ASK = 2.0
#: seconds of silence in the log of a job that its node has forgotten, after which it counts as over
FORGOTTEN = 60.0
_HOW_ENDED = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.KILLED: "was killed",
    Outcome.DIED: "died",
}
Crawls = Annotated[
    Optional[list[str]],
    typer.Argument(metavar="CRAWL", autocompletion=crawls, help="Names of crawls; the newest if left out."),
]


def wait(
    *,
    context: Context,
    crawl: Crawls = None,
    job: Annotated[
        Optional[list[str]], typer.Option("--job", metavar="JOB", help="Wait for this job instead. Repeatable.")
    ] = None,
    timeout: Annotated[
        Optional[str], typer.Option(metavar="TIME", help="Wait no longer than this (90, 30m, 2h). Exit code 124.")
    ] = None,
    node: Nodes = None,
    output: Output,
) -> None:
    """Wait until crawls are at their end, or jobs are over; say nothing before that.

    A crawl is at its end when no batch waits or runs and its output is closed, or
    when it was stopped. The exit code is the crawl's own. Of several it is 0 when
    all are good, 3 when only some are, else that of the first. A job is judged by
    what it really did: 0 when it finished, 1 otherwise.

    Example: sdist wait easy-20260102T030405Z --timeout 2h
    """
    if crawl and job:
        raise ConfigError("Wait for crawls or, with --job, for jobs; not for both at once.")
    span = seconds("--timeout", timeout)
    deadline = time.monotonic() + span if span is not None else float("inf")
    if job:
        raise typer.Exit(_for_jobs(context, job, context.nodes(node), deadline, output))
    raise typer.Exit(_for_crawls(context, crawl or (), deadline, output))


def combined(codes: Iterable[int]) -> int:
    """One exit code for several: 0 when all are, 3 when only some are, else the first."""
    every = list(codes)
    if not any(every):
        return 0
    return every[0] if all(every) and 3 not in every else 3 if len(every) > 1 else every[0]


def _wait_for(waited: Ends | Waited, every: float, deadline: float, kind: str, see: str) -> None:
    """Look every so many seconds until nothing is left; see: the command that shows more of one.

    Raises:
        StillRuns: the time is up.
    """
    with looked_out_for() as pause:
        if not poll_until(lambda: not waited.look(), every, deadline=deadline, pause=pause):
            what = f"The {kind} {waited.left[0]} still runs (--timeout), and goes on without this command."
            raise StillRuns(f"{what} Go on with: {see} {waited.left[0]}")


def _for_crawls(context: Context, names: Sequence[str], deadline: float, output: Output) -> int:
    store = context.store
    ids = [store.crawl(name).id for name in dict.fromkeys(names)] or [producer_process.latest(store).id]
    ends = Ends(context=context, left=list(ids))
    _wait_for(ends, LOOK, deadline, "crawl", "sdist watch")
    rows = [store.crawl(name) for name in ids]
    codes = [ends.codes[row.id] for row in rows]
    output.document({"crawls": [{**told(row), "exit_code": code} for row, code in zip(rows, codes, strict=True)]})
    for row, code in zip(rows, codes, strict=True):
        if code and row.id not in ends.died:
            complain(row.message or f"The crawl {row.id} {row.state.value} with exit code {code}.")
    return combined(codes)


@dataclass(kw_only=True)
class Ends:
    """Which crawls have come to their end, and with which exit codes."""

    context: Context
    left: list[str]
    codes: dict[str, int] = field(default_factory=dict)
    died: set[str] = field(default_factory=set)  #: whose producer died, as was reported already
    _alive_at: float = 0.0

    def look(self) -> bool:
        """Look once; whether some are still left."""
        now, store = time.monotonic(), self.context.store
        look_at_process = now - self._alive_at >= ALIVE_EVERY
        if look_at_process:
            self._alive_at = now
        for name in self.left:
            row = store.crawl(name)
            if row.state.ended:
                self.codes[name] = row.exit_code if row.exit_code is not None else 1
            elif look_at_process and not producer_process.lives(row) and not store.crawl(name).state.ended:
                complain(died(self.context.root, row))
                self.died.add(name)
                self.codes[name] = 1
        self.left = [name for name in self.left if name not in self.codes]
        return bool(self.left)


def _for_jobs(context: Context, names: Sequence[str], nodes: Sequence[Node], deadline: float, output: Output) -> int:
    """Wait until these jobs are over; gives the exit code."""
    waited = Waited(sender=context.sender, nodes=nodes, names=tuple(dict.fromkeys(names)))
    _wait_for(waited, ASK, deadline, "job", "sdist logs -f")
    rows = [replace(row, state=JobState.FINISHED) for row in waited.jobs.values()]
    judge = Judge(context, [row.place for row in rows])
    ended = [judge.judge(row) for row in rows]
    told = [{**place_row(one.row.place), **verdict_row(one.verdict), "reason": one.verdict.reason} for one in ended]
    output.document({"jobs": told})
    bad = [one for one in ended if one.verdict.outcome is not Outcome.FINISHED]
    for one in bad:
        how = _HOW_ENDED.get(one.verdict.outcome, "left nothing that tells how it ended")
        reason = f": {one.verdict.reason}" if one.verdict.reason else ""
        complain(f"The job {one.row.place.job} on {one.row.place.node.name} {how}{reason.rstrip('.')}.")
    return combined(int(one in bad) for one in ended)


@dataclass(kw_only=True)
class Waited:
    """The jobs that are waited for, as their nodes listed them last."""

    sender: Sender
    nodes: Sequence[Node]
    names: tuple[str, ...]
    left: list[str] = field(default_factory=list)  #: ids of the jobs that are not over
    jobs: dict[tuple[str, str], Listed] = field(default_factory=dict)  #: by base address of the node, and id
    _told: set[str] = field(default_factory=set)  #: which nodes do not answer, and why

    def look(self) -> bool:
        """Ask the nodes once; whether some jobs are not over."""
        found = ask_jobs(self.sender, self.nodes, timeout=TIMEOUT)
        texts = {str(error) for error in found.errors}
        complain_each(texts - self._told)  # once: it is waited for these nodes
        self._told = texts
        listed = {row.key: row for row in found.jobs}
        if not self.jobs:
            if len(found.errors) == found.asked:
                raise found.errors[0]
            self.jobs = {row.key: row for row in found.named(self.names, {})}
        self.left = []
        for key, row in self.jobs.items():
            self.jobs[key] = now = listed.get(key, row)
            if not (now.over if key in listed else key[0] not in found.silent and self._is_silent(now)):
                self.left.append(now.place.job)
        return bool(self.left)

    def _is_silent(self, row: Listed) -> bool:
        """Of a job that its node has forgotten: whether its log says that it is over. It may live on as an orphan."""
        if row.over:
            return True
        try:
            seen = look(self.sender, row.place.node, row.place.log, timeout=TIMEOUT)
        except NodeError:
            return False
        return seen is None or bool(seen.facts.closed) or (seen.silent or 0.0) >= FORGOTTEN
