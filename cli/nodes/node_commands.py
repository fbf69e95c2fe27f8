"""`sdist nodes`: the fleet as it answers, nodes beside those of scrapy.cfg, and drained nodes."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.config import MOST_JOBS, find_root, state_dir, state_folder
from scrapyd_dist.errors import INTERRUPTED, TIME_UP, ConfigError
from scrapyd_dist.fleet.added_nodes import (
    add_nodes,
    check_any_answers,
    choose_removed,
    read_addresses,
    remove_nodes,
)
from scrapyd_dist.fleet.drain import (
    DrainWatch,
    begin_draining,
    resume_nodes,
    settling_time,
    wait_until_empty,
)
from scrapyd_dist.fleet.fleet_screen import ROWS, describe_rest, describe_states, sort_by_urgency
from scrapyd_dist.fleet.node_poll import TIMEOUT, poll_nodes
from scrapyd_dist.fleet.node_status import NodeHealth, NodeStatus, show_state
from scrapyd_dist.fleet.survey import fleet_exit_code, survey_fleet
from scrapyd_dist.jobs.leaving_nodes import read_last_ends
from scrapyd_dist.node_answers import answers_exit_code
from scrapyd_dist.nodes import Node, names_of
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.project_names import quick_project
from scrapyd_dist.scheduling.liveness import SKEW
from scrapyd_dist.scrapyd.versions import short_version

from ..context import Context
from ..options import (
    CONNECT_TIMEOUT,
    ConnectTimeout,
    Nodes,
    Timeout,
    argument,
    option,
    project_option,
    span,
)
from ..options import nodes as node_names
from ..output import Listing, Output, complain, put, say, table, waiting
from ..poll_progress import shown_answers

#: nodes in trouble of which all is said
SAID = 5
_STATES = ", ".join(health.value for health in NodeHealth)
#: columns of the table that are fields of a node's document
_COLUMNS = ("name", "state", "running", "pending", "finished", "slots")
Names = Annotated[
    list[str] | None, argument("NODE", "Names of nodes, or globs in quotes.", node_names)
]
All = Annotated[bool, option("All nodes.")]


def drain(
    *,
    context: Context,
    node: Names = None,
    all_: All = False,
    no_wait: Annotated[bool, option("Come back at once, without waiting for its jobs.")] = False,
    timeout: Annotated[
        float | None, span("--timeout", "Wait at most this long (90, 30m, 2h). Exit code 124.")
    ] = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    output: Output,
) -> int:
    """Give nodes no new work, and wait until what they have is done.

    Crawls that run and `sdist jobs schedule` pass them over from now on; nothing is
    cancelled. It holds until `sdist nodes resume`, also when the waiting is
    ended by Ctrl-C or --timeout.

    Example: sdist nodes drain web3 --timeout 2h
    """
    nodes = context.nodes_or_all(node, everyone=all_, verb="drain")
    watches = begin_draining(context, nodes)
    settled = 0.0 if no_wait else settling_time(context)
    sender = context.sender_within(connect_timeout)
    deadline = _deadline(timeout, no_wait=no_wait)
    try:
        with waiting() as show:
            all_over = wait_until_empty(
                watches, sender, settled, deadline, lambda left: show(_describe_drains(left))
            )
        code = 0 if all_over or no_wait else TIME_UP
    except KeyboardInterrupt:
        code = INTERRUPTED
    _report_drain(watches, code, output, waited_for=not no_wait)
    if code or no_wait:
        return code
    return _exit_code_of_drain(watches)


def _describe_drains(left: Sequence[DrainWatch]) -> str:
    return "; ".join([watch.text() for watch in left])


def _deadline(timeout: float | None, *, no_wait: bool) -> float:
    """Return when the waiting ends, by the monotonic clock."""
    if no_wait:
        return 0.0
    if timeout is None:
        return float("inf")
    return time.monotonic() + timeout


def _exit_code_of_drain(watches: Sequence[DrainWatch]) -> int:
    """Return the exit code by the nodes that did not answer, else 1 where one is wedged."""
    errors = []
    any_wedged = False
    for watch in watches:
        errors.append(watch.status.error)
        any_wedged = any_wedged or watch.wedge_watch.wedged
    return answers_exit_code(len(watches), errors) or int(any_wedged)


def _report_drain(
    watches: Sequence[DrainWatch], code: int, output: Output, *, waited_for: bool
) -> None:
    names = ("name", "url", "state", "running", "pending", "draining")
    rows = []
    for watch in watches:
        document = {**watch.status.document(), "state": watch.stage}
        rows.append({name: document[name] for name in names})
    output.columns({"nodes": rows}, "nodes", ("name", "state", "running", "pending"))
    for watch, row in zip(watches, rows, strict=True):
        if watch.status.error is not None:
            complain(
                f"{watch.status.error} What it still runs is not known; the drain is in force all "
                "the same."
            )
        elif watch.wedge_watch.wedged:
            jobs = counted(row["pending"], "job waits", "jobs wait")
            complain(
                f"{watch.status.node}: {jobs} there and none is started, so it will never be "
                "empty. Its process slots are lost: restart its Scrapyd, or take the jobs back "
                "with `sdist jobs cancel`. The drain is in force."
            )
    _say_what_is_left(watches, code, shown=waited_for or not output.as_json)


def _say_what_is_left(watches: Sequence[DrainWatch], code: int, *, shown: bool) -> None:
    """Say how to go on; where `shown`, also which nodes still have jobs."""
    nodes = []
    left = []
    for watch in watches:
        nodes.append(watch.status.node)
        if watch.stage == "draining":
            left.append(watch.status.node)
    if left and shown:
        why = {TIME_UP: "The time is up. ", INTERRUPTED: "Interrupted. "}.get(code, "")
        say(
            f"{why}{names_of(left)}: jobs are left; no new work is sent there. Look again with: "
            "sdist nodes"
        )
    say(f"To give work again: sdist nodes resume {names_of(nodes, ' ')}")


def resume(
    context: Context, node: Names = None, all_: All = False, output: Output = Output()
) -> None:
    """Give drained nodes work again.

    Example: sdist nodes resume web3
    """
    nodes = context.nodes_or_all(node, everyone=all_, verb="resume")
    resumed: list[Node] = []
    others: list[Node] = []
    rows = []
    for entry in resume_nodes(context, nodes):
        named = entry.node
        rows.append({"name": named.name, "url": named.url, "was_draining": entry.was_draining})
        if entry.was_draining:
            resumed.append(named)
        else:
            others.append(named)
    if not output.document({"nodes": rows}) and resumed:
        say(f"Work is given again to {names_of(resumed)}.")
    if others:
        say(f"Was not draining: {names_of(others)}.")


def list_(
    *,
    context: Context,
    node: Nodes = None,
    project: Annotated[
        str | None, project_option("Whose versions are compared: [deploy] project, else BOT_NAME.")
    ] = None,
    state: Annotated[
        list[NodeHealth] | None,
        option(f"Only nodes in this state: {_STATES}. Repeatable.", metavar="STATE"),
    ] = None,
    all_: Annotated[
        bool, option(f"A row for each node, also where there are more than {ROWS}.")
    ] = False,
    offline: Annotated[
        bool, option("Only names and addresses, as they are configured; no node is asked.")
    ] = False,
    output: Listing,
    timeout: Timeout = TIMEOUT,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
) -> int:
    """List the nodes, each with its state, load, latency, version and clock.

    These are the targets of scrapy.cfg and the nodes that were added or, where
    there are none, the local nodes.
    All are asked at once; those in trouble stand first, and at the end how many
    there are. States: up; draining (gets no new work); drained (nor has
    any left); wedged (work waits, nothing starts); busy (connected, but no answer in time); down;
    refused (user name, password, certificate). One that is off while its drain
    holds is `down, drained`, and in both states. Exit code 0 when all work,
    3 when some do not, 5 when none answers, 6 when none lets us in.

    Example: sdist nodes --node 'eu-*'
    Example: sdist nodes --offline
    """
    if offline:
        if state:
            raise ConfigError("--state is what nodes answer, and --offline asks none. Take one.")
        return _list_configured(context.configured_nodes(node), output)
    fleet = context.known_nodes(node)
    name = quick_project(context.project, project, fleet)
    survey = survey_fleet(
        context,
        fleet,
        name,
        sender=context.sender_within(connect_timeout),
        timeout=timeout,
        progress=shown_answers,
        messenger=context.messenger,
    )
    chosen = survey.in_states(state)
    rows = [survey.document(status) for status in chosen]
    document = {"project": name, "version": survey.usual_version, "nodes": rows}
    if not output.rows(document, "nodes", "name"):
        _show(chosen, rows, most=len(chosen) if all_ else ROWS)
        if len(survey.statuses) > 1:
            say(_totals(survey.statuses))
    context.note_unused_nodes()
    return survey.exit_code


def _list_configured(nodes: Sequence[Node], output: Listing) -> int:
    """Print names and addresses of nodes that were not asked; gives the exit code."""
    rows = [{"name": node.name, "url": node.url, "project": node.project} for node in nodes]
    if not output.rows({"nodes": rows}, "nodes", "name"):
        for node in nodes:
            put(f"{node.name:<20} {node.url}")
        if not nodes:
            say("No node is named. To write some into scrapy.cfg: sdist init")
    return 0


def _totals(statuses: Sequence[NodeStatus]) -> str:
    """Return how many nodes there are, and how much they have to do."""
    running = 0
    pending = 0
    states = []
    for status in statuses:
        states.append(status.state.value)
        if status.load is not None:
            running += status.load.running
            pending += status.load.pending
    nodes = f"{counted(len(statuses), 'node')}: {describe_states(states)}"
    return f"{nodes} · {running:,} running, {pending:,} pending"


def _show(
    statuses: Sequence[NodeStatus], documents: Sequence[Mapping[str, Any]], most: int = ROWS
) -> None:
    """Print a table of so many nodes at most, and what is wrong with some."""
    described = {}
    with_clock = False
    for status, document in zip(statuses, documents, strict=True):
        described[id(status)] = document
        with_clock = with_clock or describe_skew(status.skew) != ""
    statuses = sort_by_urgency(statuses, lambda status: status.state.value, _running_jobs)
    headings = [*_COLUMNS, "latency", "version", "url", ""]
    if with_clock:
        headings.insert(-2, "clock")
    rows = []
    for status in statuses[:most]:
        row = _table_row(status, described[id(status)])
        if with_clock:
            row.insert(-2, describe_skew(status.skew))
        rows.append(row)
    table(headings, rows, shortened={"version": _shorten_version}, left_out=("url",))
    if rest := describe_rest([status.state.value for status in statuses[most:]]):
        say(f"{rest} (--all lists them)")
    _complain_of_some(statuses)


def _table_row(status: NodeStatus, document: Mapping[str, Any]) -> list[object]:
    """Return the cells of a node's row, without the one of its clock."""
    shown = {**document, "state": show_state(document)}
    row = [shown[name] for name in _COLUMNS]
    latency = None
    if status.latency is not None:
        latency = f"{document['latency_ms']:.0f} ms"
    return [*row, latency, _version_text(document), status.node.url, status.short]


def _running_jobs(status: NodeStatus) -> int | None:
    if status.load:
        return status.load.running
    return None


def _version_text(document: Mapping[str, Any]) -> str | None:
    """Return the version of a node, with a remark where others have a newer one."""
    if document["drift"] is None:
        return None
    if document["drift"]:
        return f"{document['version'] or 'none'} (drift)"
    version: str | None = document["version"]
    return version


def _shorten_version(text: str) -> str:
    """Return the same of a cell of `_version_text` with a short version."""
    version, space, remark = text.partition(" ")
    return f"{short_version(version)}{space}{remark}"


def _complain_of_some(statuses: Sequence[NodeStatus]) -> None:
    """Say what is wrong with the first nodes in trouble, and how many more there are."""
    troubles = [f"{status.node}: {status.reason}" for status in statuses if status.reason]
    for text in troubles[:SAID]:
        complain(text)
    if len(troubles) > SAID:
        complain(
            f"and {len(troubles) - SAID} nodes more; `sdist nodes --json` says why of each, "
            "`sdist doctor` what to do."
        )


def describe_skew(skew: float | None) -> str:
    """Return how wrong a node's clock is, in seconds, where that is worth a word."""
    if skew is None or abs(skew) < SKEW:
        return ""
    return f"{skew:+.0f} s"


def add(
    *,
    context: Context,
    address: Annotated[list[str], argument("ADDRESS", "As in web4:6800 or https://web5/scrapyd/.")],
    name: Annotated[
        str | None, option("What it is called; host and port if left out.", metavar="NAME")
    ] = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    output: Output,
) -> int:
    """Add nodes to the fleet, beside those of scrapy.cfg.

    Crawls that run give them work within seconds. User name and password come
    from ~/.netrc. A node that does not answer is added all the same, unless local
    nodes would rest for it: they are used only where no other one is named.

    Example: sdist nodes add web4:6800 --name spare
    """
    if name is not None and len(address) > 1:
        raise ConfigError("--name is the name of one node; name one address with it.")
    nodes = read_addresses(context, address, name)
    resting = () if context.project.targets or context.added else context.local_nodes
    sender = context.sender_within(connect_timeout)
    with shown_answers(len(nodes)) as note:
        statuses = poll_nodes(sender, nodes, None, TIMEOUT, note=note)
    check_any_answers(statuses, resting)
    add_nodes(context, nodes)
    output.document({"nodes": [status.document() for status in statuses]})
    _report_added(statuses, output)
    context.note_unused_nodes()
    return fleet_exit_code(statuses)


def _report_added(statuses: Sequence[NodeStatus], output: Output) -> None:
    for status in statuses:
        if status.error is not None:
            complain(
                f"{status.error} It is added all the same. To take it away again: "
                f"sdist nodes remove {status.node.name}"
            )
        elif not output.as_json:
            say(f"Added {status.node.name} ({status.node.url}).")


def remove(
    context: Context,
    node: Annotated[
        list[str], argument("NODE", "Names of nodes that were added or died, or globs.", node_names)
    ],
    output: Output = Output(),
) -> None:
    """Take nodes away again that were added with `sdist nodes add`.

    They get no new work; what they have is seen to its end, and how plain jobs there
    have ended by now is written down. A local node whose process has ended is
    forgotten, and jobs that it left are ended.

    Example: sdist nodes remove spare
    """
    gone = choose_removed(context, node)
    # They are asked while they are known: afterwards no command could learn how jobs ended.
    open_jobs = read_last_ends(context.job_site, [known for known in gone if not known.local])
    remove_nodes(context, gone)
    if open_jobs:
        say(
            f"How {counted(len(open_jobs), 'plain job ends', 'plain jobs end')} there will not be"
            f" known here: {some_of([record.id for record in open_jobs])}."
        )
    rows = [{"name": known.name, "url": known.url} for known in gone]
    if not output.document({"nodes": rows}):
        _say_removed(gone)


def _say_removed(gone: Sequence[Node]) -> None:
    """Say which nodes were removed, and which were local and dead."""
    dead: list[Node] = []
    added: list[Node] = []
    for known in gone:
        if known.local:
            dead.append(known)
        else:
            added.append(known)
    if dead:
        say(f"Forgot {names_of(dead)}, whose process had ended, and ended what was left of it.")
    if added:
        say(f"Removed {names_of(added)}. A crawl that runs there sees its jobs to their end.")


def up(
    context: Context,
    count: Annotated[int, argument("N", "How many local nodes shall run.", min=1, max=1000)] = 3,
    slots: Annotated[
        int | None,
        option(
            "Jobs that each runs at once; the cores divided among them if left out.",
            "--max-proc",
            min=1,
            max=MOST_JOBS,
        ),
    ] = None,
    output: Output = Output(),
) -> None:
    """Start real Scrapyd nodes on this machine, each with a port and a password of its own.

    They stay until `sdist nodes down`, and are what `sdist crawl` uses when
    scrapy.cfg names no node.

    Example: sdist nodes up 3 --max-proc 2
    """
    from scrapyd_dist.deploy import local_nodes

    running = local_nodes.start_nodes(state_dir(context.root), count, slots=slots)
    rows = [{"name": node.name, "url": node.url, "slots": node.slots} for node in running]
    output.columns({"nodes": rows}, "nodes", ("name", "url", "slots"))
    context.note_unused_nodes()
    if dead := context.dead_local_nodes:
        say(
            f"{names_of(dead)} died, and jobs of it may still run here. To end and forget them:"
            f" sdist nodes remove {names_of(dead, ' ')}"
        )
    say("Stop them with: sdist nodes down")


def down(context: Context) -> None:
    """Stop the local nodes and their jobs.

    Example: sdist nodes down
    """
    from scrapyd_dist.deploy import local_nodes

    # A script without a scrapy.cfg has its state folder where it runs; and a broken scrapy.cfg
    # must not keep nodes alive.
    root = find_root() or Path.cwd()
    if not state_folder(root).is_dir():
        root = context.root
    stopped = local_nodes.stop_nodes(state_folder(root))
    say(f"Stopped {', '.join(stopped)}." if stopped else "No local node was running.")
