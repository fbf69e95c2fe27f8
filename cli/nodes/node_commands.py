"""`sdist nodes`: the fleet as it answers, nodes beside those of scrapy.cfg, and drained nodes.

The rule it keeps: the store has names and addresses of nodes, and no passwords; those come from
~/.netrc.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.config import MOST_JOBS, find_root, state_dir, state_folder, with_netrc
from scrapyd_dist.diagnostics import NodeHealth, NodeStatus
from scrapyd_dist.errors import (
    INTERRUPTED,
    TIME_UP,
    AuthRefused,
    ConfigError,
    DistError,
    NodeError,
    NoNodeReachable,
    NothingMatched,
)
from scrapyd_dist.nodes import Node, names_of
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.liveness import SKEW, IdleWatch
from scrapyd_dist.transports import Sender, sweep

from ..context import Context, exit_code, quick_project
from ..node_status import TIMEOUT, exit_code_of, newest_of, poll_nodes, recognise
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
from .fleet_screen import ROWS, describe_rest, describe_states, sort_by_urgency

#: seconds between two looks at a node that is waited for
EVERY = 1.0
#: seconds in which the crawls that run have read that a node is draining
SETTLED = 3.0
SILENT_LOOKS = 5
#: nodes in trouble of which all is said
SAID = 5
#: columns of the table that are fields of a node's document
_COLUMNS = ("name", "state", "running", "pending", "finished", "slots")
SILENT_LOOKS = 5
Names = Annotated[
    list[str] | None, argument("NODE", "Names of nodes, or globs in quotes.", node_names)
]
All = Annotated[bool, option("All nodes.")]


@dataclass(kw_only=True)
class DrainResult(NodeStatus):
    """A node that is asked for its load again and again, until it has none."""

    idle_watch: IdleWatch = field(default_factory=IdleWatch)
    empty_since: float | None = None  #: seconds since the epoch; None: it has jobs, or is silent
    silent: int = 0  #: looks in a row without an answer
    over: bool = False  #: nothing more is to be learned by waiting

    def saw(self, error: NodeError | None, now: float, settled: float) -> None:
        """Take in one look at the node, after `ask_load`.

        now: seconds since the epoch; settled: seconds that the node has to stay empty.
        """
        self.error = error
        if error is not None or self.load is None:
            self.empty_since = None
            self.silent += 1
            self.over = self.silent >= SILENT_LOOKS or (error is not None and error.exit_code == 6)
            return
        self.silent = 0
        self.idle_watch.saw(self.load, now)
        self.wedged = self.idle_watch.wedged
        if self.load.running or self.load.pending:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = now
        self.over = self.wedged or (
            self.empty_since is not None and now - self.empty_since >= settled
        )

    @property
    def stage(self) -> str:
        """Return how far the drain is: unknown, wedged, draining or drained."""
        if self.error is not None:
            return "unknown"
        if self.wedged:
            return "wedged"
        if self.over:
            return "drained"
        return "draining"

    def text(self) -> str:
        """Return what a waiting user is shown of the node."""
        if self.load is None:
            return f"{self.node.name}: {self.short or 'not asked'}"
        return f"{self.node.name}: {self.load.running} running, {self.load.pending} waiting"


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
    results = _begin_draining(context, nodes)
    settled = 0.0 if no_wait else _settling_time(context)
    sender = context.sender_within(connect_timeout)
    deadline = _deadline(timeout, no_wait=no_wait)
    try:
        all_over = _wait_until_empty(results, sender, settled, deadline)
        code = 0 if all_over or no_wait else TIME_UP
    except KeyboardInterrupt:
        code = INTERRUPTED
    _report_drain(results, code, output, waited_for=not no_wait)
    if code or no_wait:
        return code
    return _exit_code_of_drain(results)


def _begin_draining(context: Context, nodes: Sequence[Node]) -> list[DrainResult]:
    """Keep in the store that the nodes are draining."""
    records = context.node_records(nodes)
    now = time.time()
    changes: dict[str, dict[str, Any]] = {}
    for name, record in records.items():
        changes[name] = {"draining": record.draining or now}
    context.remember(changes)
    results = []
    for node in nodes:
        watch = IdleWatch(start_delay=records[node.name].start_delay)
        since = changes[node.name]["draining"]
        results.append(DrainResult(node=node, draining=since, idle_watch=watch))
    return results


def _settling_time(context: Context) -> float:
    """Return the seconds for which a node has to stay empty: a crawl may be sending a last job."""
    for crawl in context.store.crawls():
        if not crawl.state.ended:
            return SETTLED
    return 0.0


def _deadline(timeout: float | None, *, no_wait: bool) -> float:
    """Return when the waiting ends, by the monotonic clock."""
    if no_wait:
        return 0.0
    if timeout is None:
        return float("inf")
    return time.monotonic() + timeout


def _exit_code_of_drain(results: Sequence[DrainResult]) -> int:
    """Return the exit code by the nodes that did not answer, else 1 where one is wedged."""
    errors = []
    any_wedged = False
    for result in results:
        errors.append(result.error)
        any_wedged = any_wedged or result.wedged
    return exit_code(len(results), errors) or int(any_wedged)


def _wait_until_empty(
    results: Sequence[DrainResult], sender: Sender, settled: float, deadline: float
) -> bool:
    """Ask the nodes again and again; give whether nothing more is to be learned of any.

    deadline: by the monotonic clock. All nodes are asked once, even where it has passed.
    """
    left = list(results)
    with waiting() as show:
        while True:
            for answer in sweep(left, lambda result: result.ask_load(sender, TIMEOUT)):
                answer.asked.saw(answer.error, time.time(), settled)
            left = [result for result in results if not result.over]
            if not left or time.monotonic() >= deadline:
                return not left
            show("; ".join(map(DrainResult.text, left)))
            time.sleep(EVERY)


def _report_drain(
    results: Sequence[DrainResult], code: int, output: Output, *, waited_for: bool
) -> None:
    names = ("name", "url", "state", "running", "pending", "draining")
    rows = []
    for result in results:
        document = {**result.document(), "state": result.stage}
        rows.append({name: document[name] for name in names})
    output.columns({"nodes": rows}, "nodes", ("name", "state", "running", "pending"))
    for result, row in zip(results, rows, strict=True):
        if result.error is not None:
            complain(
                f"{result.error} What it still runs is not known; the drain is in force all the "
                "same."
            )
        elif result.wedged:
            jobs = counted(row["pending"], "job waits", "jobs wait")
            complain(
                f"{result.node}: {jobs} there and none is started, so it will never be empty. Its "
                "process slots are lost: restart its Scrapyd, or take the jobs back with `sdist "
                "jobs cancel`. The drain is in force."
            )
    _say_what_is_left(results, code, shown=waited_for or not output.as_json)


def _say_what_is_left(results: Sequence[DrainResult], code: int, *, shown: bool) -> None:
    """Say how to go on; where `shown`, also which nodes still have jobs."""
    nodes = []
    left = []
    for result in results:
        nodes.append(result.node)
        if result.stage == "draining":
            left.append(result.node)
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
    records = context.node_records(nodes)
    changes: dict[str, dict[str, Any]] = {}
    resumed: list[Node] = []
    others: list[Node] = []
    rows = []
    for named in nodes:
        was_draining = named.name in records and records[named.name].draining is not None
        rows.append({"name": named.name, "url": named.url, "was_draining": was_draining})
        if was_draining:
            resumed.append(named)
            changes[named.name] = {"draining": None, "idle_looks": ()}
        else:
            others.append(named)
    context.remember(changes)
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
        list[NodeHealth] | None, option("Only nodes in this state. Repeatable.")
    ] = None,
    all_: Annotated[
        bool, option(f"A row for each node, also where there are more than {ROWS}.")
    ] = False,
    output: Listing,
    timeout: Timeout = TIMEOUT,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
) -> int:
    """List the nodes, each with its state, load, latency, version and clock.

    These are the targets of scrapy.cfg or, where it names none, the local nodes.
    All are asked at once; those in trouble stand first, and at the end how many
    there are. States: up; draining (gets no new work); wedged (work
    waits, nothing starts); busy (connected, but no answer in time); down;
    refused (user name, password, certificate). Exit code 0 when all work,
    3 when some do not, 5 when none answers, 6 when none lets us in.

    Example: sdist nodes --node 'eu-*'
    """
    fleet = context.nodes(node)
    if fleet == context.local_nodes:
        fleet = (*fleet, *context.dead_local_nodes)
    name = quick_project(context.project, project)
    sender = context.sender_within(connect_timeout)
    seen = poll_nodes(sender, fleet, name, timeout, context.known_times(fleet, name))
    recognise(context, sender, seen, timeout)
    latest = _latest_versions(seen, name)
    usual = latest.get(name) or newest_of(seen)
    chosen = _in_states(seen, state)
    rows = []
    for status in chosen:
        version = latest[status.node.project or name]
        rows.append(status.document(version))
    if not output.rows({"project": name, "version": usual, "nodes": rows}, "nodes", "name"):
        _show(chosen, rows, most=len(chosen) if all_ else ROWS)
        if len(seen) > 1:
            say(_totals(seen))
    context.note_unused_nodes()
    return exit_code_of(seen)


def _latest_versions(
    seen: Sequence[NodeStatus], usual_project: str | None
) -> dict[str | None, str | None]:
    """Return the newest version of each project, over the nodes whose targets are for it."""
    by_project: dict[str | None, list[NodeStatus]] = {}
    for status in seen:
        by_project.setdefault(status.node.project or usual_project, []).append(status)
    return {project: newest_of(statuses) for project, statuses in by_project.items()}


def _in_states(
    seen: Sequence[NodeStatus], states: Sequence[NodeHealth] | None
) -> Sequence[NodeStatus]:
    """Return the nodes that are in one of these states; without any state, all."""
    if not states:
        return seen
    return [status for status in seen if status.state in states]


def _totals(seen: Sequence[NodeStatus]) -> str:
    """Return how many nodes there are, and how much they have to do."""
    running = 0
    pending = 0
    states = []
    for status in seen:
        states.append(status.state.value)
        if status.load is not None:
            running += status.load.running
            pending += status.load.pending
    nodes = f"{counted(len(seen), 'node')}: {describe_states(states)}"
    return f"{nodes} · {running:,} running, {pending:,} pending"


def _show(
    seen: Sequence[NodeStatus], documents: Sequence[Mapping[str, Any]], most: int = ROWS
) -> None:
    """Print a table of so many nodes at most, and what is wrong with some."""
    described = {}
    with_clock = False
    for status, document in zip(seen, documents, strict=True):
        described[id(status)] = document
        with_clock = with_clock or clock(status.skew) != ""
    seen = sort_by_urgency(seen, lambda status: status.state.value, _running_jobs)
    headings = [*_COLUMNS, "latency", "version", "url", ""]
    if with_clock:
        headings.insert(-2, "clock")
    rows = []
    for status in seen[:most]:
        row = _table_row(status, described[id(status)])
        if with_clock:
            row.insert(-2, clock(status.skew))
        rows.append(row)
    table(headings, rows)
    if rest := describe_rest([status.state.value for status in seen[most:]]):
        say(f"{rest} (--all lists them)")
    _complain_of_some(seen)


def _table_row(status: NodeStatus, document: Mapping[str, Any]) -> list[object]:
    """Return the cells of a node's row, without the one of its clock."""
    row = [document[name] for name in _COLUMNS]
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


def _complain_of_some(seen: Sequence[NodeStatus]) -> None:
    """Say what is wrong with the first nodes in trouble, and how many more there are."""
    troubles = [f"{status.node}: {status.reason}" for status in seen if status.reason]
    for text in troubles[:SAID]:
        complain(text)
    if len(troubles) > SAID:
        complain(
            f"and {len(troubles) - SAID} nodes more; `sdist nodes --json` says why of each, "
            "`sdist doctor` what to do."
        )


def clock(skew: float | None) -> str:
    """Return how wrong a node's clock is, in seconds, where that is worth a word."""
    if skew is None or abs(skew) < SKEW:
        return ""
    return f"{skew:+.0f} s"


def targets(context: Context) -> None:
    """List the targets of scrapy.cfg with their addresses, without asking them.

    Example: sdist nodes targets
    """
    for target in context.project.targets or context.local_nodes:
        put(f"{target.name:<20} {target.url}")


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
    nodes = _new(context, address, name)
    resting = () if context.project.targets or context.added else context.local_nodes
    seen = poll_nodes(context.sender_within(connect_timeout), nodes, None, TIMEOUT)
    if resting:
        _check_any_answers(seen, resting)
    changes = {}
    for node in nodes:
        scheme = "dns+" if node.lookup else ""
        changes[node.name] = {"url": scheme + node.url}
    context.remember(changes)
    output.document({"nodes": [status.document() for status in seen]})
    _report_added(seen, output)
    context.note_unused_nodes()
    return exit_code_of(seen)


def _check_any_answers(seen: Sequence[NodeStatus], resting: Sequence[Node]) -> None:
    """Refuse nodes of which none answers, where the local nodes would rest for them."""
    errors = []
    for status in seen:
        if status.error is None or status.error.exit_code == AuthRefused.exit_code:
            return
        errors.append(str(status.error))
    raise NoNodeReachable(
        f"{' '.join(errors)} Nothing was added: the local nodes ({names_of(resting)}) are used "
        "only where no other node is named, so no node at all would work. Add it when it answers; "
        "or stop the local nodes first: sdist nodes down."
    )


def _report_added(seen: Sequence[NodeStatus], output: Output) -> None:
    for status in seen:
        if status.error is not None:
            complain(
                f"{status.error} It is added all the same. To take it away again: "
                f"sdist nodes remove {status.node.name}"
            )
        elif not output.as_json:
            say(f"Added {status.node.name} ({status.node.url}).")


def _new(context: Context, addresses: Sequence[str], name: str | None) -> list[Node]:
    """Return the nodes at these addresses, with the passwords of ~/.netrc."""
    named = {node.name: node for node in (*context.project.targets, *context.added)}
    nodes = []
    for address in addresses:
        node = Node.parse(address, name=name)
        if node.username is not None:
            raise ConfigError(
                f"The address of {node.name} has a user name in it, and the store keeps no "
                "secrets. Put it into ~/.netrc (`machine HOST login USER password PASSWORD`, "
                "chmod 600), or add a [deploy:…] section to scrapy.cfg."
            )
        other = named.get(node.name)
        if other is not None and other != node:
            raise ConfigError(
                f"There is a node {node.name!r} already, {other.url}. Choose another name with "
                "--name."
            )
        nodes.append(with_netrc(node))
    return nodes


def remove(
    context: Context,
    node: Annotated[
        list[str], argument("NODE", "Names of nodes that were added, or globs.", node_names)
    ],
    output: Output = Output(),
) -> None:
    """Take nodes away again that were added with `sdist nodes add`.

    They get no new work; what they have is seen to its end.

    Example: sdist nodes remove spare
    """
    added = context.added
    for pattern in node:
        if not _matching(added, pattern):
            raise _nothing_added(context, pattern)
    gone = []
    rows = []
    changes: dict[str, dict[str, Any]] = {}
    for known in added:
        if any(fnmatchcase(known.name, pattern) for pattern in node):
            gone.append(known)
            rows.append({"name": known.name, "url": known.url})
            changes[known.name] = {"url": "", "draining": None, "idle_looks": ()}
    context.remember(changes)
    if not output.document({"nodes": rows}):
        say(f"Removed {names_of(gone)}. A crawl that runs there sees its jobs to their end.")


def _matching(nodes: Iterable[Node], pattern: str) -> list[Node]:
    return [node for node in nodes if fnmatchcase(node.name, pattern)]


def _nothing_added(context: Context, pattern: str) -> DistError:
    """Return the error for a name, or glob, of no node that was added."""
    if _matching(context.project.targets, pattern):
        file = context.root / "scrapy.cfg"
        return ConfigError(
            f"{pattern!r} is a target of {file}: remove its section there. Crawls that run notice."
        )
    names = ", ".join([node.name for node in context.added]) or "none"
    return NothingMatched(f"No node {pattern!r} was added. Those that were: {names}.")


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
