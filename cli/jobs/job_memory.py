"""What the store remembers of plain jobs: how they ended, also when their nodes have forgotten them.

The rule it keeps: an outcome is written once, when a command has seen that the job is over; a node that does not answer
decides nothing.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from functools import partial

from scrapyd_dist.errors import StoreError
from scrapyd_dist.job_queue import again
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.joblogs.log_reads import LogExcerpt
from scrapyd_dist.joblogs.verdict import Place, Verdict
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.jobs import job_id
from scrapyd_dist.store import Store

from ..output import complain
from .job_list import NOWHERE, JobList, JobQuery, Listed, listed_again, utc

#: seconds for which a job that was written down may still be on its way to its node
ON_ITS_WAY = 300.0
#: seconds without a line, after which a job that its node has forgotten is over; Scrapy writes one each minute
SILENCE = 180.0
#: settings that change what a log tells
_LOGGING = frozenset(
    {"LOG_DATEFORMAT", "LOG_ENABLED", "LOG_ENCODING", "LOG_FILE", "LOG_FORMAT", "LOG_LEVEL"}
)
#: the longest run of a job without a log that counts as killed at its start
SHORT = timedelta(minutes=1)
#: tries to make a step that depends on the records while other processes change them
TRIES = 20


@dataclass(frozen=True, kw_only=True)
class Judged:
    row: Listed
    verdict: Verdict
    offset: timedelta | None = None  #: the node's local time minus UTC, where its log tells
    record: JobRecord | None = None  #: what is remembered of it
    sure: bool = True  #: False: its node did not tell, or its crawl goes on and may say more
    lost: bool = False  #: its node has nothing of it any more
    silent: float | None = None  #: seconds since its log was last written

    def times(self, offset: timedelta) -> tuple[datetime | None, datetime | None]:
        """Start and end in UTC; offset: its node's local time minus UTC."""
        if self.record is not None and self.record.ended is not None:
            begun, ended = self.record.started, self.record.ended
            return (_at(begun) if begun is not None else None), _at(ended)
        row = self.row
        ended_at = utc(row.ended, offset) if row.ended else None
        if row.remembered and self.verdict.outcome.over:
            ended_at = _at(time.time() - (self.silent or 0.0))
        return (utc(row.started, offset) if row.started else None), ended_at


def busy() -> StoreError:
    return StoreError("what is remembered of jobs is changed by others all the time; try again.")


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def offsets_of(judged: Iterable[Judged]) -> Callable[[Judged], timedelta]:
    """Gives the node's local time minus UTC: what a log of it tells, else that of this machine."""
    known = {one.row.node.url: one.offset for one in judged if one.offset is not None}
    here = datetime.now(timezone.utc).astimezone().utcoffset() or timedelta()
    return lambda one: known.get(one.row.node.url, here)


class JobMemory:
    """The records of one store; without a store there are none."""

    def __init__(self, store: Store | None, since: float | None = None) -> None:
        self._store = store
        self.silent = frozenset[
            str
        ]()  #: base addresses of the nodes that did not answer in `look_back`
        self.records = {one.id: one for one in store.jobs(since)} if store is not None else {}

    def of(self, place: Place) -> JobRecord | None:
        record = self.records.get(place.job)
        return record if record is not None and record.url == place.node.url else None

    def unlisted(self, listed: JobList, nodes: Sequence[Node], query: JobQuery) -> list[Listed]:
        """The remembered jobs that the nodes do not list; those of other nodes as well if the query names no node."""
        there, by_url = {row.key for row in listed.jobs}, {node.url: node for node in nodes}
        rows = list[Listed]()
        for record in self.records.values():
            node = by_url.get(record.url)
            if (record.url, record.id) in there or (node is None and query.node):
                continue
            if query.project not in (None, record.project) or not fnmatchcase(
                record.spider, query.spider or "*"
            ):
                continue
            silent = "its node does not answer" if record.url in listed.silent else ""
            silent = silent or ("its node is no target any more" if node is None else "")
            rows.append(
                listed_again(
                    record, node or Node(name=record.node or NOWHERE, url=record.url), silent
                )
            )
        return rows

    def learn(self, judged: Iterable[Judged]) -> None:
        """Write down how jobs ended that were remembered as open; that it cannot be written is told, and no error."""
        judged = [*judged]
        offset_of = offsets_of(judged)
        over = {
            one.record.id: one
            for one in judged
            if one.record and one.sure and one.verdict.outcome.over
        }
        try:
            silent = [one for one in over.values() if _tells_nothing(one)]
            others = self._store.jobs() if self._store is not None and silent else []
            killed = {one.row.job for one in silent if _was_killed_at_start(one, others)}
            self.change(
                {
                    name: partial(_ended, one=one, offset=offset_of(one), at_start=name in killed)
                    for name, one in over.items()
                }
            )
        except StoreError as error:
            complain(f"How jobs ended is not remembered: {error}")

    def change(self, changes: Mapping[str, Callable[[JobRecord], JobRecord]]) -> None:
        """Change open jobs, by their ids; in the same step one that ends and has attempts left waits for its next."""
        known = (self.records.get(name) for name in changes)
        if self._store is None or not any(one is not None and not one.state.over for one in known):
            return
        for _ in range(TRIES):
            revision = self._store.job_revision()
            changed: list[JobRecord] = []
            for record in (one for one in self._store.jobs(OPEN_ONLY) if one.id in changes):
                new, now = changes[record.id](record), datetime.now(timezone.utc)
                if new.state.over:
                    following = again(
                        new, job_id(record.spider, record.version, now), now.timestamp()
                    )
                    changed += [replace(new, sealed=""), *([following] if following else ())]
                elif new != record:
                    changed.append(new)
            if not changed or self._store.keep_jobs(changed, revision):
                self.records.update((one.id, one) for one in changed)
                return
        raise busy()


def _tells_nothing(one: Judged) -> bool:
    """Whether no log tells how a job ended that may be tried again, and that was not seen to run for long."""
    row, record, verdict = one.row, one.record, one.verdict
    if record is None or record.attempt > record.retries or _LOGGING & set(record.settings):
        return False
    if (
        row.started is None or row.ended is None
    ):  # its node has forgotten it, and only a log can tell
        return verdict.hidden
    return row.ended - row.started < SHORT and (
        verdict.hidden or verdict.outcome is Outcome.UNKNOWN
    )


def _was_killed_at_start(one: Judged, others: Iterable[JobRecord]) -> bool:
    """Whether logs of other jobs like this one tell of their pages, so that it has not come to write one."""
    record, is_told = one.record, False
    for other in others:
        if record is None or (other.project, other.spider) != (record.project, record.spider):
            continue
        if (
            not one.verdict.hidden
            and other.url == record.url
            and (other.posted or 0.0) > (record.posted or 0.0)
        ):
            return False  # jobs_to_keep may have removed its log since
        is_told |= bool(other.pages) and (other.version, other.settings) == (
            record.version,
            record.settings,
        )
    return is_told


def _ended(record: JobRecord, one: Judged, offset: timedelta, *, at_start: bool) -> JobRecord:
    verdict = one.verdict
    if at_start and verdict.outcome is Outcome.UNKNOWN:
        verdict = replace(
            verdict, outcome=Outcome.DIED, reason="its process ended before it wrote anything"
        )
    started, ended = one.times(offset)
    return replace(
        record,
        state=Outcome.KILLED
        if verdict.outcome is Outcome.DIED and record.had_no_time
        else verdict.outcome,
        started=started.timestamp() if started else None,
        ended=max(record.created, (ended or datetime.now(timezone.utc)).timestamp()),
        reason=verdict.reason,
        lost=one.lost,
        retries=0
        if verdict.hidden and not at_start
        else record.retries,  # it may have done all its work
        pages=verdict.pages,
        items=verdict.items,
        errors=verdict.errors,
        codes=verdict.codes,
    )


def verdict_of(record: JobRecord) -> Verdict:
    reason = record.waits_for if record.state is Outcome.WAITING else record.reason
    return Verdict(
        outcome=record.state,
        reason=reason,
        pages=record.pages,
        items=record.items,
        errors=record.errors,
        codes=record.codes,
    )


def is_quiet(seen: LogExcerpt) -> bool:
    """Whether the log of a job that its node does not list says that it is over."""
    return bool(seen.facts.closed) or seen.silent is None or seen.silent >= SILENCE


def still_there(record: JobRecord, seen: LogExcerpt | None, now: float) -> Verdict | None:
    """What is said of a job that its node does not list and that may not be over; None when it is.

    A node that was killed leaves its jobs running.
    """
    if seen is None:
        return (
            Verdict(outcome=Outcome.PENDING)
            if now - (record.posted or record.created) < ON_ITS_WAY
            else None
        )
    if is_quiet(seen):
        return None
    pages, items = seen.facts.pages, seen.facts.items
    return Verdict(
        outcome=Outcome.RUNNING, reason="its node does not list it", pages=pages, items=items
    )
