"""`sdist nodes drain`, `nodes resume`: no new work for a node, and work again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ..candidates import nodes
from ..context import Context
from ..node_selection import exit_code, names_of
from ..node_status import IdleWatch, NodeStatus, ask_nodes, moment
from ..options import CONNECT_TIMEOUT, ConnectTimeout, seconds
from ..output import Output, complain, say
from ..polling import poll_until, waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

#: seconds between two looks at a node that is waited for
EVERY = 1.0
#: seconds in which the crawls that run have read that a node is draining
SETTLED = 3.0
#: looks in a row without an answer after which a node is not waited for
SILENT_LOOKS = 5
#: seconds that a node gets for each answer
ANSWER = 10.0
#: seconds between two lines about the waiting, where there is no terminal
LINE_EVERY = 30.0
Names = Annotated[
    Optional[list[str]],
    typer.Argument(metavar="NODE", autocompletion=nodes, help="Names of nodes, or globs in quotes."),
]
All = Annotated[bool, typer.Option("--all", help="All nodes.")]


@dataclass(kw_only=True)
class DrainResult:
    """One node that is waited for."""

    node: Node
    idle: IdleWatch = field(default_factory=IdleWatch)
    running: int | None = None
    pending: int | None = None
    empty_since: float | None = None
    silent: int = 0
    error: NodeError | None = None
    over: bool = False  #: nothing more is to be learned by waiting

    def saw(self, seen: NodeStatus, now: float, settled: float) -> None:
        """Take in one look at the node; settled: seconds that it has to stay empty."""
        self.error = seen.error
        if seen.load is None:
            self.empty_since = None
            self.silent += 1
            self.over = self.silent >= SILENT_LOOKS or (seen.error is not None and seen.error.exit_code == 6)
            return
        self.silent = 0
        self.running, self.pending = seen.load.running, seen.load.pending
        self.idle.saw(seen.load, now)
        if self.running or self.pending:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = now
        self.over = self.idle.wedged or (self.empty_since is not None and now - self.empty_since >= settled)

    @property
    def state(self) -> str:
        if self.error is not None:
            return "unknown"
        if self.idle.wedged:
            return "wedged"
        return "drained" if self.over else "draining"

    def text(self) -> str:
        if self.running is None:
            return f"{self.node.name}: {self.error.short if self.error else 'not asked'}"
        return f"{self.node.name}: {self.running} running, {self.pending} waiting"


def drain(
    *,
    context: Context,
    node: Names = None,
    all_: All = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Come back at once, without waiting for its jobs.")
    ] = False,
    timeout: Annotated[
        Optional[str], typer.Option(metavar="TIME", help="Wait no longer than 90 (seconds), 30m, 2h; exit code 124.")
    ] = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    output: Output,
) -> None:
    """Give nodes no new work, and wait until what they have is done.

    Crawls that run and `sdist schedule` pass them over from now on; nothing is
    cancelled. It holds until `sdist nodes resume`, also when the waiting is
    ended by Ctrl-C or --timeout.

    Example: sdist nodes drain web3 --timeout 2h
    """
    limit = seconds("--timeout", timeout)
    nodes = context.nodes_or_all(node, everyone=all_, verb="drain")
    known, now = context.node_records, time.time()
    since = {one.name: (known[one.name].draining if one.name in known else None) or now for one in nodes}
    context.remember({name: {"draining": at} for name, at in since.items()})
    delays = {name: record.start_delay for name, record in known.items()}
    waited = [DrainResult(node=one, idle=IdleWatch(start_delay=delays.get(one.name, 0.0))) for one in nodes]
    sender = context.sender_within(connect_timeout)
    code = 0
    try:
        if no_wait:
            _look(sender, waited, settled=0.0)
        else:
            # A crawl that runs may be sending it a last job, so it has to stay empty for a while.
            running = any(not crawl.state.ended for crawl in context.store.crawls())
            code = _wait(sender, waited, limit, settled=SETTLED if running else 0.0)
    except KeyboardInterrupt:
        code = 130
    _tell(waited, since, code, output, waited_for=not no_wait)
    if not code and not no_wait:
        code = exit_code(len(waited), [one.error for one in waited if one.error is not None])
        code = code or int(any(one.state == "wedged" for one in waited))
    raise typer.Exit(code)


def _wait(sender: Sender, waited: Sequence[DrainResult], limit: float | None, *, settled: float) -> int:
    """Look at the nodes until there is nothing to wait for; the exit code of the waiting itself."""

    def left() -> list[DrainResult]:
        return [one for one in waited if not one.over]

    def all_over() -> bool:
        _look(sender, left(), settled=settled)
        return not left()

    end = float("inf") if limit is None else time.monotonic() + limit
    with waiting(LINE_EVERY) as show:
        over = poll_until(
            all_over, EVERY, deadline=end, meanwhile=lambda: show("; ".join(one.text() for one in left()))
        )
    return 0 if over else 124


def _look(sender: Sender, waited: Sequence[DrainResult], *, settled: float) -> None:
    by_node = {one.node: one for one in waited}
    for seen in ask_nodes(sender, list(by_node), None, ANSWER):
        by_node[seen.node].saw(seen, time.time(), settled)


def _tell(
    waited: Sequence[DrainResult], since: dict[str, float], code: int, output: Output, *, waited_for: bool
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "name": one.node.name,
            "url": one.node.url,
            "state": one.state,
            "running": one.running,
            "pending": one.pending,
            "draining": moment(since[one.node.name]),
        }
        for one in waited
    ]
    output.columns({"nodes": rows}, "nodes", ("name", "state", "running", "pending"))
    for one in waited:
        if one.error is not None:
            complain(f"{one.error} What it still runs is not known; the drain is in force all the same.")
    for one in waited:
        if one.state == "wedged":
            complain(
                f"{one.node}: {one.pending} jobs wait there and none is started, so it will never be empty. Its "
                "process slots are lost: restart its Scrapyd, or take the jobs back with `sdist cancel`. The drain is "
                "in force."
            )
    left = [one.node for one in waited if one.state == "draining"]
    if left and (waited_for or not output.as_json):
        why = {124: "The time is up. ", 130: "Interrupted. "}.get(code, "")
        say(f"{why}{names_of(left)}: jobs are left; no new work is sent there. Look again with: sdist nodes")
    say(f"To give work again: sdist nodes resume {' '.join(repr(n) if ' ' in n else n for n in since)}")


def resume(context: Context, node: Names = None, all_: All = False, output: Output = Output()) -> None:
    """Give drained nodes work again.

    Example: sdist nodes resume web3
    """
    nodes = context.nodes_or_all(node, everyone=all_, verb="resume")
    known = context.draining
    back = [one for one in nodes if one.name in known]
    context.remember({one.name: {"draining": None, "idle_looks": ()} for one in back})
    rows = [{"name": one.name, "url": one.url, "was_draining": one.name in known} for one in nodes]
    if not output.document({"nodes": rows}) and back:
        say(f"Work is given again to {names_of(back)}.")
    if len(back) < len(nodes):
        say(f"Was not draining: {names_of(one for one in nodes if one.name not in known)}.")
