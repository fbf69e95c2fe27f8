"""`sdist items tail`: the newest items of a crawl over all nodes. Rule: standard output has items and nothing else."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.errors import DistError
from scrapyd_dist.items.json_lines import item_in

from ..candidates import crawls
from ..context import Context
from ..crawls.producer_process import crawl_folder, latest, lives
from ..jobs.job_list import TIMEOUT
from ..options import Timeout
from ..output import put_values, say
from .item_sources import ItemStreams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.store import Store

    from .item_sources import ItemStream

#: items that are shown when nothing else is said
ITEMS = 10
#: seconds between two looks at files that grow, and at the producer's process
LOOK, ALIVE = 1.0, 5.0


def tail(
    context: Context,
    crawl: Annotated[
        Optional[str], typer.Argument(metavar="CRAWL", autocompletion=crawls, help="The newest crawl when left out.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the crawl is over.")] = False,
    items: Annotated[int, typer.Option("--items", "-n", help="How many items, over all nodes.", min=0)] = ITEMS,
    with_node: Annotated[
        bool, typer.Option("--with-node", help="Put the node and the job into each item, as _node and _job.")
    ] = False,
    timeout: Timeout = TIMEOUT,
) -> None:
    """Show the newest items of a crawl over all nodes, as JSON lines, while it runs or later.

    Standard output has the items and nothing else; which node and job they are of
    goes to standard error. A batch that fails is crawled again, so while a crawl
    runs an item may come twice; `sdist items merge` has each once.

    Example: sdist items tail -f easy-20260102T030405Z | jq .price
    """
    store = context.store
    row = store.crawl(crawl) if crawl is not None else latest(store)
    nodes = {node.url: node for node in context.all_nodes}
    folder = crawl_folder(context.root, row.id)
    streams = ItemStreams(store=store, crawl=row, folder=folder, sender=context.sender, nodes=nodes, timeout=timeout)
    show = Show(with_node=with_node)
    for stream, lines in streams.last(items):
        show.lines(stream, lines)
    if follow:
        _follow(store, row.id, streams, show)
    elif not show.count and items:
        say(f"{row.id} has no items yet that could be read here.")
    raise typer.Exit(3 if streams.broken else 0)


class Show:
    """Prints items, and whose they are where that changes."""

    def __init__(self, *, with_node: bool) -> None:
        self._with_node = with_node
        self._last: tuple[str, str] | None = None
        self.count = 0

    def lines(self, stream: ItemStream, lines: Sequence[bytes]) -> None:
        """Print items of one job."""
        if not lines:
            return
        self.count += len(lines)
        if self._with_node:
            put_values("\n".join(_marked(stream, line) for line in lines))
            return
        if self._last != (stream.node, stream.job):
            self._last = stream.node, stream.job
            say(f"==> {stream.node} {stream.job} <==")
        put_values("\n".join(line.decode("utf-8", "replace").rstrip("\r") for line in lines))


def _marked(stream: ItemStream, line: bytes) -> str:
    item = item_in(line)
    if item is None:
        return line.decode("utf-8", "replace")
    return json.dumps({"_node": stream.node, "_job": stream.job, **item}, ensure_ascii=False)


def _follow(store: Store, crawl: str, streams: ItemStreams, show: Show) -> None:
    """Show what comes, until the crawl is over.

    Raises:
        DistError: its process is gone.
    """
    seen_alive = time.monotonic()
    while True:
        row = store.crawl(crawl)
        for stream, lines in streams.news(row):
            show.lines(stream, lines)
        if row.state.ended:
            return
        if time.monotonic() - seen_alive >= ALIVE:
            if not lives(row) and not store.crawl(crawl).state.ended:
                raise DistError(f"The process of the crawl {crawl} is gone: `sdist resume {crawl}` goes on with it.")
            seen_alive = time.monotonic()
        time.sleep(LOOK)
