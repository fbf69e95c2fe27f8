"""`sdist jobs schedule`: starts plain jobs, and settles the node and the version of each.

The rule it keeps: all nodes are asked before anything is sent.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.errors import PARTIAL, ConfigError, NodeError, NoNodeReachable
from scrapyd_dist.fleet.project_store import key_of
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.jobs.job_fleet import JobFleet, make_fleet
from scrapyd_dist.jobs.job_judge import verdict_of
from scrapyd_dist.jobs.job_posts import (
    JobOrder,
    JobPoster,
    PlacedJob,
    name_each_spider,
    place_jobs,
)
from scrapyd_dist.jobs.job_rows import verdict_row
from scrapyd_dist.jobs.queue_decision import read_limit
from scrapyd_dist.jobs.queue_runner import QueueNodes, QueueRunner
from scrapyd_dist.jobs.waiting_jobs import JobQueue, WaitingTerms, find_left_behind
from scrapyd_dist.messenger import NO_MESSENGER
from scrapyd_dist.node_answers import answers_exit_code
from scrapyd_dist.nodes import Node
from scrapyd_dist.plurals import some_of
from scrapyd_dist.project_names import project_name
from scrapyd_dist.scrapyd.jobs import check_args
from scrapyd_dist.settings import describe_unknown, limits_in, settings_of_options
from scrapyd_dist.transports.event_hook import EventHook

from ..context import Context
from ..crawls.crawl_options import JobLimits, pairs, settings_in
from ..crawls.crawl_wait import combine_codes
from ..crawls.watcher import interruptible_pause
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
from ..output import Output, complain, complain_each, say, table, waiting
from .job_file import PRIORITY, read_jobs
from .wait import wait_for_jobs

#: what an argument begins with that is a setting, as in `--arg setting=LOG_LEVEL=INFO`
CLIENT_SETTING = "setting="
#: what is shown of a job, as columns of the table
_SENT_COLUMNS = ("node", "spider", "job", "state")
_ENDED_COLUMNS = (*_SENT_COLUMNS, "attempt", "pages", "items", "errors")
_queue_option = partial(option, panel="Jobs that wait")


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Options of jobs that wait in the store, as options of a command."""

    retries: Annotated[
        int,
        _queue_option(
            "Start a job that fails again, up to N times, on another node if there is one.",
            metavar="N",
            min=0,
            max=1000,
        ),
    ] = 0
    limit: Annotated[
        list[str] | None,
        _queue_option(
            "At most N jobs at once of the same spider (spider=N), or of the same value of a label."
            " Repeatable.",
            metavar="NAME=N",
        ),
    ] = None
    after: Annotated[
        list[str] | None,
        _queue_option(
            "Start when this job or crawl, or all with this label (NAME=VALUE; NAME with any"
            " value), finished; or failed, or are over. Repeatable.",
            metavar="NAME[:failed|:over]",
        ),
    ] = None
    resume: Annotated[
        bool, _queue_option("Start nothing new; work off what waits in the store.")
    ] = False

    @property
    def asked(self) -> bool:
        """Whether jobs are to wait; raises ConfigError for a limit that is none."""
        for text in self.limit or ():
            read_limit(text)
        return bool(self.retries or self.limit or self.after)

    def terms(self, project: str | None, among: Sequence[Node], *, placed: bool) -> WaitingTerms:
        """Return on what terms the jobs wait.

        project, among: the project and the nodes that were asked for; None and empty for any.
        placed: whether each is for the node that it was placed on, and no other.
        """
        return WaitingTerms(
            retries=self.retries,
            limits=tuple(self.limit or ()),
            after=tuple(self.after or ()),
            project=project or "",
            among=tuple(node.name for node in among),
            placed=placed,
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
    on: Annotated[
        str | None, option("On this one node, by its name.", metavar="NODE", autocompletion=nodes)
    ] = None,
    all_nodes: Annotated[
        bool,
        option("On every node, or every one of --node, instead of the one with the least to do."),
    ] = False,
    node: Nodes = None,
    from_: Annotated[
        Path | None,
        option(
            "Jobs of a CSV: spider, node, priority, s:SETTING, l:LABEL, arguments.", metavar="FILE"
        ),
    ] = None,
    unless_running: Annotated[
        bool,
        option("Start no spider that waits or runs; with --all-nodes: not where it does."),
    ] = False,
    priority: Annotated[
        float | None,
        option("Higher is earlier, within the project.", metavar="X", parser=parser_of(PRIORITY)),
    ] = None,
    version: Annotated[
        str | None, option("The version to run, else the newest deployment.", metavar="NAME")
    ] = None,
    label: NewLabels = None,
    on_finish: Annotated[
        str | None,
        option(
            "Wait until the jobs are over; then run this command with JSON on its standard input,"
            " or post the JSON to this http(s) address: `exit_code`, `items`, and `jobs`.",
            metavar="CMD|URL",
        ),
    ] = None,
    limits: JobLimits,
    queue: QueueOptions,
    timeout: Timeout = 60.0,  # the first job of a version makes a node import the project
    output: Output,
) -> int:
    """Start plain jobs of spiders, each on the node with the least to do.

    Every job is pinned to a version that all nodes have, or with --on that one node:
    the newest deployment by time, whatever Scrapyd sorts last. Its id is chosen here:
    when an answer is lost, nothing is sent twice. The store remembers it for
    DISTRIBUTED_KEEP_DAYS: `sdist jobs` tells how it ended, also when its node has
    forgotten it. Exit code 3 when some jobs could not be started.

    With --retries, --limit, --after or --on-finish, the command stays until its
    jobs are over: exit code 0 when all finished, 3 when only some did, 1 when none.
    With the first three, jobs wait in the store, and the command starts whatever
    waits there, also what a command left that was ended; --resume does only that.

    Example: sdist jobs schedule 'shop*' -a category=books --unless-running
    """
    finish = _hook(on_finish)
    waits = queue.asked  # judged before a node is asked
    if queue.resume:
        _check_nothing_new(spider, from_, node, waits)
        return _resume(context, timeout, finish, output)
    args, settings = split_arguments(arg or (), setting or ())
    common = JobOrder(
        spider="",
        node=on,
        priority=priority,
        args=args,
        settings=with_limits(context, settings, limits),
        labels=checked_labels(label),
    )
    orders = _asked_orders(spider, from_, common, all_nodes=all_nodes)
    settled = settle_fleet(
        context,
        node,
        project=project,
        version=version,
        only=_only_node(orders),
        timeout=timeout,
    )
    fleet = settled.fleet
    jobs = place_jobs(
        name_each_spider(orders, fleet),
        fleet,
        context.job_site.store,
        all_nodes=all_nodes,
        unless_running=unless_running,
    )
    if not waits:
        return _start(context, jobs, fleet, finish, output, all_nodes=all_nodes)
    among = settled.nodes if node else []
    terms = queue.terms(settled.project, among, placed=all_nodes)
    waiting_jobs = _job_queue(context)
    own = waiting_jobs.add(jobs, fleet.version, terms)
    # other jobs that wait are of the usual project
    known = None if settled.project else settled.usual
    runner = _queue_runner(context, waiting_jobs, own, known, timeout)
    complain_each(fleet.errors.values())
    code = _work_off(runner, jobs, finish, output)
    return code or _missed_code(fleet, all_nodes=all_nodes)


@dataclass(frozen=True, kw_only=True)
class SettledFleet:
    """The nodes for some jobs, which were asked for their load and versions."""

    project: str | None  #: that was asked for
    usual: str  #: of the nodes whose targets name none
    nodes: Sequence[Node]
    fleet: JobFleet  #: with the version that the jobs will run


def settle_fleet(
    context: Context,
    node: Sequence[str] | None,
    *,
    project: str | None,
    version: str | None,
    only: str | None,
    timeout: float,
) -> SettledFleet:
    """Ask the nodes for jobs of a project, and settle on the version that they run.

    node: names and patterns, None for all; project, version: None for the usual ones; only: name
    of the node that all jobs go to, if any; timeout: seconds that a node gets for each answer.
    """
    nodes = context.nodes(node) if project else context.own_nodes(node)
    project = context.one_project(project, nodes)
    usual = project_name(context.project, nodes, project)
    targets = _nodes_with_project(nodes, project, usual)
    fleet = make_fleet(context.job_site, targets, timeout, partial(_known_times, context), node)
    fleet.pass_over_draining()
    fleet.settle_version(version, only)
    return SettledFleet(project=project, usual=usual, nodes=nodes, fleet=fleet)


def _only_node(orders: Sequence[JobOrder]) -> str | None:
    """Return the name of the node that all of the jobs are for; None if there is no such node."""
    names = {order.node for order in orders}
    return names.pop() if len(names) == 1 else None


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


def with_limits(context: Context, settings: Mapping[str, str], limits: JobLimits) -> dict[str, str]:
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
    arguments = pairs("-a", args)
    check_args(arguments)
    return arguments, settings_in([*settings, *setting])


def _asked_orders(
    spiders: Sequence[str] | None, file: Path | None, common: JobOrder, *, all_nodes: bool
) -> list[JobOrder]:
    """Return what the command line and the file ask for; ConfigError if that cannot be done."""
    orders = [replace(common, spider=spider) for spider in spiders or ()]
    if file is not None:
        orders += read_jobs(file, common)
    if not orders:
        raise ConfigError(
            "Name the spiders to start, or a file of jobs with --from. `sdist jobs schedule '*'`"
            " means all."
        )
    names = set[str]()
    for order in orders:
        names.update(order.settings)
    complain_each(describe_unknown(names))
    if all_nodes and any(order.node for order in orders):
        raise ConfigError(
            "--all-nodes, and a node named by --on or in the file: one of the two has to go."
        )
    return orders


def _nodes_with_project(nodes: Sequence[Node], project: str | None, usual: str) -> list[Node]:
    """Return the nodes with the project that was asked for, else their own, else the usual one."""
    return [replace(node, project=project or node.project or usual) for node in nodes]


def _start(
    context: Context,
    jobs: Sequence[PlacedJob],
    fleet: JobFleet,
    finish: EventHook,
    output: Output,
    *,
    all_nodes: bool,
) -> int:
    """Post the jobs, show what came of it, and return the exit code; with a hook, wait for the end.

    all_nodes: whether a node that did not answer has missed jobs.
    """
    posted = post_placed(context, jobs, fleet)
    _show_sent(posted, fleet, output)
    parts = 0
    errors: list[NodeError | None] = []
    for job in posted:
        if job.job:
            parts += 1
            errors.append(job.error)
    if all_nodes:
        errors += fleet.errors.values()
        parts += len(fleet.errors)
    code = answers_exit_code(parts, errors)
    if not finish.target:
        return code
    return _wait(context, posted, code, finish)


def post_placed(context: Context, jobs: Sequence[PlacedJob], fleet: JobFleet) -> list[PlacedJob]:
    """Post the jobs that are not skipped; return all of them with what came of that."""
    poster = JobPoster(
        fleet=fleet,
        make_store=lambda: context.new_store,
        keep_days=context.keep_days,
        messenger=context.messenger,
    )
    return poster.post_jobs(jobs)


def describe_posted(jobs: Sequence[PlacedJob], version: str) -> dict[str, Any]:
    """Return what came of these jobs, as `sdist jobs schedule --json` gives it."""
    rows = []
    for job in jobs:
        row = {
            "node": job.node.name,
            "project": job.node.project,
            "spider": job.order.spider,
            "job": job.job or None,
            "version": version,
            "state": job.state,
            "reason": job.reason,
        }
        rows.append(row)
    return {"version": version, "jobs": rows}


def _show_sent(jobs: Sequence[PlacedJob], fleet: JobFleet, output: Output) -> None:
    document = describe_posted(jobs, fleet.version)
    _show_table(document, _SENT_COLUMNS, document["jobs"], output)
    complain_each([*fleet.errors.values(), *[job.error for job in jobs]])
    begun = _scheduled(jobs)
    if begun and fleet.why:
        say(f"Version {fleet.version}, {fleet.why}.")
    if begun and not output.as_json:
        say(f"See what they do: sdist jobs; sdist logs -f {begun[0].job}")


def _scheduled(jobs: Sequence[PlacedJob]) -> list[PlacedJob]:
    return [job for job in jobs if job.state == "scheduled"]


def _show_table(
    document: Mapping[str, Any],
    names: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    output: Output,
) -> None:
    """Show these columns of the rows, and behind them the reason."""
    if output.document(document):
        return
    lines = []
    for row in rows:
        cells = [row[name] for name in names]
        lines.append([*cells, row["reason"]])
    table((*names, "reason"), lines, below=("job",))  # whole, since commands are given it


def _wait(context: Context, jobs: Sequence[PlacedJob], code: int, finish: EventHook) -> int:
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


def _known_times(context: Context, nodes: Sequence[Node]) -> dict[str, float]:
    return context.known_times(nodes, None)


def _job_queue(context: Context) -> JobQueue:
    """Return the jobs that wait in the project's store, which is made where there is none."""
    return JobQueue(store=context.new_store, key=key_of(context.root), keep_days=context.keep_days)


def _queue_runner(
    context: Context, queue: JobQueue, own: Collection[str], project: str | None, timeout: float
) -> QueueRunner:
    """Return what works off the queue; project: the usual one, if that is known already."""
    nodes = QueueNodes(
        find=_ProjectNodes(context=context, project=project).find,
        find_times=partial(_known_times, context),
        timeout=timeout,
        patience=context.written_number("DISTRIBUTED_NODE_TIMEOUT"),
        long_patience=context.written_number("DISTRIBUTED_FLEET_TIMEOUT"),
    )
    return QueueRunner(site=context.job_site, queue=queue, nodes=nodes, own=own)


@dataclass(kw_only=True)
class _ProjectNodes:
    """The nodes of a project, read again at each question."""

    context: Context
    project: str | None  #: the usual one, if that is known already

    def find(self) -> list[Node]:
        """Return all nodes as they are listed now, each with its project."""
        nodes = self.context.read_anew().nodes()
        if self.project is None:
            self.project = project_name(self.context.project, nodes, None)
        return _nodes_with_project(nodes, None, self.project)


def _missed_code(fleet: JobFleet, *, all_nodes: bool) -> int:
    """Return the exit code for nodes that did not answer, and so got none of the jobs for all."""
    return PARTIAL if all_nodes and fleet.errors else 0


def _resume(context: Context, timeout: float, finish: EventHook, output: Output) -> int:
    """Work off what earlier commands have left in the store."""
    store = context.store_if_any
    own = set[str]()
    if store is not None:
        own = find_left_behind(store.jobs(OPEN_ONLY))
    if not own:
        say("No job waits in the store.")
        output.document({"jobs": []})
        return _notify(finish, 0, {"jobs": []})
    runner = _queue_runner(context, _job_queue(context), own, None, timeout)
    return _work_off(runner, [], finish, output)


def _work_off(
    runner: QueueRunner, jobs: Sequence[PlacedJob], finish: EventHook, output: Output
) -> int:
    """Wait until the runner's own jobs are over; show how each ended, and return the exit code.

    jobs: what the command was to start; those that were skipped are shown as well.
    """
    rows = []
    codes = []
    forgotten = set(runner.own)
    for record in _run(runner, output):
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
    code = combine_codes([*codes, *[1] * len(forgotten)])
    return _notify(finish, code, {"jobs": rows})


def _run(runner: QueueRunner, output: Output) -> list[JobRecord]:
    """Return the last attempts of the runner's own jobs, once they are over."""
    progress = nullcontext(NO_MESSENGER.say) if output.as_json else waiting()
    with interruptible_pause() as pause, progress as show:
        try:
            return runner.run(pause, show)
        except (KeyboardInterrupt, NoNodeReachable):
            say(
                "Jobs that were sent go on; the others wait in the store. Go on with: sdist jobs"
                " schedule --resume"
            )
            raise


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


def _skipped_row(job: PlacedJob) -> dict[str, Any]:
    return {
        **dict.fromkeys((*_ENDED_COLUMNS, "project", "version")),
        "spider": job.order.spider,
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
