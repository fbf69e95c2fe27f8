"""What each page of a project shows, and the JSON document beside it.

The rule it keeps: a page asks the functions that the commands ask, through answers that all viewers
share.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError, DistError, NoJob, NothingMatched
from scrapyd_dist.fleet.batch_listing import choose_batches, describe_batches
from scrapyd_dist.fleet.checkup import check_fleet
from scrapyd_dist.fleet.crawl_files import last_log_lines
from scrapyd_dist.fleet.frontier_listing import FrontierEntry, list_frontiers
from scrapyd_dist.fleet.live_crawls import describe_crawl, list_crawls, runs
from scrapyd_dist.fleet.missing import missing
from scrapyd_dist.fleet.strategy_listing import list_strategies
from scrapyd_dist.fleet.throttled_domains import list_domains, list_heedings, throttle_document
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.jobs.job_list import JobFilter
from scrapyd_dist.jobs.job_log_end import JobLogEnd, read_job_log_end
from scrapyd_dist.jobs.job_rows import JobChoice, list_jobs
from scrapyd_dist.jobs.job_site import open_site
from scrapyd_dist.nodes import Node, nodes_by_url
from scrapyd_dist.project_names import quick_project
from scrapyd_dist.report import page as report
from scrapyd_dist.report.facts import Facts, gather, gather_growth
from scrapyd_dist.report.series import usual_items
from scrapyd_dist.settings import Setting, ValueKind
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

T = TypeVar("T")
#: kind and reason of misses, and their documents
MissGroup = tuple[str, str, list[Any]]


class PageView(NamedTuple):
    """What a page shows."""

    template: str
    document: Mapping[str, Any]  #: what the page's `.json` is, as the command gives it
    values: Mapping[str, Any]  #: what the template shows besides
    fault: str = ""  #: why the document says nothing, though the page does


class ListedCrawl(NamedTuple):
    """A crawl in a list."""

    row: Crawl
    document: Mapping[str, Any]
    usual: float | None  #: the median of the items of the runs before it


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
    def parse(cls, words: Callable[[str], Sequence[str]]) -> "AskedJobs":
        """Return the query of an address; words: gives the values of a name.

        Raises:
            ConfigError: a value is not of its kind.
        """
        given = {name: _split(words(name)) for name in ("node", "label", "state")}
        spider = "".join(words("spider")[:1])
        since = "".join(words("since")[:1])
        return cls(
            states=frozenset(map(_state_named, given["state"])),
            spider=spider or None,
            nodes=given["node"],
            labels=given["label"],
            since=_seconds(since) if since else None,
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


def _seconds(text: str) -> float:
    return float(Setting(name="since", kind=ValueKind.SECONDS, help="").judged(text))


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

        def read(workspace: Workspace) -> dict[str, Any]:
            return {"crawls": list(map(describe_crawl, list_crawls(workspace.store_if_any)))}

        document = self._ask("all crawls", read)
        return PageView("crawls", document, {"crawls": self._list_crawls(), "now": time.time()})

    def crawl(self, name: str) -> PageView:
        """Return how a crawl stands, with its report."""
        document = self._ask_store(("crawl", name), lambda store: _standing_of(store, name))
        facts = self.facts(name)
        return PageView(
            "crawl", document, {**report.values_of(facts), "is_whole": _is_whole(facts)}
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
            rows = list(map(asdict, _misses_of(workspace, name)))
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
        return PageView("throttle", document, {"cells": cells})

    def frontiers(self) -> PageView:
        """Return the frontiers, and what is in their slots."""

        def read(workspace: Workspace) -> list[tuple[dict[str, Any], tuple[object, ...]]]:
            entries = list_frontiers(workspace.store_if_any, None)
            return [(entry.document(), entry.cells()) for entry in entries]

        found = self._ask("frontiers", read)
        document = {"frontiers": [described for described, _ in found]}
        return PageView("frontiers", document, {"cells": [cells for _, cells in found]})

    def strategies(self) -> PageView:
        """Return the crawling strategies, and how each stands."""
        found = self._ask("strategies", lambda workspace: list_strategies(workspace.store_if_any))
        return PageView("strategies", {"strategies": found}, {})

    # what nodes answer

    def home(self) -> PageView:
        """Return how the whole fleet stands, and its last crawls."""
        document, points, away = self._fleet_or_why_not()
        listed = self._list_crawls()
        values = {
            "points": points,
            "away": away,
            "all_crawls": [crawl.row for crawl in listed],
            "running": [crawl for crawl in listed if runs(crawl.row)],
            "crawls": listed[:CRAWLS],
            "now": time.time(),
        }
        return PageView("home", document, values, away)

    def jobs(self, query: AskedJobs) -> PageView:
        """Return the jobs that are asked for, the newest."""
        document = self._list_jobs(query)
        values = {"query": query, "outcomes": list(Outcome), "most": ROWS, "newest": NEWEST}
        return PageView("jobs", document, values)

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
        document = self._list_jobs(AskedJobs(crawl=name, nodes=nodes), EVERY)
        fleet, _, _ = self._fleet_or_why_not()
        live = [job for node in fleet["nodes"] for job in node["jobs"] if job["job"] == name]
        if not document["jobs"]:
            raise NothingMatched(f"There is no job {name!r}.")
        row = document["jobs"][-1]
        log, fault = self._job_log(name, nodes or tuple(filter(None, [row["node"]])))
        values = {"row": row, "live": live[-1:], "log": log, "fault": fault}
        return PageView("job", document, values)

    def node(self, name: str) -> PageView:
        """Return how a node stands, what runs there, and what the doctor says of it."""

        def examine(workspace: Workspace) -> dict[str, Any]:
            nodes = _known_nodes(workspace, [name])
            return check_fleet(workspace, nodes, quick_project(workspace.project, None)).document()

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
            return {**found.document(), "jobs": _first_jobs(found.rows, ROWS)}

        return self._ask(("jobs", query), read, every, asks_nodes=True)

    def _job_log(self, name: str, nodes: tuple[str, ...]) -> tuple[JobLogEnd | None, str]:
        """Return the end of a job's log, or None and why there is none."""

        def read(workspace: Workspace) -> JobLogEnd:
            found = _known_nodes(workspace, nodes)
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

    def _list_crawls(self) -> list[ListedCrawl]:
        """Return the last crawls, and those before them that have not ended."""

        def read(workspace: Workspace) -> list[ListedCrawl]:
            rows = list_crawls(workspace.store_if_any)
            going_on = [row for row in rows[ROWS:] if not row.state.ended]
            return [
                ListedCrawl(row, describe_crawl(row), usual_items(rows, row))
                for row in rows[:ROWS] + going_on
            ]

        return self._ask("crawls", read)

    def _crawl_row(self, name: str) -> Crawl:
        return self._ask_store(("row", name), lambda store: store.crawl(name))


def _known_nodes(workspace: Workspace, patterns: Sequence[str]) -> tuple[Node, ...]:
    """Return the project's own nodes that these names, patterns and addresses mean; or all.

    A viewer's words never lead to another server, nor to a node with another login.

    Raises:
        NothingMatched: one of them means no node of the project.
    """
    nodes = workspace.all_nodes
    if not patterns:
        return nodes
    if "" in patterns:
        raise NothingMatched("A node without a name is not there.")
    by_url = nodes_by_url(workspace.nodes_and_dead())
    known = []
    for node in workspace.nodes(patterns):
        if node.url not in by_url:
            raise NothingMatched(f"The project has no node {node.name!r}.")
        known.append(by_url[node.url])
    return tuple(known)


def _standing_of(store: Store, name: str) -> dict[str, Any]:
    """Return how a crawl or a frontier stands as `sdist status --json` gives it."""
    row = store.crawl(name)
    if row.kind == "frontier":
        return {**describe_crawl(row), **FrontierEntry(store, row).document()}
    return describe_crawl(row)


def _first_jobs(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return so many jobs, in their order: those that run, those that wait, then the newest."""
    if len(rows) <= most:
        return [*rows]
    places = sorted(range(len(rows)), key=lambda place: _rank_job(rows[place]))
    return [rows[place] for place in sorted(places[:most])]


def _rank_job(row: Mapping[str, Any]) -> tuple[int, float]:
    """Return what a job is sorted by: the sooner it is to be listed, the lower."""
    state = Outcome(row["state"])
    started = 0.0
    if row["started"]:
        started = datetime.fromisoformat(row["started"]).timestamp()
    if state in {Outcome.RUNNING, Outcome.STALLED}:
        return 0, -started
    return 2 if state.over else 1, -started


def _is_whole(facts: Facts) -> bool:
    total = facts.crawl.summary.get("batches") or {}
    return int(total.get("total") or 0) <= WHOLE


def _facts_of(store: Store, name: str) -> Facts:
    facts = _growth_of(store, name)
    return _whole_facts_of(store, name) if _is_whole(facts) else facts


def _growth_of(store: Store, name: str) -> Facts:
    row = store.crawl(name)
    return gather_growth(store, row, now=time.time(), lives=runs(row))


def _whole_facts_of(store: Store, name: str) -> Facts:
    return gather(store, name, now=time.time(), lives=runs(store.crawl(name)))


def _misses_of(workspace: Workspace, name: str) -> list[Any]:
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
