"""Which jobs a command is about: what the nodes list and the store remembers, chosen by name, node, project, spider.

The rule it keeps: a name that fits nothing is an error, and a node that does not answer is named, never passed over.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from scrapyd_dist.batches import AttemptState, home_of
from scrapyd_dist.errors import NodeError, NothingMatched
from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.joblogs.worker_report import BadReport, WorkerReport, read_report, report_path
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.scrapyd.jobs import is_others
from scrapyd_dist.transports import Sender, sweep

from ..context import Context, exit_code, must_answer
from ..options import JobProject, Nodes, Spider, Timeout
from ..silence import heard

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
    is_others: bool = (
        False  #: its id names a crawl as this project's store has one, and it is another one's
    )

    @property
    def crawl(self) -> str | None:
        """The crawl in its id; None for a job of another project's crawl that has the name of one of ours."""
        return None if self.is_others else super().crawl

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others: base address of its node, and its id."""
        return self.node.url, self.job

    @property
    def over(self) -> bool:
        return self.state is JobState.FINISHED


def place_row(place: Place) -> dict[str, Any]:
    """What names a job, for `--json`."""
    return {
        "node": place.node.name,
        "project": place.project,
        "spider": place.spider,
        "job": place.job,
    }


@dataclass(frozen=True, kw_only=True)
class JobList:
    jobs: tuple[Listed, ...]
    failed: Mapping[Node, NodeError]  #: of those that did not answer and count
    asked: int  #: nodes that count
    silent: frozenset[str] = frozenset()  #: base addresses of the nodes that did not answer

    @property
    def errors(self) -> tuple[NodeError, ...]:
        return tuple(self.failed.values())

    def must_answer(self) -> None:
        """Raises what kept all nodes away, where none answered: nothing can be said about jobs then."""
        must_answer(self.asked, self.errors)

    def heard_by(self, context: Context, nodes: Sequence[Node]) -> "JobList":
        """The same, in which drained nodes that did not answer count for nothing."""
        left = heard(context, {node: self.failed.get(node) for node in nodes})
        failed = {node: error for node, error in left.items() if error is not None}
        return replace(self, failed=failed, asked=len(left))

    def about(self, names: Collection[str]) -> "JobList":
        """The same for a command about these jobs: where all are found, nodes that did not answer do not matter."""
        found = {row.job for row in self.jobs}
        return replace(self, failed={}) if names and found.issuperset(names) else self

    @property
    def exit_code(self) -> int:
        """By the nodes alone: 0, 3, 5 or 6."""
        return exit_code(self.asked, self.errors)

    def named(
        self, names: Sequence[str], remembered: Mapping[str, Sequence[Listed]]
    ) -> tuple[Listed, ...]:
        """The jobs of these ids and crawls; remembered: the store's attempts, by crawl, since nodes forget theirs.

        Raises NothingMatched for a name that fits none; what kept the nodes away, if none of them answered.
        """
        chosen: dict[tuple[str, str], Listed] = {}
        for name in names:
            listed = {row.key: row for row in self.jobs if name in (row.job, row.crawl)}
            rows = listed | {
                row.key: row for row in remembered.get(name, ()) if row.key not in listed
            }
            if not rows:
                self.must_answer()
                text = f"There is no job or crawl {name!r} on the nodes that were asked"
                if self.errors:
                    raise NothingMatched(f"{text}, {len(self.errors)} of which did not answer.")
                raise NothingMatched(
                    f"{text}. `sdist jobs` lists those that the nodes remember, the last 100 of each, and those that"
                    " `sdist jobs schedule` has started from here."
                )
            chosen |= rows
        return tuple(chosen.values())


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """Whose jobs are meant, as options of a command."""

    node: Nodes = None
    project: JobProject = None
    spider: Spider = None
    timeout: Timeout = TIMEOUT

    def ask(self, context: Context, nodes: Sequence[Node] | None = None) -> JobList:
        nodes = context.nodes(self.node) if nodes is None else nodes
        found = ask_jobs(
            context.sender, nodes, project=self.project, spider=self.spider, timeout=self.timeout
        )
        return told_apart(context, found).heard_by(context, nodes)

    def named(self, context: Context, names: Sequence[str]) -> tuple[JobList, tuple[Listed, ...]]:
        """What the nodes list, and of that and of the store the jobs of these ids and crawls; without names, all."""
        listed = self.ask(context).about(names)
        rows = listed.named(names, remembered(context, names, context.nodes(self.node)))
        return listed, rows if names else listed.jobs


def told_apart(context: Context, found: JobList) -> JobList:
    """The same list, in which jobs of other crawls are marked that have the name of a crawl of this project.

    Two checkouts of a project may each have a crawl of one name, on the same nodes.
    """
    store = context.store_if_any if any(row.crawl for row in found.jobs) else None
    if store is None:
        return found
    homes = {crawl.id: home_of(crawl.id, crawl.created) for crawl in store.crawls()}
    rows = (replace(row, is_others=is_others(row.job, homes)) for row in found.jobs)
    return replace(found, jobs=tuple(rows))


def fetch_report(
    sender: Sender, place: Place, home: str, *, most: int, timeout: float
) -> WorkerReport | None:
    """The report that a job's worker left in its crawl's log folder, if it can be read; most: bytes of it."""
    chunk = sender.send(
        place.node, api.fetch(report_path(home, place.job), start=0, limit=most), timeout=timeout
    )
    try:
        return read_report(chunk.body) if chunk is not None else None
    except BadReport:
        return None


def utc(local: datetime, offset: timedelta) -> datetime:
    """A node's local time in UTC; offset: its local time minus UTC."""
    return (local - offset).replace(tzinfo=timezone.utc)


def jobs_of(
    sender: Sender, node: Node, project: str | None = None, *, timeout: float
) -> list[Listed]:
    """The jobs that a node lists: those that wait, those that run, those that are over."""
    jobs = sender.send(node, api.listjobs(project), timeout=timeout)
    return [
        Listed(
            node=node,
            project=job.project,
            spider=job.spider,
            job=job.id,
            state=job.state,
            started=job.start_time,
            ended=job.end_time,
        )
        for job in (*jobs.pending, *jobs.running, *jobs.finished)
    ]


def ask_jobs(
    sender: Sender,
    nodes: Sequence[Node],
    *,
    project: str | None = None,
    spider: str | None = None,
    timeout: float = TIMEOUT,
) -> JobList:
    """The jobs that the nodes list, all asked at the same time; in the nodes' order, as each lists them."""
    answers = {
        answer.asked: answer
        for answer in sweep(nodes, partial(jobs_of, sender, project=project, timeout=timeout))
    }
    rows = (row for node in nodes for row in answers[node].value or ())
    return JobList(
        jobs=tuple(row for row in rows if spider is None or fnmatchcase(row.spider, spider)),
        failed={node: answer.error for node, answer in answers.items() if answer.error is not None},
        asked=len(nodes),
        silent=frozenset(node.url for node, answer in answers.items() if answer.error is not None),
    )


def listed_again(record: JobRecord, node: Node, silent: str = "") -> Listed:
    """A remembered job that its node does not list; silent: why its node cannot be asked."""
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
    """By name, what the project's store knows of: the attempts of a crawl, a plain job."""
    store = context.store_if_any if names else None
    if store is None:
        return {}
    by_url = {node.url: node for node in nodes}
    nowhere = {"": Node(name=NOWHERE, url="")}  # of a job that was cancelled before it began
    found: dict[str, list[Listed]] = {}
    for record in store.jobs() if set(names) - {crawl.id for crawl in store.crawls()} else ():
        if record.id in names and (node := (by_url | nowhere).get(record.url)):
            found[record.id] = [listed_again(record, node)]
    for crawl in store.crawls():
        if crawl.id not in names:
            continue
        slots = {batch.number: batch.slot for batch in store.batches(crawl.id)}
        for attempt in store.attempts(crawl.id):
            node = by_url.get(attempt.url)
            if node is None or attempt.state is AttemptState.REFUSED:
                continue
            job = (
                attempt.worker or attempt.job
            )  # a worker that leases is one job for all its batches
            project, spider = spider_of_slot(slots.get(attempt.batch, ""))
            project = project or node.project or crawl.project
            row = Listed(
                node=node,
                project=project,
                spider=spider or crawl.spider,
                job=job,
                state=JobState.FINISHED,
            )
            found.setdefault(crawl.id, []).append(row)
    return found
