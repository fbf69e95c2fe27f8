"""Finds the jobs that a command is about: those that nodes list and those that the store remembers.

The rule it keeps: a name that fits nothing is an error, and a node that does not answer is named,
never passed over.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from scrapyd_dist.batches import AttemptState, Crawl, home_of
from scrapyd_dist.errors import NodeError, NothingMatched
from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.node_answers import exit_code, must_answer
from scrapyd_dist.nodes import Node, nodes_by_url
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.scrapyd.jobs import is_others
from scrapyd_dist.store import Store
from scrapyd_dist.transports import Sender, sweep

from ..context import Context
from ..options import JobProject, Nodes, Spider, Timeout
from ..silence import without_drained

#: seconds that a node gets for each answer
TIMEOUT = 15.0
#: the node of a job that waits
NOWHERE = "-"


@dataclass(frozen=True, kw_only=True)
class Listed(Place):
    """A job as its node lists it, or as the store remembers it."""

    state: JobState
    started: datetime | None = None  #: by the node's local clock
    ended: datetime | None = None
    remembered: bool = False  #: the store knows it, and its node does not list it
    silent: str = ""  #: why its node cannot be asked
    #: its id names a crawl as this project's store has one, and it is another one's
    is_others: bool = False

    @property
    def crawl(self) -> str | None:
        """The crawl in its id; None if that is another project's, which has the name of ours."""
        return None if self.is_others else super().crawl

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others: base address of its node, and its id."""
        return self.node.url, self.job

    @property
    def over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state is JobState.FINISHED


def by_key(rows: Iterable[Listed]) -> dict[tuple[str, str], Listed]:
    """Return jobs by what tells them from others; of several with one key the last."""
    return {row.key: row for row in rows}


def place_row(place: Place) -> dict[str, Any]:
    """Return what names a job, for `--json`."""
    return {
        "node": place.node.name,
        "project": place.project,
        "spider": place.spider,
        "job": place.job,
    }


@dataclass(frozen=True, kw_only=True)
class JobList:
    """What nodes answered when they were asked for their jobs."""

    jobs: tuple[Listed, ...]
    failed: Mapping[Node, NodeError]  #: of those that did not answer and count
    asked: int  #: nodes that count
    silent: frozenset[str] = frozenset()  #: base addresses of the nodes that did not answer

    @property
    def errors(self) -> tuple[NodeError, ...]:
        """Why those nodes did not answer that count."""
        return tuple(self.failed.values())

    def must_answer(self) -> None:
        """Raise what kept all nodes away, if none answered: nothing can be said of jobs then."""
        must_answer(self.asked, self.errors)

    def heard_by(self, context: Context, nodes: Sequence[Node]) -> "JobList":
        """Return the same list, in which drained nodes that did not answer count for nothing."""
        answers = {}
        for node in nodes:
            answers[node] = self.failed.get(node)
        counting = without_drained(context, answers)
        failed = {node: error for node, error in counting.items() if error is not None}
        return replace(self, failed=failed, asked=len(counting))

    def about(self, names: Collection[str]) -> "JobList":
        """Return the same list for a command about these jobs.

        Where all of them are found, nodes that did not answer do not matter.
        """
        missing = set(names)
        for row in self.jobs:
            missing.discard(row.job)
        if names and not missing:
            return replace(self, failed={})
        return self

    @property
    def exit_code(self) -> int:
        """By the nodes alone: 0, 3, 5 or 6."""
        return exit_code(self.asked, self.errors)

    def named(
        self, names: Sequence[str], remembered: Mapping[str, Sequence[Listed]]
    ) -> tuple[Listed, ...]:
        """Return the jobs of these ids and crawls.

        remembered: what the store knows, by name; nodes forget their jobs.

        Raises:
            NothingMatched: a name fits none.
            NodeError: a name fits none, and no node answered.
        """
        chosen: dict[tuple[str, str], Listed] = {}
        for name in names:
            rows = {}
            for row in self.jobs:
                if name in (row.job, row.crawl):
                    rows[row.key] = row
            known = by_key(remembered.get(name, ()))
            for key, row in known.items():
                rows.setdefault(key, row)
            if not rows:
                self.must_answer()
                raise self._no_such_job(name)
            chosen |= rows
        return tuple(chosen.values())

    def _no_such_job(self, name: str) -> NothingMatched:
        text = f"There is no job or crawl {name!r} on the nodes that were asked"
        if self.errors:
            return NothingMatched(f"{text}, {len(self.errors)} of which did not answer.")
        return NothingMatched(
            f"{text}. `sdist jobs` lists those that the nodes remember, the last 100 of each, and"
            " those that `sdist jobs schedule` has started from here."
        )


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """The options of a command that say whose jobs are meant."""

    node: Nodes = None
    project: JobProject = None
    spider: Spider = None
    timeout: Timeout = TIMEOUT

    def list_jobs(self, context: Context, nodes: Sequence[Node] | None = None) -> JobList:
        """Return what the nodes list; without nodes, those of --node, or all, are asked."""
        if nodes is None:
            nodes = context.nodes(self.node)
        found = ask_jobs(
            context.sender, nodes, project=self.project, spider=self.spider, timeout=self.timeout
        )
        return mark_others(context, found).heard_by(context, nodes)

    def named(self, context: Context, names: Sequence[str]) -> tuple[JobList, tuple[Listed, ...]]:
        """Return what the nodes list, and the jobs of these ids and crawls; without names, all.

        Jobs that only the store remembers are found by name as well.
        """
        listed = self.list_jobs(context).about(names)
        if not names:
            return listed, listed.jobs
        known = remembered(context, names, context.nodes(self.node))
        return listed, listed.named(names, known)


def mark_others(context: Context, found: JobList) -> JobList:
    """Return the same list, with jobs marked that are of other crawls with the name of one of ours.

    Two checkouts of a project may each have a crawl of one name, on the same nodes.
    """
    if not any(row.crawl for row in found.jobs):
        return found
    store = context.store_if_any
    if store is None:
        return found
    homes = {}
    for crawl in store.crawls():
        homes[crawl.id] = home_of(crawl.id, crawl.created)
    rows = (replace(row, is_others=is_others(row.job, homes)) for row in found.jobs)
    return replace(found, jobs=tuple(rows))


def utc(local: datetime, offset: timedelta) -> datetime:
    """Return a node's local time in UTC; offset: its local time minus UTC."""
    return (local - offset).replace(tzinfo=timezone.utc)


def jobs_of(
    sender: Sender, node: Node, project: str | None = None, *, timeout: float
) -> list[Listed]:
    """Return the jobs that a node lists: those that wait, those that run, those that are over."""
    jobs = sender.send(node, api.listjobs(project), timeout=timeout)
    rows = []
    for job in (*jobs.pending, *jobs.running, *jobs.finished):
        row = Listed(
            node=node,
            project=job.project,
            spider=job.spider,
            job=job.id,
            state=job.state,
            started=job.start_time,
            ended=job.end_time,
        )
        rows.append(row)
    return rows


def ask_jobs(
    sender: Sender,
    nodes: Sequence[Node],
    *,
    project: str | None = None,
    spider: str | None = None,
    timeout: float = TIMEOUT,
) -> JobList:
    """Return the jobs that the nodes list, all asked at the same time.

    They are in the nodes' order, as each lists them. spider: a pattern; timeout: seconds.
    """
    read = partial(jobs_of, sender, project=project, timeout=timeout)
    found: dict[Node, list[Listed]] = {}
    failed: dict[Node, NodeError] = {}
    silent = set[str]()
    for answer in sweep(nodes, read):
        found[answer.asked] = answer.value or []
        if answer.error is not None:
            failed[answer.asked] = answer.error
            silent.add(answer.asked.url)
    rows: list[Listed] = []
    for node in nodes:
        rows += found[node]
    if spider is not None:
        rows = [row for row in rows if fnmatchcase(row.spider, spider)]
    return JobList(jobs=tuple(rows), failed=failed, asked=len(nodes), silent=frozenset(silent))


def listed_again(record: JobRecord, node: Node, silent: str = "") -> Listed:
    """Return a remembered job that its node does not list; silent: why that cannot be asked."""
    return Listed(
        node=node,
        project=record.project,
        spider=record.spider,
        job=record.id,
        state=JobState.FINISHED,
        remembered=True,
        silent=silent,
    )


def remembered(
    context: Context, names: Sequence[str], nodes: Sequence[Node]
) -> dict[str, list[Listed]]:
    """Return what the project's store knows of, by name: attempts of a crawl, or a plain job.

    Only jobs on these nodes are found, and those that never had a node.
    """
    store = context.store_if_any if names else None
    if store is None:
        return {}
    crawls = store.crawls()
    by_url = nodes_by_url(nodes)
    others = set(names)
    for crawl in crawls:
        others.discard(crawl.id)
    found = {}
    if others:
        found = _plain_jobs(store, names, by_url)
    for crawl in crawls:
        if crawl.id in names and (rows := _attempts(store, crawl, by_url)):
            found.setdefault(crawl.id, []).extend(rows)
    return found


def _plain_jobs(
    store: Store, names: Sequence[str], by_url: Mapping[str, Node]
) -> dict[str, list[Listed]]:
    # A job that was cancelled before it began has no address.
    places = {**by_url, "": Node(name=NOWHERE, url="")}
    found = {}
    for record in store.jobs():
        node = places.get(record.url)
        if node is not None and record.id in names:
            found[record.id] = [listed_again(record, node)]
    return found


def _attempts(store: Store, crawl: Crawl, by_url: Mapping[str, Node]) -> list[Listed]:
    """Return the jobs of a crawl that these nodes may have had."""
    slots = {}
    for batch in store.batches(crawl.id):
        slots[batch.number] = batch.slot
    rows = []
    for attempt in store.attempts(crawl.id):
        node = by_url.get(attempt.url)
        if node is None or attempt.state is AttemptState.REFUSED:
            continue
        project, spider = spider_of_slot(slots.get(attempt.batch, ""))
        row = Listed(
            node=node,
            project=project or node.project or crawl.project,
            spider=spider or crawl.spider,
            # A worker that leases is one job for all its batches.
            job=attempt.worker or attempt.job,
            state=JobState.FINISHED,
        )
        rows.append(row)
    return rows
