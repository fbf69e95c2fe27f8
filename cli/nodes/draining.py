"""`sdist nodes drain`, `nodes resume`: no new work for a node, and new work again.

The rule it keeps: the drain is written down first and stays, whatever becomes of the waiting.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ..candidates import nodes
from ..choosing import Json
from ..polling import poll_until
from .looks import CONNECT_TIMEOUT, ConnectTimeout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

    from .looks import Seen

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


def register(group: typer.Typer) -> None:
    """Add the commands of this module."""
    group.command("drain")(drain)
    group.command("resume")(resume)


@dataclass(kw_only=True)
class Waited:
    """One node that is waited for."""

    node: Node
    running: int | None = None
    pending: int | None = None
    empty_since: float | None = None
    silent: int = 0
    start_delay: float = 0.0
    looks: tuple[float, ...] = ()
    error: NodeError | None = None
    wedged: bool = False
    over: bool = False  #: nothing more is to be learned by waiting

    def saw(self, seen: Seen, now: float, settled: float) -> None:
        """Take in one look at the node."""
        from scrapyd_dist.coordination import health

        self.error = seen.error
        if seen.load is None:
            self.empty_since = None
            self.silent += 1
            self.over = self.silent >= SILENT_LOOKS or (seen.error is not None and seen.error.exit_code == 6)
            return
        self.silent = 0
        self.running, self.pending = seen.load.running, seen.load.pending
        self.looks = health.looked(
            self.looks, now=now, pending=self.pending, running=self.running, start_delay=self.start_delay
        )
        self.wedged = health.is_wedged(self.looks, self.start_delay)
        if self.running or self.pending:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = now
        empty = self.empty_since is not None and now - self.empty_since >= settled
        self.over = empty or self.wedged

    @property
    def state(self) -> str:
        if self.error is not None:
            return "unknown"
        if self.wedged:
            return "wedged"
        return "drained" if self.over else "draining"

    def text(self) -> str:
        if self.running is None:
            return f"{self.node.name}: {self.error.short if self.error else 'not asked'}"
        return f"{self.node.name}: {self.running} running, {self.pending} waiting"


def drain(
    node: Names = None,
    all_: All = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Come back at once, without waiting for its jobs.")
    ] = False,
    timeout: Annotated[
        Optional[str], typer.Option(metavar="TIME", help="Wait no longer than 90 (seconds), 30m, 2h; exit code 124.")
    ] = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    as_json: Json = False,
) -> None:
    """Give nodes no new work, and wait until what they have is done.

    Crawls that run and `sdist schedule` pass them over from now on; nothing is
    cancelled. It holds until `sdist nodes resume`, also when the waiting is
    ended by Ctrl-C or --timeout.

    Example: sdist nodes drain web3 --timeout 2h
    """
    from scrapyd_dist.config import load
    from scrapyd_dist.transports.requests import RequestsTransport

    from ..choosing import among
    from ..crawls.crawl import seconds
    from ..fleet import node_records
    from .records import note

    limit = seconds("--timeout", timeout)
    found = load()
    nodes = among(found, node, everyone=all_, verb="drain")
    known, now = node_records(found.root), time.time()
    since = {one.name: (known[one.name].draining if one.name in known else None) or now for one in nodes}
    note(found.root, {name: {"draining": at} for name, at in since.items()})
    delays = {name: record.start_delay for name, record in known.items()}
    waited = [Waited(node=one, start_delay=delays.get(one.name, 0.0)) for one in nodes]
    sender = RequestsTransport(connect_timeout=connect_timeout)
    code = 0
    try:
        if no_wait:
            _look(sender, waited, settled=0.0)
        else:
            code = _wait(sender, waited, limit, settled=_settling(found.root))
    except KeyboardInterrupt:
        code = 130
    _tell(waited, since, code, as_json=as_json, waited_for=not no_wait)
    raise typer.Exit(code or (0 if no_wait else _exit_code(waited)))


def _settling(root: Path) -> float:
    """How long a node has to stay empty: a crawl that runs may be sending it a last job."""
    from contextlib import closing

    from ..storing import existing_store

    with closing(existing_store(root)) as store:
        return SETTLED if any(not crawl.state.ended for crawl in store.crawls()) else 0.0


def _wait(sender: Sender, waited: Sequence[Waited], limit: float | None, *, settled: float) -> int:
    """Look at the nodes until there is nothing to wait for; the exit code of the waiting itself."""
    from ..crawls.waitline import waiting

    def left() -> list[Waited]:
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


def _look(sender: Sender, waited: Sequence[Waited], *, settled: float) -> None:
    from .looks import ask_nodes

    by_node = {one.node: one for one in waited}
    for seen in ask_nodes(sender, list(by_node), None, ANSWER):
        by_node[seen.node].saw(seen, time.time(), settled)


def _exit_code(waited: Sequence[Waited]) -> int:
    from ..fleet import exit_code

    code = exit_code(len(waited), [one.error for one in waited if one.error is not None])
    return code or int(any(one.wedged for one in waited))


def _tell(waited: Sequence[Waited], since: dict[str, float], code: int, *, as_json: bool, waited_for: bool) -> None:
    from ..fleet import names_of
    from ..render import table
    from ..speaking import complain, put_json, say
    from .looks import moment

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
    if as_json:
        put_json({"nodes": rows})
    else:
        names = ("name", "state", "running", "pending")
        table(names, [tuple(row[name] for name in names) for row in rows])
    for text in _troubles(waited):
        complain(text)
    left = [one.node for one in waited if one.state == "draining"]
    if left and (waited_for or not as_json):
        why = {124: "The time is up. ", 130: "Interrupted. "}.get(code, "")
        say(f"{why}{names_of(left)}: jobs are left; no new work is sent there. Look again with: sdist nodes")
    say(f"To give work again: sdist nodes resume {' '.join(repr(n) if ' ' in n else n for n in since)}")


def _troubles(waited: Sequence[Waited]) -> list[str]:
    texts = [
        f"{one.error} What it still runs is not known; the drain is in force all the same."
        for one in waited
        if one.error is not None
    ]
    texts += [
        f"{one.node}: {one.pending} jobs wait there and none is started, so it will never be empty. Its process slots "
        "are lost: restart its Scrapyd, or take the jobs back with `sdist cancel`. The drain is in force."
        for one in waited
        if one.error is None and one.wedged
    ]
    return texts


def resume(node: Names = None, all_: All = False, as_json: Json = False) -> None:
    """Give drained nodes work again.

    Example: sdist nodes resume web3
    """
    from scrapyd_dist.config import load

    from ..choosing import among
    from ..fleet import draining, names_of
    from ..speaking import put_json, say
    from .records import note

    found = load()
    nodes = among(found, node, everyone=all_, verb="resume")
    known = draining(found.root)
    back = [one for one in nodes if one.name in known]
    note(found.root, {one.name: {"draining": None, "idle_looks": ()} for one in back})
    if as_json:
        put_json({"nodes": [{"name": one.name, "url": one.url, "was_draining": one.name in known} for one in nodes]})
    elif back:
        say(f"Work is given again to {names_of(back)}.")
    if len(back) < len(nodes):
        rest = [one for one in nodes if one.name not in known]
        say(f"Was not draining: {names_of(rest)}.")
