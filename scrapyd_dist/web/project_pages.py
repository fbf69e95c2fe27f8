"""What each page of a project shows, and the JSON document beside it.

The rule it keeps: a page asks the functions that the commands ask, through answers that all viewers
share.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError, DistError, NoJob, NothingMatched, StoreError
from scrapyd_dist.fleet import frontier_listing, throttled_domains
from scrapyd_dist.fleet.batch_listing import choose_batches, describe_batches, describe_misses
from scrapyd_dist.fleet.checkup import check_fleet
from scrapyd_dist.fleet.crawl_files import last_log_lines
from scrapyd_dist.fleet.frontier_listing import FrontierEntry, list_frontiers
from scrapyd_dist.fleet.live_crawls import describe_crawl, list_crawls, runs
from scrapyd_dist.fleet.missing import missing
from scrapyd_dist.fleet.present_troubles import (
    RECENT,
    find_failed_spiders,
    find_present_troubles,
)
from scrapyd_dist.fleet.strategy_listing import list_strategies
from scrapyd_dist.fleet.throttled_domains import list_domains, list_heedings, throttle_document
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.jobs.job_judge import settle_jobs
from scrapyd_dist.jobs.job_list import JobFilter
from scrapyd_dist.jobs.job_log_end import JobLogEnd, read_job_log_end
from scrapyd_dist.jobs.job_rows import JobChoice, choose_first_jobs, list_jobs
from scrapyd_dist.jobs.job_site import open_site
from scrapyd_dist.nodes import Node, nodes_by_url
from scrapyd_dist.project_names import quick_project
from scrapyd_dist.report import page as report
from scrapyd_dist.report.facts import Facts, gather, gather_growth
from scrapyd_dist.report.series import find_usual_items
from scrapyd_dist.settings import read_seconds
from scrapyd_dist.store import Store

from .fleet_board import FleetBoard, Point
from .shared_answers import EVERY, NotAnsweredYet, SharedAnswers

#: rows of a list that a page shows
ROWS = 200
#: jobs that are over, at the nodes and in the store, among which a page's filters look
NEWEST = 300
#: lines of a log that are shown
LINES = 200
#: crawls on the first page
CRAWLS = 20
#: batches up to which the page of a crawl has the whole report; it draws each of them
WHOLE = 300
#: seconds between two times that nodes are asked for their lists of jobs
JOBS_EVERY = 5.0
#: seconds between two times that a node is examined
EXAM_EVERY = 30.0

#: reasons of misses on a page, and the misses of each
REASONS = 50
OF_REASON = 20

#: why no node was asked for its jobs
NO_NODE = (
    "scrapy.cfg names no node, and no local one runs: these are the jobs that the store remembers."
)

#: names of the filters of jobs in an address
FILTERS = ("state", "spider", "node", "label", "since")

T = TypeVar("T")
#: kind and reason of misses, and their documents
MissGroup = tuple[str, str, list[Any]]


class PageView(NamedTuple):
    """What a page shows."""

    template: str
    document: Mapping[str, Any]  #: what the page's `.json` is, as the command gives it
    values: Mapping[str, Any]  #: what the template shows besides
    fault: str = ""  #: why the document says nothing, though the page does
    is_partial: bool = False  #: what the store has is missing on the page
    refused: Exception | None = None  #: what is wrong with the words in the address of a form


class ListedCrawl(NamedTuple):
    """A crawl in a list."""

    row: Crawl
    document: Mapping[str, Any]
    usual: float | None  #: the median of the items of the runs before it


class CrawlList(NamedTuple):
    """The crawls of a project, the newest first."""

    documents: Sequence[Mapping[str, Any]]  #: of all
    listed: Sequence[ListedCrawl]  #: the last ones, and those before them that have not ended


@dataclass(frozen=True, kw_only=True)
class AskedJobs:
    """Which jobs a page lists, by the words in its address."""

    states: frozenset[Outcome] = frozenset()
    spider: str | None = None
    nodes: tuple[str, ...] = ()  #: names or patterns; none for all
    labels: tuple[str, ...] = ()
    since: float | None = None  #: seconds
    crawl: str | None = None  #: only jobs of this crawl, or the job of this id

    @classmethod
    def parse(cls, words: Mapping[str, Sequence[str]]) -> "AskedJobs":
        """Return the query of an address; words: the values of each name.

        Raises:
            ConfigError: a value is not of its kind, or a name is none of a filter.
        """
        for name in words:
            if name not in FILTERS:
                known = ", ".join(FILTERS)
                raise ConfigError(f"There is no filter {name!r} of jobs. There are: {known}.")
        given = {name: _split(words.get(name, ())) for name in ("node", "label", "state")}
        spider = "".join(words.get("spider", ())[:1])
        since = "".join(words.get("since", ())[:1])
        return cls(
            states=frozenset(map(_state_named, given["state"])),
            spider=spider or None,
            nodes=given["node"],
            labels=given["label"],
            since=read_seconds("since", since) if since else None,
        )


def _split(values: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a name in an address; a form has all of them in one field."""
    found = []
    for value in values:
        found += [word.strip() for word in value.split(",")]
    return tuple(filter(None, found))


def _state_named(word: str) -> Outcome:
    try:
        return Outcome(word)
    except ValueError:
        known = ", ".join(outcome.value for outcome in Outcome)
        raise ConfigError(f"There is no state {word!r} of a job. There are: {known}.") from None


@dataclass(frozen=True, kw_only=True)
class ProjectPages:
    """The pages of one project."""

    #: opens the project; each answer opens it anew, so that what is changed there is seen
    open_workspace: Callable[[], Workspace]
    answers: SharedAnswers = field(default_factory=SharedAnswers)
    board: FleetBoard

    def close(self) -> None:
        """End what is asked and held open."""
        self.answers.close()
        self.board.close()

    # what the store has

    def crawls(self) -> PageView:
        """Return all crawls, the newest first."""
        found = self._list_crawls()
        document = {"crawls": found.documents}
        return PageView("crawls", document, {"crawls": found.listed, "now": time.time()})

    def crawl(self, name: str) -> PageView:
        """Return how a crawl stands, with its report."""
        document = self._ask_store(("crawl", name), lambda store: _describe_standing(store, name))
        facts = self.facts(name)
        return PageView(
            "crawl", document, {**report.values_of(facts), "is_whole": _is_short(facts)}
        )

    def facts(self, name: str) -> Facts:
        """Return what the report of a crawl is made of; of a large one, how it has grown."""
        return self._ask_store(("facts", name), lambda store: _facts_of(store, name))

    def growth(self, name: str) -> Facts:
        """Return how a crawl has grown, for the part of its page that is alive."""
        return self._ask_store(("growth", name), lambda store: _growth_of(store, name))

    def whole_report(self, name: str) -> str:
        """Return the report of a crawl as a page of its own."""
        facts = self._ask_store(("report", name), lambda store: _whole_facts_of(store, name), 10.0)
        return report.page(facts)

    def batches(self, name: str) -> PageView:
        """Return the batches of a crawl."""

        def read(store: Store) -> dict[str, Any]:
            rows = choose_batches(store, name, (), ())
            return {"crawl": name, "batches": describe_batches(store, name, rows)}

        document = self._ask_store(("batches", name), read, JOBS_EVERY)
        return PageView("batches", document, {"crawl": self._crawl_row(name), "rows": ROWS})

    def misses(self, name: str) -> PageView:
        """Return the requests of a crawl without a result, by their reasons."""

        def read(workspace: Workspace) -> tuple[list[dict[str, Any]], list[MissGroup]]:
            rows = describe_misses(_find_misses(workspace, name))
            return rows, _group_by_reason(rows)

        rows, groups = self._ask(("misses", name), read, JOBS_EVERY)
        values = {
            "crawl": self._crawl_row(name),
            "groups": groups[:REASONS],
            "reasons": len(groups),
            "rows": OF_REASON,
        }
        return PageView("misses", {"crawl": name, "misses": rows}, values)

    def crawl_log(self, name: str) -> PageView:
        """Return the end of the log of a crawl's process."""
        crawl = self._crawl_row(name)

        def read(workspace: Workspace) -> list[str]:
            return last_log_lines(workspace.root, crawl.id, LINES)

        lines = self._ask(("crawl log", name), read)
        return PageView("crawl_log", {"crawl": name, "lines": lines}, {"crawl": crawl})

    def throttle(self) -> PageView:
        """Return how each domain stands under the throttle."""

        def read(store: Store) -> tuple[dict[str, Any], list[tuple[object, ...]]]:
            rows, version = list_domains(store)
            document = throttle_document(rows, version, list_heedings(store))
            return document, [row.cells() for row in rows[:ROWS]]

        empty: tuple[dict[str, Any], list[tuple[object, ...]]] = (throttle_document([], 0, []), [])
        document, cells = self._ask_store("throttle", read, empty=empty)
        values = {"headings": throttled_domains.HEADINGS, "cells": cells}
        return PageView("throttle", document, values)

    def frontiers(self) -> PageView:
        """Return the frontiers, and what is in their slots."""

        def read(workspace: Workspace) -> list[tuple[dict[str, Any], tuple[object, ...]]]:
            entries = list_frontiers(workspace.store_if_any, None)
            return [(entry.document(), entry.cells()) for entry in entries]

        found = self._ask("frontiers", read)
        document = {"frontiers": [described for described, _ in found]}
        values = {
            "headings": frontier_listing.HEADINGS,
            "cells": [cells for _, cells in found],
        }
        return PageView("frontiers", document, values)

    def strategies(self) -> PageView:
        """Return the crawling strategies, and how each stands."""
        found = self._ask("strategies", lambda workspace: list_strategies(workspace.store_if_any))
        return PageView("strategies", {"strategies": found}, {})

    # what nodes answer

    def home(self) -> PageView:
        """Return how the whole fleet stands, and its last crawls."""
        document, points, away = self._fleet_or_why_not()
        listed, lost = self._crawls_or_why_not()
        found = find_present_troubles(document, [crawl.row for crawl in listed])
        found += self._find_failed_spiders()
        values = {
            "points": points,
            "troubles": [*filter(None, (away, lost)), *found],
            "running": [crawl for crawl in listed if runs(crawl.row)],
            "crawls": listed[:CRAWLS],
            "now": time.time(),
        }
        return PageView("home", document, values, away or lost, is_partial=bool(lost))

    def _find_failed_spiders(self) -> list[str]:
        """Return a sentence for each spider in trouble; none while that is not known."""

        def read(workspace: Workspace) -> list[str]:
            nodes = _known_nodes(workspace, ())
            since = time.time() - RECENT
            settled = settle_jobs(open_site(workspace), nodes, since=since, most=NEWEST)
            return find_failed_spiders(settled.records)

        try:
            return self._ask("failed spiders", read, JOBS_EVERY, asks_nodes=True)
        except DistError:
            return []  # what is away has its own sentence

    def jobs(self, words: Mapping[str, Sequence[str]]) -> PageView:
        """Return the jobs that are asked for, the newest; words: the values of each filter.

        Where these are wrong, the page has the form with them, and says why.
        """
        given = {name: ", ".join(_split(words.get(name, ()))) for name in FILTERS}
        values = {"given": given, "outcomes": list(Outcome), "most": ROWS, "newest": NEWEST}
        try:
            document = self._list_jobs(AskedJobs.parse(words))
        except (ConfigError, NothingMatched) as error:
            document = {"jobs": [], "unreached": []}
            return PageView("jobs", document, {**values, "fault": str(error)}, refused=error)
        return PageView("jobs", document, {**values, "fault": ""})

    def crawl_jobs(self, name: str) -> PageView:
        """Return the jobs of a crawl."""
        crawl = self._crawl_row(name)
        try:
            document = self._list_jobs(AskedJobs(crawl=name))
        except NoJob as error:
            document = {"jobs": [], "nodes": error.asked, "unreached": [*error.unreached]}
        return PageView("crawl_jobs", document, {"crawl": crawl, "most": ROWS})

    def job(self, name: str, nodes: tuple[str, ...]) -> PageView:
        """Return what one job does or did, with the end of its log.

        nodes: where it is looked for; none for everywhere.
        """
        document = self._find_job(name, nodes)
        fleet, _, _ = self._fleet_or_why_not()
        live = [job for node in fleet["nodes"] for job in node["jobs"] if job["job"] == name]
        if not document["jobs"]:
            raise NothingMatched(f"There is no job {name!r}.")
        row = document["jobs"][-1]
        log, fault = self._job_log(name, nodes or tuple(filter(None, [row["node"]])))
        values = {"row": row, "live": live[-1:], "log": log, "fault": fault}
        errors = None if log is None else log.errors_document()
        return PageView("job", {**document, "log_errors": errors}, values)

    def _find_job(self, name: str, nodes: tuple[str, ...]) -> Mapping[str, Any]:
        """Return what is known of a job, on these nodes.

        The store remembers a job of a node that is no target any more.
        """
        try:
            return self._list_jobs(AskedJobs(crawl=name, nodes=nodes), EVERY)
        except (ConfigError, NothingMatched):
            if not nodes:
                raise
            document = self._list_jobs(AskedJobs(crawl=name), EVERY)
            rows = [row for row in document["jobs"] if row["node"] in nodes]
            if not rows:
                raise
            return {**document, "jobs": rows}

    def node(self, name: str) -> PageView:
        """Return how a node stands, what runs there, and what the doctor says of it."""

        def examine(workspace: Workspace) -> dict[str, Any]:
            nodes = _known_nodes(workspace, [name])
            project = quick_project(workspace.project, nodes=nodes)
            return check_fleet(workspace, nodes, project).document()

        fault = ""
        document: Mapping[str, Any] = {}
        try:
            document = self._ask(("node", name), examine, EXAM_EVERY, asks_nodes=True)
        except NotAnsweredYet:
            fault = "The node is being examined. This page shows it when that is done."
        fleet, _, _ = self._fleet_or_why_not()
        rows = [node for node in fleet["nodes"] if node["name"] == name]
        values = {
            "name": name,
            "row": rows[:1],
            "jobs": self._find_node_jobs(name),
            "most": ROWS,
            "examined": fault,
        }
        return PageView("node", document, values, fault)

    def _find_node_jobs(self, name: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the jobs of a node; None while it is asked for the first time."""
        try:
            jobs: Sequence[Mapping[str, Any]] = self._list_jobs(AskedJobs(nodes=(name,)))["jobs"]
        except NotAnsweredYet:
            return None
        return jobs

    def _fleet_or_why_not(self) -> tuple[Mapping[str, Any], Sequence[Point], str]:
        """Return the fleet's document and points, and why it cannot be asked, if it cannot."""
        try:
            document, points = self.answers.ask("fleet", self.board.poll, asks_nodes=True)
        except DistError as error:
            nothing = {"nodes": [], "running": 0, "pending": 0, "per_min": {"pages": 0, "items": 0}}
            return nothing, (), str(error)
        return document, points, ""

    def _list_jobs(self, query: AskedJobs, every: float = JOBS_EVERY) -> Mapping[str, Any]:
        def read(workspace: Workspace) -> dict[str, Any]:
            nodes = _known_nodes(workspace, query.nodes)
            wanted = JobFilter(nodes=nodes, narrowed=bool(query.nodes), spider=query.spider)
            chosen = JobChoice(
                states=query.states,
                labels=query.labels,
                since=None if query.since is None else timedelta(seconds=query.since),
                newest=NEWEST,
            )
            names = [query.crawl] if query.crawl else []
            found = list_jobs(open_site(workspace), wanted, chosen, names)
            document = found.document()
            if not nodes:
                document["unreached"] = [NO_NODE]
            return {**document, "jobs": choose_first_jobs(found.rows, ROWS)}

        return self._ask(("jobs", query), read, every, asks_nodes=True)

    def _job_log(self, name: str, nodes: tuple[str, ...]) -> tuple[JobLogEnd | None, str]:
        """Return the end of a job's log, or None and why there is none."""

        def read(workspace: Workspace) -> JobLogEnd:
            try:
                found = _known_nodes(workspace, nodes)
            except (ConfigError, NothingMatched):
                found = _known_nodes(workspace, ())  # its node is gone
            return read_job_log_end(open_site(workspace), JobFilter(nodes=found), name, LINES)

        try:
            return self._ask(("log", name, nodes), read, asks_nodes=True), ""
        except DistError as error:
            return None, str(error)

    # how it is asked

    def _ask(
        self,
        key: object,
        read: Callable[[Workspace], T],
        every: float = EVERY,
        *,
        asks_nodes: bool = False,
    ) -> T:
        """Return what is read in the project, asked once for all viewers."""

        def gather_anew() -> T:
            with closing(self.open_workspace()) as workspace:
                return read(workspace)

        answer: T = self.answers.ask(key, gather_anew, every, asks_nodes=asks_nodes)
        return answer

    def _ask_store(
        self,
        key: object,
        read: Callable[[Store], T],
        every: float = EVERY,
        *,
        empty: T | None = None,
    ) -> T:
        """Return what is read in the store; where there is none, `empty`, else NothingMatched."""

        def read_there(workspace: Workspace) -> T:
            if empty is not None and workspace.store_if_any is None:
                return empty
            return read(workspace.store)

        return self._ask(key, read_there, every)

    def _list_crawls(self) -> CrawlList:
        """Return all crawls, and of those that a page lists what it says of each."""

        def read(workspace: Workspace) -> CrawlList:
            rows = list_crawls(workspace.store_if_any)
            documents = list(map(describe_crawl, rows))
            pairs = list(zip(rows, documents, strict=True))
            shown = pairs[:ROWS] + [pair for pair in pairs[ROWS:] if not pair[0].state.ended]
            usual = find_usual_items(rows, [row for row, _ in shown])
            listed = [ListedCrawl(row, document, usual[row.id]) for row, document in shown]
            return CrawlList(documents, listed)

        return self._ask("crawls", read)

    def _crawls_or_why_not(self) -> tuple[Sequence[ListedCrawl], str]:
        """Return the crawls that a page lists, and why the store has not told them, if so."""
        try:
            return self._list_crawls().listed, ""
        except NotAnsweredYet:
            return (), "The store has not answered yet. This page shows the crawls when it does."
        except StoreError as error:
            return (), str(error)

    def _crawl_row(self, name: str) -> Crawl:
        return self._ask_store(("row", name), lambda store: store.crawl(name))


def _known_nodes(workspace: Workspace, patterns: Sequence[str]) -> tuple[Node, ...]:
    """Return the project's own nodes that these names, patterns and addresses mean; or all.

    A viewer's words never lead to another server, nor to a node with another login.

    Raises:
        NothingMatched: one of them means no node of the project.
    """
    nodes = workspace.known_nodes() if workspace.knows_nodes else ()
    if not patterns:
        return nodes
    if "" in patterns:
        raise NothingMatched("A node without a name is not there.")
    by_url = nodes_by_url(workspace.known_nodes())
    known = []
    for node in workspace.known_nodes(patterns):
        if node.url not in by_url:
            raise NothingMatched(f"The project has no node {node.name!r}.")
        known.append(by_url[node.url])
    return tuple(known)


def _describe_standing(store: Store, name: str) -> dict[str, Any]:
    """Return how a crawl or a frontier stands as `sdist status --json` gives it."""
    row = store.crawl(name)
    if row.kind == "frontier":
        return FrontierEntry(store, row).describe_standing()
    return describe_crawl(row)


def _is_short(facts: Facts) -> bool:
    total = facts.crawl.summary.get("batches") or {}
    return int(total.get("total") or 0) <= WHOLE


def _facts_of(store: Store, name: str) -> Facts:
    facts = _growth_of(store, name)
    return _whole_facts_of(store, name) if _is_short(facts) else facts


def _growth_of(store: Store, name: str) -> Facts:
    row = store.crawl(name)
    return gather_growth(store, row, now=time.time(), lives=runs(row))


def _whole_facts_of(store: Store, name: str) -> Facts:
    return gather(store, name, now=time.time(), lives=runs(store.crawl(name)))


def _find_misses(workspace: Workspace, name: str) -> list[Any]:
    store = workspace.store
    store.crawl(name)
    return missing(store, workspace.root, name)


def _group_by_reason(rows: Sequence[Mapping[str, Any]]) -> list[MissGroup]:
    """Return kind, reason and rows of the misses that are alike, the most frequent first."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["reason"]), []).append(row)
    found = [(kind, reason, alike) for (kind, reason), alike in groups.items()]
    return sorted(found, key=lambda group: -len(group[2]))
