"""`sdist jobs cancel` and `sdist stop`: end jobs, and the producer of a crawl before them.

The rule it keeps: without a selector nothing is cancelled.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.live_crawls import lives, runs
from scrapyd_dist.jobs.cancellation import (
    GONE_LOOK,
    PATIENCE,
    SHOWN,
    Cancellation,
    CancelPlan,
    CancelResult,
    SignalTerms,
)
from scrapyd_dist.jobs.job_list import TIMEOUT
from scrapyd_dist.messenger import NO_MESSENGER
from scrapyd_dist.plurals import counted

from ..context import Context
from ..crawls.crawl import RunningCrawl
from ..crawls.producer_process import crawl_or_running, interrupt
from ..options import Timeout, Yes, argument, crawls, option, span
from ..output import Output, complain_each, confirm, poll_until, table, waiting
from .job_query import JobQuery

#: seconds after which it is said what is waited for, where there is no terminal
_QUICK = 2.0


@dataclass(frozen=True, kw_only=True)
class SignalOptions:
    """How jobs are told to end, as options of a command."""

    force: Annotated[
        bool, option(f"Send INT again to what is not gone after {PATIENCE:g} seconds.")
    ] = False
    kill: Annotated[bool, option("Send KILL: at once, without a word in the job's log.")] = False
    yes: Yes = False
    wait: Annotated[float, span("--wait", "How long to wait until they are gone.")] = 60

    @property
    def terms(self) -> SignalTerms:
        """The same, without what is about the command."""
        return SignalTerms(force=self.force, kill=self.kill, wait=self.wait)


def cancel(
    *,
    context: Context,
    job: Annotated[
        list[str] | None, argument("JOB", "Ids of jobs, or names of crawls.", crawls)
    ] = None,
    crawl: Annotated[
        str | None,
        option(
            "All jobs of this crawl; its producer is stopped first.",
            metavar="CRAWL",
            autocompletion=crawls,
        ),
    ] = None,
    all_: Annotated[bool, option("All jobs of the nodes, pending and running.")] = False,
    query: JobQuery,
    how: SignalOptions,
    output: Output,
) -> int:
    """Cancel jobs, and wait until they are gone. A pending job just leaves its queue.

    A running job gets INT: it ends its requests, runs its pipelines to the end,
    and closes with the reason "shutdown". One that was told so before gets no
    second INT, which would end it at once: that takes --force. Nothing is cancelled
    unless jobs, a crawl, or --all are named; a name that is a crawl's means the
    whole crawl, as `sdist stop` does. Exit code 124 when some are still
    there, also when they run on a node whose Scrapyd was started anew.

    Example: sdist jobs cancel --crawl easy-20260102T030405Z
    """
    if bool(job) + (crawl is not None) + all_ != 1:
        raise ConfigError(
            "Name what to cancel: ids of jobs, or --crawl CRAWL, or --all, which --spider and"
            " --node narrow down. One of the three."
        )
    names = job or []
    if crawl:
        names = [crawl]
    return _cancel(context, query, names, how, output)


def stop(
    *,
    context: Context,
    crawl: RunningCrawl = None,
    how: SignalOptions,
    timeout: Timeout = TIMEOUT,
    output: Output,
) -> int:
    """Stop a crawl: its producer first, then its jobs on all nodes.

    `sdist resume` goes on with it, and what is done stays done. A running job gets
    INT: Scrapy still makes the requests that its downloader has, up to
    CONCURRENT_REQUESTS of them with DOWNLOAD_DELAY between two, and closes with the
    reason "shutdown". `sdist jobs cancel --crawl CRAWL` does the same, also with a
    crawl of which the store knows nothing. Exit code 4 when nothing of it runs, 124
    when some jobs are still there.

    Example: sdist stop easy-20260102T030405Z
    """
    row = crawl_or_running(context.store, crawl)  # before any node is asked
    return _cancel(context, JobQuery(timeout=timeout), [row.id], how, output)


@dataclass(frozen=True, kw_only=True)
class CrawlProducers:
    """The processes of a project's crawls, as a cancellation stops them."""

    context: Context

    def runs(self, crawl: Crawl) -> bool:
        """Tell whether the crawl has not ended, and its process runs."""
        return runs(crawl)

    def stop(self, crawl: Crawl, wait: float) -> bool:
        """Make the process stop, and tell whether it did within so many seconds."""
        deadline = time.monotonic() + wait
        store = self.context.store
        # Before the signal, so that the process knows who stops it; and it may be elsewhere.
        store.want(crawl.id, "cancel")
        interrupt(self.context.root, crawl)
        return poll_until(lambda: not lives(store.crawl(crawl.id)), GONE_LOOK, deadline)


def _cancel(
    context: Context, query: JobQuery, names: Sequence[str], how: SignalOptions, output: Output
) -> int:
    """Cancel the jobs after a question, and return the exit code; StillRuns after the wait."""
    wanted = query.job_filter(context)
    producers = CrawlProducers(context=context)
    cancellation = Cancellation(context.job_site, wanted, names, how.terms, producers)
    plan = cancellation.plan()
    if not how.yes:
        _confirm(plan)
    progress = nullcontext(NO_MESSENGER.say) if output.as_json else waiting(first=_QUICK)
    with progress as show:
        result = cancellation.carry_out(plan, show)
    _show(result, output)
    complain_each(result.errors.values())
    complain_each(result.listed.errors)
    if result.still_running is not None:
        raise result.still_running
    return result.exit_code


def _confirm(plan: CancelPlan) -> None:
    lines = []
    for record in plan.waiting:
        line = f"-  {record.spider}  {record.id}  {record.state.value}"
        lines.append(line)
    for row in plan.jobs:
        line = f"{row.node.name}  {row.spider}  {row.job}  {row.state.value}"
        lines.append(line)
    count = counted(len(plan.jobs) + len(plan.waiting), "job")
    if len(plan.producers) > 1:
        count += f" and {len(plan.producers)} producers"
    elif plan.producers:
        count += " and the producer"
    confirm(f"Cancel {count}?", lines, most=SHOWN, refusal=f"{count} would be cancelled")


def _show(result: CancelResult, output: Output) -> None:
    document = result.document()
    if output.document(document):
        return
    headings = ("node", "spider", "job", "was", "state")
    rows = []
    for row in document["jobs"]:
        cells = [row[name] for name in headings]
        rows.append([*cells, ""])  # so that not the state goes below a row, but the job's id
    table((*headings, ""), rows, below=("job",))
