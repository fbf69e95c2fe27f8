"""`sdist crawls wait`, `cancel` and `stop`: how crawls and jobs end, by themselves or since they are told to.

The rules it keeps: waiting changes nothing, and a node that does not answer decides nothing; without a selector nothing
is cancelled.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Annotated, Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ApiRefused, ConfigError, NodeError, NothingMatched
from scrapyd_dist.job_queue import attempts_of, chains
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.joblogs.log_reads import look
from scrapyd_dist.nodes import Node
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import told
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.transports import Sender, sweep

from ..context import Context, exit_code
from ..crawls.crawl import CrawlId
from ..crawls.producer_process import crawl_or_latest, interrupt, lives, runs
from ..crawls.watcher import LOOK, ProducerDied, StillRuns, looked_out_for, looks
from ..options import Nodes, Timeout, Yes, argument, crawls, option, span
from ..output import Output, complain, complain_each, confirm, poll_until, say, some_of
from .job_list import TIMEOUT, JobQuery, Listed, ask_jobs, place_row, remembered
from .job_memory import JobMemory, Judged, is_quiet
from .jobs_table import Judge, verdict_row
from .signals import SentSignals, note

#: seconds between two questions to the nodes
ASK = 2.0
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
    return _for_crawls(context, crawl or [None], deadline, output)


def combined(codes: Iterable[int]) -> int:
    """One exit code for several: 0 when all are, 3 when only some are, else the first."""
    every = list(codes)
    if not any(every):
        return 0
    return every[0] if all(every) and 3 not in every else 3 if len(every) > 1 else every[0]


def _wait_for(
    left: Callable[[], list[str]], every: float, deadline: float, kind: str, see: str
) -> None:
    """Look every so many seconds until nothing is left, or raise StillRuns; see: the command that shows more of one."""
    with looked_out_for() as pause:
        while names := left():
            if time.monotonic() >= deadline:
                what = f"The {kind} {names[0]} still runs (--timeout), and goes on without this command."
                raise StillRuns(f"{what} Go on with: {see} {names[0]}")
            pause(every)


def _for_crawls(
    context: Context, names: Sequence[str | None], deadline: float, output: Output
) -> int:
    store = context.store
    ids = [crawl_or_latest(store, name).id for name in dict.fromkeys(names)]
    waited = {name: looks(context.root, store, name) for name in ids}
    codes, died = dict[str, int](), set[str]()

    def left() -> list[str]:
        for name in [name for name in ids if name not in codes]:
            try:
                row = next(waited[name])
                if row.state.ended:
                    codes[name] = row.exit_code if row.exit_code is not None else 1
            except ProducerDied as error:
                complain(str(error))
                died.add(name)
                codes[name] = 1
        return [name for name in ids if name not in codes]

    _wait_for(left, LOOK, deadline, "crawl", "sdist watch")
    rows = [store.crawl(name) for name in ids]
    output.document({"crawls": [{**told(row), "exit_code": codes[row.id]} for row in rows]})
    for row in rows:
        if codes[row.id] and row.id not in died:
            complain(
                row.message
                or f"The crawl {row.id} {row.state.value} with exit code {codes[row.id]}."
            )
    return combined(codes[name] for name in ids)


def wait_for_jobs(
    context: Context, names: Sequence[str], nodes: Sequence[Node], deadline: float = float("inf")
) -> tuple[int, dict[str, Any]]:
    """Wait until these jobs are over, with their later attempts, and say how those ended that were not good.

    Gives the exit code, and what the last attempt of each did.
    """
    for record in _waiting_in(context, names):
        if record.attempt == 1:
            raise ConfigError(
                f"The job {record.id} waits in the store ({record.waits_for}), and is on no node."
                " `sdist jobs schedule --resume` starts what may start, and waits until it is over."
            )
    last = _last_attempts(context, names, deadline)
    ended = _judged(context, last, nodes, deadline)
    while (
        following := _last_attempts(context, last, deadline)
    ) != last:  # which the judgement may have brought about
        last = following
        ended = _judged(context, last, nodes, deadline)
    told = [
        {**place_row(one.row), **verdict_row(one.verdict), "reason": one.verdict.reason}
        for one in ended
    ]
    bad = [one for one in ended if one.verdict.outcome is not Outcome.FINISHED]
    for one in bad:
        how = _HOW_ENDED.get(one.verdict.outcome, "left nothing that tells how it ended")
        reason = f": {one.verdict.reason}" if one.verdict.reason else ""
        complain(f"The job {one.row.job} on {one.row.node.name} {how}{reason.rstrip('.')}.")
    return combined(int(one in bad) for one in ended), {"jobs": told}


def _waiting_in(context: Context, names: Collection[str]) -> list[JobRecord]:
    """Those of these jobs that wait in the store."""
    store = context.store_if_any
    records = store.jobs(OPEN_ONLY) if store is not None else []
    return [
        one for one in records if one.state is Outcome.WAITING and {one.id, one.first} & {*names}
    ]


def _last_attempts(context: Context, names: Sequence[str], deadline: float) -> tuple[str, ...]:
    """The ids of the last attempts of these jobs, once none of those waits in the store."""
    told = set[str]()

    def left() -> list[str]:
        waits = [one.id for one in _waiting_in(context, names)]
        for name in (name for name in waits if name not in told):
            say(
                f"{name}, the next attempt, waits in the store. If no such command runs: sdist jobs schedule --resume"
            )
        told.update(waits)
        return waits

    store = context.store_if_any
    if store is None:
        return tuple(dict.fromkeys(names))
    records = store.jobs()
    firsts = {one.id: one.first or one.id for one in records}
    names = [firsts.get(name, name) for name in names]
    _wait_for(left, ASK, deadline, "job", "sdist jobs; sdist crawls wait --job")
    last = chains(attempts_of(store.jobs(), names))
    return tuple(dict.fromkeys(last[name].id if name in last else name for name in names))


def _judged(
    context: Context, names: Sequence[str], nodes: Sequence[Node], deadline: float
) -> list[Judged]:
    """How these jobs ended, once all are over."""
    known, store = remembered(context, names, nodes), context.store_if_any
    over = (
        {one.id for one in store.jobs() if one.id in names and one.state.over}
        if store is not None
        else set()
    )
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
    names: tuple[str, ...]
    remembered: Mapping[str, Sequence[Listed]] = field(
        default_factory=dict
    )  #: by name, what the store knows
    over: Collection[str] = ()  #: the jobs of which the store knows that they are over
    jobs: dict[tuple[str, str], Listed] = field(
        default_factory=dict
    )  #: by base address of the node, and id
    _told: set[str] = field(default_factory=set)  #: which nodes do not answer, and why

    def left(self) -> list[str]:
        """Ask the nodes once; gives the ids of the jobs that are not over."""
        if all(name in self.over and name in self.remembered for name in self.names):
            self.jobs = {row.key: row for name in self.names for row in self.remembered[name]}
            return []
        found = ask_jobs(self.sender, self.nodes, timeout=TIMEOUT)
        if not self.jobs:
            found.must_answer()
        texts = {str(error) for error in found.about(self.names).errors}
        complain_each(texts - self._told)  # once: it is waited for these nodes
        self._told = texts
        listed = {row.key: row for row in found.jobs}
        if not self.jobs:
            self.jobs = {row.key: row for row in found.named(self.names, self.remembered)}
        left = []
        for key, row in self.jobs.items():
            self.jobs[key] = now = listed.get(key, row)
            if now.job in self.over:
                continue
            if not (
                now.over if key in listed else key[0] not in found.silent and self._is_silent(now)
            ):
                left.append(now.job)
        return left

    def _is_silent(self, row: Listed) -> bool:
        """Of a job that its node has forgotten: whether its log says that it is over. It may live on as an orphan."""
        if row.over and not row.remembered:
            return True
        try:
            seen = look(self.sender, row.node, row.log, timeout=TIMEOUT)
        except NodeError:
            return False
        return seen is None or is_quiet(seen)


#: seconds between two looks at whether the jobs are gone
GONE_LOOK = 0.5
#: seconds that a job gets to stop in good order before --force sends the second signal
PATIENCE = 3.0
#: jobs that are named in the question
SHOWN = 10


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
    return _Cancellation(context, query, how, [crawl] if crawl else job or []).run(output)


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


def _cancelled_waiting(record: JobRecord) -> JobRecord:
    return (
        _cancelled(record) if record.state is Outcome.WAITING else record
    )  # it may have been started meanwhile


def _sent(record: JobRecord, signal: str) -> JobRecord:
    return replace(record, signals=(*record.signals, signal))


def _unsent(record: JobRecord) -> JobRecord:
    return replace(record, signals=record.signals[:-1])


def _cancelled(record: JobRecord) -> JobRecord:
    return replace(
        record,
        state=Outcome.CANCELLED,
        ended=time.time(),
        reason="by sdist jobs cancel, before it began",
    )


def _open_attempts(records: Sequence[JobRecord], names: Sequence[str]) -> list[str]:
    """The same names, but of a job that has an attempt which is not over the id of that one."""
    found = list[str]()
    for name in names:
        attempts = [one.id for one in attempts_of(records, [name]) if not one.state.over]
        found += attempts or [name]
    return found


def _again(rows: Sequence[Listed]) -> str:
    names = some_of([f"{row.job} ({row.node.name})" for row in rows], SHOWN)
    return f"Told to end before, so no second INT is sent, which would end it at once (--force does that): {names}."


def _not_listed(orphans: Sequence[Judged]) -> str:
    names = some_of(
        [f"{one.row.job} ({one.row.node.name}, {one.verdict.outcome.value})" for one in orphans],
        SHOWN,
    )
    return (
        f"Not listed by the node, as after a restart of its Scrapyd, and so not to be cancelled there: {names}. Scrapyd"
        f" leaves jobs running when it ends. On that machine: kill -INT $(pgrep -f {orphans[0].row.job})"
    )


def _with_remedy(row: Listed, error: NodeError) -> NodeError:
    """The error; where its node has the project no more, it says what to do: Scrapyd cancels nothing of it then."""
    if not isinstance(error, ApiRefused) or "not found" not in error.said:
        return error
    text = (
        f"{row.node.name} has the project {row.project} no more, and its Scrapyd cancels no job of a project that it"
        f" does not have: {row.job} runs on. Give it the code again, then cancel: sdist deploy {row.node.name}. Or end"
        f" the process on that machine: kill -INT $(pgrep -f {row.job})"
    )
    return ApiRefused(text)


class _Cancellation:
    """What is to be cancelled: jobs and crawls by name, or all jobs where none is named."""

    def __init__(
        self, context: Context, query: JobQuery, how: SignalOptions, names: Sequence[str]
    ) -> None:
        self._context, self._query, self._how, self._names = context, query, how, names
        store = context.store_if_any if names else None
        if store is not None:
            self._names = _open_attempts(store.jobs(), names)
        crawls = (
            [crawl for crawl in store.crawls() if crawl.id in names] if store is not None else []
        )
        self._crawls = {crawl.id for crawl in crawls}
        # Producers that run: they would send the batches of what is cancelled to other nodes.
        self._producers = [crawl for crawl in crawls if runs(crawl)]
        self._listed = query.ask(context).about(self._names)
        self._memory = JobMemory(context.store_if_any, None if names else OPEN_ONLY)

    def run(self, output: Output) -> int:
        """Cancel the jobs after a question; gives the exit code, or raises StillRuns after the wait."""
        rows = self._named()
        waits = self._waiting()
        if self._orphans and not (rows or waits or self._producers):
            raise StillRuns(_not_listed(self._orphans))
        if not self._how.yes:
            lines = [f"-  {one.spider}  {one.id}  {one.state.value}" for one in waits]
            lines += [
                f"{row.node.name}  {row.spider}  {row.job}  {row.state.value}" for row in rows
            ]
            many = len(self._producers)
            running = f" and {many} producers" if many > 1 else " and the producer" if many else ""
            count = f"{counted(len(rows) + len(waits), 'job')}{running}"
            confirm(f"Cancel {count}?", lines, most=SHOWN, refusal=f"{count} would be cancelled")
        self._memory.change(
            {one.id: _cancelled_waiting for one in waits}
        )  # before any room is made for them
        for producer in self._producers:
            self._stop_producer(producer)
        if self._producers:  # what they sent while they stopped is cancelled with the rest
            self._listed = self._query.ask(self._context).about(self._names)
            rows = self._alive()
        told_before = [] if self._how.kill else self._told_before(rows)
        if told_before:
            say(_again(told_before))
        to_tell = [row for row in rows if row not in told_before]
        errors = self._signal(to_tell, "KILL" if self._how.kill else "INT")
        self._wait([row for row in rows if row not in errors])
        gone = [
            row for row in rows if row not in errors and row.state is JobState.PENDING
        ]  # which leave no log
        self._memory.change(
            {row.job: _cancelled for row in gone if self._memory.of(row) is not None}
        )
        told: list[dict[str, Any]] = [
            {
                "node": None,
                "project": one.project,
                "spider": one.spider,
                "job": one.id,
                "was": one.state.value,
                "state": "gone",
            }
            for one in waits
        ]
        told += [
            {
                **place_row(row),
                "was": row.state.value,
                "state": "failed" if row in errors else "gone",
            }
            for row in rows
        ]
        output.columns({"jobs": told}, "jobs", ("node", "spider", "job", "was", "state"))
        complain_each(errors.values())
        complain_each(self._listed.errors)
        if self._orphans:
            raise StillRuns(_not_listed(self._orphans))
        return exit_code(len(rows), errors.values()) or self._listed.exit_code

    @cached_property
    def _unlisted(self) -> list[Judged]:
        """The jobs that are remembered, that were posted, and that no node lists, of those that are meant."""
        nodes = self._context.nodes(self._query.node)
        rows = self._memory.unlisted(self._listed, nodes, self._query)
        meant = [row for row in rows if not self._names or row.job in self._names]
        posted = [
            row for row in meant if self._memory.records[row.job].state is not Outcome.WAITING
        ]
        return Judge(self._context, posted, self._memory, timeout=self._query.timeout).all(posted)

    @property
    def _orphans(self) -> list[Judged]:
        """Those of them that go on."""
        return [one for one in self._unlisted if one.sure and not one.verdict.outcome.over]

    def _waiting(self) -> list[JobRecord]:
        """The jobs that wait in the store, of those that are to be cancelled."""
        query, records = (
            self._query,
            [one for one in self._memory.records.values() if one.state is Outcome.WAITING],
        )
        if self._names:
            return [one for one in records if one.id in self._names]
        spider, project = query.spider or "*", query.project
        meant = (
            one
            for one in records
            if fnmatchcase(one.spider, spider) and project in (None, one.project)
        )
        return [] if query.node else list(meant)

    def _named(self) -> list[Listed]:
        stopped = {producer.id for producer in self._producers}
        stopped |= {one.id for one in self._waiting()}
        known = stopped | {one.row.job for one in self._unlisted}
        if left := [name for name in self._names if name not in known]:
            self._listed.named(left, {})  # says which one there is not
        rows = self._alive()
        if not rows and not stopped and not self._orphans:
            self._listed.must_answer()
            complain_each(self._listed.errors)
            what = (
                f"{', '.join(self._names)}: over already"
                if self._names
                else "no job is pending or running"
            )
            raise NothingMatched(
                f"There is nothing to cancel ({what}). `sdist jobs` says how jobs ended."
            )
        return rows

    def _alive(self) -> list[Listed]:
        """The jobs that are not over. A name that is a crawl's means the crawl, not a job that is called so as well."""
        jobs = set(self._names) - self._crawls
        return [
            row
            for row in self._listed.jobs
            if not row.over and (not self._names or row.job in jobs or row.crawl in self._names)
        ]

    def _stop_producer(self, producer: Crawl) -> None:
        say(
            f"Stopping the producer of {producer.id}; `sdist resume {producer.id}` goes on with the crawl later."
        )
        deadline = time.monotonic() + self._how.wait
        interrupt(self._context.root, producer)
        store = self._context.store
        store.want(producer.id, "cancel")  # it may be on another machine
        if not poll_until(lambda: not lives(store.crawl(producer.id)), GONE_LOOK, deadline):
            raise StillRuns(
                f"The producer of {producer.id} (process {producer.pid}) has not stopped within {self._how.wait:g} "
                "seconds, so no job was cancelled: it would send their batches to other nodes. Wait longer with --wait."
            )

    def _signal(self, rows: Sequence[Listed], signal: str) -> dict[Listed, NodeError]:
        """Send the jobs a signal; gives those whose node did not take it."""

        def send(row: Listed) -> None:
            call = api.cancel(row.project, row.job, signal)
            self._context.sender.send(row.node, call, timeout=self._query.timeout)

        # Before it is sent: what a command sees end then is not tried again.
        self._memory.change(
            {row.job: partial(_sent, signal=signal) for row in rows if self._memory.of(row)}
        )
        for row in rows:
            if row.state is JobState.RUNNING:
                note(self._context.root, row, signal)
        errors = {
            answer.asked: answer.error for answer in sweep(rows, send) if answer.error is not None
        }
        untaken = [row for row, error in errors.items() if not error.maybe_accepted]
        self._memory.change({row.job: _unsent for row in untaken if self._memory.of(row)})
        for row in untaken:
            if row.state is JobState.RUNNING:
                note(self._context.root, row, signal, taken=False)
        return {row: _with_remedy(row, error) for row, error in errors.items()}

    def _told_before(self, rows: Sequence[Listed]) -> list[Listed]:
        """Those of the running jobs that were told to end, from here or elsewhere: a second INT is an unclean end."""
        signals = SentSignals(self._context.root)

        def was_told(row: Listed) -> bool:
            record = self._memory.of(row)
            if signals.told(row) or (record is not None and record.signals):
                return True
            seen = look(self._context.sender, row.node, row.log, timeout=self._query.timeout)
            return seen is not None and seen.facts.told

        running = [row for row in rows if row.state is JobState.RUNNING]
        # Of a node that does not tell, only what was sent from here is known.
        told = {answer.asked for answer in sweep(running, was_told) if answer.value}
        return [row for row in running if row in told]

    def _wait(self, left: list[Listed]) -> None:
        begun, again = time.monotonic(), self._how.force and not self._how.kill
        while left := self._left(left):
            waited = time.monotonic() - begun
            if again and waited >= min(PATIENCE, self._how.wait / 2):
                again = False
                self._signal(left, "INT")
            elif waited >= self._how.wait:
                names = some_of([f"{row.job} ({row.node.name})" for row in left], SHOWN)
                sent, hint = "INT was sent", "Go on with: sdist jobs cancel --force."
                if self._how.kill:
                    sent, hint = "KILL was sent", "Look at the nodes: sdist nodes."
                elif self._how.force:
                    sent, hint = "INT was sent twice", "Go on with: sdist jobs cancel --kill."
                raise StillRuns(
                    f"Still there after {self._how.wait:g} seconds: {names}. {sent}. {hint}"
                )
            time.sleep(GONE_LOOK)

    def _left(self, rows: Sequence[Listed]) -> list[Listed]:
        """Those that are not gone, as far as their nodes tell."""

        def is_there(row: Listed) -> bool:
            call = api.status(row.job, row.project)
            state = self._context.sender.send(row.node, call, timeout=self._query.timeout)
            return state in {JobState.PENDING, JobState.RUNNING}

        there = {
            answer.asked: answer.error is not None or answer.value
            for answer in sweep(rows, is_there)
        }
        return [row for row in rows if there[row]]
