"""Keeps what the store remembers of plain jobs: how they ended, also when their nodes forgot them.

The rule it keeps: an outcome is written once, when it was seen that the job is over; a node
that does not answer decides nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial

from scrapyd_dist.errors import StoreError
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.messenger import NO_MESSENGER, Messenger
from scrapyd_dist.nodes import Node, PresentNodes
from scrapyd_dist.scrapyd.jobs import job_id
from scrapyd_dist.store import Store

from .job_list import NO_TARGET, NOWHERE, JobFilter, JobList, ListedJob, listed_again
from .judged_job import JudgedJob, offsets_of
from .queue_decision import next_attempt

#: settings that change what a log tells
_LOGGING = frozenset(
    {"LOG_DATEFORMAT", "LOG_ENABLED", "LOG_ENCODING", "LOG_FILE", "LOG_FORMAT", "LOG_LEVEL"}
)
#: the longest run of a job without a log that counts as killed at its start
SHORT = timedelta(minutes=1)
#: tries to make a step that depends on the records while other processes change them
TRIES = 20


def busy() -> StoreError:
    """Return the error for a step that others undid as often as it was tried."""
    return StoreError("what is remembered of jobs is changed by others all the time; try again.")


class JobMemory:
    """The records of one store; without a store there are none.

    since: records of jobs that ended before are left out; seconds since the epoch. most: so many of
    those that ended are read, the last ones. messenger: gets to know when the store cannot be
    written, where that is no error. nodes: records are at the addresses which these have now.
    """

    def __init__(
        self,
        store: Store | None,
        since: float | None = None,
        messenger: Messenger = NO_MESSENGER,
        *,
        most: int | None = None,
        nodes: Iterable[Node] = (),
    ) -> None:
        self._store = store
        self._present = PresentNodes(nodes)
        self._messenger = messenger
        self.records: dict[str, JobRecord] = {}
        if store is not None:
            self._keep(store.jobs(since, most))

    def read_named(self, names: Iterable[str]) -> None:
        """Read the records of these jobs as well, where they were left out."""
        missing = {*names} - self.records.keys()
        if self._store is None or not missing:
            return
        self._keep(self._store.named_jobs(missing))

    def _keep(self, records: Iterable[JobRecord]) -> None:
        for record in map(self._bring_up_to_date, records):
            self.records[record.id] = record

    def _bring_up_to_date(self, record: JobRecord) -> JobRecord:
        """Return the record with the address that its node has now."""
        node = self._present.find(record.node, record.url)
        return record if node is None else replace(record, url=node.url)

    def record_of(self, place: Place) -> JobRecord | None:
        """Return what is remembered of a job that is on the node which it was posted to.

        That may have another address since.
        """
        record = self.records.get(place.job)
        if record is None:
            return None
        is_there = record.url == place.node.url or record.node == place.node.name
        return record if is_there else None

    def unlisted(self, listed: JobList, wanted: JobFilter) -> list[ListedJob]:
        """Return the remembered jobs that the nodes do not list and that are meant."""
        listed_ids = set[str]()
        for row in listed.jobs:
            if self.record_of(row) is not None:
                listed_ids.add(row.job)
        present = PresentNodes(wanted.nodes)
        rows = []
        for record in self.records.values():
            if record.id in listed_ids:
                continue
            node = present.find(record.node, record.url)
            is_elsewhere = node is None and wanted.narrowed
            if not is_elsewhere and wanted.means(record.project, record.spider):
                rows.append(_listed_again(record, node, listed))
        return rows

    def learn(self, judged: Iterable[JudgedJob]) -> None:
        """Write down how jobs ended that were remembered as open."""
        judged = [*judged]
        offset_of = offsets_of(judged)
        ended: dict[str, JudgedJob] = {}
        for job in judged:
            if job.record is not None and job.sure and job.verdict.outcome.over:
                ended[job.record.id] = job
        try:
            killed = self._find_killed_at_start(ended.values())
            changes = {}
            for name, job in ended.items():
                is_killed = job.row.job in killed
                changes[name] = partial(_ended, job=job, offset=offset_of(job), at_start=is_killed)
            self.change(changes)
        except StoreError as error:
            self._messenger.complain(f"How jobs ended is not remembered: {error}")

    def _find_killed_at_start(self, ended: Iterable[JudgedJob]) -> set[str]:
        silent = [job for job in ended if _leaves_no_trace(job)]
        if self._store is None or not silent:
            return set()
        others = list(map(self._bring_up_to_date, self._store.jobs()))
        killed = set()
        for job in silent:
            if _was_killed_at_start(job, others):
                killed.add(job.row.job)
        return killed

    def change(self, changes: Mapping[str, Callable[[JobRecord], JobRecord]]) -> None:
        """Change open jobs, by their ids.

        In the same step a job that ends and has attempts left gets its next attempt, which waits.
        Raises StoreError if others change the records all the time.
        """
        if self._store is None or not self._any_is_open(changes):
            return
        for _ in range(TRIES):
            revision = self._store.job_revision()
            changed: list[JobRecord] = []
            for record in self._store.jobs(OPEN_ONLY):
                if record.id in changes:
                    changed += _changed(record, changes[record.id](record))
            if not changed or self._store.keep_jobs(changed, revision):
                self._keep(changed)
                return
        raise busy()

    def _any_is_open(self, names: Iterable[str]) -> bool:
        for name in names:
            record = self.records.get(name)
            if record is not None and not record.state.over:
                return True
        return False


def _listed_again(record: JobRecord, node: Node | None, listed: JobList) -> ListedJob:
    silent = ""
    if record.url in listed.silent:
        silent = "its node does not tell"
    elif node is None:
        silent = NO_TARGET
    place = node or Node(name=record.node or NOWHERE, url=record.url)
    return listed_again(record, place, silent)


def _changed(old: JobRecord, new: JobRecord) -> list[JobRecord]:
    """Return what is to be written: nothing, or the new record, and the next attempt if it has."""
    now = datetime.now(timezone.utc)
    if not new.state.over:
        return [new] if new != old else []
    # The settings are of no use any more.
    records = [replace(new, sealed="")]
    next_id = job_id(old.spider, old.version, now)
    following = next_attempt(new, next_id, now.timestamp())
    if following is not None:
        records.append(following)
    return records


def _leaves_no_trace(job: JudgedJob) -> bool:
    """Tell whether no log says how a job ended that may be tried again and did not run for long."""
    row = job.row
    record = job.record
    verdict = job.verdict
    if record is None or record.attempt > record.retries:
        return False
    if not _LOGGING.isdisjoint(record.settings):
        return False
    if row.started is None or row.ended is None:
        # Its node has forgotten it, and only a log can tell.
        return verdict.hidden
    if row.ended - row.started >= SHORT:
        return False
    return verdict.hidden or verdict.outcome is Outcome.UNKNOWN


def _was_killed_at_start(job: JudgedJob, others: Iterable[JobRecord]) -> bool:
    """Tell whether the job has not come to write a log: logs of others like it tell of pages."""
    record = job.record
    if record is None:
        return False
    tells_pages = False
    for other in others:
        if (other.project, other.spider) != (record.project, record.spider):
            continue
        if not job.verdict.hidden and _is_later_there(other, record):
            return False  # jobs_to_keep may have removed its log since
        is_alike = (other.version, other.settings) == (record.version, record.settings)
        if other.pages and is_alike:
            tells_pages = True
    return tells_pages


def _is_later_there(other: JobRecord, record: JobRecord) -> bool:
    """Tell whether the other job was posted to the same node after this one."""
    return other.url == record.url and (other.posted or 0.0) > (record.posted or 0.0)


def _ended(record: JobRecord, job: JudgedJob, offset: timedelta, *, at_start: bool) -> JobRecord:
    """Return the record of a job that is over; at_start: it was killed before it wrote a log."""
    verdict = job.verdict
    if at_start and verdict.outcome is Outcome.UNKNOWN:
        verdict = replace(
            verdict, outcome=Outcome.DIED, reason="its process ended before it wrote anything"
        )
    state = verdict.outcome
    if state is Outcome.DIED and record.had_no_time:
        state = Outcome.KILLED
    retries = record.retries
    if verdict.hidden and not at_start:
        retries = 0  # it may have done all its work
    started, ended = job.times(offset)
    if ended is None:
        ended = datetime.now(timezone.utc)
    return replace(
        record,
        state=state,
        started=started.timestamp() if started else None,
        ended=max(record.created, ended.timestamp()),
        lost=job.lost,
        retries=retries,
        **verdict.result,
    )
