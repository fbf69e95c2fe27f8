"""Decides which of the plain jobs that wait in the store may start: by limits, and after others.

Invariant: the decision depends on nothing but the records, so that any process may make it; a step
of the store that is refused when they have changed makes it the decision of one. No IO.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.job_record import JobRecord, Outcome

# How what a job waits for may have to end; the word behind its name says it.
FINISHED = "finished"
FAILED = "failed"
OVER = "over"
WANTED = (FINISHED, FAILED, OVER)
#: outcomes after which a job is tried again, as after its loss: not of those that were told to end
_TRIED_AGAIN = {Outcome.FAILED, Outcome.DIED}
#: the fields of a job that has not begun and follows no other one; the rest is what was asked for
_AS_NEW: Mapping[str, Any] = {
    "state": Outcome.WAITING,
    "after": (),
    "place": 0,
    **dict.fromkeys(("posted", "started", "ended", "pages", "items", "errors")),
    **dict.fromkeys(("node", "url", "reason"), ""),
    "lost": False,
    "codes": {},
}
#: a limit of this name counts the jobs of a spider; any other name is that of a label
SPIDER = "spider"


@dataclass(frozen=True, kw_only=True)
class Predecessor:
    """A job with all its attempts, or a crawl: something that a job may wait for."""

    names: frozenset[str]  #: the ids of all its attempts, or the crawl's name
    labels: tuple[str, ...]
    created: float  #: seconds since the epoch
    over: bool
    finished: bool = False  #: whether its outcome is good

    def is_called(self, name: str, before: float = math.inf) -> bool:
        """Return whether it has this name, or this label and was created before a moment.

        What has the label and was created later may wait itself. A name without `=` is that of a
        label with any value, too.
        """
        if name in self.names:
            return True
        return self.created < before and self._has_label(name)

    def _has_label(self, name: str) -> bool:
        return any(name in (label, label.partition("=")[0]) for label in self.labels)


@dataclass(frozen=True, kw_only=True)
class QueueDecision:
    """What is to happen now with the jobs that wait."""

    ready: tuple[JobRecord, ...]  #: those that may start, in order
    dropped: tuple[JobRecord, ...]  #: those that can never start; with the state and reason of that


def read_limit(text: str) -> tuple[str, int]:
    """Return the name and the number of a limit, `spider=2`; ConfigError if it is none."""
    name, _, number = text.rpartition("=")
    is_number = number.isascii() and number.isdigit()
    if not name or not is_number or not 0 < int(number[:9]) < 1_000_000:
        raise ConfigError(
            f"--limit {text!r} is no limit. Write spider=N, or NAME=N for a label NAME=VALUE: at"
            " most N jobs at once with the same one."
        )
    return name, int(number)


def read_condition(text: str) -> tuple[str, str]:
    """Return what a job waits for, and how that has to end: `easy-1`, `night=1:over`."""
    name, _, wanted = text.rpartition(":")
    if name and wanted in WANTED:
        return name, wanted
    return text, FINISHED


def key_of_limit(record: JobRecord, name: str) -> str | None:
    """Return what a limit of this name counts for the job, such as `site=shop.com`.

    It is None if the job has no such label.
    """
    if name == SPIDER:
        return f"{SPIDER}={record.spider}"
    for label in record.labels:
        if label.startswith(f"{name}="):
            return label
    return None


def next_attempt(record: JobRecord, job: str, now: float) -> JobRecord | None:
    """Return the next attempt of a job that has ended, with this id; None if there is none."""
    failed = record.state in _TRIED_AGAIN or record.lost
    if not failed or record.signals or record.attempt > record.retries:
        return None
    tried = record.tried
    if record.url:
        tried = (*tried, record.url)
    return replace(
        record,
        **_AS_NEW,
        id=job,
        created=now,
        attempt=record.attempt + 1,
        first=_first_id(record),
        tried=tried,
    )


def _first_id(record: JobRecord) -> str:
    """Return the id of the first attempt, which all attempts of the job have in common."""
    return record.first or record.id


def chains(records: Iterable[JobRecord]) -> dict[str, JobRecord]:
    """Return the last attempt of each job, by the id of its first one."""
    last: dict[str, JobRecord] = {}
    for record in records:
        first = _first_id(record)
        if first not in last or last[first].attempt < record.attempt:
            last[first] = record
    return last


def attempts_of(records: Sequence[JobRecord], names: Collection[str]) -> list[JobRecord]:
    """Return all attempts of the jobs of these ids, whichever attempt an id is of."""
    firsts: set[str] = set()
    for record in records:
        if record.id in names or record.first in names:
            firsts.add(_first_id(record))
    return [record for record in records if _first_id(record) in firsts]


def predecessors_in(records: Sequence[JobRecord]) -> list[Predecessor]:
    """Return each of these jobs, with all its attempts, as something to wait for."""
    ids: dict[str, set[str]] = {}
    created: dict[str, float] = {}
    for record in records:
        ids.setdefault(_first_id(record), set()).add(record.id)
        created[record.id] = record.created
    predecessors: list[Predecessor] = []
    for first, last in chains(records).items():
        predecessor = Predecessor(
            names=frozenset({first, *ids[first]}),
            labels=last.labels,
            created=created.get(first, last.created),
            over=last.state.over,
            finished=last.state is Outcome.FINISHED,
        )
        predecessors.append(predecessor)
    return predecessors


def decide_starts(
    records: Sequence[JobRecord], others: Collection[Predecessor], now: float
) -> QueueDecision:
    """Return which waiting jobs may start, in order of priority and age, and which never may.

    `others` are the jobs and crawls that these may wait for.
    """
    running = Counter[str]()
    waiting: list[JobRecord] = []
    for record in records:
        if record.state is Outcome.WAITING:
            waiting.append(record)
        elif not record.state.over:
            running.update(_keys_for_limits(record))
    ready: list[JobRecord] = []
    dropped: list[JobRecord] = []
    for record in sorted(waiting, key=_place_in_queue):
        waits, never = _check_conditions(record, others)
        if never:
            dropped.append(replace(record.end(Outcome.CANCELLED, now, never), sealed=""))
        elif not waits and _has_room(record, running):
            ready.append(record)
            running.update(_keys_for_limits(record))
    return QueueDecision(ready=tuple(ready), dropped=tuple(dropped))


def _keys_for_limits(record: JobRecord) -> set[str]:
    return {*record.labels, f"{SPIDER}={record.spider}"}


def _place_in_queue(record: JobRecord) -> tuple[float, float, int, str]:
    return (-(record.priority or 0.0), record.created, record.place, record.id)


def _has_room(record: JobRecord, running: Counter[str]) -> bool:
    for limit in record.limits:
        name, most = read_limit(limit)
        key = key_of_limit(record, name) or ""
        if running[key] >= most:
            return False
    return True


def _check_conditions(record: JobRecord, others: Collection[Predecessor]) -> tuple[bool, str]:
    """Return whether the job has to wait for others, and why it can never start, if that is so."""
    waits = False
    for condition in record.after:
        name, wanted = read_condition(condition)
        found = [other for other in others if other.is_called(name, record.created)]
        if not found:
            return False, f"not started: {name}, which it was to follow, is not known any more"
        if not all(predecessor.over for predecessor in found):
            waits = True
        elif problem := _find_wrong_end(found, wanted):
            return False, f"not started: {name} {problem}"
    return waits, ""


def _find_wrong_end(ended: Sequence[Predecessor], wanted: str) -> str:
    """Return in words how these jobs have not ended as wanted; empty if they have."""
    all_finished = all(predecessor.finished for predecessor in ended)
    if wanted == FINISHED and not all_finished:
        return "did not finish well"
    if wanted == FAILED and all_finished:
        return "did not fail"
    return ""
