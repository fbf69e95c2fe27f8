"""`sdist crawls wait`, `cancel` and `stop`: how crawls and jobs end, by themselves or by a command.

The rules it keeps: waiting changes nothing, and a node that does not answer decides nothing;
without a selector nothing is cancelled.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Annotated, Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import PARTIAL, ApiRefused, ConfigError, NodeError, NothingMatched
from scrapyd_dist.fleet.live_crawls import lives, runs
from scrapyd_dist.job_queue import attempts_of, chains
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.joblogs.log_reads import read_log_end
from scrapyd_dist.node_answers import exit_code
from scrapyd_dist.nodes import Node
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import summary_of
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.store import Store
from scrapyd_dist.transports import Sender, job_state, sweep

from ..context import Context
from ..crawls.crawl import CrawlId
from ..crawls.producer_process import crawl_or_latest, interrupt
from ..crawls.watcher import LOOK, ProducerDied, StillRuns, interruptible_pause, watch_row
from ..options import Nodes, Timeout, Yes, argument, crawls, option, span
from ..output import Output, complain, complain_each, confirm, poll_until, say, some_of
from .job_list import TIMEOUT, JobList, JobQuery, Listed, ask_jobs, by_key, place_row, remembered
from .job_memory import JobMemory, Judged, is_quiet
from .jobs_table import Judge, verdict_row
from .signals import SentSignals, note

#: seconds between two questions to the nodes
ASK = 2.0
#: seconds between two looks at whether the jobs are gone
GONE_LOOK = 0.5
#: seconds that a job gets to stop in good order before --force sends the second signal
PATIENCE = 3.0
#: jobs that are named in the question
SHOWN = 10
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


def _wait_for(
    find_left: Callable[[], list[str]], every: float, deadline: float, kind: str, see: str
) -> None:
    """Ask every so many seconds what is left, until nothing is; StillRuns at the deadline.

    kind: what is waited for; see: the command that shows more of one.
    """
    with interruptible_pause() as pause:
        while names := find_left():
            if time.monotonic() >= deadline:
                raise StillRuns(
                    f"The {kind} {names[0]} still runs (--timeout), and goes on without this"
                    f" command. Go on with: {see} {names[0]}"
                )
            pause(every)


def _wait_for_crawls(
    context: Context, names: Sequence[str | None], deadline: float, output: Output
) -> int:
    store = context.store
    ids = []
    for name in dict.fromkeys(names):
        crawl = crawl_or_latest(store, name)
        ids.append(crawl.id)
    waited = _WaitedCrawls(context, ids)
    _wait_for(waited.find_left, LOOK, deadline, "crawl", "sdist watch")
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
    _check_posted(context, names)
    last = _last_attempts(context, names, deadline)
    ended = _wait_and_judge(context, last, nodes, deadline)
    # The judgement of a job may make it wait for one more attempt.
    while (following := _last_attempts(context, last, deadline)) != last:
        last = following
        ended = _wait_and_judge(context, last, nodes, deadline)
    rows = []
    codes = []
    for job in ended:
        verdict = job.verdict
        rows.append({**place_row(job.row), **verdict_row(verdict), "reason": verdict.reason})
        codes.append(int(verdict.outcome is not Outcome.FINISHED))
        if verdict.outcome is not Outcome.FINISHED:
            complain(_bad_end(job))
    return combined(codes), {"jobs": rows}


def _bad_end(job: Judged) -> str:
    how = _HOW_ENDED.get(job.verdict.outcome, "left nothing that tells how it ended")
    reason = ""
    if job.verdict.reason:
        reason = f": {job.verdict.reason}".rstrip(".")
    return f"The job {job.row.job} on {job.row.node.name} {how}{reason}."


def _check_posted(context: Context, names: Collection[str]) -> None:
    """Raise ConfigError for a job that has not been given to a node yet."""
    for record in _waiting_in_store(context, names):
        if record.attempt == 1:
            raise ConfigError(
                f"The job {record.id} waits in the store ({record.waits_for}), and is on no node."
                " `sdist jobs schedule --resume` starts what may start, and waits until it is over."
            )


def _waiting_in_store(context: Context, names: Collection[str]) -> list[JobRecord]:
    """Return those of these jobs, or of their attempts, that wait in the store."""
    store = context.store_if_any
    if store is None:
        return []
    wanted = set(names)
    waiting = []
    for record in store.jobs(OPEN_ONLY):
        is_wanted = record.id in wanted or record.first in wanted
        if is_wanted and record.state is Outcome.WAITING:
            waiting.append(record)
    return waiting


def _last_attempts(context: Context, names: Sequence[str], deadline: float) -> tuple[str, ...]:
    """Return the ids of the last attempts of these jobs, once none of those waits in the store."""
    store = context.store_if_any
    if store is None:
        return tuple(dict.fromkeys(names))
    first_ids = {}
    for record in store.jobs():
        first_ids[record.id] = record.first or record.id
    firsts = [first_ids.get(name, name) for name in names]
    find_left = partial(_announce_waiting, context, firsts, set())
    _wait_for(find_left, ASK, deadline, "job", "sdist jobs; sdist crawls wait --job")
    last = chains(attempts_of(store.jobs(), firsts))
    ids: dict[str, None] = {}
    for first in firsts:
        if first in last:
            ids[last[first].id] = None
        else:
            ids[first] = None
    return tuple(ids)


def _announce_waiting(context: Context, names: Sequence[str], announced: set[str]) -> list[str]:
    """Return those of these jobs that wait in the store; each is announced once."""
    waiting = []
    for record in _waiting_in_store(context, names):
        waiting.append(record.id)
        if record.id in announced:
            continue
        announced.add(record.id)
        say(
            f"{record.id}, the next attempt, waits in the store. If no such command runs:"
            " sdist jobs schedule --resume"
        )
    return waiting


def _wait_and_judge(
    context: Context, names: Sequence[str], nodes: Sequence[Node], deadline: float
) -> list[Judged]:
    """Return how these jobs ended, once all are over."""
    known = remembered(context, names, nodes)
    over = set[str]()
    store = context.store_if_any
    if store is not None:
        for record in store.jobs():
            if record.state.over and record.id in names:
                over.add(record.id)
    waited = Waited(
        sender=context.sender, nodes=nodes, names=tuple(names), remembered=known, over=over
    )
    _wait_for(waited.left, ASK, deadline, "job", "sdist logs -f")
    rows = [replace(row, state=JobState.FINISHED) for row in waited.jobs.values()]
    return Judge(context, rows).all(rows)


@dataclass(kw_only=True)
class Waited:
    """The jobs that are waited for, as their nodes listed them last."""

    sender: Sender
    nodes: Sequence[Node]
    names: tuple[str, ...]  #: ids of jobs
    #: by name, what the store knows
    remembered: Mapping[str, Sequence[Listed]] = field(default_factory=dict)
    over: Collection[str] = ()  #: the jobs of which the store knows that they are over
    #: by the base address of the node and the id; empty until the nodes have been asked
    jobs: dict[tuple[str, str], Listed] = field(default_factory=dict)
    _complaints: set[str] = field(default_factory=set)  #: which nodes do not answer, and why

    def left(self) -> list[str]:
        """Ask the nodes once, and return the ids of the jobs that are not over."""
        if self._all_are_remembered():
            self.jobs = {}
            for name in self.names:
                self.jobs |= by_key(self.remembered[name])
            return []
        found = ask_jobs(self.sender, self.nodes, timeout=TIMEOUT)
        if not self.jobs:
            found.must_answer()
        self._complain_once(found)
        if not self.jobs:
            self.jobs = by_key(found.named(self.names, self.remembered))
        listed = by_key(found.jobs)
        left = []
        for key, row in self.jobs.items():
            now = listed.get(key, row)
            self.jobs[key] = now
            if not self._is_over(now, found, is_listed=key in listed):
                left.append(now.job)
        return left

    def _all_are_remembered(self) -> bool:
        """Tell whether the store knows of each job that it is over, so that no node is asked."""
        over = self.remembered.keys() & self.over
        return over.issuperset(self.names)

    def _complain_once(self, found: JobList) -> None:
        """Name the nodes that do not answer, but not again while they are waited for."""
        texts = set(map(str, found.about(self.names).errors))
        complain_each(texts - self._complaints)
        self._complaints = texts

    def _is_over(self, row: Listed, found: JobList, *, is_listed: bool) -> bool:
        if row.job in self.over:
            return True
        if is_listed:
            return row.over
        return row.node.url not in found.silent and self._has_gone_silent(row)

    def _has_gone_silent(self, row: Listed) -> bool:
        """Tell whether the log of a job that its node has forgotten says that it is over.

        The job may live on as an orphan.
        """
        if row.over and not row.remembered:
            return True
        try:
            seen = read_log_end(self.sender, row.node, row.log, timeout=TIMEOUT)
        except NodeError:
            return False
        return seen is None or is_quiet(seen)


@dataclass(frozen=True, kw_only=True)
class SignalOptions:
    """How jobs are told to end, as options of a command."""

    force: Annotated[
        bool, option(f"Send INT again to what is not gone after {PATIENCE:g} seconds.")
    ] = False
    kill: Annotated[bool, option("Send KILL: at once, without a word in the job's log.")] = False
    yes: Yes = False
    wait: Annotated[float, span("--wait", "How long to wait until they are gone.")] = 60


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
    whole crawl, as `sdist crawls stop` does. Exit code 124 when some are still
    there, also when they run on a node whose Scrapyd was started anew.

    Example: sdist jobs cancel --crawl easy-20260102T030405Z
    """
    if bool(job) + (crawl is not None) + all_ != 1:
        raise ConfigError(
            "Name what to cancel: ids of jobs, or --crawl CRAWL, or --all. One of the three."
        )
    names = job or []
    if crawl:
        names = [crawl]
    return _Cancellation(context, query, how, names).run(output)


def stop(
    *,
    context: Context,
    crawl: CrawlId,
    how: SignalOptions,
    timeout: Timeout = TIMEOUT,
    output: Output,
) -> int:
    """Stop a crawl: its producer first, then its jobs on all nodes. `sdist resume` goes on with it.

    What is done stays done. A running job gets INT: it ends its requests and
    closes with the reason "shutdown"; its batch is crawled again by `sdist
    resume`. The same as `sdist jobs cancel --crawl CRAWL`. Exit code 4 when nothing of
    it runs, 124 when some jobs are still there.

    Example: sdist crawls stop easy-20260102T030405Z
    """
    return _Cancellation(context, JobQuery(timeout=timeout), how, [crawl]).run(output)


def _cancelled(record: JobRecord) -> JobRecord:
    return replace(
        record,
        state=Outcome.CANCELLED,
        ended=time.time(),
        reason="by sdist jobs cancel, before it began",
    )


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


def _shown(rows: Sequence[Listed]) -> str:
    return some_of([f"{row.job} ({row.node.name})" for row in rows], SHOWN)


def _no_second_signal(rows: Sequence[Listed]) -> str:
    return (
        "Told to end before, so no second INT is sent, which would end it at once (--force does"
        f" that): {_shown(rows)}."
    )


def _not_listed(orphans: Sequence[Judged]) -> StillRuns:
    labels = []
    for orphan in orphans:
        row = orphan.row
        labels.append(f"{row.job} ({row.node.name}, {orphan.verdict.outcome.value})")
    return StillRuns(
        "Not listed by the node, as after a restart of its Scrapyd, and so not to be cancelled"
        f" there: {some_of(labels, SHOWN)}. Scrapyd leaves jobs running when it ends. On that"
        f" machine: kill -INT $(pgrep -f {orphans[0].row.job})"
    )


def _with_remedy(row: Listed, error: NodeError) -> NodeError:
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


class _Cancellation:
    """What is to be cancelled: jobs and crawls by name, or all jobs where none is named."""

    def __init__(
        self, context: Context, query: JobQuery, how: SignalOptions, names: Sequence[str]
    ) -> None:
        self._context = context
        self._query = query
        self._how = how
        self._names = names
        self._crawls = set[str]()  #: those of the names that are of crawls
        #: crawls whose producers run: they would send the batches of what is cancelled elsewhere
        self._producers: list[Crawl] = []
        store = context.store_if_any if names else None
        if store is not None:
            self._names = _open_attempts(store.jobs(), names)
            self._find_crawls(store, names)
        self._listed = query.list_jobs(context).about(self._names)
        self._memory = JobMemory(context.store_if_any, None if names else OPEN_ONLY)

    def _find_crawls(self, store: Store, names: Sequence[str]) -> None:
        for crawl in store.crawls():
            if crawl.id not in names:
                continue
            self._crawls.add(crawl.id)
            if runs(crawl):
                self._producers.append(crawl)

    def run(self, output: Output) -> int:
        """Cancel the jobs after a question, and return the exit code; StillRuns after the wait."""
        rows = self._find_listed()
        waiting = self._find_waiting()
        if self._orphans and not (rows or waiting or self._producers):
            raise _not_listed(self._orphans)
        if not self._how.yes:
            self._confirm(rows, waiting)
        # Before any room is made for them.
        self._memory.change(dict.fromkeys(waiting, _cancelled_if_waiting))
        for producer in self._producers:
            self._stop_producer(producer)
        if self._producers:  # what they sent while they stopped is cancelled with the rest
            self._listed = self._query.list_jobs(self._context).about(self._names)
            rows = self._find_open()
        errors = self._end(rows)
        self._show(waiting.values(), rows, errors, output)
        complain_each(errors.values())
        complain_each(self._listed.errors)
        if self._orphans:
            raise _not_listed(self._orphans)
        return exit_code(len(rows), errors.values()) or self._listed.exit_code

    def _find_listed(self) -> list[Listed]:
        """Return the open jobs that nodes list; NothingMatched if there is nothing to cancel."""
        waiting = self._find_waiting()
        self._check_names(waiting)
        rows = self._find_open()
        if rows or waiting or self._producers or self._orphans:
            return rows
        self._listed.must_answer()
        complain_each(self._listed.errors)
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

    def _find_open(self) -> list[Listed]:
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
        query = self._query
        if query.node or query.project not in (None, waiting.project):
            return False
        return fnmatchcase(waiting.spider, query.spider or "*")

    @cached_property
    def _unlisted(self) -> list[Judged]:
        """The jobs that are meant, are remembered as posted, and are listed by no node."""
        nodes = self._context.nodes(self._query.node)
        posted = []
        for row in self._memory.unlisted(self._listed, nodes, self._query):
            is_meant = not self._names or row.job in self._names
            if is_meant and self._memory.records[row.job].state is not Outcome.WAITING:
                posted.append(row)
        return Judge(self._context, posted, self._memory, timeout=self._query.timeout).all(posted)

    @property
    def _orphans(self) -> list[Judged]:
        """Those of the unlisted jobs that go on."""
        orphans = []
        for job in self._unlisted:
            goes_on = job.sure and not job.verdict.outcome.over
            if goes_on:
                orphans.append(job)
        return orphans

    def _confirm(self, rows: Sequence[Listed], waiting: Mapping[str, JobRecord]) -> None:
        lines = []
        for record in waiting.values():
            line = f"-  {record.spider}  {record.id}  {record.state.value}"
            lines.append(line)
        for row in rows:
            line = f"{row.node.name}  {row.spider}  {row.job}  {row.state.value}"
            lines.append(line)
        count = counted(len(rows) + len(waiting), "job")
        if len(self._producers) > 1:
            count += f" and {len(self._producers)} producers"
        elif self._producers:
            count += " and the producer"
        confirm(f"Cancel {count}?", lines, most=SHOWN, refusal=f"{count} would be cancelled")

    def _stop_producer(self, producer: Crawl) -> None:
        say(
            f"Stopping the producer of {producer.id}; `sdist resume {producer.id}` goes on with the"
            " crawl later."
        )
        deadline = time.monotonic() + self._how.wait
        interrupt(self._context.root, producer)
        store = self._context.store
        store.want(producer.id, "cancel")  # it may be on another machine
        if not poll_until(lambda: not lives(store.crawl(producer.id)), GONE_LOOK, deadline):
            raise StillRuns(
                f"The producer of {producer.id} (process {producer.pid}) has not stopped within"
                f" {self._how.wait:g} seconds, so no job was cancelled: it would send their batches"
                " to other nodes. Wait longer with --wait."
            )

    def _end(self, rows: Sequence[Listed]) -> dict[Listed, NodeError]:
        """Signal the jobs and wait until they are gone; returns those that took no signal."""
        if self._how.kill:
            errors = self._signal(rows, "KILL")
        else:
            errors = self._signal(self._without_signalled(rows), "INT")
        signalled = [row for row in rows if row not in errors]
        self._wait(signalled)
        # A pending job leaves no log that would tell how it ended.
        pending = [row for row in signalled if row.state is JobState.PENDING]
        self._change_remembered(pending, _cancelled)
        return errors

    def _without_signalled(self, rows: Sequence[Listed]) -> list[Listed]:
        """Leave out, and name, the running jobs that were told to end before, by whomever.

        A second INT is an unclean end. Of a node that does not answer, only what was sent from
        here is known.
        """
        running = [row for row in rows if row.state is JobState.RUNNING]
        check = partial(self._was_signalled, SentSignals(self._context.root))
        found = set[Listed]()
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
            say(_no_second_signal(signalled))
        return rest

    def _was_signalled(self, signals: SentSignals, row: Listed) -> bool:
        record = self._memory.record_of(row)
        if signals.was_signalled(row) or (record is not None and record.signals):
            return True
        seen = read_log_end(self._context.sender, row.node, row.log, timeout=self._query.timeout)
        return seen is not None and seen.facts.signalled

    def _signal(self, rows: Sequence[Listed], signal: str) -> dict[Listed, NodeError]:
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
        self, rows: Sequence[Listed], change: Callable[[JobRecord], JobRecord]
    ) -> None:
        changes = {}
        for row in rows:
            if self._memory.record_of(row) is not None:
                changes[row.job] = change
        self._memory.change(changes)

    def _note_signal(self, rows: Sequence[Listed], signal: str, *, taken: bool) -> None:
        for row in rows:
            if row.state is JobState.RUNNING:
                note(self._context.root, row, signal, taken=taken)

    def _send(self, row: Listed, signal: str) -> None:
        call = api.cancel(row.project, row.job, signal)
        self._context.sender.send(row.node, call, timeout=self._query.timeout)

    def _wait(self, rows: Sequence[Listed]) -> None:
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
            time.sleep(GONE_LOOK)

    def _find_left(self, rows: Sequence[Listed]) -> list[Listed]:
        """Return those that are not gone, as far as their nodes tell."""
        left = set[Listed]()
        for answer in sweep(rows, self._is_there):
            if answer.error is not None or answer.value:
                left.add(answer.asked)
        return [row for row in rows if row in left]

    def _is_there(self, row: Listed) -> bool:
        timeout = self._query.timeout
        state = job_state(self._context.sender, row.node, row.job, row.project, timeout)
        return state in {JobState.PENDING, JobState.RUNNING}

    def _still_there(self, left: Sequence[Listed]) -> StillRuns:
        if self._how.kill:
            advice = "KILL was sent. Look at the nodes: sdist nodes."
        elif self._how.force:
            advice = "INT was sent twice. Go on with: sdist jobs cancel --kill."
        else:
            advice = "INT was sent. Go on with: sdist jobs cancel --force."
        return StillRuns(f"Still there after {self._how.wait:g} seconds: {_shown(left)}. {advice}")

    def _show(
        self,
        waiting: Iterable[JobRecord],
        rows: Sequence[Listed],
        errors: Mapping[Listed, NodeError],
        output: Output,
    ) -> None:
        jobs: list[dict[str, Any]] = []
        for record in waiting:
            shown = {
                "node": None,
                "project": record.project,
                "spider": record.spider,
                "job": record.id,
                "was": record.state.value,
                "state": "gone",
            }
            jobs.append(shown)
        for row in rows:
            state = "failed" if row in errors else "gone"
            jobs.append({**place_row(row), "was": row.state.value, "state": state})
        output.columns({"jobs": jobs}, "jobs", ("node", "spider", "job", "was", "state"))
