"""`sdist report`: one crawl as a page of its own, with pictures; nothing in it is fetched, nothing runs."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.report import NodeNow, document, gather, page

from ..candidates import crawls
from ..context import Context
from ..output import put, put_json
from .producer_process import latest, lives

if TYPE_CHECKING:
    from scrapyd_dist.report import Facts

#: seconds that a node gets to answer
PATIENCE = 5.0


def report(
    context: Context,
    crawl: Annotated[
        Optional[str],
        typer.Argument(metavar="CRAWL", autocompletion=crawls, help="The crawl; the newest one if left out."),
    ] = None,
    output: Annotated[
        Optional[Path],
        typer.Option("-o", "--output", metavar="FILE", help="Where the page goes; CRAWL.html if left out."),
    ] = None,
    ask_nodes: Annotated[
        bool, typer.Option("--ask-nodes", help="Ask the nodes, too, which versions they have now.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The series behind the pictures, as one document.")] = False,
) -> None:
    """Make a page of one crawl: how it grew, what each node did, what failed.

    The page is one file without scripts, for a browser, a mail or an archive. It
    works while the crawl runs, too, and says then when it may end.

    Example: sdist report easy-20260102T030405Z -o easy.html
    """
    facts = _facts(context, crawl)
    if ask_nodes:
        facts = replace(facts, nodes_now=_nodes_now(context, facts.crawl.project))
    if as_json:
        put_json(document(facts))
    if output is not None or not as_json:
        where = output or Path(f"{facts.crawl.id}.html")
        _write(where, page(facts))
        if not as_json:
            put(str(where))


def _facts(context: Context, name: str | None) -> Facts:
    store = context.store
    row = store.crawl(name) if name else latest(store)
    running = not row.state.ended and lives(row)
    return gather(store, row.id, now=time.time(), lives=running)


def _nodes_now(context: Context, project: str) -> tuple[NodeNow, ...]:
    from scrapyd_dist.deploy.node_versions import look

    seen = look(context.nodes(), project, timeout=PATIENCE)
    return tuple(NodeNow(name=one.node.name, versions=one.versions, reason=str(one.error or "")) for one in seen)


def _write(where: Path, text: str) -> None:
    """Write the page beside its place, and put it there when it is whole."""
    if where.is_dir():
        raise ConfigError(f"{where} is a folder. Name a file in it: -o {where / 'report.html'}")
    growing = where.with_name(f".{where.name}.part")
    try:
        growing.write_text(text, encoding="utf-8")
        growing.replace(where)
    except OSError as error:
        with suppress(OSError):
            growing.unlink(missing_ok=True)
        raise ConfigError(
            f"The report cannot be written to {where}: {error.strerror or error}. Name another file by -o."
        ) from error
