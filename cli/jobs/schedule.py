"""Which node a plain job goes to, and which version it runs. Rule: all nodes are asked before anything is sent."""

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.errors import PARTIAL, ConfigError, NodeError, StoreError
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.jobs import job_id
from scrapyd_dist.settings import MOST, Setting, ValueKind, judge, limits_in, of_options, unknown
from scrapyd_dist.transports import sweep
from scrapyd_dist.transports.event_hook import EventHook

from ..context import Context, exit_code, key_of, project_name
from ..crawls.crawl_options import JobLimits, pairs, settings_in
from ..crawls.stored_crawls import DAY
from ..options import (
    NewLabels,
    Nodes,
    Timeout,
    argument,
    checked_labels,
    nodes,
    option,
    parser_of,
    project_option,
    spiders,
)
from ..output import Output, complain, complain_each, say, some_of
from .job_ends import combined, wait_for_jobs
from .job_fleet import JobFleet, fleet_of, post
from .job_list import NOWHERE
from .job_memory import verdict_of
from .jobs_table import verdict_row
from .queue_runner import QueueOptions, QueueRunner, call_of, check_conditions, left_behind, sealed

#: what an argument begins with that is a setting, as in `--arg setting=LOG_LEVEL=INFO`
CLIENT_SETTING = "setting="
#: what a column begins with that is a setting; one that is neither this nor known is a spider argument
SETTING = "s:"
#: … and that is a label
LABEL = "l:"
_KNOWN = ("spider", "node", "priority")
PRIORITY = Setting(name="priority", kind=ValueKind.NUMBER, least=-MOST, help="")


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job that is asked for."""

    spider: str
    node: str | None = None  #: the name of the one node that will do
    priority: float | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    labels: tuple[str, ...] = ()

    def record(self, job: str, version: str, now: float, **more: Any) -> JobRecord:
        """What is remembered of the job."""
        names = tuple(sorted(self.settings))
        return JobRecord(
            id=job,
            spider=self.spider,
            version=version,
            created=now,
            labels=self.labels,
            args=self.args,
            settings=names,
            **more,
        )


def read_jobs(path: Path, common: JobRow) -> list[JobRow]:
    """The rows of the file, in which an empty cell says nothing; ConfigError if it cannot be read, or one is wrong.

    common: what holds for all of them, where they do not say otherwise.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            if "spider" not in (reader.fieldnames or ()):
                raise ConfigError(
                    f"{path} has no column `spider`. Its first line names the columns: spider,node,…"
                )
            return [_row(path, reader.line_num, row, common) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV file in UTF-8: {error}.") from error


def _row(
    path: Path, line: int, row: Mapping[str | None, str | list[str] | None], common: JobRow
) -> JobRow:
    where = f"{path}, line {line}"
    if None in row:
        raise ConfigError(
            f"{where}: it has more cells than there are columns. A cell with a comma wants quotes."
        )
    cells = {
        name: value for name, value in row.items() if name and isinstance(value, str) and value
    }
    if not cells.get("spider"):
        raise ConfigError(f"{where}: it names no spider.")
    said = cells.get("priority")
    priority = common.priority if said is None else PRIORITY.judged(said, f"{where}: the priority")
    settings = {
        name[len(SETTING) :]: value for name, value in cells.items() if name.startswith(SETTING)
    }
    try:
        judge(settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    labels = checked_labels(
        [f"{name[len(LABEL) :]}={cells[name]}" for name in cells if name.startswith(LABEL)]
    )
    own = (SETTING, LABEL)
    args = {
        name: value
        for name, value in cells.items()
        if name not in _KNOWN and not name.startswith(own)
    }
    return JobRow(
        spider=cells["spider"],
        node=cells.get("node", common.node),
        priority=priority,
        args={**common.args, **args},
        settings={**common.settings, **settings},
        labels=(*common.labels, *labels),
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
        where = {"project": self.node.project or "", "node": self.node.name, "url": self.node.url}
        record = self.wish.record(self.job, version, now, posted=now, **where)
        if self.error is None or self.lost:
            return record
        return replace(
            record, state=Outcome.FAILED, ended=now, reason=f"not started: {self.reason}"
        )


def schedule(
    *,
    context: Context,
    spider: Annotated[
        list[str] | None, argument("SPIDER", "Spiders, or patterns as in 'shop*'.", spiders)
    ] = None,
    project: Annotated[str | None, project_option("Scrapyd's name of the project.")] = None,
    arg: Annotated[
        list[str] | None,
        option("Spider argument. Repeatable.", "--arg", "-a", metavar="NAME=VALUE"),
    ] = None,
    setting: Annotated[
        list[str] | None, option("Setting. Repeatable.", "--set", "-s", metavar="NAME=VALUE")
    ] = None,
    on: Annotated[str | None, option("On this node.", metavar="NODE", autocompletion=nodes)] = None,
    any_: Annotated[bool, option("Each on the node with the least to do. The default.")] = False,
    all_nodes: Annotated[bool, option("Each on every node.")] = False,
    node: Nodes = None,
    from_: Annotated[
        Path | None,
        option(
            "Jobs of a CSV: spider, node, priority, s:SETTING, l:LABEL, arguments.", metavar="FILE"
        ),
    ] = None,
    unless_running: Annotated[
        bool, option("Leave out spiders that wait or run on any of the nodes.")
    ] = False,
    priority: Annotated[
        float | None,
        option("Higher is earlier, within the project.", metavar="X", parser=parser_of(PRIORITY)),
    ] = None,
    version: Annotated[
        str | None, option("The version to run; the newest deployment.", metavar="NAME")
    ] = None,
    label: NewLabels = None,
    on_finish: Annotated[
        str | None,
        option(
            "Wait until the jobs are over; then run this command, or post to this http(s) address, what `sdist"
            " crawls wait --job --json` gives.",
            metavar="CMD|URL",
        ),
    ] = None,
    limits: JobLimits,
    queue: QueueOptions,
    timeout: Timeout = 60.0,  # the first job of a version makes a node import the project
    output: Output,
) -> int:
    """Start plain jobs of spiders, each on the node with the least to do.

    Every job is pinned to a version that all nodes have: the newest deployment by
    time, whatever Scrapyd sorts last. It gets an id of ours: when an answer is lost,
    the node is asked for that id, and nothing is sent twice. The store remembers
    it for DISTRIBUTED_KEEP_DAYS: `sdist jobs` tells how it ended, also when its
    node has forgotten it. Exit code 3 when some jobs could not be started.

    With --retries, --limit or --after, jobs wait in the store, and the command
    stays until its own are over: exit code 0 when all finished, 3 when only some
    did, 1 when none. It starts whatever waits there, also what a command left that
    was ended; --resume does only that.

    Example: sdist jobs schedule 'shop*' -a category=books --unless-running
    """
    if on_finish is not None and not on_finish.strip():
        raise ConfigError("--on-finish is empty: give it a command or an address, or leave it out.")
    finish = EventHook(target=on_finish or "", option="--on-finish", event="the end of the jobs")
    finish.check()
    if sum((on is not None, any_, all_nodes)) > 1:
        raise ConfigError("--on, --any and --all-nodes say three different things. Take one.")
    waits = queue.asked  # judged before a node is asked
    if queue.resume:
        if spider or from_ or node or waits:
            raise ConfigError(
                "--resume starts nothing new: leave out spiders, --from, --node, --retries, --limit and --after."
            )
        return _resume(context, timeout, finish, output)
    given = {name: str(limit) for name, limit in of_options(limits).items()}
    args, asked_settings = split_arguments(arg or (), setting or ())
    settings = {**limits_in(context.project.options), **asked_settings, **given}
    common = JobRow(
        spider="",
        node=on,
        priority=priority,
        args=args,
        settings=settings,
        labels=checked_labels(label),
    )
    wishes = _wishes(spider or [], from_, common)
    complain_each(unknown({name for wish in wishes for name in wish.settings}))
    if all_nodes and any(wish.node for wish in wishes):
        raise ConfigError("--all-nodes, and a node named in the file: one of the two has to go.")
    nodes = context.nodes(node) if project else context.own_nodes(node)
    project = context.one_project(project, nodes)
    name = project_name(context.project, nodes, project)
    fleet = fleet_of(
        context, [replace(one, project=project or one.project or name) for one in nodes], timeout
    )
    fleet.ask(version)
    wishes = [replace(wish, spider=one) for wish in wishes for one in fleet.spiders(wish.spider)]
    jobs = _placed(context, fleet, wishes, all_nodes=all_nodes, unless_running=unless_running)
    if waits:
        where = {
            "wanted_project": project or "",
            "among": tuple(one.name for one in nodes) if node else (),
        }
        own = _queue(
            context, [job for job in jobs if job.job], fleet, queue, on_each=all_nodes, **where
        )
        known = None if project else name  # other jobs that wait are of the usual project
        runner = QueueRunner(
            context=context, project=known, timeout=timeout, own=own, quiet=output.as_json
        )
        complain_each(fleet.errors.values())
        code = _work_off(runner, [job for job in jobs if not job.job], finish, output)
        return code or (PARTIAL if all_nodes and fleet.errors else 0)
    calls = _calls(jobs, fleet)
    now = time.time()
    _remember(
        context, [job.record(fleet.version, now) for job, _ in calls]
    )  # before anything is posted
    _send(calls, fleet)
    _remember(
        context, [job.record(fleet.version, now) for job, _ in calls if job.error is not None]
    )
    _tell(jobs, fleet, output)
    missed = fleet.errors.values() if all_nodes else []
    posted = sum(job.state != "skipped" for job in jobs)
    code = exit_code(posted + len(missed), [*(job.error for job in jobs), *missed])
    return _wait(context, jobs, code, finish) if on_finish else code


def split_arguments(
    arg: Sequence[str], setting: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the spider's arguments and the settings of texts NAME=VALUE; ConfigError if one is not of that form.

    An argument `setting=NAME=VALUE` is a setting, as for scrapyd-client.
    """
    args = [text for text in arg if not text.startswith(CLIENT_SETTING)]
    theirs = [text.removeprefix(CLIENT_SETTING) for text in arg if text.startswith(CLIENT_SETTING)]
    return pairs("-a", args), settings_in([*theirs, *setting])


def _remember(context: Context, records: Sequence[JobRecord]) -> None:
    """Write the jobs down, and forget old ones; a store that cannot be written keeps no plain job from starting."""
    if not records:
        return
    try:
        store = context.new_store
        store.forget_jobs(time.time() - context.keep_days * DAY)
        store.keep_jobs(records)
    except (StoreError, ConfigError, OSError) as error:
        complain(f"The jobs are not remembered: {error}")


def _wait(context: Context, jobs: Sequence[PostedJob], code: int, finish: EventHook) -> int:
    """Wait until the jobs are over that were started, and notify; the exit code of all."""
    begun = [job for job in jobs if job.state == "scheduled"]
    ended, document = 0, dict[str, Any](jobs=[])
    if begun:
        ended, document = wait_for_jobs(
            context, [job.job for job in begun], [*{job.node: None for job in begun}]
        )
    return _notify(finish, code or ended, document)


def _notify(finish: EventHook, code: int, document: Mapping[str, Any]) -> int:
    items = sum(row["items"] or 0 for row in document["jobs"])
    variables = {"SDIST_EXIT_CODE": str(code), "SDIST_ITEMS": str(items)}
    if wrong := finish.notify(
        {"schema": 1, "exit_code": code, "items": items, **document}, variables
    ):
        complain(wrong)
    return code


def _wishes(spiders: Sequence[str], file: Path | None, common: JobRow) -> list[JobRow]:
    wishes = [replace(common, spider=spider) for spider in spiders]
    wishes += read_jobs(file, common) if file is not None else []
    if not wishes:
        raise ConfigError(
            "Name the spiders to start, or a file of jobs with --from. `sdist jobs schedule '*'` means all."
        )
    return wishes


def _placed(
    context: Context,
    fleet: JobFleet,
    wishes: Sequence[JobRow],
    *,
    all_nodes: bool,
    unless_running: bool,
) -> list[PostedJob]:
    """Which job goes where; one that is left out has its reason."""
    busy = fleet.busy_spiders() if unless_running else {}
    if unless_running and (store := context.store_if_any) is not None:
        waits = [one for one in store.jobs(OPEN_ONLY) if one.state is Outcome.WAITING]
        busy = {one.spider: Node(name=NOWHERE, url="") for one in waits} | busy
    now = datetime.now(timezone.utc)
    jobs: list[PostedJob] = []
    for wish in wishes:
        if node := busy.get(wish.spider):
            reason = f"it waits or runs on {node.name}" if node.url else "it waits in the store"
            jobs.append(PostedJob(wish=wish, node=node, job="", state="skipped", reason=reason))
            continue
        places = fleet.places(wish.node, all_nodes=all_nodes)
        jobs += [
            PostedJob(wish=wish, node=node, job=job_id(wish.spider, fleet.version, now))
            for node in places
        ]
    return jobs


def _calls(jobs: Sequence[PostedJob], fleet: JobFleet) -> list[tuple[PostedJob, Call[str]]]:
    """What posts each; ConfigError if the nodes would lose what is asked."""
    calls = []
    for job in jobs:
        if job.job:
            record = replace(job.record(fleet.version, 0.0), priority=job.wish.priority)
            calls.append((job, call_of(record, job.wish.settings)))
    return calls


def _queue(
    context: Context,
    jobs: Sequence[PostedJob],
    fleet: JobFleet,
    queue: QueueOptions,
    *,
    on_each: bool,
    **common: Any,
) -> list[str]:
    """Let the jobs wait in the store; gives their ids. ConfigError or NothingMatched if one could never start."""
    store, key, now = context.new_store, key_of(context.root), time.time()
    records = []
    for place, job in enumerate(jobs):
        wish = job.wish
        record = wish.record(
            job.job,
            fleet.version,
            now,
            state=Outcome.WAITING,
            retries=queue.retries,
            limits=tuple(queue.limit or ()),
            after=tuple(queue.after or ()),
            priority=wish.priority,
            place=place,
            sealed=sealed(wish.settings, key),
            on=job.node.name if on_each else wish.node or "",
            project=common["wanted_project"],
            **common,
        )
        call_of(record, wish.settings)
        records.append(record)
    check_conditions(store, records)
    store.forget_jobs(now - context.keep_days * DAY)
    store.keep_jobs(records)
    return [record.id for record in records]


def _resume(context: Context, timeout: float, finish: EventHook, output: Output) -> int:
    """Work off what earlier commands have left in the store."""
    store = context.store_if_any
    own = left_behind(store.jobs(OPEN_ONLY)) if store is not None else set()
    if not own:
        say("No job waits in the store.")
        output.document({"jobs": []})
        return _notify(finish, 0, {"jobs": []})
    runner = QueueRunner(
        context=context, project=None, timeout=timeout, own=own, quiet=output.as_json
    )
    return _work_off(runner, [], finish, output)


def _work_off(
    runner: QueueRunner, skipped: Sequence[PostedJob], finish: EventHook, output: Output
) -> int:
    """Wait until the runner's own jobs are over; tell how each ended, and gives the exit code."""
    ended = runner.run()
    names = ("node", "spider", "job", "state", "attempt", "pages", "items", "errors")
    rows = [
        {
            "node": one.node or None,
            "project": one.project,
            "spider": one.spider,
            "job": one.id,
            "version": one.version,
            **verdict_row(verdict_of(one)),
            "attempt": one.attempt,
            "reason": one.reason,
        }
        for one in ended
    ]
    rows += [
        {
            **dict.fromkeys((*names, "project", "version")),
            "spider": job.wish.spider,
            "state": job.state,
            "reason": job.reason,
        }
        for job in skipped
    ]
    output.table(
        {"jobs": rows},
        (*names, ""),
        [[*(row[name] for name in names), row["reason"]] for row in rows],
    )
    gone = sorted({*runner.own} - {one.first or one.id for one in ended})
    if gone:
        complain(
            f"How these jobs ended is not known, since the store has forgotten them: {some_of(gone)}."
        )
    code = combined(
        [*(int(one.state is not Outcome.FINISHED) for one in ended), *(1 for _ in gone)]
    )
    return _notify(finish, code, {"jobs": rows})


def _send(calls: Sequence[tuple[PostedJob, Call[str]]], fleet: JobFleet) -> None:
    """Post them, side by side; what is refused or lost is written into the job."""

    def send(one: tuple[PostedJob, Call[str]]) -> None:
        job, call = one
        job.error, job.lost = post(fleet.sender, job.node, call, job.job, fleet.timeout)
        if job.error is not None:
            job.state, job.reason = "failed", job.error.short

    for _ in sweep(calls, send, threads=4 * len(fleet.nodes)):  # so that no node is run over
        pass


def _tell(jobs: Sequence[PostedJob], fleet: JobFleet, output: Output) -> None:
    rows = [
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
    document = {"version": fleet.version, "jobs": rows}
    names = ("node", "spider", "job", "state")
    output.table(
        document, (*names, ""), [[*(row[name] for name in names), row["reason"]] for row in rows]
    )
    complain_each([*fleet.errors.values(), *(job.error for job in jobs)])
    begun = [job for job in jobs if job.state == "scheduled"]
    if begun and fleet.why:
        say(f"Version {fleet.version}, {fleet.why}.")
    if begun and not output.as_json:
        say(f"See what they do: sdist jobs; sdist logs -f {begun[0].job}")
