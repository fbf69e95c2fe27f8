"""`sdist crawl`, `plan`, `resume`, `watch`, `status`, `crawls`: a crawl from its plan to its end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from .asking import Asked, Order, asks

_WATCH = "Watching"

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, and nothing else there.")]
Timeout = Annotated[
    Optional[str],
    typer.Option(help="Watch no longer than this (90, 30m, 2h); the crawl goes on. Exit code 124.",
                 rich_help_panel=_WATCH, metavar="TIME"),
]  # fmt: skip
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress.", rich_help_panel=_WATCH)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.", rich_help_panel=_WATCH)]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the producer's log as it grows.", rich_help_panel=_WATCH)
]
Name = Annotated[
    Optional[str], typer.Option("--name", help="Name of the crawl; made from spider and time if left out.")
]
Detach = Annotated[
    bool,
    typer.Option("--detach", help="Start it and come back at once; `sdist watch` shows it.", rich_help_panel=_WATCH),
]
CrawlId = Annotated[str, typer.Argument(metavar="CRAWL", help="The crawl's name, as `sdist crawls` lists it.")]
SomeCrawl = Annotated[Optional[str], typer.Argument(metavar="[CRAWL]", help="Its name; the newest if left out.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("crawl", rich_help_panel="Crawls")(asks(crawl))
    app.command("plan", rich_help_panel="Crawls")(asks(plan))
    app.command("resume", rich_help_panel="Crawls")(resume)
    app.command("watch", rich_help_panel="Crawls")(watch)
    app.command("status", rich_help_panel="Crawls")(status)
    app.command("crawls", rich_help_panel="Crawls")(crawls)


def crawl(
    asked: Asked,
    name: Name = None,
    detach: Detach = False,
    timeout: Timeout = None,
    as_json: Json = False,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Spread one crawl over the nodes, watch it, and bring the items home as one file.

    The code is uploaded to nodes that lack it. The index is crawled here, and
    the pages that it leads to by jobs on the nodes. The crawl runs in a process
    of its own, so Ctrl-C ends only the watching.

    Example: sdist crawl easy --shards 20 --index 'http://web:9312/properties/index_%05d.html' --pages 1667 -o items.jl
    """
    from scrapyd_dist.config import load

    from . import producing, watching
    from .speaking import put_json, say

    manner = _manner(as_json, no_progress, quiet, verbose, timeout)
    root = load().root
    begun, process = producing.begin(root, asked.order(Path.cwd()), name)
    if detach:
        process.returncode = 0  # it outlives this object, which would warn about that
        if as_json:
            put_json({"crawl": begun.id, "spider": begun.spider, "state": begun.state.value, "pid": process.pid})
        else:
            typer.echo(begun.id)
        if not quiet:
            say(f"The crawl runs on its own. See it with: sdist watch {begun.id}")
        return
    code = watching.watch(root, begun.id, manner, process)
    producing.forget_refused(root, begun.id)
    raise typer.Exit(code)


def plan(asked: Asked, as_json: Json = False) -> None:
    """Show what `sdist crawl` with the same options would do, without doing it.

    Which shard starts where, which nodes take part and would get the code, how
    large a batch may become, and what to know before the start.

    Example: sdist plan easy --shards 20 --index 'http://web:9312/properties/index_%05d.html' --pages 1667
    """
    from scrapyd_dist.config import load

    from .planning import show
    from .speaking import complain, put_json

    root = load().root
    answer = _ask_for_plan(root, asked.order(Path.cwd()))
    if "plan" not in answer:
        complain(str(answer.get("error", "No plan came back.")))
        raise typer.Exit(int(answer.get("exit_code", 1)))
    if as_json:
        put_json(answer["plan"])
    else:
        show(answer["plan"])


def _ask_for_plan(root: Path, order: Order) -> dict[str, Any]:
    """What the planning process answers: {"plan": …} or {"error": …, "exit_code": …}."""
    done = subprocess.run(
        [sys.executable, "-m", "scrapyd_dist.middlewares.produce", "--plan"],
        cwd=root,
        input=json.dumps(asdict(order)),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    end = "\n".join(done.stderr.strip().splitlines()[-8:]) or "It said nothing."
    return {"error": f"The planning process ended with code {done.returncode}, without a plan:\n{end}", "exit_code": 1}


def resume(
    crawl: CrawlId,
    detach: Detach = False,
    timeout: Timeout = None,
    as_json: Json = False,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Go on with a crawl that was stopped or refused, or whose process died.

    Batches that are done stay done. Jobs that still run on the nodes are found
    again, not started twice.

    Example: sdist resume easy-20260102T030405Z
    """
    from scrapyd_dist.config import load

    from . import producing, watching
    from .speaking import say

    manner = _manner(as_json, no_progress, quiet, verbose, timeout)
    root = load().root
    _, process = producing.begin_again(root, crawl)
    if detach:
        process.returncode = 0  # it outlives this object, which would warn about that
        say(f"The crawl runs on its own. See it with: sdist watch {crawl}")
        return
    raise typer.Exit(watching.watch(root, crawl, manner, process))


def watch(
    crawl: SomeCrawl = None,
    timeout: Timeout = None,
    as_json: Json = False,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Watch a crawl to its end, and end with its exit code. Ctrl-C leaves it running.

    Example: sdist watch easy-20260102T030405Z
    """
    from scrapyd_dist.config import load

    from . import producing, watching

    manner = _manner(as_json, no_progress, quiet, verbose, timeout)
    root = load().root
    with closing(producing.existing_store(root)) as store:
        found = store.crawl(crawl) if crawl else producing.latest(store)
    raise typer.Exit(watching.watch(root, found.id, manner))


def status(crawl: SomeCrawl = None, as_json: Json = False) -> None:
    """Say how a crawl stands, once.

    Example: sdist status easy-20260102T030405Z --json
    """
    from scrapyd_dist.config import load

    from . import producing, watching, words
    from .speaking import put, put_json

    root = load().root
    with closing(producing.existing_store(root)) as store:
        row = store.crawl(crawl) if crawl else producing.latest(store)
    state = watching.alive_state(row)
    if as_json:
        put_json({**words.document(row), "state": state})
    elif row.state.ended:
        for line in words.closing(row, watching.misses_of(root, row.id)):
            put(line)
    elif state == "died":
        put(words.progress_line(row, 0, 0))
        put(watching.died(root, row))
    else:
        put(words.progress_line(row, 0, 0))


def crawls(as_json: Json = False) -> None:
    """List the crawls of this project, the newest first.

    Example: sdist crawls
    """
    from scrapyd_dist.config import load
    from scrapyd_dist.store import open_store

    from . import producing, watching, words
    from .render import table
    from .speaking import put_json, say

    path = producing.store_path(load().root)
    rows = []
    if path.exists():
        with closing(open_store(path)) as store:
            rows = store.crawls()
    if as_json:
        put_json({"crawls": [{**words.document(row), "state": watching.alive_state(row)} for row in rows]})
        return
    if not rows:
        say("There are no crawls yet. `sdist crawl SPIDER` starts one.")
        return
    table(
        ("crawl", "spider", "state", "started", "batches", "items", "exit"),
        [
            (
                row.id,
                row.spider,
                watching.alive_state(row),
                datetime.fromtimestamp(row.created).astimezone().strftime("%Y-%m-%d %H:%M:%S"),
                f"{words.number(row.summary, 'batches', 'done'):,}/{words.number(row.summary, 'batches', 'total'):,}",
                words.number(row.summary, "items"),
                row.exit_code,
            )
            for row in rows
        ],
    )


def _manner(as_json: bool, no_progress: bool, quiet: bool, verbose: bool, timeout: str | None) -> Any:
    from .watching import Manner

    return Manner(
        as_json=as_json, progress=not no_progress, quiet=quiet, verbose=verbose, timeout=seconds("--timeout", timeout)
    )


def seconds(option: str, text: str | None) -> float | None:
    """A span of time such as `90`, `90s`, `30m`, `2h` in seconds; None for None.

    Raises:
        ConfigError: it is none, or not more than zero.
    """
    from scrapyd_dist.errors import ConfigError

    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    value = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if value <= 0:
        raise ConfigError(f"{option} {text!r} is no span of time. Write seconds, or a number with m or h: 90, 30m, 2h.")
    return value
