"""Waits until jobs are over, with their later attempts.

The rule it keeps: waiting changes nothing, and a node that does not answer decides nothing.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from scrapyd_dist.errors import ConfigError, NodeError, StillRuns
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.joblogs.log_reads import read_log_end
from scrapyd_dist.messenger import NO_MESSENGER, Messenger
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.transports import Sender

from .job_judge import JobJudge, is_quiet
from .job_list import TIMEOUT, JobList, ListedJob, ask_jobs, by_key, remembered
from .job_site import JobSite
from .judged_job import JudgedJob
from .queue_decision import attempts_of, chains

#: seconds between two questions to the nodes
ASK = 2.0
#: gives a function that waits so many seconds; a command's is broken off by Ctrl-C
Pauses = Callable[[], AbstractContextManager[Callable[[float], None]]]


def wait_until_over(
    find_left: Callable[[], list[str]],
    pauses: Pauses,
    *,
    every: float,
    deadline: float,
    kind: str,
    see: str,
) -> None:
    """Ask every so many seconds what is left, until nothing is; StillRuns at the deadline.

    deadline: by `time.monotonic`; kind: what is waited for; see: the command that shows more of
    one.
    """
    with pauses() as pause:
        while names := find_left():
            if time.monotonic() >= deadline:
                raise StillRuns(
                    f"The {kind} {names[0]} still runs (--timeout), and goes on without this"
                    f" command. Go on with: {see} {names[0]}"
                )
            pause(every)


@dataclass(frozen=True, kw_only=True)
class JobWait:
    """Waits for jobs of a project on these nodes."""

    site: JobSite
    nodes: Sequence[Node]
    pauses: Pauses
    deadline: float = inf  #: by `time.monotonic`

    def wait_for(self, names: Sequence[str]) -> list[JudgedJob]:
        """Wait until these jobs are over, and return what the last attempt of each did.

        Raises:
            ConfigError: a job has not been given to a node yet.
            NothingMatched: there is no such job.
            StillRuns: the deadline has come.
        """
        self._check_posted(names)
        last = self._last_attempts(names)
        ended = self._wait_and_judge(last)
        # The judgement of a job may make it wait for one more attempt.
        while (following := self._last_attempts(last)) != last:
            last = following
            ended = self._wait_and_judge(last)
        return ended

    def _check_posted(self, names: Collection[str]) -> None:
        """Raise ConfigError for a job that has not been given to a node yet."""
        for record in self._waiting_in_store(names):
            if record.attempt == 1:
                raise ConfigError(
                    f"The job {record.id} waits in the store ({record.waits_for}), and is on no"
                    " node. `sdist jobs schedule --resume` starts what may start, and waits until"
                    " it is over."
                )

    def _waiting_in_store(self, names: Collection[str]) -> list[JobRecord]:
        """Return those of these jobs, or of their attempts, that wait in the store."""
        store = self.site.store
        if store is None:
            return []
        wanted = set(names)
        waiting = []
        for record in store.jobs(OPEN_ONLY):
            is_wanted = record.id in wanted or record.first in wanted
            if is_wanted and record.state is Outcome.WAITING:
                waiting.append(record)
        return waiting

    def _last_attempts(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the ids of the last attempts of these jobs, once none of those waits."""
        store = self.site.store
        if store is None:
            return tuple(dict.fromkeys(names))
        first_ids = {}
        for record in store.jobs():
            first_ids[record.id] = record.first or record.id
        firsts = [first_ids.get(name, name) for name in names]
        find_left = partial(self._announce_waiting, firsts, set())
        self._wait_until_over(find_left, "sdist jobs; sdist watch --quiet --job")
        last = chains(attempts_of(store.jobs(), firsts))
        ids: dict[str, None] = {}
        for first in firsts:
            if first in last:
                ids[last[first].id] = None
            else:
                ids[first] = None
        return tuple(ids)

    def _announce_waiting(self, names: Sequence[str], announced: set[str]) -> list[str]:
        """Return those of these jobs that wait in the store; each is announced once."""
        waiting = []
        for record in self._waiting_in_store(names):
            waiting.append(record.id)
            if record.id in announced:
                continue
            announced.add(record.id)
            self.site.messenger.say(
                f"{record.id}, the next attempt, waits in the store. If no such command runs:"
                " sdist jobs schedule --resume"
            )
        return waiting

    def _wait_and_judge(self, names: Sequence[str]) -> list[JudgedJob]:
        """Return how these jobs ended, once all are over."""
        known = remembered(self.site, names, self.nodes)
        over = set[str]()
        store = self.site.store
        if store is not None:
            for record in store.jobs():
                if record.state.over and record.id in names:
                    over.add(record.id)
        waited = WaitedJobs(
            sender=self.site.sender,
            nodes=self.nodes,
            names=tuple(names),
            remembered=known,
            over=over,
            messenger=self.site.messenger,
        )
        self._wait_until_over(waited.find_left, "sdist logs -f")
        rows = [replace(row, state=JobState.FINISHED) for row in waited.jobs.values()]
        return JobJudge(self.site, rows).all(rows)

    def _wait_until_over(self, find_left: Callable[[], list[str]], see: str) -> None:
        wait_until_over(
            find_left, self.pauses, every=ASK, deadline=self.deadline, kind="job", see=see
        )


@dataclass(kw_only=True)
class WaitedJobs:
    """The jobs that are waited for, as their nodes listed them last."""

    sender: Sender
    nodes: Sequence[Node]
    names: tuple[str, ...]  #: ids of jobs
    #: by name, what the store knows
    remembered: Mapping[str, Sequence[ListedJob]] = field(default_factory=dict)
    over: Collection[str] = ()  #: the jobs of which the store knows that they are over
    messenger: Messenger = NO_MESSENGER
    #: by the base address of the node and the id; empty until the nodes have been asked
    jobs: dict[tuple[str, str], ListedJob] = field(default_factory=dict)
    _complaints: set[str] = field(default_factory=set)  #: which nodes do not answer, and why

    def find_left(self) -> list[str]:
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
        self.messenger.complain_each(texts - self._complaints)
        self._complaints = texts

    def _is_over(self, row: ListedJob, found: JobList, *, is_listed: bool) -> bool:
        if row.job in self.over:
            return True
        if is_listed:
            return row.over
        return row.node.url not in found.silent and self._has_gone_silent(row)

    def _has_gone_silent(self, row: ListedJob) -> bool:
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
