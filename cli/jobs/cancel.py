"""`sdist cancel`, `stop`: ends jobs, and waits for their ends. Without a selector nothing is cancelled."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Optional

import typer

from scrapyd_dist.config import STATE_FOLDER, state_dir
from scrapyd_dist.errors import ConfigError, DistError, NothingMatched

from ..candidates import crawls
from ..crawls.crawl import CrawlId
from ..polling import poll_until
from .job_list import TIMEOUT, Json, Nodes, Project, Spider, Timeout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.joblogs.verdict import Place
    from scrapyd_dist.transports import Sender

    from .job_list import JobList, Listed

_FILE = "signals.jsonl"


#: what tells one job from another: base address of its node, project, id
Key = tuple[str, str, str]


def key_of(place: Place) -> Key:
    return place.node.url, place.project, place.job


def note(root: Path, place: Place, signal: str) -> None:
    """Write down that this job is sent a signal."""
    url, project, job = key_of(place)
    row = {"at": round(time.time(), 1), "node": url, "project": project, "job": job, "signal": signal}
    with (state_dir(root) / _FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def noted(root: Path) -> set[Key]:
    """The jobs that we left no time to say how they end: by KILL, or by a second INT."""
    found: Counter[Key] = Counter()
    with suppress(OSError), (root / STATE_FOLDER / _FILE).open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                found[row["node"], row["project"], row["job"]] += 2 if row["signal"] == "KILL" else 1
    return {key for key, weight in found.items() if weight > 1}


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
    """Add the commands of this module."""
    app.command("cancel")(cancel)
    app.command("stop")(stop)


Force = Annotated[bool, typer.Option("--force", help=f"Send INT again to what is not gone after {PATIENCE:g} seconds.")]


Kill = Annotated[bool, typer.Option("--kill", help="Send KILL: at once, without a word in the job's log.")]


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


Wait = Annotated[str, typer.Option(metavar="TIME", help="How long to wait until they are gone.")]


def cancel(
    job: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="JOB", autocompletion=crawls, help="Ids of jobs, or names of crawls."),
    ] = None,
    crawl: Annotated[
        Optional[str],
        typer.Option(
            metavar="CRAWL", autocompletion=crawls, help="All jobs of this crawl; its producer is stopped first."
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All jobs of the nodes, pending and running.")] = False,
    node: Nodes = None,
    project: Project = None,
    spider: Spider = None,
    force: Force = False,
    kill: Kill = False,
    yes: Yes = False,
    wait: Wait = WAIT,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Cancel jobs, and wait until they are gone. A pending job just leaves its queue.

    A running job gets INT: it ends its requests, runs its pipelines to the end,
    and closes with the reason "shutdown". Nothing is cancelled unless jobs, a
    crawl, or --all are named; a name that is a crawl's means the whole crawl, as
    `sdist stop` does. Exit code 124 when some are still there.

    Example: sdist cancel --crawl easy-20260102T030405Z
    """
    if bool(job) + (crawl is not None) + all_ != 1:
        raise ConfigError("Name what to cancel: ids of jobs, or --crawl CRAWL, or --all. One of the three.")
    chosen = _Chosen(names=[crawl] if crawl else job or [], nodes=node, project=project, spider=spider, timeout=timeout)
    _cancel(chosen, force=force, kill=kill, yes=yes, wait=wait, as_json=as_json)


def stop(
    crawl: CrawlId,
    force: Force = False,
    kill: Kill = False,
    yes: Yes = False,
    wait: Wait = WAIT,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Stop a crawl: its producer first, then its jobs on all nodes. `sdist resume` goes on with it.

    What is done stays done. A running job gets INT: it ends its requests and
    closes with the reason "shutdown"; its batch is crawled again by `sdist
    resume`. The same as `sdist cancel --crawl CRAWL`. Exit code 4 when nothing of
    it runs, 124 when some jobs are still there.

    Example: sdist stop easy-20260102T030405Z
    """
    chosen = _Chosen(names=[crawl], timeout=timeout)
    _cancel(chosen, force=force, kill=kill, yes=yes, wait=wait, as_json=as_json)


class _Chosen:
    """What is to be cancelled: jobs and crawls by name, or all jobs where none is named; and where to look."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        timeout: float,
        nodes: list[str] | None = None,
        project: str | None = None,
        spider: str | None = None,
    ) -> None:
        from scrapyd_dist.config import load

        from ..target_nodes import chosen_nodes
        from .job_list import make_sender

        found = load()
        self.root, self.timeout, self.sender = found.root, timeout, make_sender()
        self._nodes, self._project, self._spider = chosen_nodes(found, nodes), project, spider
        self._names, rows = names, _crawls(found.root, names)
        self._crawls = {row.id for row in rows}
        self.producers = _running(rows)
        self.listed = self._ask()

    def _ask(self) -> JobList:
        from .job_list import ask_jobs

        return ask_jobs(self.sender, self._nodes, project=self._project, spider=self._spider, timeout=self.timeout)

    def rows(self) -> list[Listed]:
        """Their jobs that are not over.

        Raises:
            NothingMatched: there are none, and no producer to be stopped either.
        """
        from .job_list import named

        stopped = {producer.id for producer in self.producers}
        if left := [name for name in self._names if name not in stopped]:
            named(self.listed, left, {})  # says which one there is not
        rows = [row for row in self.listed.jobs if _is_alive(row) and self._is_meant(row)]
        if not rows and not stopped:
            self.listed.must_answer()
            self.listed.complain()
            what = f"{', '.join(self._names)}: over already" if self._names else "no job is pending or running"
            raise NothingMatched(f"There is nothing to cancel ({what}). `sdist jobs` says how jobs ended.")
        return rows

    def _is_meant(self, row: Listed) -> bool:
        """Of a name that is a crawl's, the crawl is meant, not a job that is called so as well."""
        by_id = row.place.job in self._names and row.place.job not in self._crawls
        return not self._names or by_id or row.place.crawl in self._names

    def stop_producers(self, wait: float) -> list[Listed]:
        """Stop them, and look again: what they sent while they stopped is cancelled with the rest."""
        for producer in self.producers:
            _stop_producer(self.root, producer, wait)
        self.listed = self._ask()
        return [row for row in self.listed.jobs if _is_alive(row) and self._is_meant(row)]


def _cancel(chosen: _Chosen, *, force: bool, kill: bool, yes: bool, wait: str, as_json: bool) -> None:
    from ..crawls.crawl import seconds
    from ..target_nodes import exit_code

    span = seconds("--wait", wait) or 0.0
    rows = chosen.rows()
    _confirm(rows, len(chosen.producers), yes=yes)
    if chosen.producers:
        rows = chosen.stop_producers(span)
    cancelling = _Cancelling(sender=chosen.sender, root=chosen.root, timeout=chosen.timeout)
    errors = cancelling.run(rows, force=force, kill=kill, wait=span)
    _tell(rows, errors, as_json=as_json)
    chosen.listed.complain()
    raise typer.Exit(exit_code(len(rows), list(errors.values())) or chosen.listed.exit_code)


def _is_alive(row: Listed) -> bool:
    from scrapyd_dist.scrapyd.api import JobState

    return row.state is not JobState.FINISHED


def _confirm(rows: Sequence[Listed], producers: int, *, yes: bool) -> None:
    from ..output import ask, can_ask, say

    if yes:
        return
    shown = [f"  {row.place.node.name}  {row.place.spider}  {row.place.job}  {row.state.value}" for row in rows]
    if len(shown) > SHOWN:
        shown = [*shown[:SHOWN], f"  and {len(shown) - SHOWN} more"]
    running = f" and {producers} producers" if producers > 1 else " and the producer" if producers else ""
    count = f"{len(rows)} job{'s' * (len(rows) != 1)}{running}"
    if not can_ask():
        raise ConfigError(f"{count} would be cancelled, and nobody is here to be asked. Add --yes to do it.")
    say("\n".join(shown))
    if not ask(f"Cancel {count}?"):
        raise typer.Exit(130)


def _crawls(root: Path, names: Sequence[str]) -> list[Crawl]:
    """Those of the names that are crawls of this project."""
    from ..project_store import maybe_store

    store = maybe_store(root) if names else None
    if store is None:
        return []
    with closing(store):
        return [crawl for crawl in store.crawls() if crawl.id in names]


def _running(crawls: Sequence[Crawl]) -> list[Crawl]:
    """Of these, the ones whose producer runs: it would send the batches of what is cancelled to other nodes."""
    from ..crawls.producer_process import lives

    return [crawl for crawl in crawls if not crawl.state.ended and lives(crawl)]


def _stop_producer(root: Path, producer: Crawl, wait: float) -> None:
    from ..crawls.producer_process import interrupt, lives
    from ..output import say
    from ..project_store import existing_store

    say(f"Stopping the producer of {producer.id}; `sdist resume {producer.id}` goes on with the crawl later.")
    deadline = time.monotonic() + wait
    interrupt(root, producer)
    with closing(existing_store(root)) as store:
        store.want(producer.id, "cancel")  # it may be on another machine
        if not poll_until(lambda: not lives(store.crawl(producer.id)), LOOK, deadline=deadline):
            raise StillThere(
                f"The producer of {producer.id} (process {producer.pid}) has not stopped within {wait:g} seconds, "
                "so no job was cancelled: it would send their batches to other nodes. Wait longer with --wait."
            )


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
    from ..output import complain, put_json
    from ..tables import table

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
