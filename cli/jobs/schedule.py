"""Which node a plain job goes to, and which version it runs. Rule: all nodes are asked before anything is sent."""

import csv
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import ConfigError, NodeError, NothingMatched
from scrapyd_dist.event_hook import EventHook
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import SLOTS_UNKNOWN
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.jobs import job_id
from scrapyd_dist.scrapyd.versions import current, is_crawls, newest, sanitised, time_of
from scrapyd_dist.settings import (
    LABELS,
    MOST,
    Setting,
    ValueKind,
    judge,
    limits_in,
    nearest,
    of_options,
    unknown,
)  # fmt: skip
from scrapyd_dist.transports import Sender, sweep

from ..context import Context, exit_code, must_answer, names_of, project_name
from ..crawls.crawl_options import JobLimits, pairs, settings_in
from ..crawls.stored_crawls import DAY
from ..options import NewLabels, Nodes, Timeout, argument, checked_labels, nodes, option, parser_of, spiders
from ..output import Output, complain, complain_each, say
from .job_ends import wait_for_jobs
from .job_list import Listed, jobs_of

#: what a column begins with that is a setting; one that is neither this nor known is a spider argument
SETTING = "s:"
_KNOWN = ("spider", "node", "priority")
PRIORITY = Setting(name="priority", kind=ValueKind.NUMBER, least=-MOST, help="")


@dataclass(kw_only=True)
class JobFleet:
    """The nodes that a command may give jobs to; their `project` is set."""

    sender: Sender
    nodes: Sequence[Node]
    timeout: float
    draining: Sequence[Node] = ()  #: nodes that get no new jobs; asked only what they run
    known: Mapping[str, float] = field(default_factory=dict)  #: when versions were sent whose names do not tell it
    version: str = ""  #: what every job is pinned to
    why: str = ""  #: why that one, where it was not named
    errors: dict[Node, NodeError] = field(default_factory=dict)  #: of those that did not answer
    _seen: dict[Node, NodeStatus] = field(default_factory=dict)
    _given: Counter[str] = field(default_factory=Counter)
    _spiders: tuple[str, ...] | None = None

    def ask(self, version: str | None) -> None:
        """Ask all nodes for their load and versions, and settle on a version; an error if none of them answers."""
        seen = [NodeStatus(node=node, known=self.known) for node in self.nodes]

        def look(one: NodeStatus) -> None:
            one.ask_load(self.sender, self.timeout)
            one.ask_versions(self.sender, "", self.timeout)

        self.errors |= {answer.asked.node: answer.error for answer in sweep(seen, look) if answer.error is not None}
        self._seen = {one.node: one for one in seen if one.versions is not None}
        must_answer(len(seen), self.errors.values())
        self.version = self._common(version)

    def _common(self, wanted: str | None) -> str:
        """The newest deployment that all nodes have, or the version that was named, by Scrapyd's own name for it.

        Raises ConfigError if they have none in common, NothingMatched if they do not all have the one that was named.
        """
        versions = {node: seen.versions or () for node, seen in self._seen.items()}
        first, *others = versions.values()
        common = [name for name in first if all(name in other for other in others)]
        if wanted is not None:
            kept = sanitised(wanted)
            if kept not in common:
                lack = ", ".join(node.name for node, names in versions.items() if kept not in names)
                raise NothingMatched(f"The version {wanted!r} is not on {lack}. `sdist deploy-all` brings code there.")
            return kept
        chosen = current(common, self.known)
        if chosen is None:
            project = next(iter(self._seen)).project
            shown = ", ".join(node.name for node in self._seen)
            raise ConfigError(
                f"There is no version of the project {project!r} that all of these nodes have: {shown}. Bring the "
                "code to all of them with `sdist deploy-all`, or choose nodes with --node."
            )
        if is_crawls(chosen):
            self.why = "which a crawl brought, since nothing was deployed that all of these nodes have"
        elif newest(common, self.known) is None:
            self.why = "the one that Scrapyd sorts last: when it was deployed is not known"
        else:
            self.why = "the newest deployment that all of these nodes have"
            unknown = [name for name in common if time_of(name, self.known) is None]
            self.why += f" (when {', '.join(unknown)} came is not known)" if unknown else ""
        return chosen

    def spiders(self, pattern: str) -> list[str]:
        """The spiders that fit, of the version that will run; NothingMatched if none does."""
        if self._spiders is None:
            node = next(iter(self._seen))
            call = api.listspiders(node.project or "", self.version)
            self._spiders = self.sender.send(node, call, timeout=self.timeout)
        found = [name for name in self._spiders if fnmatchcase(name, pattern)]
        if not found:
            hint = nearest(pattern, self._spiders, 0.6) or f" There are: {', '.join(self._spiders) or 'none'}."
            raise NothingMatched(f"The version {self.version} has no spider {pattern!r}.{hint}")
        return found

    def busy_spiders(self) -> dict[str, Node]:
        """The spiders of the project that wait or run, and where.

        Raises NodeError if a node does not tell: a second job beside the first would be worse than none.
        """
        if self.errors:
            raise next(iter(self.errors.values()))
        found: dict[str, Node] = {}

        def ask(node: Node) -> list[Listed]:
            return jobs_of(self.sender, node, node.project, timeout=self.timeout)

        for answer in sweep([*self._seen, *self.draining], ask):
            if answer.error is not None:
                raise answer.error
            found |= {row.spider: row.node for row in answer.value or () if not row.over}
        return found

    def places(self, name: str | None, *, all_nodes: bool) -> list[Node]:
        """The nodes that the next job goes to: all, the named one, or the one with the least to do per process slot.

        Raises ConfigError if there is none of that name or it is draining, NodeError if it did not answer.
        """
        if all_nodes:
            return list(self._seen)
        nodes = [node for node in self._seen if name is None or node.name == name]
        if name is not None and not nodes:
            if aside := [node for node in self.draining if node.name == name]:
                raise is_draining(aside)
            for node, error in self.errors.items():
                if node.name == name:
                    raise error
            raise ConfigError(f"There is no node {name!r}. There are: {', '.join(node.name for node in self.nodes)}.")
        chosen = min(nodes, key=self._load)
        self._given[chosen.url] += 1
        return [chosen]

    def _load(self, node: Node) -> float:
        load = self._seen[node].load
        busy = load.pending + load.running if load else 0
        return (busy + self._given[node.url]) / (node.slots or SLOTS_UNKNOWN)


def is_draining(nodes: Sequence[Node]) -> ConfigError:
    """What to do about nodes that were asked for and get no new work."""
    are, them = ("are", "them") if len(nodes) > 1 else ("is", "it")
    return ConfigError(
        f"{names_of(nodes)} {are} draining: no new work goes there. Give {them} work again with"
        f" `sdist nodes resume {names_of(nodes, ' ')}`, or choose another node."
    )


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job that is asked for."""

    spider: str
    node: str | None = None  #: the name of the one node that will do
    priority: float | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    labels: tuple[str, ...] = ()


def read_jobs(path: Path, common: JobRow) -> list[JobRow]:
    """The rows of the file, in which an empty cell says nothing; ConfigError if it cannot be read, or one is wrong.

    common: what holds for all of them, where they do not say otherwise.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            if "spider" not in (reader.fieldnames or ()):
                raise ConfigError(f"{path} has no column `spider`. Its first line names the columns: spider,node,…")
            return [_row(path, reader.line_num, row, common) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV file in UTF-8: {error}.") from error


def _row(path: Path, line: int, row: Mapping[str | None, str | list[str] | None], common: JobRow) -> JobRow:
    where = f"{path}, line {line}"
    if None in row:
        raise ConfigError(f"{where}: it has more cells than there are columns. A cell with a comma wants quotes.")
    cells = {name: value for name, value in row.items() if name and isinstance(value, str) and value}
    if not cells.get("spider"):
        raise ConfigError(f"{where}: it names no spider.")
    said = cells.get("priority")
    priority = common.priority if said is None else PRIORITY.judged(said, f"{where}: the priority")
    settings = {name[len(SETTING) :]: value for name, value in cells.items() if name.startswith(SETTING)}
    try:
        judge(settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    args = {name: value for name, value in cells.items() if name not in _KNOWN and not name.startswith(SETTING)}
    return JobRow(
        spider=cells["spider"],
        node=cells.get("node", common.node),
        priority=priority,
        args={**common.args, **args},
        settings={**common.settings, **settings},
    )


@dataclass(kw_only=True)
class PostedJob:
    """One job that is to be sent, and what came of it."""

    wish: JobRow
    node: Node
    job: str  #: its id; empty where it is skipped
    state: str = "scheduled"
    reason: str = ""
    error: NodeError | None = None
    lost: bool = False  #: its node may have it all the same

    def record(self, version: str, now: float) -> JobRecord:
        """What is remembered of it."""
        wish, node = self.wish, self.node
        record = JobRecord(
            id=self.job, spider=wish.spider, project=node.project or "", version=version, created=now, node=node.name,
            url=node.url, labels=wish.labels, args=wish.args, settings=tuple(sorted(wish.settings)),
        )  # fmt: skip
        if self.error is None or self.lost:
            return record
        return replace(record, state=Outcome.FAILED, ended=now, reason=f"not started: {self.reason}")


def schedule(
    *,
    context: Context,
    spider: Annotated[list[str] | None, argument("SPIDER", "Spiders, or patterns as in 'shop*'.", spiders)] = None,
    project: Annotated[str | None, option("Scrapyd's name of the project.", "--project", "-p")] = None,
    arg: Annotated[list[str] | None, option("Spider argument. Repeatable.", "-a", metavar="NAME=VALUE")] = None,
    setting: Annotated[list[str] | None, option("Setting. Repeatable.", "--set", "-s", metavar="NAME=VALUE")] = None,
    on: Annotated[str | None, option("On this node.", metavar="NODE", autocompletion=nodes)] = None,
    any_: Annotated[bool, option("Each on the node with the least to do. The default.")] = False,
    all_nodes: Annotated[bool, option("Each on every node.")] = False,
    node: Nodes = None,
    from_: Annotated[
        Path | None, option("Jobs of a CSV: spider, node, priority, s:SETTING, arguments.", metavar="FILE")
    ] = None,
    unless_running: Annotated[bool, option("Leave out spiders that wait or run on any of the nodes.")] = False,
    priority: Annotated[
        float | None, option("Higher is earlier, within the project.", metavar="X", parser=parser_of(PRIORITY))
    ] = None,
    version: Annotated[str | None, option("The version to run; the newest deployment.", metavar="NAME")] = None,
    label: NewLabels = None,
    on_finish: Annotated[
        str | None,
        option(
            "Wait until the jobs are over; then run this command, or post to this http(s) address, what `sdist wait"
            " --job --json` gives.",
            metavar="CMD|URL",
        ),
    ] = None,
    limits: JobLimits,
    timeout: Timeout = 60.0,  # the first job of a version makes a node import the project
    output: Output,
) -> int:
    """Start plain jobs of spiders, each on the node with the least to do.

    Every job is pinned to a version that all nodes have: the newest deployment by
    time, whatever Scrapyd sorts last. It gets an id of ours: when an answer is lost,
    the node is asked for that id, and nothing is sent twice. The store remembers
    it for DISTRIBUTED_KEEP_DAYS: `sdist jobs` tells how it ended, also when its
    node has forgotten it. Exit code 3 when some jobs could not be started.

    Example: sdist schedule 'shop*' -a category=books --unless-running
    """
    finish = EventHook(target=on_finish or "", option="--on-finish", event="the end of the jobs")
    finish.check()
    if sum((on is not None, any_, all_nodes)) > 1:
        raise ConfigError("--on, --any and --all-nodes say three different things. Take one.")
    given = {name: str(limit) for name, limit in of_options(limits).items()}
    settings = {**limits_in(context.project.options), **settings_in(setting), **given}
    common = JobRow(
        spider="", node=on, priority=priority, args=pairs("-a", arg), settings=settings, labels=checked_labels(label)
    )
    wishes = _wishes(spider or [], from_, common)
    complain_each(unknown({name for wish in wishes for name in wish.settings}))
    if all_nodes and any(wish.node for wish in wishes):
        raise ConfigError("--all-nodes, and a node named in the file: one of the two has to go.")
    nodes = context.nodes(node)
    name = project_name(context.project, nodes, project)
    fleet = _fleet(context, [replace(one, project=project or one.project or name) for one in nodes], timeout)
    fleet.ask(version)
    wishes = [replace(wish, spider=one) for wish in wishes for one in fleet.spiders(wish.spider)]
    jobs = _placed(fleet, wishes, all_nodes=all_nodes, unless_running=unless_running)
    calls = _calls(jobs, fleet)
    store = context.new_store
    now = time.time()
    store.forget_jobs(now - context.keep_days * DAY)
    store.keep_jobs([job.record(fleet.version, now) for job, _ in calls])  # before anything is posted
    _send(calls, fleet)
    if failed := [job for job, _ in calls if job.error is not None]:
        store.keep_jobs([job.record(fleet.version, now) for job in failed])
    _tell(jobs, fleet, output)
    missed = fleet.errors.values() if all_nodes else []
    posted = sum(job.state != "skipped" for job in jobs)
    code = exit_code(posted + len(missed), [*(job.error for job in jobs), *missed])
    return _wait(context, jobs, code, finish) if on_finish else code


def _wait(context: Context, jobs: Sequence[PostedJob], code: int, finish: EventHook) -> int:
    """Wait until the jobs are over that were started, and notify; the exit code of all."""
    begun = [job for job in jobs if job.state == "scheduled"]
    ended, document = 0, dict[str, Any](jobs=[])
    if begun:
        ended, document = wait_for_jobs(context, [job.job for job in begun], [*{job.node: None for job in begun}])
    code = code or ended
    items = sum(row["items"] or 0 for row in document["jobs"])
    variables = {"SDIST_EXIT_CODE": str(code), "SDIST_ITEMS": str(items)}
    if wrong := finish.notify({"schema": 1, "exit_code": code, "items": items, **document}, variables):
        complain(wrong)
    return code


def _fleet(context: Context, nodes: Sequence[Node], timeout: float) -> JobFleet:
    """The nodes that may get jobs; those that are draining are named and passed over."""
    records = context.node_records(nodes)
    aside = [node for node in nodes if records[node.name].draining is not None]
    if len(aside) == len(nodes):
        raise is_draining(aside)
    if aside:
        say(f"Passed over, since draining: {names_of(aside)}.")
    rest = [node for node in nodes if node not in aside]
    known = context.known_times(rest, None)
    return JobFleet(sender=context.sender, nodes=rest, draining=aside, timeout=timeout, known=known)


def _wishes(spiders: Sequence[str], file: Path | None, common: JobRow) -> list[JobRow]:
    wishes = [replace(common, spider=spider) for spider in spiders]
    wishes += read_jobs(file, common) if file is not None else []
    if not wishes:
        raise ConfigError("Name the spiders to start, or a file of jobs with --from. `sdist schedule '*'` means all.")
    return wishes


def _placed(fleet: JobFleet, wishes: Sequence[JobRow], *, all_nodes: bool, unless_running: bool) -> list[PostedJob]:
    """Which job goes where; one that is left out has its reason."""
    busy = fleet.busy_spiders() if unless_running else {}
    now = datetime.now(timezone.utc)
    jobs: list[PostedJob] = []
    for wish in wishes:
        if node := busy.get(wish.spider):
            reason = f"it waits or runs on {node.name}"
            jobs.append(PostedJob(wish=wish, node=node, job="", state="skipped", reason=reason))
            continue
        places = fleet.places(wish.node, all_nodes=all_nodes)
        jobs += [PostedJob(wish=wish, node=node, job=job_id(wish.spider, fleet.version, now)) for node in places]
    return jobs


def _calls(jobs: Sequence[PostedJob], fleet: JobFleet) -> list[tuple[PostedJob, Call[str]]]:
    """What posts each; ConfigError if the nodes would lose what is asked."""
    calls = []
    for job in jobs:
        if job.job:
            labels = {LABELS: ",".join(job.wish.labels)} if job.wish.labels else {}
            calls.append((job, api.schedule(
                job.node.project or "", job.wish.spider, jobid=job.job, version=fleet.version,
                settings={**job.wish.settings, **labels}, args=job.wish.args, priority=job.wish.priority,
            )))  # fmt: skip
    return calls


def _send(calls: Sequence[tuple[PostedJob, Call[str]]], fleet: JobFleet) -> None:
    """Post them, side by side; what is refused or lost is written into the job."""

    def post(one: tuple[PostedJob, Call[str]]) -> None:
        job, call = one
        try:
            fleet.sender.send(job.node, call, timeout=fleet.timeout)
        except NodeError as error:
            # The answer was lost, and perhaps not the job: only the node knows.
            asked, job.lost = api.status(job.job, job.node.project), error.maybe_accepted
            if not error.maybe_accepted or fleet.sender.send(job.node, asked, timeout=fleet.timeout) is None:
                job.lost = False
                raise

    for answer in sweep(calls, post, threads=4 * len(fleet.nodes)):  # so that no node is run over
        if answer.error is not None:
            job, _ = answer.asked
            job.state, job.reason, job.error = "failed", answer.error.short, answer.error


def _tell(jobs: Sequence[PostedJob], fleet: JobFleet, output: Output) -> None:
    rows = [
        {"node": job.node.name, "project": job.node.project, "spider": job.wish.spider, "job": job.job or None,
         "version": fleet.version, "state": job.state, "reason": job.reason}
        for job in jobs
    ]  # fmt: skip
    document = {"version": fleet.version, "jobs": rows}
    names = ("node", "spider", "job", "state")
    output.table(document, (*names, ""), [[*(row[name] for name in names), row["reason"]] for row in rows])
    complain_each([*fleet.errors.values(), *(job.error for job in jobs)])
    begun = [job for job in jobs if job.state == "scheduled"]
    if begun and fleet.why:
        say(f"Version {fleet.version}, {fleet.why}.")
    if begun and not output.as_json:
        say(f"See what they do: sdist jobs; sdist logs -f {begun[0].job}")
