"""Lets plain jobs wait in the store, once it is clear that they can start some day."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.keys import public_half, seal
from scrapyd_dist.progress.summary_document import labels_of
from scrapyd_dist.store import Store

from .job_posts import ATTEMPT, PlacedJob, call_of
from .queue_decision import (
    Predecessor,
    chains,
    key_of_limit,
    predecessors_in,
    read_condition,
    read_limit,
)

#: seconds
_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class WaitingTerms:
    """On what terms jobs wait, and for which nodes: the same for all of one request."""

    retries: int = 0  #: further attempts of a job that fails
    limits: tuple[str, ...] = ()  #: `spider=2`
    after: tuple[str, ...] = ()  #: what they follow, `NAME:OUTCOME`
    project: str = ""  #: the project that was asked for; empty for each node's own
    among: tuple[str, ...] = ()  #: names of the nodes that will do; () for all
    placed: bool = False  #: whether each is for the node that it was placed on, and no other


@dataclass(frozen=True, kw_only=True)
class JobQueue:
    """The jobs that wait in a store."""

    store: Store
    key: bytes  #: of the project: what the settings of jobs are encrypted for
    keep_days: float  #: for which jobs are remembered

    def add(self, jobs: Sequence[PlacedJob], version: str, terms: WaitingTerms) -> list[str]:
        """Let the jobs that are not skipped wait, and return their ids.

        Raises:
            ConfigError: a job could never start.
            NothingMatched: what a job is to follow does not exist.
        """
        now = time.time()
        records: list[JobRecord] = []
        for job in jobs:
            if not job.job:
                continue
            order = job.order
            record = order.record(
                job.job,
                version,
                now,
                state=Outcome.WAITING,
                retries=terms.retries,
                limits=terms.limits,
                after=terms.after,
                priority=order.priority,
                place=len(records),
                sealed=seal_settings(order.settings, self.key),
                on=job.node.name if terms.placed else order.node or "",
                project=job.node.project or "",
                wanted_project=terms.project,
                among=terms.among,
            )
            call_of(record, order.settings)
            records.append(record)
        check_conditions(self.store, records)
        self.store.forget_jobs(now - self.keep_days * _DAY)
        self.store.keep_jobs(records)
        return [record.id for record in records]


def seal_settings(settings: Mapping[str, str], key: bytes) -> str:
    """Return settings as a record keeps them: encrypted for this key, empty for none."""
    if not settings:
        return ""
    return seal(json.dumps(dict(settings)).encode(), public_half(key))


def check_conditions(store: Store, records: Sequence[JobRecord]) -> None:
    """Check that jobs which are to wait can start some day.

    Raises:
        ConfigError: a limit counts nothing, or a spider argument is in the way of --retries.
        NothingMatched: a job is to follow something that does not exist.
    """
    others: list[Predecessor] = []
    if any(record.after for record in records):
        others = find_predecessors(store, store.jobs())
    for record in records:
        for text in record.limits:
            _check_limit(record, text)
        for text in record.after:
            _check_condition(text, others)
        if record.retries and ATTEMPT in record.args:
            raise ConfigError(
                f"With --retries the spider gets the number of its attempt as the argument"
                f" {ATTEMPT!r}: give yours another name."
            )


def _check_limit(record: JobRecord, text: str) -> None:
    name, _ = read_limit(text)
    if key_of_limit(record, name) is None:
        raise ConfigError(
            f"--limit {text} counts jobs with the same label {name}=…, and {record.spider} has"
            f" none: give it one with --label {name}=VALUE, or in a column l:{name} of the file."
            " --limit spider=N counts jobs of one spider."
        )


def _check_condition(text: str, others: Sequence[Predecessor]) -> None:
    name, _ = read_condition(text)
    if not any(other.is_called(name) for other in others):
        raise NothingMatched(
            f"--after {name}: no job, crawl or label is called so. `sdist jobs` and `sdist crawls`"
            " list them; only :failed or :over may follow the name."
        )


def find_predecessors(store: Store, records: Sequence[JobRecord]) -> list[Predecessor]:
    """Return what a job may wait for: these remembered jobs, and the crawls in the store."""
    others = [*predecessors_in(records)]
    for crawl in store.crawls():
        predecessor = Predecessor(
            names=frozenset({crawl.id}),
            labels=labels_of(crawl),
            created=crawl.created,
            over=crawl.state.ended,
            finished=crawl.exit_code == 0,
        )
        others.append(predecessor)
    return others


def find_left_behind(records: Sequence[JobRecord]) -> set[str]:
    """Return the jobs, by their first ids, that wait or may have to be tried again."""
    left = set[str]()
    for first, last in chains(records).items():
        may_start = last.state is Outcome.WAITING or last.attempt <= last.retries
        if may_start and not last.state.over:
            left.add(first)
    return left
