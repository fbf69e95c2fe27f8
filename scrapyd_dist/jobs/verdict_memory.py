"""Keeps in the store how jobs ended that are no plain ones of ours: those of crawls and of others.

The rule it keeps: the first word on a finished job stays, with its counts. A crawl's process writes
it down as the job ends, else the first command that sees it does; reports and logs may be removed
at any time after that.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta

from scrapyd_dist.errors import StoreError
from scrapyd_dist.job_record import JobVerdict, Outcome, key_of_listed
from scrapyd_dist.messenger import Messenger
from scrapyd_dist.store import Store

from .job_list import ListedJob
from .judged_job import JudgedJob


def listed_key(row: ListedJob) -> str:
    """Return what tells a listed job from all others.

    That is empty for a job that has not ended, or is not listed with its start.
    """
    if not row.over or row.started is None or row.remembered:
        return ""
    return key_of_listed(row.node.url, row.project, row.job, row.started)


class VerdictMemory:
    """The verdicts of a store on the jobs of these keys; without a store there are none.

    messenger: gets to know when the store cannot be written, which is no error.
    """

    def __init__(self, store: Store | None, keys: Iterable[str], messenger: Messenger) -> None:
        self._store = store
        self._messenger = messenger
        self._verdicts: dict[str, JobVerdict] = {}
        if store is not None:
            self._verdicts = store.verdicts({*keys} - {""})

    def find(self, keys: Sequence[str]) -> JobVerdict | None:
        """Return what is known of a job, by the first of its keys that is known."""
        for key in keys:
            if key in self._verdicts:
                return self._verdicts[key]
        return None

    def learn(self, judged: Iterable[JudgedJob]) -> None:
        """Write down how these jobs ended, where that is certain."""
        now = time.time()
        new: list[JobVerdict] = []
        for job in judged:
            key = listed_key(job.row)
            if key and key not in self._verdicts and _is_certain(job):
                offset = job.offset.total_seconds() if job.offset is not None else None
                new.append(job.verdict.kept(key, now, offset))
        if self._store is None or not new:
            return
        try:
            self._store.keep_verdicts(new)
        except StoreError as error:
            self._messenger.complain(f"How jobs ended is not remembered: {error}")
        for verdict in new:
            self._verdicts[verdict.key] = verdict


def offset_of(verdict: JobVerdict) -> timedelta | None:
    """Return the local time of the job's node minus UTC, where its log told."""
    return None if verdict.offset is None else timedelta(seconds=verdict.offset)


def _is_certain(job: JudgedJob) -> bool:
    outcome = job.verdict.outcome
    return job.record is None and job.sure and outcome.over and outcome is not Outcome.UNKNOWN
