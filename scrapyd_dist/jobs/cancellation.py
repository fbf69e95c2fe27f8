"""Cancels jobs: takes them from their queues, or tells them to end, and waits until they are gone.

The rule it keeps: without a selector nothing is cancelled, and no job gets a second signal that
would end it at once unless that is asked for.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ApiRefused, NodeError, NothingMatched, StillRuns
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.joblogs.log_reads import read_log_end
from scrapyd_dist.messenger import NO_MESSENGER
from scrapyd_dist.node_answers import answers_exit_code
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.store import Store
from scrapyd_dist.transports import job_state, sweep

from .job_judge import JobJudge
from .job_list import JobFilter, JobList, ListedJob
from .job_memory import JobMemory
from .job_rows import place_row
from .job_site import JobSite
from .judged_job import JudgedJob
from .queue_decision import attempts_of
from .sent_signals import SentSignals, note_signal

#: seconds between two looks at whether the jobs are gone
GONE_LOOK = 0.5
#: seconds that a job gets to stop in good order before the second signal
PATIENCE = 3.0
#: jobs that are named in a message
SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class SignalTerms:
    """How jobs are told to end, and how long they get."""

    force: bool = False  #: whether INT is sent again to what is not gone after `PATIENCE`
    kill: bool = False  #: whether KILL is sent: at once, without a word in the job's log
    wait: float = 60.0  #: seconds until they must be gone


class ProducerControl(Protocol):
    """Stops the processes of crawls."""

    def runs(self, crawl: Crawl) -> bool:
        """Tell whether the crawl has not ended, and its process runs."""
        ...

    def stop(self, crawl: Crawl, wait: float) -> bool:
        """Make the process stop, and tell whether it did within so many seconds."""
        ...


@dataclass(frozen=True, kw_only=True)
class CancelPlan:
    """What would be cancelled."""

    jobs: tuple[ListedJob, ...]  #: on nodes
    waiting: tuple[JobRecord, ...]  #: in the store
    producers: tuple[Crawl, ...]  #: crawls whose processes are stopped before


@dataclass(frozen=True, kw_only=True)
class CancelResult:
    """What came of a cancellation."""

    waiting: tuple[JobRecord, ...]  #: as they were in the store; they are gone
    jobs: tuple[ListedJob, ...]  #: as they were on nodes
    errors: Mapping[ListedJob, NodeError]  #: of the jobs that took no signal
    listed: JobList  #: what the nodes answered when they were asked for their jobs
    still_running: StillRuns | None  #: about jobs that go on where they are not to be cancelled

    @property
    def exit_code(self) -> int:
        """By the nodes: 0, 3, 5 or 6."""
        return answers_exit_code(len(self.jobs), self.errors.values()) or self.listed.exit_code

    def document(self) -> dict[str, Any]:
        """Return what became of each job, for JSON."""
        jobs: list[dict[str, Any]] = []
        for record in self.waiting:
            row = {
                "node": None,
                "project": record.project,
                "spider": record.spider,
                "job": record.id,
                "was": record.state.value,
                "state": "gone",
            }
            jobs.append(row)
        for job in self.jobs:
            state = "failed" if job in self.errors else "gone"
            jobs.append({**place_row(job), "was": job.state.value, "state": state})
        return {"jobs": jobs}


def _cancelled(record: JobRecord) -> JobRecord:
    return record.end(Outcome.CANCELLED, time.time(), "by sdist jobs cancel, before it began")


def _cancelled_if_waiting(record: JobRecord) -> JobRecord:
    # It may have been started meanwhile.
    return _cancelled(record) if record.state is Outcome.WAITING else record


def _with_signal(record: JobRecord, signal: str) -> JobRecord:
    return replace(record, signals=(*record.signals, signal))


def _without_last_signal(record: JobRecord) -> JobRecord:
    return replace(record, signals=record.signals[:-1])


def _open_attempts(records: Sequence[JobRecord], names: Sequence[str]) -> list[str]:
    """Return the names, with the id of its open attempt in place of a job that has one."""
    found = list[str]()
    for name in names:
        attempts = attempts_of(records, [name])
        still_open = [attempt.id for attempt in attempts if not attempt.state.over]
        found += still_open or [name]
    return found


def _name_some(rows: Sequence[ListedJob]) -> str:
    return some_of([f"{row.job} ({row.node.name})" for row in rows], SHOWN)


def _no_second_signal(rows: Sequence[ListedJob], *, force: bool) -> str:
    named = _name_some(rows)
    if force:
        return f"Told to end before: {named}. After a while a second INT ends it at once (--force)."
    return (
        "Told to end before, so no second INT is sent, which would end it at once (--force does"
        f" that): {named}."
    )


def _not_listed(orphans: Sequence[JudgedJob]) -> StillRuns:
    labels = []
    for orphan in orphans:
        row = orphan.row
        labels.append(f"{row.job} ({row.node.name}, {orphan.verdict.outcome.value})")
    return StillRuns(
        "Not listed by the node, as after a restart of its Scrapyd, and so not to be cancelled"
        f" there: {some_of(labels, SHOWN)}. Scrapyd leaves jobs running when it ends. On that"
        f" machine: kill -INT $(pgrep -f {orphans[0].row.job})"
    )


def _with_remedy(row: ListedJob, error: NodeError) -> NodeError:
    """Return the error; where the node does not have the project, one that says what to do.

    Scrapyd cancels nothing of a project that it does not have.
    """
    if not isinstance(error, ApiRefused) or "not found" not in error.scrapyd_message:
        return error
    return ApiRefused(
        f"{row.node.name} has the project {row.project} no more, and its Scrapyd cancels no job of"
        f" a project that it does not have: {row.job} runs on. Give it the code again, then cancel:"
        f" sdist deploy {row.node.name}. Or end the process on that machine: kill -INT $(pgrep -f"
        f" {row.job})"
    )


class Cancellation:
    """What is to be cancelled: jobs and crawls by name, or all jobs where none is named.

    wanted: whose jobs are meant; producers: the processes of crawls, which would send the batches
    of what is cancelled elsewhere.
    """

    def __init__(
        self,
        site: JobSite,
        wanted: JobFilter,
        names: Sequence[str],
        how: SignalTerms,
        producers: ProducerControl,
    ) -> None:
        self._site = site
        self._wanted = wanted
        self._how = how
        self._names = names
        self._control = producers
        self._crawls = set[str]()  #: those of the names that are of crawls
        self._producers: list[Crawl] = []  #: crawls whose producers run
        store = site.store if names else None
        if store is not None:
            self._names = _open_attempts(store.jobs(), names)
            self._find_crawls(store, names)
        self._listed = wanted.list_jobs(site).about(self._names)
        self._memory = JobMemory(
            site.store, None if names else OPEN_ONLY, site.messenger, nodes=wanted.nodes
        )

    def _find_crawls(self, store: Store, names: Sequence[str]) -> None:
        for crawl in store.crawls():
            if crawl.id not in names:
                continue
            self._crawls.add(crawl.id)
            if self._control.runs(crawl):
                self._producers.append(crawl)

    def plan(self) -> CancelPlan:
        """Return what would be cancelled.

        Raises:
            NothingMatched: there is nothing to cancel, or a name means nothing.
            StillRuns: all that is left goes on where it is not to be cancelled.
        """
        jobs = self._find_listed()
        waiting = self._find_waiting()
        if self._orphans and not (jobs or waiting or self._producers):
            raise _not_listed(self._orphans)
        return CancelPlan(
            jobs=tuple(jobs), waiting=tuple(waiting.values()), producers=tuple(self._producers)
        )

    def carry_out(
        self, plan: CancelPlan, show: Callable[[str], object] = NO_MESSENGER.say
    ) -> CancelResult:
        """Cancel the jobs, and wait until they are gone; `show` gets what is waited for.

        Raises:
            StillRuns: a producer did not stop, or jobs are still there after the wait.
        """
        # Before any room is made for them.
        waiting = [record.id for record in plan.waiting]
        self._memory.change(dict.fromkeys(waiting, _cancelled_if_waiting))
        for producer in plan.producers:
            self._stop_producer(producer)
        jobs: Sequence[ListedJob] = plan.jobs
        if plan.producers:  # what they sent while they stopped is cancelled with the rest
            self._listed = self._wanted.list_jobs(self._site).about(self._names)
            jobs = self._find_open()
        errors = self._end(jobs, show)
        still_running = None
        if self._orphans:
            still_running = _not_listed(self._orphans)
        return CancelResult(
            waiting=plan.waiting,
            jobs=tuple(jobs),
            errors=errors,
            listed=self._listed,
            still_running=still_running,
        )

    def _find_listed(self) -> list[ListedJob]:
        """Return the open jobs that nodes list; NothingMatched if there is nothing to cancel."""
        waiting = self._find_waiting()
        self._check_names(waiting)
        rows = self._find_open()
        if rows or waiting or self._producers or self._orphans:
            return rows
        self._listed.must_answer()
        self._site.messenger.complain_each(self._listed.errors)
        what = "no job is pending or running"
        if self._names:
            what = f"{', '.join(self._names)}: over already"
        raise NothingMatched(
            f"There is nothing to cancel ({what}). `sdist jobs` says how jobs ended."
        )

    def _check_names(self, waiting: Collection[str]) -> None:
        """Raise NothingMatched for a name that means nothing in the store or on the nodes."""
        known = set(waiting)
        for producer in self._producers:
            known.add(producer.id)
        for job in self._unlisted:
            known.add(job.row.job)
        listed = [name for name in self._names if name not in known]
        if listed:
            self._listed.named(listed, {})

    def _find_open(self) -> list[ListedJob]:
        """Return the listed jobs that are meant and not over.

        A name that is a crawl's means the crawl, not a job that is called so as well.
        """
        jobs = set(self._names) - self._crawls
        found = []
        for row in self._listed.jobs:
            is_meant = not self._names or row.job in jobs or row.crawl in self._names
            if is_meant and not row.over:
                found.append(row)
        return found

    def _find_waiting(self) -> dict[str, JobRecord]:
        """Return the jobs that wait in the store and are meant, by id."""
        waiting = {}
        for record in self._memory.records.values():
            if record.state is Outcome.WAITING and self._is_meant(record):
                waiting[record.id] = record
        return waiting

    def _is_meant(self, waiting: JobRecord) -> bool:
        if self._names:
            return waiting.id in self._names
        wanted = self._wanted
        return not wanted.narrowed and wanted.means(waiting.project, waiting.spider)

    @cached_property
    def _unlisted(self) -> list[JudgedJob]:
        """The jobs that are meant, are remembered as posted, and are listed by no node."""
        posted = []
        for row in self._memory.unlisted(self._listed, self._wanted):
            is_meant = not self._names or row.job in self._names
            if is_meant and self._memory.records[row.job].state is not Outcome.WAITING:
                posted.append(row)
        judge = JobJudge(self._site, posted, self._memory, timeout=self._wanted.timeout)
        return judge.all(posted)

    @property
    def _orphans(self) -> list[JudgedJob]:
        """Those of the unlisted jobs that go on."""
        orphans = []
        for job in self._unlisted:
            goes_on = job.sure and not job.verdict.outcome.over
            if goes_on:
                orphans.append(job)
        return orphans

    def _stop_producer(self, producer: Crawl) -> None:
        self._site.messenger.say(
            f"Stopping the producer of {producer.id}; `sdist resume {producer.id}` goes on with the"
            " crawl later."
        )
        if not self._control.stop(producer, self._how.wait):
            raise StillRuns(
                f"The producer of {producer.id} (process {producer.pid}) has not stopped within"
                f" {self._how.wait:g} seconds, so no job was cancelled: it would send their batches"
                " to other nodes. Wait longer with --wait."
            )

    def _end(
        self, rows: Sequence[ListedJob], show: Callable[[str], object]
    ) -> dict[ListedJob, NodeError]:
        """Signal the jobs and wait until they are gone; returns those that took no signal."""
        if self._how.kill:
            errors = self._signal(rows, "KILL")
        else:
            errors = self._signal(self._without_signalled(rows), "INT")
        signalled = [row for row in rows if row not in errors]
        self._wait(signalled, show)
        # A pending job leaves no log that would tell how it ended.
        pending = [row for row in signalled if row.state is JobState.PENDING]
        self._change_remembered(pending, _cancelled)
        return errors

    def _without_signalled(self, rows: Sequence[ListedJob]) -> list[ListedJob]:
        """Leave out, and name, the running jobs that were told to end before, by whomever.

        A second INT is an unclean end. Of a node that does not answer, only what was sent from
        here is known.
        """
        running = [row for row in rows if row.state is JobState.RUNNING]
        check = partial(self._was_signalled, SentSignals(self._site.root))
        found = set[ListedJob]()
        for answer in sweep(running, check):
            if answer.value:
                found.add(answer.asked)
        signalled = []
        rest = []
        for row in rows:
            if row in found:
                signalled.append(row)
            else:
                rest.append(row)
        if signalled:
            self._site.messenger.say(_no_second_signal(signalled, force=self._how.force))
        return rest

    def _was_signalled(self, signals: SentSignals, row: ListedJob) -> bool:
        record = self._memory.record_of(row)
        if signals.was_signalled(row) or (record is not None and record.signals):
            return True
        seen = read_log_end(self._site.sender, row.node, row.log, timeout=self._wanted.timeout)
        return seen is not None and seen.facts.signalled

    def _signal(self, rows: Sequence[ListedJob], signal: str) -> dict[ListedJob, NodeError]:
        """Send the jobs a signal; returns those whose node did not take it."""
        # Before it is sent: what a command sees end then is not tried again.
        self._change_remembered(rows, partial(_with_signal, signal=signal))
        self._note_signal(rows, signal, taken=True)
        errors = {}
        untaken = []
        for answer in sweep(rows, partial(self._send, signal=signal)):
            if answer.error is None:
                continue
            errors[answer.asked] = _with_remedy(answer.asked, answer.error)
            if not answer.error.maybe_accepted:
                untaken.append(answer.asked)
        self._change_remembered(untaken, _without_last_signal)
        self._note_signal(untaken, signal, taken=False)
        return errors

    def _change_remembered(
        self, rows: Sequence[ListedJob], change: Callable[[JobRecord], JobRecord]
    ) -> None:
        changes = {}
        for row in rows:
            if self._memory.record_of(row) is not None:
                changes[row.job] = change
        self._memory.change(changes)

    def _note_signal(self, rows: Sequence[ListedJob], signal: str, *, taken: bool) -> None:
        for row in rows:
            if row.state is JobState.RUNNING:
                note_signal(self._site.root, row, signal, taken=taken)

    def _send(self, row: ListedJob, signal: str) -> None:
        call = api.cancel(row.project, row.job, signal)
        self._site.sender.send(row.node, call, timeout=self._wanted.timeout)

    def _wait(self, rows: Sequence[ListedJob], show: Callable[[str], object]) -> None:
        """Wait until the jobs are gone; StillRuns after the time of --wait."""
        left = rows
        begun = time.monotonic()
        sends_again = self._how.force and not self._how.kill
        while left := self._find_left(left):
            waited = time.monotonic() - begun
            if sends_again and waited >= min(PATIENCE, self._how.wait / 2):
                sends_again = False
                self._signal(left, "INT")
            elif waited >= self._how.wait:
                raise self._still_there(left)
            show(
                f"Waiting until {counted(len(left), 'job has', 'jobs have')} ended, at most"
                f" {self._how.wait:g} s (--wait): {_name_some(left)}"
            )
            time.sleep(GONE_LOOK)

    def _find_left(self, rows: Sequence[ListedJob]) -> list[ListedJob]:
        """Return those that are not gone, as far as their nodes tell."""
        left = set[ListedJob]()
        for answer in sweep(rows, self._is_there):
            if answer.error is not None or answer.value:
                left.add(answer.asked)
        return [row for row in rows if row in left]

    def _is_there(self, row: ListedJob) -> bool:
        timeout = self._wanted.timeout
        state = job_state(self._site.sender, row.node, row.job, row.project, timeout)
        return state in {JobState.PENDING, JobState.RUNNING}

    def _still_there(self, left: Sequence[ListedJob]) -> StillRuns:
        if self._how.kill:
            advice = "KILL was sent. Look at the nodes: sdist nodes."
        elif self._how.force:
            advice = "INT was sent twice. Go on with: sdist jobs cancel --kill."
        else:
            advice = "INT was sent. Go on with: sdist jobs cancel --force."
        return StillRuns(
            f"Still there after {self._how.wait:g} seconds: {_name_some(left)}. {advice}"
        )
