"""`sdist items pull`: the items of jobs come home as files. Rule: what came home earlier is not fetched again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError, NodeError, NothingMatched
from scrapyd_dist.items.download import DownloadedFile, DownloadState
from scrapyd_dist.scrapyd.sweep import sweep

from ..candidates import crawls
from ..jobs.job_list import TIMEOUT, Json, Nodes, Timeout
from ..output import put_json, say
from ..tables import table
from ..target_nodes import exit_code
from .item_sources import stored
from .pull_requests import ItemPuller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.items.download import DownloadedFile

    from .pull_requests import PullRequest

#: files that are fetched at the same time
THREADS = 16
#: seconds between two lines about how far it is
TELL = 10.0
FOLDER = Path("items")


def pull(
    name: Annotated[
        list[str], typer.Argument(metavar="CRAWL|JOB", autocompletion=crawls, help="Crawls, and ids of jobs.")
    ],
    folder: Annotated[Path, typer.Option("--dir", "-d", metavar="FOLDER", help="Where the files go.")] = FOLDER,
    node: Nodes = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Fetch the items of crawls and jobs, a file for each job, whether it runs or is over.

    Of a crawl these are the parts that count, those that grow now, and the
    producer's own. Of any other job it is what Scrapyd keeps below its items_dir.
    What was broken off goes on at the next pull; a part is checked by length and
    hash. The files of jobs that still run end in .part.

    Example: sdist items pull easy-20260102T030405Z -d backup
    """
    found = load()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, and -d names a folder.")
    crawls = stored(found.root, name)
    puller = ItemPuller(project=found, folder=folder, crawls=tuple(crawls.values()), timeout=timeout)
    listed = puller.look([one for one in name if one not in crawls], node)
    results = _bring(puller.wishes())
    if listed is not None:
        listed.complain()
    if not results:
        raise NothingMatched(f"{', '.join(name)}: no items yet, and no job that writes some.")
    _show(folder, results, as_json=as_json)
    raise typer.Exit(_exit_code(results, listed.errors if listed is not None else ()))


def _bring(wishes: Sequence[PullRequest]) -> list[tuple[PullRequest, DownloadedFile]]:
    """Fetch everything, several files at once; in the order of the wishes."""
    done: dict[int, DownloadedFile] = {}
    told = time.monotonic()
    for answer in sweep(range(len(wishes)), lambda at: _one(wishes[at]), threads=THREADS):
        if answer.value is not None:
            done[answer.asked] = answer.value
        if time.monotonic() - told >= TELL:
            told = time.monotonic()
            say(f"{len(done)} of {len(wishes)} files, {_size(sum(one.fetched for one in done.values()))} fetched")
    return [(wish, done[at]) for at, wish in enumerate(wishes)]


def _one(wish: PullRequest) -> DownloadedFile:
    try:
        return wish.bring()
    except NodeError as error:
        return DownloadedFile(state=DownloadState.LOST, reason=str(error), error=error)


def _size(count: int) -> str:
    return f"{count / 1_000_000:,.1f} MB" if count >= 100_000 else f"{count:,} bytes"


def _show(folder: Path, results: Sequence[tuple[PullRequest, DownloadedFile]], *, as_json: bool) -> None:
    items = sum(pulled.items for _, pulled in results)
    if as_json:
        files = [_row(wish, pulled) for wish, pulled in results]
        put_json({"folder": str(folder.absolute()), "items": items, "files": files})
        return
    rows = [
        (
            wish.job,
            wish.node,
            pulled.state.value,
            pulled.items,
            _size(pulled.bytes),
            _size(pulled.fetched),
            _why(pulled),
        )
        for wish, pulled in results
    ]
    table(("job", "node", "state", "items", "size", "fetched", ""), rows)
    say(f"{items:,} items in {folder}.")


def _row(wish: PullRequest, pulled: DownloadedFile) -> dict[str, Any]:
    return {
        "job": wish.job,
        "node": wish.node,
        "state": pulled.state.value,
        "file": str(pulled.file.absolute()) if pulled.file is not None else None,
        "items": pulled.items,
        "bytes": pulled.bytes,
        "fetched_bytes": pulled.fetched,
        "torn_bytes": pulled.torn,
        "reason": pulled.reason,
    }


def _why(pulled: DownloadedFile) -> str:
    torn = f"a torn last line of {_size(pulled.torn)} was dropped" if pulled.torn else ""
    return "; ".join(text for text in (pulled.reason, torn) if text)


def _exit_code(results: Sequence[tuple[PullRequest, DownloadedFile]], unlisted: Sequence[NodeError]) -> int:
    """0 when all that there is came home, 3 when some did not, 4, 5 or 6 when none did."""
    good = {DownloadState.GROWING, DownloadState.WAITING}
    wrong = [pulled for _, pulled in results if pulled.reason and pulled.state not in good]
    if not wrong:
        return 3 if unlisted else 0
    if len(wrong) < len(results):
        return 3
    if all(pulled.state is DownloadState.NONE for pulled in wrong):
        return NothingMatched.exit_code
    errors = [pulled.error for pulled in wrong if pulled.error is not None]
    return exit_code(len(wrong), errors) or 3
