"""`sdist consume`: the manager of workers at a frontier, in the foreground. Rule: what it starts outlives it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import typer

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.filling import has_arguments

from ..crawls.asking import pairs
from ..grouping import asks
from .asking import Wanted
from .counting import slots_in
from .naming import opened, settings_of, with_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.store import Store

#: seconds between two lines where there is no terminal
LINE_EVERY = 30.0


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("consume")(asks(consume))


def consume(wanted: Wanted) -> None:
    """Keep workers of a spider running at a frontier until nothing is left, and bring the items home.

    The code is uploaded to nodes that lack it. Workers are jobs that lease one
    batch after the other. They go on when this command ends: Ctrl-C ends the
    managing only, and the same command takes it up again. A slot whose workers
    always fail is given up and named (exit code 1). At a standing frontier it
    runs on until it is ended, or --max-time is up (exit code 124).

    Where the rows are arguments (`sdist frontier add --as arguments`), each is
    one job of the spider with these arguments; one that fails is tried again,
    and dead after DISTRIBUTED_MAX_ATTEMPTS.

    Example: sdist consume article shop --slots p --max-running 8 -o items.jl
    """
    from scrapyd_dist.config import load

    from ..crawls import words
    from ..crawls.watching import misses_of
    from ..speaking import put, put_json

    root = load().root
    outputs = wanted.outputs()
    with opened(root, wanted.frontier) as (store, row):
        _check_free(row)
        rows = has_arguments(store.own_crawl(row.id))
        if rows:
            wanted.check_rows()
        _check_slots(store, row, wanted.slots)
    code = _manage(root, wanted, outputs, rows=rows, before=(row.pid, row.host))
    with opened(root, wanted.frontier) as (_, row):
        ended = row
    if wanted.as_json:
        from scrapyd_dist.account.summary import told

        put_json(told(ended))
    else:
        for line in words.closing(ended, misses_of(root, ended.id)):
            put(line)
    raise typer.Exit(code)


def _check_free(row: Crawl) -> None:
    """Refuse a frontier that another process is at, and a crawl.

    Raises:
        ConfigError: which one that is.
    """
    from ..crawls.producing import lives

    if row.kind != "frontier":
        raise ConfigError(
            f"{row.id} is a crawl: its own process keeps its workers running, and `sdist resume {row.id}` starts that"
            " again."
        )
    if row.pid and lives(row):
        raise ConfigError(
            f"Process {row.pid} on {row.host} keeps the workers of the frontier {row.id} running already; two would"
            f" start too many. `sdist status {row.id}` says how it stands; `kill -INT {row.pid}` there ends it."
        )


def _check_slots(store: Store, row: Crawl, prefix: str | None) -> None:
    """Refuse a prefix that fits no slot, where nobody is about to fill one.

    Raises:
        NothingMatched: there is none.
    """
    backlog = store.backlog(row.id)
    if prefix is not None and not (backlog.standing or backlog.producers):
        with_prefix(slots_in(store, row.id), row.id, prefix)


def _manage(
    root: Path, wanted: Wanted, outputs: list[dict[str, Any]], *, rows: bool, before: tuple[int | None, str]
) -> int:
    """Run the manager in this process; its exit code."""
    from scrapyd_dist.middlewares.frontier.consuming import Consuming, Errand

    from ..crawls.waitline import waiting
    from ..storing import SETTING, where

    given = pairs("-s", wanted.setting or [])
    if SETTING in given:
        raise ConfigError(
            f"-s {SETTING}=… would show the store's address to everybody who lists this machine's processes."
        )
    errand = Errand(
        spider=wanted.spider,
        staffing=wanted.staffing(),
        args=pairs("-a", wanted.arg or []),
        given=given,
        labels=wanted.labels(),
        merge=bool(outputs),
        rows=rows,
        before=before,
    )
    # A row of arguments is a job of its own, which has no need to reach the store.
    ours = {"DISTRIBUTED_MODE": "push" if rows else "pull", "DISTRIBUTED_CRAWL": wanted.frontier, SETTING: where(root)}
    asked = {**given, **wanted.settings(), **ours, "DISTRIBUTED_OUTPUTS": outputs}
    settings = settings_of(asked)

    def look_on(summary: dict[str, Any]) -> None:
        if summary["batches"]["total"]:  # it has been looked at
            show(_line(wanted.frontier, summary))

    silence = nullcontext(lambda _: None)
    with _told(), silence if wanted.quiet else waiting(LINE_EVERY) as show:
        return asyncio.run(Consuming(errand, settings, look_on).run())


def _line(frontier: str, summary: dict[str, Any]) -> str:
    from ..crawls import words

    number, nodes = words.number, summary.get("nodes") or ()
    pieces = [
        words.counted(sum(node.get("running", 0) for node in nodes), "worker"),
        f"waiting {number(summary, 'requests', 'total') - number(summary, 'requests', 'sent'):,}",
        f"done {number(summary, 'requests', 'done'):,}",
        f"batches {number(summary, 'batches', 'done'):,}/{number(summary, 'batches', 'total'):,}",
        words.rated(summary, "items"),
        words.rated(summary, "failed"),
        f"nodes {sum(node.get('state') in words.USED for node in nodes)}/{len(nodes)}",
    ]
    return f"{frontier}: {' · '.join(piece for piece in pieces if piece)}"


@contextmanager
def _told() -> Iterator[None]:
    """What the manager warns of is said on standard error."""
    handler = _Sayer(level=logging.WARNING)
    logger = logging.getLogger("scrapyd_dist")
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(handler)


class _Sayer(logging.Handler):
    """A log record as a line for people."""

    def emit(self, record: logging.LogRecord) -> None:
        from ..speaking import complain

        complain(record.getMessage())
