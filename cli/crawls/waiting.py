"""`sdist wait`: silent until crawls or jobs are over; then the exit code tells. Rule: it changes nothing."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.errors import ConfigError

from ..jobs.joblist import Json, Nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from scrapyd_dist.store import Store

#: seconds between two looks at the store
LOOK = 0.25

Crawls = Annotated[
    Optional[list[str]], typer.Argument(metavar="[CRAWL]...", help="Names of crawls; the newest if left out.")
]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("wait", rich_help_panel="Crawls")(wait)


def wait(
    crawl: Crawls = None,
    job: Annotated[
        Optional[list[str]], typer.Option("--job", metavar="JOB", help="Wait for this job instead. Repeatable.")
    ] = None,
    timeout: Annotated[
        Optional[str], typer.Option(metavar="TIME", help="Wait no longer than this (90, 30m, 2h). Exit code 124.")
    ] = None,
    node: Nodes = None,
    as_json: Json = False,
) -> None:
    """Wait until crawls are at their end, or jobs are over; say nothing before that.

    A crawl is at its end when no batch waits or runs and its output is closed, or
    when it was stopped. The exit code is the crawl's own. Of several it is 0 when
    all are good, 3 when only some are, else that of the first. A job is judged by
    what it really did: 0 when it finished, 1 otherwise.

    Example: sdist wait easy-20260102T030405Z --timeout 2h
    """
    from scrapyd_dist.config import load

    from .crawl import seconds

    if crawl and job:
        raise ConfigError("Wait for crawls or, with --job, for jobs; not for both at once.")
    span = seconds("--timeout", timeout)
    deadline = time.monotonic() + span if span is not None else float("inf")
    project = load()
    if job:
        from .jobwait import wait_for_jobs

        code = wait_for_jobs(project, job, node, deadline, as_json=as_json)
    else:
        code = _for_crawls(project.root, crawl or (), deadline, as_json=as_json)
    raise typer.Exit(code)


def combined(codes: Iterable[int]) -> int:
    """One exit code for several: 0 when all are, 3 when only some are, else the first."""
    every = list(codes)
    if not any(every):
        return 0
    return every[0] if all(every) and 3 not in every else 3 if len(every) > 1 else every[0]


# crawls


def _for_crawls(root: Path, names: Sequence[str], deadline: float, *, as_json: bool) -> int:
    from scrapyd_dist.account.summary import told

    from .. import storing
    from ..speaking import complain, put_json
    from . import producing
    from .interrupts import looked_out_for

    with ExitStack() as stack:
        store = stack.enter_context(closing(storing.existing_store(root)))
        ctrl_c = stack.enter_context(looked_out_for())
        ids = [store.crawl(name).id for name in dict.fromkeys(names)] or [producing.latest(store).id]
        ends = Ends(root=root, store=store, left=list(ids))
        while ends.look():
            check_time(deadline, f"crawl {ends.left[0]}", "sdist watch " + ends.left[0])
            ctrl_c.pause(LOOK)
        rows = [store.crawl(name) for name in ids]
    codes = [ends.codes[row.id] for row in rows]
    if as_json:
        put_json({"crawls": [{**told(row), "exit_code": code} for row, code in zip(rows, codes, strict=True)]})
    for row, code in zip(rows, codes, strict=True):
        if code and row.id not in ends.said:
            complain(row.message or f"The crawl {row.id} {row.state.value} with exit code {code}.")
    return combined(codes)


@dataclass(kw_only=True)
class Ends:
    """Which crawls have come to their end, and with which exit codes."""

    root: Path
    store: Store
    left: list[str]
    codes: dict[str, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)  #: whose end was told already
    _alive_at: float = 0.0

    def look(self) -> bool:
        """Look once; whether some are still left."""
        from ..speaking import complain
        from .producing import lives
        from .watching import ALIVE_EVERY, died

        now = time.monotonic()
        look_at_process, self._alive_at = (
            (True, now) if now - self._alive_at >= ALIVE_EVERY else (False, self._alive_at)
        )
        for name in list(self.left):
            row = self.store.crawl(name)
            if row.state.ended:
                self._end(name, row.exit_code if row.exit_code is not None else 1)
            elif look_at_process and not lives(row) and not self.store.crawl(name).state.ended:
                complain(died(self.root, row))
                self.said.add(name)
                self._end(name, 1)
        return bool(self.left)

    def _end(self, name: str, code: int) -> None:
        self.left.remove(name)
        self.codes[name] = code


def check_time(deadline: float, what: str, how: str) -> None:
    """Raise StillRuns after the deadline, by the monotonic clock."""
    from .watching import StillRuns

    if time.monotonic() >= deadline:
        raise StillRuns(f"The {what} still runs (--timeout), and goes on without this command. Go on with: {how}")
