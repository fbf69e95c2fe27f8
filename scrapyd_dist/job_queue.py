"""Which of the plain jobs that wait in the store may start: by limits, and after others. No IO.

Invariant: the decision depends on nothing but the records, so that any process may make it; a step of the store that is
refused when they have changed makes it the decision of one.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.job_record import JobRecord, Outcome

#: how what a job waits for may have to end; by the word behind its name
FINISHED, FAILED, OVER = "finished", "failed", "over"
WANTED = (FINISHED, FAILED, OVER)
#: outcomes after which a job is tried again, as after its loss: not of those that were told to end
_TRIED_AGAIN = {Outcome.FAILED, Outcome.DIED}
#: a limit of this name counts the jobs of a spider; any other name is that of a label
SPIDER = "spider"


@dataclass(frozen=True, kw_only=True)
class Predecessor:
    """A job with all its attempts, or a crawl: something that a job may wait for."""

    names: frozenset[str]
    labels: tuple[str, ...]
    created: float
    over: bool
    finished: bool = False  #: whether its outcome is good

    def is_called(self, name: str, before: float = math.inf) -> bool:
        """Whether it has this name, or this label and came before a moment: what came later may wait itself.

        A name without `=` is that of a label with any value, too.
        """
        has_label = any(name in (label, label.partition("=")[0]) for label in self.labels)
        return name in self.names or (has_label and self.created < before)


@dataclass(frozen=True, kw_only=True)
class QueueDecision:
    ready: tuple[JobRecord, ...]
    dropped: tuple[JobRecord, ...]  #: those that can never start; with the state and reason of that


def read_limit(text: str) -> tuple[str, int]:
    """Return the name and the number of a limit, `spider=2`; ConfigError if it is none."""
    name, _, number = text.rpartition("=")
    if (
        not name
        or not number.isascii()
        or not number.isdigit()
        or not 0 < int(number[:9]) < 1_000_000
    ):
        raise ConfigError(
            f"--limit {text!r} is no limit. Write spider=N, or NAME=N for a label NAME=VALUE: at most N jobs at once"
            " with the same one."
        )
    return name, int(number)


def read_condition(text: str) -> tuple[str, str]:
    """Return what a job waits for, and how that has to end: `easy-1`, `night=1:over`."""
    name, _, wanted = text.rpartition(":")
    return (name, wanted) if name and wanted in WANTED else (text, FINISHED)


def key_of_limit(record: JobRecord, name: str) -> str | None:
    """Return what a limit of this name counts for the job, such as `site=shop.com`; None if it has no such label."""
    if name == SPIDER:
        return f"{SPIDER}={record.spider}"
    return next((label for label in record.labels if label.startswith(f"{name}=")), None)


def again(record: JobRecord, job: str, now: float) -> JobRecord | None:
    """Return the next attempt of a job that has ended, with this id; None if there is to be none."""
    failed = record.state in _TRIED_AGAIN or record.lost
    if not failed or record.signals or record.attempt > record.retries:
        return None
    return JobRecord(
        id=job,
        spider=record.spider,
        project=record.project,
        version=record.version,
        created=now,
        labels=record.labels,
        args=record.args,
        settings=record.settings,
        state=Outcome.WAITING,
        attempt=record.attempt + 1,
        first=record.first or record.id,
        retries=record.retries,
        limits=record.limits,
        priority=record.priority,
        sealed=record.sealed,
        wanted_project=record.wanted_project,
        on=record.on,
        among=record.among,
        tried=(*record.tried, record.url) if record.url else record.tried,
    )


def chains(records: Iterable[JobRecord]) -> dict[str, JobRecord]:
    """Return the last attempt of each job, by the id of its first one."""
    last: dict[str, JobRecord] = {}
    for record in records:
        name = record.first or record.id
        if name not in last or last[name].attempt < record.attempt:
            last[name] = record
    return last


def attempts_of(records: Sequence[JobRecord], names: Collection[str]) -> list[JobRecord]:
    """Return all attempts of the jobs of these ids, whichever attempt an id is of."""
    firsts = {one.first or one.id for one in records if one.id in names or one.first in names}
    return [one for one in records if (one.first or one.id) in firsts]


def predecessors_in(records: Sequence[JobRecord]) -> list[Predecessor]:
    names: dict[str, set[str]] = {}
    created: dict[str, float] = {}
    for record in records:
        names.setdefault(record.first or record.id, set()).add(record.id)
        created[record.id] = record.created
    return [
        Predecessor(
            names=frozenset({first, *names[first]}),
            labels=last.labels,
            created=created.get(first, last.created),
            over=last.state.over,
            finished=last.state is Outcome.FINISHED,
        )
        for first, last in chains(records).items()
    ]


def decide(
    records: Sequence[JobRecord], others: Collection[Predecessor], now: float
) -> QueueDecision:
    """Return the waiting jobs that may start, in order of priority and age; `others`: jobs and crawls."""
    posted = [one for one in records if not one.state.over and one.state is not Outcome.WAITING]
    labels = Counter(label for one in posted for label in {*one.labels, f"{SPIDER}={one.spider}"})
    ready, dropped = list[JobRecord](), list[JobRecord]()
    waiting = (one for one in records if one.state is Outcome.WAITING)
    for one in sorted(
        waiting, key=lambda one: (-(one.priority or 0.0), one.created, one.place, one.id)
    ):
        waits, never = _conditions(one, others)
        if never:
            dropped.append(
                replace(one, state=Outcome.CANCELLED, ended=now, reason=never, sealed="")
            )
        elif not waits and _has_room(one, labels):
            ready.append(one)
            labels.update({*one.labels, f"{SPIDER}={one.spider}"})
    return QueueDecision(ready=tuple(ready), dropped=tuple(dropped))


def _has_room(record: JobRecord, running: Counter[str]) -> bool:
    limits = map(read_limit, record.limits)
    return all(running[key_of_limit(record, name) or ""] < most for name, most in limits)


def _conditions(record: JobRecord, others: Collection[Predecessor]) -> tuple[bool, str]:
    """Whether the job has to wait for others, and why it can never start, if that is so."""
    waits = False
    for text in record.after:
        name, wanted = read_condition(text)
        found = [one for one in others if one.is_called(name, record.created)]
        if not found:
            return False, f"not started: {name}, which it was to follow, is not known any more"
        if not all(one.over for one in found):
            waits = True
        elif wanted == FINISHED and not all(one.finished for one in found):
            return False, f"not started: {name} did not finish well"
        elif wanted == FAILED and all(one.finished for one in found):
            return False, f"not started: {name} did not fail"
    return waits, ""
