"""Says of a job what it really did, and when, as far as that is known."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.joblogs.verdict import Verdict

from .job_list import ListedJob, utc


@dataclass(frozen=True, kw_only=True)
class JudgedJob:
    """What a job really did, as far as that is known."""

    row: ListedJob
    verdict: Verdict
    offset: timedelta | None = None  #: the node's local time minus UTC, where its log tells
    record: JobRecord | None = None  #: what is remembered of it
    sure: bool = True  #: False: its node did not tell, or its crawl goes on and may say more
    lost: bool = False  #: its node has nothing of it any more
    silent: float | None = None  #: seconds since its log was last written

    def times(self, offset: timedelta) -> tuple[datetime | None, datetime | None]:
        """Return start and end in UTC; offset: its node's local time minus UTC."""
        record = self.record
        if record is not None and record.ended is not None:
            begun = None
            if record.started is not None:
                begun = _at(record.started)
            return begun, _at(record.ended)
        row = self.row
        started = None
        ended = None
        if row.started is not None:
            started = utc(row.started, offset)
        if row.ended is not None:
            ended = utc(row.ended, offset)
        if row.remembered and self.verdict.outcome.over:
            ended = _at(time.time() - (self.silent or 0.0))
        return started, ended


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def offsets_of(judged: Iterable[JudgedJob]) -> Callable[[JudgedJob], timedelta]:
    """Return what gives the local time of a job's node minus UTC.

    That is what a log of the node tells, else the offset of this machine.
    """
    known = {}
    for job in judged:
        if job.offset is not None:
            known[job.row.node.url] = job.offset
    here = datetime.now(timezone.utc).astimezone().utcoffset() or timedelta()
    return lambda job: known.get(job.row.node.url, here)
