"""`sdist cancel`, `stop`: ends jobs, and waits for their ends. Without a selector nothing is cancelled."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Optional

import typer

from scrapyd_dist.batches import Crawl
from scrapyd_dist.config import STATE_FOLDER, state_dir
from scrapyd_dist.errors import ConfigError, DistError, NodeError, NothingMatched
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.transports import sweep

from ..context import Context, exit_code
from ..crawls.crawl import CrawlId
from ..crawls.producer_process import interrupt, lives, runs
from ..crawls.wording import counted
from ..options import Timeout, Yes, crawls, seconds
from ..output import Output, complain_each, confirm, poll_until, say, some_of
from .job_list import TIMEOUT, JobQuery, Listed, place_row

Key = tuple[str, str, str]  # what tells one job from another: base address of its node, project, id

_FILE = "signals.jsonl"
#: seconds between two looks at whether the jobs are gone
LOOK = 0.5
#: seconds that a job gets to stop in good order before --force sends the second signal
PATIENCE = 3.0
#: seconds that the jobs get as a whole
WAIT = "60"
#: jobs that are named in the question
SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class SignalOptions:
    """How jobs are told to end, as options of a command."""

    force: Annotated[
        bool, typer.Option("--force", help=f"Send INT again to what is not gone after {PATIENCE:g} seconds.")
    ] = False
    kill: Annotated[bool, typer.Option("--kill", help="Send KILL: at once, without a word in the job's log.")] = False
    yes: Yes = False
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait until they are gone.")] = WAIT


class StillThere(DistError):
    """Jobs that were told to stop have not."""

    exit_code: ClassVar[int] = 124


def key_of(place: Place) -> Key:
    return place.node.url, place.project, place.job


def note(root: Path, place: Place, signal: str) -> None:
    """Write down that this job is sent a signal."""
    names = {"node": place.node.url, "project": place.project, "job": place.job}
    row = {"at": round(time.time(), 1), **names, "signal": signal}
    with (state_dir(root) / _FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def noted(root: Path) -> frozenset[Key]:
    """The jobs that had no time to log how they end, since they were sent KILL or a second INT."""
    found: Counter[Key] = Counter()
    with suppress(OSError), (root / STATE_FOLDER / _FILE).open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                found[row["node"], row["project"], row["job"]] += 2 if row["signal"] == "KILL" else 1
    return frozenset(key for key, weight in found.items() if weight > 1)


def cancel(
    *,
    context: Context,
    job: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="JOB", autocompletion=crawls, help="Ids of jobs, or names of crawls."),
    ] = None,
    crawl: Annotated[
        Optional[str],
        typer.Option(
            metavar="CRAWL", autocompletion=crawls, help="All jobs of this crawl; its producer is stopped first."
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All jobs of the nodes, pending and running.")] = False,
    query: JobQuery,
    how: SignalOptions,
    output: Output,
) -> None:
    """Cancel jobs, and wait until they are gone. A pending job just leaves its queue.

    A running job gets INT: it ends its requests, runs its pipelines to the end,
    and closes with the reason "shutdown". Nothing is cancelled unless jobs, a
    crawl, or --all are named; a name that is a crawl's means the whole crawl, as
    `sdist stop` does. Exit code 124 when some are still there.

    Example: sdist cancel --crawl easy-20260102T030405Z
    """
    if bool(job) + (crawl is not None) + all_ != 1:
        raise ConfigError("Name what to cancel: ids of jobs, or --crawl CRAWL, or --all. One of the three.")
    raise typer.Exit(_Cancellation(context, query, how, [crawl] if crawl else job or []).run(output))


def stop(
    *,
    context: Context,
    crawl: CrawlId,
    how: SignalOptions,
    timeout: Timeout = TIMEOUT,
    output: Output,
) -> None:
    """Stop a crawl: its producer first, then its jobs on all nodes. `sdist resume` goes on with it.

    What is done stays done. A running job gets INT: it ends its requests and
    closes with the reason "shutdown"; its batch is crawled again by `sdist
    resume`. The same as `sdist cancel --crawl CRAWL`. Exit code 4 when nothing of
    it runs, 124 when some jobs are still there.

    Example: sdist stop easy-20260102T030405Z
    """
    raise typer.Exit(_Cancellation(context, JobQuery(timeout=timeout), how, [crawl]).run(output))


class _Cancellation:
    """What is to be cancelled: jobs and crawls by name, or all jobs where none is named."""

    def __init__(self, context: Context, query: JobQuery, how: SignalOptions, names: Sequence[str]) -> None:
        self._context, self._query, self._how, self._names = context, query, how, names
        self._span = seconds("--wait", how.wait) or 0.0
        store = context.store_if_any if names else None
        crawls = [crawl for crawl in store.crawls() if crawl.id in names] if store is not None else []
        self._crawls = {crawl.id for crawl in crawls}
        # Producers that run: they would send the batches of what is cancelled to other nodes.
        self._producers = [crawl for crawl in crawls if runs(crawl)]
        self._listed = query.ask(context)

    def run(self, output: Output) -> int:
        """Cancel the jobs after a question; gives the exit code.

        Raises:
            NothingMatched: there are none, and no producer to be stopped either.
            StillThere: after the wait.
        """
        rows = self._named()
        if not self._how.yes:
            lines = [f"{row.place.node.name}  {row.place.spider}  {row.place.job}  {row.state.value}" for row in rows]
            many = len(self._producers)
            running = f" and {many} producers" if many > 1 else " and the producer" if many else ""
            count = f"{counted(len(rows), 'job')}{running}"
            confirm(f"Cancel {count}?", lines, most=SHOWN, refusal=f"{count} would be cancelled")
        for producer in self._producers:
            self._stop_producer(producer)
        if self._producers:  # what they sent while they stopped is cancelled with the rest
            self._listed = self._query.ask(self._context)
            rows = self._alive()
        errors = self._signal(rows, "KILL" if self._how.kill else "INT")
        self._wait([row for row in rows if row not in errors])
        told = [
            {**place_row(row.place), "was": row.state.value, "state": "failed" if row in errors else "gone"}
            for row in rows
        ]
        output.columns({"jobs": told}, "jobs", ("node", "spider", "job", "was", "state"))
        complain_each(errors.values())
        self._listed.complain()
        return exit_code(len(rows), errors.values()) or self._listed.exit_code

    def _named(self) -> list[Listed]:
        stopped = {producer.id for producer in self._producers}
        if left := [name for name in self._names if name not in stopped]:
            self._listed.named(left, {})  # says which one there is not
        rows = self._alive()
        if not rows and not stopped:
            self._listed.must_answer()
            self._listed.complain()
            what = f"{', '.join(self._names)}: over already" if self._names else "no job is pending or running"
            raise NothingMatched(f"There is nothing to cancel ({what}). `sdist jobs` says how jobs ended.")
        return rows

    def _alive(self) -> list[Listed]:
        """The jobs that are not over. A name that is a crawl's means the crawl, not a job that is called so as well."""
        jobs = set(self._names) - self._crawls
        return [
            row
            for row in self._listed.jobs
            if not row.over and (not self._names or row.place.job in jobs or row.place.crawl in self._names)
        ]

    def _stop_producer(self, producer: Crawl) -> None:
        say(f"Stopping the producer of {producer.id}; `sdist resume {producer.id}` goes on with the crawl later.")
        deadline = time.monotonic() + self._span
        interrupt(self._context.root, producer)
        store = self._context.store
        store.want(producer.id, "cancel")  # it may be on another machine
        if not poll_until(lambda: not lives(store.crawl(producer.id)), LOOK, deadline=deadline):
            raise StillThere(
                f"The producer of {producer.id} (process {producer.pid}) has not stopped within {self._span:g} "
                "seconds, so no job was cancelled: it would send their batches to other nodes. Wait longer with --wait."
            )

    def _signal(self, rows: Sequence[Listed], signal: str) -> dict[Listed, NodeError]:
        """Send the jobs a signal; gives those whose node did not take it."""

        def send(row: Listed) -> None:
            call = api.cancel(row.place.project, row.place.job, signal)
            self._context.sender.send(row.place.node, call, timeout=self._query.timeout)

        for row in rows:
            if row.state is JobState.RUNNING:
                note(self._context.root, row.place, signal)
        return {answer.asked: answer.error for answer in sweep(rows, send) if answer.error is not None}

    def _wait(self, left: list[Listed]) -> None:
        begun, again = time.monotonic(), self._how.force and not self._how.kill
        while left := self._left(left):
            waited = time.monotonic() - begun
            if again and waited >= min(PATIENCE, self._span / 2):
                again = False
                self._signal(left, "INT")
            elif waited >= self._span:
                raise StillThere(self._still_there(left))
            time.sleep(LOOK)

    def _left(self, rows: Sequence[Listed]) -> list[Listed]:
        """Those that are not gone, as far as their nodes tell."""

        def is_there(row: Listed) -> bool:
            call = api.status(row.place.job, row.place.project)
            state = self._context.sender.send(row.place.node, call, timeout=self._query.timeout)
            return state in {JobState.PENDING, JobState.RUNNING}

        there = {answer.asked: answer.error is not None or answer.value for answer in sweep(rows, is_there)}
        return [row for row in rows if there[row]]

    def _still_there(self, left: Sequence[Listed]) -> str:
        names = some_of([f"{row.place.job} ({row.place.node.name})" for row in left], SHOWN)
        sent, hint = "INT was sent", "Go on with: sdist cancel --force."
        if self._how.kill:
            sent, hint = "KILL was sent", "Look at the nodes: sdist nodes."
        elif self._how.force:
            sent, hint = "INT was sent twice", "Go on with: sdist cancel --kill."
        return f"Still there after {self._span:g} seconds: {names}. {sent}. {hint}"
