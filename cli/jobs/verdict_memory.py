"""What the store remembers of how jobs ended that are no plain ones of ours: those of crawls, and those of others.

The rule it keeps: the first word on a finished job stays, with its counts. A crawl's process writes it down as the job
ends, else the first command that sees it does; reports and logs may be removed at any time after that.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta

from scrapyd_dist.errors import StoreError
from scrapyd_dist.job_record import JobVerdict, Outcome, key_of_listed
from scrapyd_dist.store import Store

from ..output import complain
from .job_list import Listed
from .job_memory import Judged


def listed_key(row: Listed) -> str:
    """What tells a listed job from all others; empty for one that has not ended, or is not listed with its start."""
    if not row.over or row.started is None or row.remembered:
        return ""
    return key_of_listed(row.node.url, row.project, row.job, row.started)


class VerdictMemory:
    """The verdicts of one store on the jobs of these keys; without a store there are none."""

    def __init__(self, store: Store | None, keys: Iterable[str]) -> None:
        self._store = store
        self._verdicts = store.verdicts({*keys} - {""}) if store is not None else {}

    def of(self, keys: Sequence[str]) -> JobVerdict | None:
        """What is known of a job, by the first of its keys that is."""
        return next((self._verdicts[key] for key in keys if key in self._verdicts), None)

    def learn(self, judged: Iterable[Judged]) -> None:
        """Write down how these jobs ended, where that is certain; that it cannot be written is told, and no error."""
        now, new = time.time(), list[JobVerdict]()
        for one in judged:
            key = listed_key(one.row)
            if key and key not in self._verdicts and _is_certain(one):
                offset = one.offset.total_seconds() if one.offset is not None else None
                new.append(one.verdict.kept(key, now, offset))
        if self._store is None or not new:
            return
        try:
            self._store.keep_verdicts(new)
        except StoreError as error:
            complain(f"How jobs ended is not remembered: {error}")
        self._verdicts.update((one.key, one) for one in new)


def offset_of(verdict: JobVerdict) -> timedelta | None:
    """The local time of the job's node minus UTC, where its log told."""
    return None if verdict.offset is None else timedelta(seconds=verdict.offset)


def _is_certain(one: Judged) -> bool:
    outcome = one.verdict.outcome
    return one.record is None and one.sure and outcome.over and outcome is not Outcome.UNKNOWN
