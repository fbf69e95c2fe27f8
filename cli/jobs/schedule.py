"""`sdist schedule`: plain jobs, placed by load or by name. The version is pinned, and no job is posted twice."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.errors import ConfigError, DistError, NodeError
from scrapyd_dist.scrapyd.jobs import job_id

from ..candidates import nodes, spiders
from .job_list import Json, Nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call
    from scrapyd_dist.transports import Sender

    from .job_placement import JobFleet

#: what a column begins with that is a setting; one that is neither this nor known is a spider argument
SETTING = "s:"


_KNOWN = ("spider", "node", "priority")


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One row. An empty cell says nothing."""

    spider: str
    node: str | None = None
    priority: float | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_jobs(path: Path) -> list[JobRow]:
    """The rows of the file.

    Raises:
        ConfigError: it cannot be read, or a row makes no sense.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            if "spider" not in (reader.fieldnames or ()):
                raise ConfigError(f"{path} has no column `spider`. Its first line names the columns: spider,node,…")
            return [_row(path, reader.line_num, row) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV file in UTF-8: {error}.") from error


def _row(path: Path, line: int, row: Mapping[str | None, str | list[str] | None]) -> JobRow:
    where = f"{path}, line {line}"
    if None in row:
        raise ConfigError(f"{where}: it has more cells than there are columns. A cell with a comma wants quotes.")
    cells = {name: value for name, value in row.items() if name and isinstance(value, str) and value}
    if not cells.get("spider"):
        raise ConfigError(f"{where}: it names no spider.")
    return JobRow(
        spider=cells["spider"],
        node=cells.get("node"),
        priority=_priority(where, cells.get("priority")),
        args={name: value for name, value in cells.items() if name not in _KNOWN and not name.startswith(SETTING)},
        settings={name[len(SETTING) :]: value for name, value in cells.items() if name.startswith(SETTING)},
    )


def _priority(where: str, text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise ConfigError(f"{where}: the priority {text!r} is no number.") from None


#: seconds that a node gets: the first job of a version makes it import the project
TIMEOUT = 60.0


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("schedule")(schedule)


@dataclass(frozen=True, kw_only=True)
class ScheduleRequest:
    """One job that is asked for."""

    spider: str
    node: str | None = None  #: the name of the one node that will do
    priority: float | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(kw_only=True)
class PostedJob:
    """One job that is to be sent, and what came of it."""

    wish: ScheduleRequest
    node: Node
    job: str
    state: str = "scheduled"
    reason: str = ""
    error: NodeError | None = None


def schedule(
    spider: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="SPIDER", autocompletion=spiders, help="Spiders, or patterns as in 'shop*'."),
    ] = None,
    project: Annotated[Optional[str], typer.Option("--project", "-p", help="Scrapyd's name of the project.")] = None,
    arg: Annotated[
        Optional[list[str]], typer.Option("-a", metavar="NAME=VALUE", help="Spider argument. Repeatable.")
    ] = None,
    setting: Annotated[
        Optional[list[str]], typer.Option("--set", "-s", metavar="NAME=VALUE", help="Setting. Repeatable.")
    ] = None,
    on: Annotated[
        Optional[str], typer.Option("--on", metavar="NODE", autocompletion=nodes, help="On this node.")
    ] = None,
    any_: Annotated[bool, typer.Option("--any", help="Each on the node with the least to do. The default.")] = False,
    all_nodes: Annotated[bool, typer.Option("--all-nodes", help="Each on every node.")] = False,
    node: Nodes = None,
    from_: Annotated[
        Optional[Path],
        typer.Option("--from", metavar="FILE", help="Jobs of a CSV: spider, node, priority, s:SETTING, arguments."),
    ] = None,
    unless_running: Annotated[
        bool, typer.Option("--unless-running", help="Leave out spiders that wait or run on any of the nodes.")
    ] = False,
    priority: Annotated[Optional[float], typer.Option(help="Higher is earlier, within the project.")] = None,
    version: Annotated[
        Optional[str],
        typer.Option("--version", metavar="NAME", help="The version to run; the newest deployment."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a node gets for each answer.", min=0.1)] = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Start plain jobs of spiders, each on the node with the least to do.

    Every job is pinned to a version that all nodes have: the newest deployment by
    time, whatever Scrapyd sorts last. It gets an id of ours: when an answer is lost,
    the node is asked for that id, and nothing is sent twice. Exit code 3 when some
    jobs could not be started.

    Example: sdist schedule 'shop*' -a category=books --unless-running
    """
    from dataclasses import replace

    from scrapyd_dist.config import load

    from ..crawls.crawl_options import pairs
    from ..target_nodes import chosen_nodes, project_name
    from .job_list import make_sender

    if sum((on is not None, any_, all_nodes)) > 1:
        raise ConfigError("--on, --any and --all-nodes say three different things. Take one.")
    wishes = _wishes(spider or [], from_, ScheduleRequest(
        spider="", node=on, priority=priority, args=pairs("-a", arg or []), settings=pairs("-s", setting or [])
    ))  # fmt: skip
    if all_nodes and any(wish.node for wish in wishes):
        raise ConfigError("--all-nodes, and a node named in the file: one of the two has to go.")
    found = load()
    nodes, sender = chosen_nodes(found, node), make_sender()
    name = project_name(found, nodes, project)
    nodes = tuple(replace(one, project=project or one.project or name) for one in nodes)
    fleet = _fleet(found.root, sender, nodes, timeout)
    fleet.ask(version)
    wishes = [replace(wish, spider=one) for wish in wishes for one in fleet.spiders(wish.spider)]
    jobs = _placed(fleet, wishes, all_nodes=all_nodes, unless_running=unless_running)
    send(sender, jobs, fleet, timeout)
    _tell(jobs, fleet, as_json=as_json)
    raise typer.Exit(_exit_code(jobs, fleet, all_nodes=all_nodes))


def _fleet(root: Path, sender: Sender, nodes: Sequence[Node], timeout: float) -> JobFleet:
    """The nodes that may get jobs; those that are draining are named and passed over."""
    from ..output import say
    from ..selectors import known_times
    from ..target_nodes import draining, names_of
    from .job_placement import JobFleet, is_draining

    known = draining(root)
    aside = [node for node in nodes if node.name in known]
    if len(aside) == len(nodes):
        raise is_draining(*(node.name for node in aside))
    if aside:
        say(f"Passed over, since draining: {names_of(aside)}.")
    rest = [node for node in nodes if node.name not in known]
    return JobFleet(sender=sender, nodes=rest, draining=aside, timeout=timeout, known=known_times(root, rest))


def _wishes(spiders: Sequence[str], file: Path | None, common: ScheduleRequest) -> list[ScheduleRequest]:
    from dataclasses import replace

    wishes = [replace(common, spider=spider) for spider in spiders]
    wishes += [
        replace(
            common,
            spider=row.spider,
            node=row.node or common.node,
            priority=common.priority if row.priority is None else row.priority,
            args={**common.args, **row.args},
            settings={**common.settings, **row.settings},
        )
        for row in (read_jobs(file) if file is not None else ())
    ]
    if not wishes:
        raise ConfigError("Name the spiders to start, or a file of jobs with --from. `sdist schedule '*'` means all.")
    return wishes


def _placed(
    fleet: JobFleet, wishes: Sequence[ScheduleRequest], *, all_nodes: bool, unless_running: bool
) -> list[PostedJob]:
    """Which job goes where; one that is left out has its reason."""
    busy = fleet.busy_spiders() if unless_running else {}
    now = datetime.now(timezone.utc)
    jobs: list[PostedJob] = []
    for wish in wishes:
        if wish.spider in busy:
            node = busy[wish.spider]
            reason = f"it waits or runs on {node.name}"
            jobs.append(PostedJob(wish=wish, node=node, job="", state="skipped", reason=reason))
            continue
        places = fleet.places(wish.node, all_nodes=all_nodes)
        jobs += [PostedJob(wish=wish, node=node, job=job_id(wish.spider, fleet.version, now)) for node in places]
    return jobs


def send(sender: Sender, jobs: Sequence[PostedJob], fleet: JobFleet, timeout: float) -> None:
    """Post them, side by side; what is refused or lost is written into the job.

    Raises:
        ConfigError: what is asked would be lost by the nodes; then nothing was sent.
    """
    from scrapyd_dist.scrapyd.sweep import sweep

    calls = [(job, _call(job, fleet)) for job in jobs if job.state == "scheduled"]
    threads = 4 * len(fleet.nodes)  # so that no node is run over
    for answer in sweep(calls, lambda one: _post(sender, *one, timeout), threads=min(64, threads)):
        if answer.error is not None:
            job, _ = answer.asked
            job.state, job.reason, job.error = "failed", answer.error.short, answer.error


def _call(job: PostedJob, fleet: JobFleet) -> Call[str]:
    from scrapyd_dist.scrapyd import api

    wish = job.wish
    return api.schedule(
        job.node.project or "", wish.spider, jobid=job.job, version=fleet.version, settings=wish.settings,
        args=wish.args, priority=wish.priority,
    )  # fmt: skip


def _post(sender: Sender, job: PostedJob, call: Call[str], timeout: float) -> None:
    from scrapyd_dist.scrapyd import api

    try:
        sender.send(job.node, call, timeout=timeout)
    except NodeError as error:
        # The answer was lost, and perhaps not the job: only the node knows.
        if not error.maybe_accepted:
            raise
        if sender.send(job.node, api.status(job.job, job.node.project), timeout=timeout) is None:
            raise


def _tell(jobs: Sequence[PostedJob], fleet: JobFleet, *, as_json: bool) -> None:
    from ..output import complain, put_json, say
    from ..tables import table

    rows: list[dict[str, Any]] = [
        {
            "node": job.node.name,
            "project": job.node.project,
            "spider": job.wish.spider,
            "job": job.job or None,
            "version": fleet.version,
            "state": job.state,
            "reason": job.reason,
        }
        for job in jobs
    ]
    if as_json:
        put_json({"version": fleet.version, "jobs": rows})
    else:
        table(
            ("node", "spider", "job", "state", ""),
            [(row["node"], row["spider"], row["job"], row["state"], row["reason"]) for row in rows],
        )
    texts = [str(error) for error in fleet.errors] + [str(job.error) for job in jobs if job.error is not None]
    for text in dict.fromkeys(texts):
        complain(text)
    begun = [job for job in jobs if job.state == "scheduled"]
    if begun and fleet.why:
        say(f"Version {fleet.version}, {fleet.why}.")
    if begun and not as_json:
        say(f"See what they do: sdist jobs; sdist logs -f {begun[0].job}")


def _exit_code(jobs: Sequence[PostedJob], fleet: JobFleet, *, all_nodes: bool) -> int:
    from ..target_nodes import exit_code

    errors: list[DistError] = [job.error for job in jobs if job.error is not None]
    posted = sum(job.state != "skipped" for job in jobs)
    if all_nodes and fleet.errors:
        errors += fleet.errors
        posted += len(fleet.errors)
    return exit_code(posted, errors)
