"""`sdist jobs schedule`: starts plain jobs, and settles the node and the version of each.

The rule it keeps: all nodes are asked before anything is sent.
"""

import csv
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.errors import PARTIAL, ConfigError, NodeError, StoreError
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.node_answers import exit_code
from scrapyd_dist.nodes import Node
from scrapyd_dist.project_names import project_name
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.jobs import job_id
from scrapyd_dist.settings import (
    MOST,
    Setting,
    ValueKind,
    check_settings,
    describe_unknown,
    limits_in,
    settings_of_options,
)
from scrapyd_dist.store.project_store import key_of
from scrapyd_dist.transports import sweep
from scrapyd_dist.transports.event_hook import EventHook

from ..context import Context
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
#: what a column begins with that is a setting; a column that is nothing else is a spider argument
SETTING = "s:"
#: what a column begins with that is a label
LABEL = "l:"
#: the columns that are part of the job itself
_KNOWN = ("spider", "node", "priority")
#: what is shown of a job, as columns of the table
_SENT_COLUMNS = ("node", "spider", "job", "state")
_ENDED_COLUMNS = (*_SENT_COLUMNS, "attempt", "pages", "items", "errors")
PRIORITY = Setting(name="priority", kind=ValueKind.NUMBER, least=-MOST, help="")


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job that is asked for, or what holds for all jobs of a command."""

    spider: str  #: its name, or a pattern that means several
    node: str | None = None  #: the name of the one node that will do
    priority: float | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    labels: tuple[str, ...] = ()

    def record(self, job: str, version: str, now: float, **more: Any) -> JobRecord:
        """Return what is remembered of the job; more: fields of the record that are not here."""
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
    """Return the jobs of a CSV file, in which an empty cell says nothing.

    common: what holds for all of them, where they do not say otherwise.

    Raises:
        ConfigError: the file cannot be read, or a row of it is wrong.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            if "spider" not in (reader.fieldnames or ()):
                raise ConfigError(
                    f"{path} has no column `spider`. Its first line names the columns:"
                    " spider,node,…"
                )
            return [_row(f"{path}, line {reader.line_num}", row, common) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV file in UTF-8: {error}.") from error


def _row(where: str, row: Mapping[str | None, str | list[str] | None], common: JobRow) -> JobRow:
    cells = _cells(where, row)
    settings: dict[str, str] = {}
    labels: list[str] = []
    args: dict[str, str] = {}
    for name, value in cells.items():
        if name.startswith(SETTING):
            settings[name.removeprefix(SETTING)] = value
        elif name.startswith(LABEL):
            labels.append(f"{name.removeprefix(LABEL)}={value}")
        elif name not in _KNOWN:
            args[name] = value
    priority = common.priority
    if "priority" in cells:
        priority = PRIORITY.judged(cells["priority"], f"{where}: the priority")
    try:
        check_settings(settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return JobRow(
        spider=cells["spider"],
        node=cells.get("node", common.node),
        priority=priority,
        args={**common.args, **args},
        settings={**common.settings, **settings},
        labels=(*common.labels, *checked_labels(labels)),
    )


def _cells(where: str, row: Mapping[str | None, str | list[str] | None]) -> dict[str, str]:
    """Return the cells of a row that are not empty, by column; ConfigError without a spider."""
    if None in row:
        raise ConfigError(
            f"{where}: it has more cells than there are columns. A cell with a comma wants quotes."
        )
    cells: dict[str, str] = {}
    for name, value in row.items():
        if not name or not value or not isinstance(value, str):
            continue
        cells[name] = value
    if "spider" not in cells:
        raise ConfigError(f"{where}: it names no spider.")
    return cells


@dataclass(kw_only=True)
class PostedJob:
    """One job that is to be sent, and what came of it."""

    row: JobRow
    node: Node
    job: str  #: its id; empty where it is skipped
    state: str = "scheduled"  #: or `skipped`, or `failed`
    reason: str = ""  #: why it was skipped or failed
    error: NodeError | None = None  #: set when its node did not answer that it has the job
    lost: bool = False  #: its node may have it all the same

    def record(self, version: str, now: float) -> JobRecord:
        """Return what is remembered of it, as it stands after the attempt to send it."""
        where = {"project": self.node.project or "", "node": self.node.name, "url": self.node.url}
        record = self.row.record(self.job, version, now, posted=now, **where)
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
            "Wait until the jobs are over; then run this command, or post to this http(s) address,"
            " what `sdist crawls wait --job --json` gives.",
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
    finish = _hook(on_finish)
    if sum((on is not None, any_, all_nodes)) > 1:
        raise ConfigError("--on, --any and --all-nodes say three different things. Take one.")
    waits = queue.asked  # judged before a node is asked
    if queue.resume:
        _check_nothing_new(spider, from_, node, waits)
        return _resume(context, timeout, finish, output)
    args, settings = split_arguments(arg or (), setting or ())
    common = JobRow(
        spider="",
        node=on,
        priority=priority,
        args=args,
        settings=_with_limits(context, settings, limits),
        labels=checked_labels(label),
    )
    rows = _asked_rows(spider, from_, common, all_nodes=all_nodes)
    nodes = context.nodes(node) if project else context.own_nodes(node)
    project = context.one_project(project, nodes)
    usual = project_name(context.project, nodes, project)
    fleet = fleet_of(context, _nodes_with_project(nodes, project, usual), timeout)
    fleet.settle_version(version)
    jobs = _placed(
        context,
        fleet,
        _for_each_spider(rows, fleet),
        all_nodes=all_nodes,
        unless_running=unless_running,
    )
    if not waits:
        return _start(context, jobs, fleet, finish, output, all_nodes=all_nodes)
    among = nodes if node else []
    own = _queue(context, jobs, fleet, queue, on_each=all_nodes, project=project, among=among)
    known = None if project else usual  # other jobs that wait are of the usual project
    runner = QueueRunner(
        context=context, project=known, timeout=timeout, own=own, quiet=output.as_json
    )
    complain_each(fleet.errors.values())
    code = _work_off(runner, jobs, finish, output)
    return code or _missed_code(fleet, all_nodes=all_nodes)


def _hook(on_finish: str | None) -> EventHook:
    """Return what is notified at the end; ConfigError if that cannot be done."""
    if on_finish is not None and not on_finish.strip():
        raise ConfigError("--on-finish is empty: give it a command or an address, or leave it out.")
    finish = EventHook(target=on_finish or "", option="--on-finish", event="the end of the jobs")
    finish.check()
    return finish


def _check_nothing_new(*given: object) -> None:
    if any(given):
        raise ConfigError(
            "--resume starts nothing new: leave out spiders, --from, --node, --retries, --limit and"
            " --after."
        )


def _with_limits(
    context: Context, settings: Mapping[str, str], limits: JobLimits
) -> dict[str, str]:
    """Add the limits of jobs: those of scrapy.cfg below the settings, those of options above."""
    merged = {**limits_in(context.project.options), **settings}
    for name, limit in settings_of_options(limits).items():
        merged[name] = str(limit)
    return merged


def split_arguments(
    arg: Sequence[str], setting: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the spider's arguments and the settings of texts NAME=VALUE.

    An argument `setting=NAME=VALUE` is a setting, as for scrapyd-client.

    Raises:
        ConfigError: a text is not of that form.
    """
    args: list[str] = []
    settings: list[str] = []
    for text in arg:
        if text.startswith(CLIENT_SETTING):
            settings.append(text.removeprefix(CLIENT_SETTING))
        else:
            args.append(text)
    return pairs("-a", args), settings_in([*settings, *setting])


def _asked_rows(
    spiders: Sequence[str] | None, file: Path | None, common: JobRow, *, all_nodes: bool
) -> list[JobRow]:
    """Return what the command line and the file ask for; ConfigError if that cannot be done."""
    rows = [replace(common, spider=spider) for spider in spiders or ()]
    if file is not None:
        rows += read_jobs(file, common)
    if not rows:
        raise ConfigError(
            "Name the spiders to start, or a file of jobs with --from. `sdist jobs schedule '*'`"
            " means all."
        )
    names = set[str]()
    for row in rows:
        names.update(row.settings)
    complain_each(describe_unknown(names))
    if all_nodes and any(row.node for row in rows):
        raise ConfigError("--all-nodes, and a node named in the file: one of the two has to go.")
    return rows


def _nodes_with_project(nodes: Sequence[Node], project: str | None, usual: str) -> list[Node]:
    """Return the nodes with the project that was asked for, else their own, else the usual one."""
    return [replace(node, project=project or node.project or usual) for node in nodes]


def _for_each_spider(rows: Sequence[JobRow], fleet: JobFleet) -> list[JobRow]:
    """Return one row for each spider that a row's pattern means."""
    single: list[JobRow] = []
    for row in rows:
        for name in fleet.spiders(row.spider):
            own = replace(row, spider=name)
            single.append(own)
    return single


def _placed(
    context: Context,
    fleet: JobFleet,
    rows: Sequence[JobRow],
    *,
    all_nodes: bool,
    unless_running: bool,
) -> list[PostedJob]:
    """Return which job goes where; one that is left out has its reason."""
    busy: dict[str, Node] = {}
    if unless_running:
        busy = _busy_spiders(context, fleet)
    now = datetime.now(timezone.utc)
    jobs: list[PostedJob] = []
    for row in rows:
        if node := busy.get(row.spider):
            reason = "it waits in the store"
            if node.url:
                reason = f"it waits or runs on {node.name}"
            jobs.append(PostedJob(row=row, node=node, job="", state="skipped", reason=reason))
            continue
        for place in fleet.places(row.node, all_nodes=all_nodes):
            job = job_id(row.spider, fleet.version, now)
            jobs.append(PostedJob(row=row, node=place, job=job))
    return jobs


def _busy_spiders(context: Context, fleet: JobFleet) -> dict[str, Node]:
    """Return the spiders that wait or run, and where; a node without an address is the store."""
    busy = fleet.busy_spiders()
    store = context.store_if_any
    if store is None:
        return busy
    for record in store.jobs(OPEN_ONLY):
        if record.state is Outcome.WAITING:
            busy.setdefault(record.spider, Node(name=NOWHERE, url=""))
    return busy


def _start(
    context: Context,
    jobs: Sequence[PostedJob],
    fleet: JobFleet,
    finish: EventHook,
    output: Output,
    *,
    all_nodes: bool,
) -> int:
    """Post the jobs, show what came of it, and return the exit code; with a hook, wait for the end.

    all_nodes: whether a node that did not answer has missed jobs.
    """
    calls = _calls(jobs, fleet)
    now = time.time()
    to_send = [job for job, _ in calls]
    _remember(context, to_send, fleet, now)  # before anything is posted
    _send(calls, fleet)
    failed = []
    errors: list[NodeError] = []
    for job in to_send:
        if job.error is not None:
            failed.append(job)
            errors.append(job.error)
    _remember(context, failed, fleet, now)
    _show_sent(jobs, fleet, output)
    parts = len(to_send)
    if all_nodes:
        errors += fleet.errors.values()
        parts += len(fleet.errors)
    code = exit_code(parts, errors)
    if not finish.target:
        return code
    return _wait(context, jobs, code, finish)


def _calls(jobs: Sequence[PostedJob], fleet: JobFleet) -> list[tuple[PostedJob, Call[str]]]:
    """Return what posts each job that is not skipped; ConfigError if a node would lose it."""
    calls = []
    for job in jobs:
        if job.job:
            record = replace(job.record(fleet.version, 0.0), priority=job.row.priority)
            calls.append((job, call_of(record, job.row.settings)))
    return calls


def _remember(context: Context, jobs: Sequence[PostedJob], fleet: JobFleet, now: float) -> None:
    """Write the jobs down, and forget old ones.

    A store that cannot be written keeps no plain job from starting.
    """
    if not jobs:
        return
    records = [job.record(fleet.version, now) for job in jobs]
    try:
        store = context.new_store
        store.forget_jobs(time.time() - context.keep_days * DAY)
        store.keep_jobs(records)
    except (StoreError, ConfigError, OSError) as error:
        complain(f"The jobs are not remembered: {error}")


def _send(calls: Sequence[tuple[PostedJob, Call[str]]], fleet: JobFleet) -> None:
    """Post the jobs, side by side; what is refused or lost is written into the job."""

    def send(posting: tuple[PostedJob, Call[str]]) -> None:
        job, call = posting
        job.error, job.lost = post(fleet.sender, job.node, call, job.job, fleet.timeout)
        if job.error is not None:
            job.state = "failed"
            job.reason = job.error.short

    for _ in sweep(calls, send, threads=4 * len(fleet.nodes)):  # so that no node is run over
        pass


def _show_sent(jobs: Sequence[PostedJob], fleet: JobFleet, output: Output) -> None:
    rows = []
    errors: list[NodeError | None] = [*fleet.errors.values()]
    for job in jobs:
        errors.append(job.error)
        row = {
            "node": job.node.name,
            "project": job.node.project,
            "spider": job.row.spider,
            "job": job.job or None,
            "version": fleet.version,
            "state": job.state,
            "reason": job.reason,
        }
        rows.append(row)
    document = {"version": fleet.version, "jobs": rows}
    _show_table(document, _SENT_COLUMNS, rows, output)
    complain_each(errors)
    begun = _scheduled(jobs)
    if begun and fleet.why:
        say(f"Version {fleet.version}, {fleet.why}.")
    if begun and not output.as_json:
        say(f"See what they do: sdist jobs; sdist logs -f {begun[0].job}")


def _scheduled(jobs: Sequence[PostedJob]) -> list[PostedJob]:
    return [job for job in jobs if job.state == "scheduled"]


def _show_table(
    document: Mapping[str, Any],
    names: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    output: Output,
) -> None:
    """Show these columns of the rows, and behind them, without a heading, the reason."""
    table = []
    for row in rows:
        cells = [row[name] for name in names]
        table.append([*cells, row["reason"]])
    output.table(document, (*names, ""), table)


def _wait(context: Context, jobs: Sequence[PostedJob], code: int, finish: EventHook) -> int:
    """Wait until the jobs are over that were started, and notify; returns the exit code of all."""
    begun = _scheduled(jobs)
    ended = 0
    document: dict[str, Any] = {"jobs": []}
    if begun:
        nodes = {}
        for job in begun:
            nodes[job.job] = job.node
        distinct_nodes = list(dict.fromkeys(nodes.values()))
        ended, document = wait_for_jobs(context, list(nodes), distinct_nodes)
    return _notify(finish, code or ended, document)


def _queue(
    context: Context,
    jobs: Sequence[PostedJob],
    fleet: JobFleet,
    queue: QueueOptions,
    *,
    on_each: bool,
    project: str | None,
    among: Sequence[Node],
) -> list[str]:
    """Let the jobs that are not skipped wait in the store, and return their ids.

    on_each: whether each is for the node that it was placed on, and no other.
    project, among: the project and the nodes that were asked for; None and empty for any.

    Raises:
        ConfigError: a job could never start.
        NothingMatched: what a job is to follow does not exist.
    """
    wanted_project = project or ""
    node_names = tuple(node.name for node in among)
    store = context.new_store
    key = key_of(context.root)
    now = time.time()
    records: list[JobRecord] = []
    ids: list[str] = []
    for job in jobs:
        if not job.job:
            continue
        ids.append(job.job)
        row = job.row
        record = row.record(
            job.job,
            fleet.version,
            now,
            state=Outcome.WAITING,
            retries=queue.retries,
            limits=tuple(queue.limit or ()),
            after=tuple(queue.after or ()),
            priority=row.priority,
            place=len(records),
            sealed=sealed(row.settings, key),
            on=job.node.name if on_each else row.node or "",
            project=wanted_project,
            wanted_project=wanted_project,
            among=node_names,
        )
        call_of(record, row.settings)
        records.append(record)
    check_conditions(store, records)
    store.forget_jobs(now - context.keep_days * DAY)
    store.keep_jobs(records)
    return ids


def _missed_code(fleet: JobFleet, *, all_nodes: bool) -> int:
    """Return the exit code for nodes that did not answer, and so got none of the jobs for all."""
    return PARTIAL if all_nodes and fleet.errors else 0


def _resume(context: Context, timeout: float, finish: EventHook, output: Output) -> int:
    """Work off what earlier commands have left in the store."""
    store = context.store_if_any
    own = set[str]()
    if store is not None:
        own = left_behind(store.jobs(OPEN_ONLY))
    if not own:
        say("No job waits in the store.")
        output.document({"jobs": []})
        return _notify(finish, 0, {"jobs": []})
    runner = QueueRunner(
        context=context, project=None, timeout=timeout, own=own, quiet=output.as_json
    )
    return _work_off(runner, [], finish, output)


def _work_off(
    runner: QueueRunner, jobs: Sequence[PostedJob], finish: EventHook, output: Output
) -> int:
    """Wait until the runner's own jobs are over; show how each ended, and return the exit code.

    jobs: what the command was to start; those that were skipped are shown as well.
    """
    rows = []
    codes = []
    forgotten = set(runner.own)
    for record in runner.run():
        rows.append(_ended_row(record))
        codes.append(int(record.state is not Outcome.FINISHED))
        forgotten.discard(record.first or record.id)
    for job in jobs:
        if not job.job:
            row = _skipped_row(job)
            rows.append(row)
    _show_table({"jobs": rows}, _ENDED_COLUMNS, rows, output)
    if forgotten:
        complain(
            "How these jobs ended is not known, since the store has forgotten them:"
            f" {some_of(sorted(forgotten))}."
        )
    code = combined([*codes, *[1] * len(forgotten)])
    return _notify(finish, code, {"jobs": rows})


def _ended_row(record: JobRecord) -> dict[str, Any]:
    return {
        "node": record.node or None,
        "project": record.project,
        "spider": record.spider,
        "job": record.id,
        "version": record.version,
        **verdict_row(verdict_of(record)),
        "attempt": record.attempt,
        "reason": record.reason,
    }


def _skipped_row(job: PostedJob) -> dict[str, Any]:
    return {
        **dict.fromkeys((*_ENDED_COLUMNS, "project", "version")),
        "spider": job.row.spider,
        "state": job.state,
        "reason": job.reason,
    }


def _notify(finish: EventHook, code: int, document: Mapping[str, Any]) -> int:
    """Notify the hook of the end of all jobs; returns the exit code as it is."""
    items = 0
    for row in document["jobs"]:
        items += row["items"] or 0
    variables = {"SDIST_EXIT_CODE": str(code), "SDIST_ITEMS": str(items)}
    event = {"schema": 1, "exit_code": code, "items": items, **document}
    if wrong := finish.notify(event, variables):
        complain(wrong)
    return code
