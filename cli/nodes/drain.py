"""`sdist nodes drain`, `nodes resume`: no new work for a node, and work again; and what the store keeps of nodes."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.errors import DistError, NodeError, StoreError
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.scheduling import node_state

from ..candidates import nodes
from ..output import complain
from ..polling import poll_until
from ..project_store import maybe_store, project_store
from ..selectors import Json
from ..target_nodes import node_records
from .node_status import CONNECT_TIMEOUT, ConnectTimeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.store import Store
    from scrapyd_dist.transports import Sender

    from .node_status import NodeStatus


#: crawls whose attempts tell how long nodes take to start a job
CRAWLS = 5


def note(root: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Remember this of these nodes."""
    if not changes:
        return
    with closing(project_store(root)) as store:
        for name, fields in changes.items():
            store.update_node(name, **fields)


def recognise(root: Path, sender: Sender, seen: Sequence[NodeStatus], timeout: float) -> None:
    """Tell draining and wedged nodes, by what was remembered and what was seen now, and remember that."""
    try:
        known = node_records(root)
    except StoreError as error:
        complain(f"{error} So it is not known which nodes are draining or wedged.")
        return
    suspects = [one for one in seen if one.load is not None and one.load.pending and not one.load.running]
    delays = start_delays(root, {one.node.url: one.skew or 0.0 for one in suspects}) if suspects else {}
    changes: dict[str, dict[str, Any]] = {}
    for one in seen:
        record = known.get(one.node.name) or NodeRecord(name=one.node.name)
        one.draining = record.draining
        if one.load is not None:
            delay = max(record.start_delay, delays.get(one.node.url, 0.0))
            looks = _looks(sender, one, record.idle_looks, delay, timeout)
            one.wedged = node_state.is_wedged(looks, delay)
            if (looks, delay) != (record.idle_looks, record.start_delay):
                changes[one.node.name] = {"idle_looks": looks, "start_delay": delay}
    # Nobody asked to write anything: where that is impossible, the next look knows less, and that is all.
    with suppress(DistError):
        note(root, changes)


def _looks(
    sender: Sender, seen: NodeStatus, before: Sequence[float], delay: float, timeout: float
) -> tuple[float, ...]:
    """The node's row of looks that found work waiting and nothing running, after this one."""
    now = time.time()
    load = seen.load
    if load is None:
        return tuple(before)
    looks = node_state.looked(before, now=now, pending=load.pending, running=load.running, start_delay=delay)
    since = node_state.row_of(looks, delay)
    return (now,) if since is not None and _moved(sender, seen, now - since, timeout) else looks


def start_delays(root: Path, skews: Mapping[str, float]) -> dict[str, float]:
    """The longest time from sent to started in the last crawls, by the node's address; seconds."""
    store = maybe_store(root)
    if store is None:
        return {}
    times: dict[str, list[tuple[float, float]]] = {}
    with closing(store):
        for sent, started, url in _starts(store):
            times.setdefault(url, []).append((sent, started))
    return {url: node_state.start_delay_of(pairs, skews.get(url, 0.0)) for url, pairs in times.items()}


def _starts(store: Store) -> Iterable[tuple[float, float, str]]:
    for crawl in store.crawls()[:CRAWLS]:
        for attempt in store.attempts(crawl.id):
            started = attempt.report.get("started")
            if isinstance(started, (int, float)) and attempt.sent_at and not attempt.worker:
                yield attempt.sent_at, float(started), attempt.url


def _moved(sender: Sender, seen: NodeStatus, span: float, timeout: float) -> bool:
    """Whether jobs came and went between the looks, so that they only happened to fall into the gaps."""
    from scrapyd_dist.scrapyd import api

    try:
        jobs = sender.send(seen.node, api.listjobs(), timeout=timeout)
    except NodeError:
        return False
    here = datetime.now(timezone.utc).astimezone().utcoffset() or timedelta()
    times = [at for job in (*jobs.running, *jobs.finished) for at in (job.start_time, job.end_time)]
    node_now = seen.load.date if seen.load else None
    return node_state.moved_since(times, span=span, node_now=node_now, offsets={here, timedelta()})


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
class DrainResult:
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

    def saw(self, seen: NodeStatus, now: float, settled: float) -> None:
        """Take in one look at the node."""
        from scrapyd_dist.scheduling import node_state

        self.error = seen.error
        if seen.load is None:
            self.empty_since = None
            self.silent += 1
            self.over = self.silent >= SILENT_LOOKS or (seen.error is not None and seen.error.exit_code == 6)
            return
        self.silent = 0
        self.running, self.pending = seen.load.running, seen.load.pending
        self.looks = node_state.looked(
            self.looks, now=now, pending=self.pending, running=self.running, start_delay=self.start_delay
        )
        self.wedged = node_state.is_wedged(self.looks, self.start_delay)
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

    from ..crawls.crawl import seconds
    from ..selectors import among
    from ..target_nodes import node_records

    limit = seconds("--timeout", timeout)
    found = load()
    nodes = among(found, node, everyone=all_, verb="drain")
    known, now = node_records(found.root), time.time()
    since = {one.name: (known[one.name].draining if one.name in known else None) or now for one in nodes}
    note(found.root, {name: {"draining": at} for name, at in since.items()})
    delays = {name: record.start_delay for name, record in known.items()}
    waited = [DrainResult(node=one, start_delay=delays.get(one.name, 0.0)) for one in nodes]
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

    from ..project_store import existing_store

    with closing(existing_store(root)) as store:
        return SETTLED if any(not crawl.state.ended for crawl in store.crawls()) else 0.0


def _wait(sender: Sender, waited: Sequence[DrainResult], limit: float | None, *, settled: float) -> int:
    """Look at the nodes until there is nothing to wait for; the exit code of the waiting itself."""
    from ..crawls.wait_line import waiting

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
    from .node_status import ask_nodes

    by_node = {one.node: one for one in waited}
    for seen in ask_nodes(sender, list(by_node), None, ANSWER):
        by_node[seen.node].saw(seen, time.time(), settled)


def _exit_code(waited: Sequence[DrainResult]) -> int:
    from ..target_nodes import exit_code

    code = exit_code(len(waited), [one.error for one in waited if one.error is not None])
    return code or int(any(one.wedged for one in waited))


def _tell(
    waited: Sequence[DrainResult], since: dict[str, float], code: int, *, as_json: bool, waited_for: bool
) -> None:
    from ..output import complain, put_json, say
    from ..tables import table
    from ..target_nodes import names_of
    from .node_status import moment

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


def _troubles(waited: Sequence[DrainResult]) -> list[str]:
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

    from ..output import put_json, say
    from ..selectors import among
    from ..target_nodes import draining, names_of

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
