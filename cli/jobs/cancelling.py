"""`sdist cancel`: jobs are told to stop, and waited for. Rule: no selector never means all, and it asks first."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Optional

import typer

from scrapyd_dist.errors import ConfigError, DistError, NothingMatched

from .joblist import TIMEOUT, Json, Nodes, Project, Spider, Timeout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.transports import Sender

    from .joblist import JobList, Listed

#: seconds between two looks at whether the jobs are gone
LOOK = 0.5
#: seconds that a job gets to stop in good order before --force sends the second signal
PATIENCE = 3.0
#: seconds that the jobs get as a whole
WAIT = "60"
#: jobs that are named in the question
SHOWN = 10


class StillThere(DistError):
    """Jobs that were told to stop have not."""

    exit_code: ClassVar[int] = 124


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("cancel", rich_help_panel="Jobs")(cancel)


def cancel(
    job: Annotated[Optional[list[str]], typer.Argument(metavar="JOB", help="Ids of jobs.")] = None,
    crawl: Annotated[
        Optional[str], typer.Option(metavar="CRAWL", help="All jobs of this crawl; its producer is stopped first.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All jobs of the nodes, pending and running.")] = False,
    node: Nodes = None,
    project: Project = None,
    spider: Spider = None,
    force: Annotated[
        bool, typer.Option("--force", help=f"Send INT again to what is not gone after {PATIENCE:g} seconds.")
    ] = False,
    kill: Annotated[bool, typer.Option("--kill", help="Send KILL: at once, without a word in the job's log.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait until they are gone.")] = WAIT,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Cancel jobs, and wait until they are gone. A pending job just leaves its queue.

    A running job gets INT: it ends its requests, runs its pipelines to the end,
    and closes with the reason "shutdown". Nothing is cancelled unless jobs, a
    crawl, or --all are named. Exit code 124 when some are still there.

    Example: sdist cancel --crawl easy-20260102T030405Z
    """
    from scrapyd_dist.config import load

    from ..crawls.crawl import seconds
    from .joblist import ask_jobs, chosen_nodes, make_sender

    if bool(job) + (crawl is not None) + all_ != 1:
        raise ConfigError("Name what to cancel: ids of jobs, or --crawl CRAWL, or --all. One of the three.")
    span = seconds("--wait", wait) or 0.0
    found = load()
    nodes, sender = chosen_nodes(found, node), make_sender()
    listed = ask_jobs(sender, nodes, project=project, spider=spider, timeout=timeout)
    producer = _producer(found.root, crawl) if crawl else None
    rows = _chosen(listed, [crawl] if crawl else job or [], producer)
    _confirm(rows, producer, yes=yes)
    if producer:
        _stop(found.root, producer, span)
        # What it sent while it stopped is cancelled with the rest.
        listed = ask_jobs(sender, nodes, project=project, spider=spider, timeout=timeout)
        rows = [row for row in listed.jobs if _is_alive(row) and crawl == row.place.crawl]
    cancelling = _Cancelling(sender=sender, root=found.root, timeout=timeout)
    errors = cancelling.run(rows, force=force, kill=kill, wait=span)
    _tell(rows, errors, as_json=as_json)
    listed.complain()
    from ..fleet import exit_code

    raise typer.Exit(exit_code(len(rows), list(errors.values())) or listed.exit_code)


def _is_alive(row: Listed) -> bool:
    from scrapyd_dist.scrapyd.api import JobState

    return row.state is not JobState.FINISHED


def _chosen(listed: JobList, names: Sequence[str], producer: Crawl | None) -> list[Listed]:
    """The jobs of these names that are not over; of all, where none is named."""
    from .joblist import named

    if producer:
        return [row for row in listed.jobs if _is_alive(row) and producer.id == row.place.crawl]
    if names:
        rows = [row for row in named(listed, names, {}) if _is_alive(row)]
        what = f"{', '.join(names)}: over already"
    else:
        rows = [row for row in listed.jobs if _is_alive(row)]
        what = "no job is pending or running"
    if not rows:
        listed.must_answer()
        listed.complain()
        raise NothingMatched(f"There is nothing to cancel ({what}). `sdist jobs` says how jobs ended.")
    return rows


def _confirm(rows: Sequence[Listed], producer: Crawl | None, *, yes: bool) -> None:
    from ..speaking import ask, can_ask, say

    if yes:
        return
    shown = [f"  {row.place.node.name}  {row.place.spider}  {row.place.job}  {row.state.value}" for row in rows]
    if len(shown) > SHOWN:
        shown = [*shown[:SHOWN], f"  and {len(shown) - SHOWN} more"]
    count = f"{len(rows)} job{'s' * (len(rows) != 1)}{' and the producer' if producer else ''}"
    if not can_ask():
        raise ConfigError(f"{count} would be cancelled, and nobody is here to be asked. Add --yes to do it.")
    say("\n".join(shown))
    if not ask(f"Cancel {count}?"):
        raise typer.Exit(130)


def _producer(root: Path, name: str) -> Crawl | None:
    """The crawl, if its producer runs here: it would send the batches of what is cancelled to other nodes."""
    from contextlib import closing

    from ..crawls.producing import lives
    from ..storing import maybe_store

    store = maybe_store(root)
    if store is None:
        return None
    with closing(store):
        row = next((crawl for crawl in store.crawls() if crawl.id == name), None)
    return row if row is not None and not row.state.ended and lives(row) else None


def _stop(root: Path, producer: Crawl, wait: float) -> None:
    from ..crawls.producing import interrupt, lives
    from ..speaking import say
    from ..storing import existing_store

    say(f"Stopping the producer of {producer.id}; `sdist resume {producer.id}` goes on with the crawl later.")
    deadline = time.monotonic() + wait
    interrupt(producer)
    with closing(existing_store(root)) as store:
        store.want(producer.id, "cancel")  # it may be on another machine
        while lives(store.crawl(producer.id)):
            if time.monotonic() > deadline:
                raise StillThere(
                    f"The producer of {producer.id} (process {producer.pid}) has not stopped within {wait:g} seconds, "
                    "so no job was cancelled: it would send their batches to other nodes. Wait longer with --wait."
                )
            time.sleep(LOOK)


class _Cancelling:
    """Sends the signals, and looks until the jobs are gone."""

    def __init__(self, *, sender: Sender, root: Path, timeout: float) -> None:
        self._sender, self._root, self._timeout = sender, root, timeout

    def run(self, rows: Sequence[Listed], *, force: bool, kill: bool, wait: float) -> dict[int, NodeError]:
        """Cancel them all; gives what could not be told to its node, by the row's place in the list.

        Raises:
            StillThere: after the wait.
        """
        errors = self._signal(rows, "KILL" if kill else "INT")
        left = [row for at, row in enumerate(rows) if at not in errors]
        begun, again = time.monotonic(), force and not kill
        while left := self._left(left):
            waited = time.monotonic() - begun
            if again and waited >= min(PATIENCE, wait / 2):
                again = False
                self._signal(left, "INT")
            elif waited >= wait:
                raise StillThere(_still_there(left, wait, kill=kill, force=force))
            time.sleep(LOOK)
        return errors

    def _signal(self, rows: Sequence[Listed], signal: str) -> dict[int, NodeError]:
        from scrapyd_dist.scrapyd import api
        from scrapyd_dist.scrapyd.api import JobState
        from scrapyd_dist.scrapyd.sweep import sweep

        from .signals import note

        def send(at: int) -> None:
            place = rows[at].place
            self._sender.send(place.node, api.cancel(place.project, place.job, signal), timeout=self._timeout)

        for row in rows:
            if row.state is JobState.RUNNING:
                note(self._root, row.place, signal)
        return {answer.asked: answer.error for answer in sweep(range(len(rows)), send) if answer.error is not None}

    def _left(self, rows: Sequence[Listed]) -> list[Listed]:
        """Those that are not gone, as far as their nodes tell."""
        from scrapyd_dist.scrapyd import api
        from scrapyd_dist.scrapyd.api import JobState
        from scrapyd_dist.scrapyd.sweep import sweep

        def is_there(at: int) -> bool:
            place = rows[at].place
            state = self._sender.send(place.node, api.status(place.job, place.project), timeout=self._timeout)
            return state in {JobState.PENDING, JobState.RUNNING}

        there = {answer.asked: answer.error is not None or answer.value for answer in sweep(range(len(rows)), is_there)}
        return [row for at, row in enumerate(rows) if there[at]]


def _still_there(left: Sequence[Listed], wait: float, *, kill: bool, force: bool) -> str:
    names = ", ".join(f"{row.place.job} ({row.place.node.name})" for row in left[:SHOWN])
    what = "KILL was sent" if kill else "INT was sent twice" if force else "INT was sent"
    harder = "--kill" if force else "--force"
    hint = "Look at the nodes: sdist nodes." if kill else f"Go on with: sdist cancel {harder}."
    more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    return f"Still there after {wait:g} seconds: {names}{more}. {what}. {hint}"


def _tell(rows: Sequence[Listed], errors: dict[int, NodeError], *, as_json: bool) -> None:
    from ..render import table
    from ..speaking import complain, put_json

    told: list[dict[str, Any]] = [
        {
            "node": row.place.node.name,
            "project": row.place.project,
            "spider": row.place.spider,
            "job": row.place.job,
            "was": row.state.value,
            "state": "failed" if at in errors else "gone",
        }
        for at, row in enumerate(rows)
    ]
    if as_json:
        put_json({"jobs": told})
    else:
        names = ("node", "spider", "job", "was", "state")
        table(names, [tuple(row[name] for name in names) for row in told])
    for text in dict.fromkeys(str(error) for error in errors.values()):
        complain(text)
