"""Finds the jobs that a command is about: those that nodes list and those that the store remembers.

The rule it keeps: a name that fits nothing is an error, and a node that does not answer is named,
never passed over.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from functools import partial

from scrapyd_dist.batches import AttemptState, Crawl, home_of
from scrapyd_dist.errors import ApiRefused, NodeError, NoJob
from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.node_answers import answers_exit_code, must_answer, without_drained
from scrapyd_dist.nodes import Node, PresentNodes
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.scrapyd.jobs import is_others
from scrapyd_dist.store import Store
from scrapyd_dist.transports import Sender, sweep

from .job_site import JobSite

#: seconds that a node gets for each answer
TIMEOUT = 15.0
#: the node of a job that waits
NOWHERE = "-"
#: why the node of a remembered job cannot be asked which is listed nowhere
NO_TARGET = "its node is no target any more"


@dataclass(frozen=True, kw_only=True)
class ListedJob(Place):
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


def by_key(rows: Iterable[ListedJob]) -> dict[tuple[str, str], ListedJob]:
    """Return jobs by what tells them from others; of several with one key the last."""
    return {row.key: row for row in rows}


@dataclass(frozen=True, kw_only=True)
class JobList:
    """What nodes answered when they were asked for their jobs."""

    jobs: tuple[ListedJob, ...]
    failed: Mapping[Node, NodeError]  #: of those that did not answer and count
    asked: int  #: nodes that count
    silent: frozenset[str] = frozenset()  #: base addresses of the nodes that did not answer
    lacking: int = 0  #: nodes that answered that they do not have the project which was asked for

    @property
    def errors(self) -> tuple[NodeError, ...]:
        """Why those nodes did not answer that count."""
        return tuple(self.failed.values())

    def must_answer(self) -> None:
        """Raise what kept all nodes away, if none answered: nothing can be said of jobs then."""
        must_answer(self.asked, self.errors)

    def without_drained(self, site: JobSite, nodes: Sequence[Node]) -> "JobList":
        """Return the same list, in which drained nodes that did not answer count for nothing."""
        answers = {}
        for node in nodes:
            answers[node] = self.failed.get(node)
        counting = without_drained(answers, site.find_drained, site.messenger)
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
        return answers_exit_code(self.asked, self.errors)

    def named(
        self, names: Sequence[str], remembered: Mapping[str, Sequence[ListedJob]]
    ) -> tuple[ListedJob, ...]:
        """Return the jobs of these ids and crawls.

        remembered: what the store knows, by name; nodes forget their jobs.

        Raises:
            NothingMatched: a name fits none.
            NodeError: a name fits none, and no node answered.
        """
        chosen: dict[tuple[str, str], ListedJob] = {}
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

    def _no_such_job(self, name: str) -> NoJob:
        text = f"There is no job or crawl {name!r} on the nodes that were asked"
        names = dict.fromkeys(row.crawl for row in self.jobs if row.crawl)
        names |= dict.fromkeys(row.job for row in self.jobs)
        question = did_you_mean(name, names)
        if self.errors:
            return NoJob(
                f"{text}, {len(self.errors)} of which did not answer.{question}",
                asked=self.asked,
                unreached=[*map(str, self.errors)],
            )
        return NoJob(
            f"{text}.{question} `sdist jobs` lists those that the nodes remember, the last 100 of"
            " each, and those that `sdist jobs schedule` has started from here.",
            asked=self.asked,
        )


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """Whose jobs are meant, and how long their nodes may take."""

    nodes: Sequence[Node]  #: those that are asked
    narrowed: bool = False  #: whether jobs that other nodes had are not meant
    project: str | None = None
    spider: str | None = None  #: its name, or a pattern
    timeout: float = TIMEOUT  #: seconds that a node gets for each answer

    def means(self, project: str, spider: str) -> bool:
        """Tell whether jobs of this project and spider are meant."""
        if self.project not in (None, project):
            return False
        return fnmatchcase(spider, self.spider or "*")

    def list_jobs(self, site: JobSite) -> JobList:
        """Return what the nodes list, without what is not meant."""
        found = ask_jobs(
            site.sender,
            self.nodes,
            project=self.project,
            spider=self.spider,
            timeout=self.timeout,
        )
        return mark_others(site, found).without_drained(site, self.nodes)

    def named(
        self, site: JobSite, names: Sequence[str], *, gone_too: bool = False
    ) -> tuple[JobList, tuple[ListedJob, ...]]:
        """Return what the nodes list, and the jobs of these ids and crawls; without names, all.

        Jobs that only the store remembers are found by name as well; gone_too: also those of nodes
        that are no targets any more.
        """
        listed = self.list_jobs(site).about(names)
        if not names:
            return listed, listed.jobs
        gone_too = gone_too and not self.narrowed
        known = remembered(site, names, self.nodes, gone_too=gone_too)
        return listed, listed.named(names, known)


def mark_others(site: JobSite, found: JobList) -> JobList:
    """Return the same list, with jobs marked that are of other crawls with the name of one of ours.

    Two checkouts of a project may each have a crawl of one name, on the same nodes.
    """
    if not any(row.crawl for row in found.jobs):
        return found
    store = site.store
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


def list_node_jobs(
    sender: Sender, node: Node, project: str | None = None, *, timeout: float
) -> list[ListedJob]:
    """Return the jobs that a node lists: those that wait, those that run, those that are over."""
    jobs = sender.send(node, api.listjobs(project), timeout=timeout)
    rows = []
    for job in (*jobs.pending, *jobs.running, *jobs.finished):
        row = ListedJob(
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
    read = partial(list_node_jobs, sender, project=project, timeout=timeout)
    found: dict[Node, list[ListedJob]] = {}
    failed: dict[Node, NodeError] = {}
    lacking = 0
    silent = set[str]()
    for answer in sweep(nodes, read):
        found[answer.asked] = answer.value or []
        if project is not None and _lacks_project(answer.error):
            lacking += 1  # so no job of it is there
        elif answer.error is not None:
            failed[answer.asked] = answer.error
            silent.add(answer.asked.url)
    rows: list[ListedJob] = []
    for node in nodes:
        rows += found[node]
    if spider is not None:
        rows = [row for row in rows if fnmatchcase(row.spider, spider)]
    return JobList(
        jobs=tuple(rows),
        failed=failed,
        asked=len(nodes),
        silent=frozenset(silent),
        lacking=lacking,
    )


def _lacks_project(error: NodeError | None) -> bool:
    return isinstance(error, ApiRefused) and "not found" in error.scrapyd_message


def listed_again(record: JobRecord, node: Node, silent: str = "") -> ListedJob:
    """Return a remembered job that its node does not list; silent: why that cannot be asked."""
    return ListedJob(
        node=node,
        project=record.project,
        spider=record.spider,
        job=record.id,
        state=JobState.FINISHED,
        remembered=True,
        silent=silent,
    )


def remembered(
    site: JobSite, names: Sequence[str], nodes: Sequence[Node], *, gone_too: bool = False
) -> dict[str, list[ListedJob]]:
    """Return what the project's store knows of, by name: attempts of a crawl, or a plain job.

    Only jobs on these nodes are found, and those that never had a node; gone_too: plain jobs of
    other nodes as well, which cannot be asked.
    """
    store = site.store if names else None
    if store is None:
        return {}
    crawls = store.crawls()
    present = PresentNodes(nodes)
    others = set(names)
    for crawl in crawls:
        others.discard(crawl.id)
    found = {}
    if others:
        found = _plain_jobs(store, names, present, gone_too=gone_too)
    for crawl in crawls:
        if crawl.id in names and (rows := _attempts(store, crawl, present)):
            found.setdefault(crawl.id, []).extend(rows)
    return found


def _plain_jobs(
    store: Store, names: Sequence[str], present: PresentNodes, *, gone_too: bool
) -> dict[str, list[ListedJob]]:
    found = {}
    for record in store.named_jobs(names):
        node = present.find(record.node, record.url)
        if not record.url:
            node = Node(name=NOWHERE, url="")  # it was cancelled before it began
        if node is not None:
            found[record.id] = [listed_again(record, node)]
        elif gone_too:
            node = Node(name=record.node or NOWHERE, url=record.url)
            found[record.id] = [listed_again(record, node, NO_TARGET)]
    return found


def _attempts(store: Store, crawl: Crawl, present: PresentNodes) -> list[ListedJob]:
    """Return the jobs of a crawl that these nodes may have had."""
    slots = {}
    for batch in store.batches(crawl.id):
        slots[batch.number] = batch.slot
    rows = []
    for attempt in store.attempts(crawl.id):
        node = present.find(attempt.node, attempt.url)
        if node is None or attempt.state is AttemptState.REFUSED:
            continue
        project, spider = spider_of_slot(slots.get(attempt.batch, ""))
        row = ListedJob(
            node=node,
            project=project or node.project or crawl.project,
            spider=spider or crawl.spider,
            # A worker that leases is one job for all its batches.
            job=attempt.worker or attempt.job,
            state=JobState.FINISHED,
        )
        rows.append(row)
    return rows
