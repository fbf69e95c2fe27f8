"""`sdist nodes`: the fleet as it answers, nodes beside those of scrapy.cfg, drained nodes, and local ones.

The rule it keeps: the store has names and addresses of nodes, and no passwords; those come from ~/.netrc.
"""

import time
from collections.abc import Mapping, Sequence
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
    NodeError,
    NoNodeReachable,
    NothingMatched,
)
from scrapyd_dist.nodes import Node, names_of
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.node_state import SKEW, IdleWatch
from scrapyd_dist.transports import sweep

from ..context import Context, exit_code, quick_project
from ..node_status import TIMEOUT, exit_code_of, look, newest_of, recognise
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
#: looks in a row without an answer after which a node is not waited for
SILENT_LOOKS = 5
Names = Annotated[
    list[str] | None, argument("NODE", "Names of nodes, or globs in quotes.", node_names)
]
All = Annotated[bool, option("All nodes.")]


@dataclass(kw_only=True)
class DrainResult(NodeStatus):
    """A node that is asked for its load again and again, until it has none."""

    idle_watch: IdleWatch = field(default_factory=IdleWatch)
    empty_since: float | None = None
    silent: int = 0
    over: bool = False  #: nothing more is to be learned by waiting

    def saw(self, error: NodeError | None, now: float, settled: float) -> None:
        """Take in one look at the node, after `ask_load`; settled: seconds that it has to stay empty."""
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
        if self.error is not None:
            return "unknown"
        if self.wedged:
            return "wedged"
        return "drained" if self.over else "draining"

    def text(self) -> str:
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
    records, now = context.node_records(nodes), time.time()
    since = {name: record.draining or now for name, record in records.items()}
    context.remember({name: {"draining": at} for name, at in since.items()})
    waited = [
        DrainResult(
            node=one,
            draining=since[one.name],
            idle_watch=IdleWatch(start_delay=records[one.name].start_delay),
        )
        for one in nodes
    ]
    # A crawl that runs may be sending it a last job, so it has to stay empty for a while.
    settled = (
        SETTLED
        if not no_wait and any(not crawl.state.ended for crawl in context.store.crawls())
        else 0.0
    )
    sender = context.sender_within(connect_timeout)

    def left() -> list[DrainResult]:
        for answer in sweep(
            [one for one in waited if not one.over], lambda one: one.ask_load(sender, TIMEOUT)
        ):
            answer.asked.saw(answer.error, time.time(), settled)
        return [one for one in waited if not one.over]

    end = 0.0 if no_wait else float("inf") if timeout is None else time.monotonic() + timeout
    try:
        with waiting() as show:
            while (those := left()) and time.monotonic() < end:
                show("; ".join(one.text() for one in those))
                time.sleep(EVERY)
        code = TIME_UP if those and not no_wait else 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    _tell(waited, code, output, waited_for=not no_wait)
    if not code and not no_wait:
        code = exit_code(len(waited), [one.error for one in waited])
        code = code or int(any(one.wedged for one in waited))
    return code


def _tell(waited: Sequence[DrainResult], code: int, output: Output, *, waited_for: bool) -> None:
    names = ("name", "url", "state", "running", "pending", "draining")
    documents = [{**one.document(), "state": one.stage} for one in waited]
    rows = [{name: document[name] for name in names} for document in documents]
    output.columns({"nodes": rows}, "nodes", ("name", "state", "running", "pending"))
    for one, row in zip(waited, rows, strict=True):
        if one.error is not None:
            complain(
                f"{one.error} What it still runs is not known; the drain is in force all the same."
            )
        elif one.wedged:
            complain(
                f"{one.node}: {counted(row['pending'], 'job waits', 'jobs wait')} there and none is started, so"
                f" it will never be empty. Its "
                "process slots are lost: restart its Scrapyd, or take the jobs back with `sdist jobs cancel`. The "
                "drain is in force."
            )
    left = [one.node for one in waited if one.stage == "draining"]
    if left and (waited_for or not output.as_json):
        why = {TIME_UP: "The time is up. ", INTERRUPTED: "Interrupted. "}.get(code, "")
        say(
            f"{why}{names_of(left)}: jobs are left; no new work is sent there. Look again with: sdist nodes"
        )
    say(f"To give work again: sdist nodes resume {names_of((one.node for one in waited), ' ')}")


def resume(
    context: Context, node: Names = None, all_: All = False, output: Output = Output()
) -> None:
    """Give drained nodes work again.

    Example: sdist nodes resume web3
    """
    nodes = context.nodes_or_all(node, everyone=all_, verb="resume")
    known = {
        name for name, record in context.node_records(nodes).items() if record.draining is not None
    }
    back = [one for one in nodes if one.name in known]
    context.remember({one.name: {"draining": None, "idle_looks": ()} for one in back})
    rows = [{"name": one.name, "url": one.url, "was_draining": one.name in known} for one in nodes]
    if not output.document({"nodes": rows}) and back:
        say(f"Work is given again to {names_of(back)}.")
    if len(back) < len(nodes):
        say(f"Was not draining: {names_of(one for one in nodes if one.name not in known)}.")


#: nodes in trouble of which all is said
SAID = 5


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
    sender, known = context.sender_within(connect_timeout), context.known_times(fleet, name)
    seen = look(sender, fleet, name, timeout, known)
    recognise(context, sender, seen, timeout)
    projects = {one.node.project or name for one in seen}
    latest = {
        one: newest_of(node for node in seen if (node.node.project or name) == one)
        for one in projects
    }
    usual = latest.get(name) or newest_of(seen)
    chosen = [one for one in seen if not state or one.state in state]
    rows = [one.document(latest[one.node.project or name]) for one in chosen]
    if not output.rows({"project": name, "version": usual, "nodes": rows}, "nodes", "name"):
        _show(chosen, rows, most=len(chosen) if all_ else ROWS)
        if len(seen) > 1:
            say(_totals(seen))
    context.note_unused_nodes()
    return exit_code_of(seen)


def _totals(seen: Sequence[NodeStatus]) -> str:
    """How many nodes there are, and how much they have to do."""
    loads = [one.load for one in seen if one.load is not None]
    running = sum(load.running for load in loads)
    pending = sum(load.pending for load in loads)
    states = describe_states(one.state.value for one in seen)
    return f"{counted(len(seen), 'node')}: {states} · {running:,} running, {pending:,} pending"


def _show(
    seen: Sequence[NodeStatus], documents: Sequence[Mapping[str, Any]], most: int = ROWS
) -> None:
    """Print a table of so many nodes at most, and what is wrong with some."""
    described = {id(one): document for one, document in zip(seen, documents, strict=True)}
    seen = sort_by_urgency(
        seen, lambda one: one.state.value, lambda one: one.load.running if one.load else None
    )
    names = ("name", "state", "running", "pending", "finished", "slots")
    clocks = ("clock",) if any(clock(one.skew) for one in seen) else ()
    rows = []
    for one in seen[:most]:
        row = described[id(one)]
        latency = None if one.latency is None else f"{row['latency_ms']:.0f} ms"
        version = f"{row['version'] or 'none'} (drift)" if row["drift"] else row["version"]
        known = None if row["drift"] is None else version
        skew = [clock(one.skew) for _ in clocks]
        rows.append(
            (*(row[name] for name in names), latency, known, *skew, one.node.url, one.short)
        )
    table((*names, "latency", "version", *clocks, "url", ""), rows)
    if rest := describe_rest([one.state.value for one in seen[most:]]):
        say(f"{rest} (--all lists them)")
    troubles = [f"{one.node}: {one.reason}" for one in seen if one.reason]
    for text in troubles[:SAID]:
        complain(text)
    if len(troubles) > SAID:
        complain(
            f"and {len(troubles) - SAID} nodes more; `sdist nodes --json` says why of each, `sdist doctor` what to do."
        )


def clock(skew: float | None) -> str:
    """How wrong a node's clock is, where that is worth a word."""
    return "" if skew is None or abs(skew) < SKEW else f"{skew:+.0f} s"


def targets(context: Context) -> None:
    """List the targets of scrapy.cfg with their addresses, without asking them.

    Example: sdist nodes targets
    """
    for one in context.project.targets or context.local_nodes:
        put(f"{one.name:<20} {one.url}")


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
    seen = look(context.sender_within(connect_timeout), nodes, None, TIMEOUT)
    silent = [
        one.error
        for one in seen
        if one.error is not None and one.error.exit_code != AuthRefused.exit_code
    ]
    if resting and len(silent) == len(seen):
        raise NoNodeReachable(
            f"{' '.join(map(str, silent))} Nothing was added: the local nodes ({names_of(resting)}) are used only where"
            " no other node is named, so no node at all would work. Add it when it answers; or stop the local nodes"
            " first: sdist nodes down."
        )
    context.remember(
        {node.name: {"url": ("dns+" if node.lookup else "") + node.url} for node in nodes}
    )
    output.document({"nodes": [one.document() for one in seen]})
    for one in seen:
        if one.error is not None:
            complain(
                f"{one.error} It is added all the same. To take it away again: sdist nodes remove {one.node.name}"
            )
        elif not output.as_json:
            say(f"Added {one.node.name} ({one.node.url}).")
    context.note_unused_nodes()
    return exit_code_of(seen)


def _new(context: Context, addresses: Sequence[str], name: str | None) -> list[Node]:
    taken = {node.name: node for node in (*context.project.targets, *context.added)}
    nodes = []
    for address in addresses:
        node = Node.parse(address, name=name)
        if node.username is not None:
            raise ConfigError(
                f"The address of {node.name} has a user name in it, and the store keeps no secrets. Put it into "
                "~/.netrc (`machine HOST login USER password PASSWORD`, chmod 600), or add a [deploy:…] section "
                "to scrapy.cfg."
            )
        there = taken.get(node.name)
        if there is not None and there != node:
            raise ConfigError(
                f"There is a node {node.name!r} already, {there.url}. Choose another name with --name."
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
    known = context.added
    for pattern in node:
        if any(fnmatchcase(one.name, pattern) for one in known):
            continue
        if any(fnmatchcase(one.name, pattern) for one in context.project.targets):
            file = context.root / "scrapy.cfg"
            raise ConfigError(
                f"{pattern!r} is a target of {file}: remove its section there. Crawls that run notice."
            )
        names = ", ".join(one.name for one in known) or "none"
        raise NothingMatched(f"No node {pattern!r} was added. Those that were: {names}.")
    gone = [one for one in known if any(fnmatchcase(one.name, pattern) for pattern in node)]
    nothing: dict[str, Any] = {"url": "", "draining": None, "idle_looks": ()}
    context.remember({one.name: nothing for one in gone})
    if not output.document({"nodes": [{"name": one.name, "url": one.url} for one in gone]}):
        say(f"Removed {names_of(gone)}. A crawl that runs there sees its jobs to their end.")


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

    running = local_nodes.up(state_dir(context.root), count, slots=slots)
    rows = [{"name": node.name, "url": node.url, "slots": node.slots} for node in running]
    output.columns({"nodes": rows}, "nodes", ("name", "url", "slots"))
    context.note_unused_nodes()
    say("Stop them with: sdist nodes down")


def down(context: Context) -> None:
    """Stop the local nodes and their jobs.

    Example: sdist nodes down
    """
    from scrapyd_dist.deploy import local_nodes

    # A script without a scrapy.cfg has its state folder where it runs; and a broken one must not keep nodes alive.
    root = find_root() or Path.cwd()
    if not state_folder(root).is_dir():
        root = context.root
    stopped = local_nodes.down(state_folder(root))
    say(f"Stopped {', '.join(stopped)}." if stopped else "No local node was running.")
