"""The live view of a crawl on a terminal: two bars, the pace, a line per node; drawn at most four times a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from . import words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.batches import Crawl

#: redraws per second
REDRAWS = 4
_BAR_WIDTH = 32
_STATES = {"up": "green", "down": "red", "unfit": "red"}


class LiveView:
    """Draws the crawl in place, on standard error."""

    def __init__(self, console: Console | None = None) -> None:
        self._requests, self._items = words.Pace(), words.Pace()
        self._live = Live(
            console=console or Console(stderr=True), refresh_per_second=REDRAWS, auto_refresh=False, transient=True
        )
        self._live.start()

    def show(self, crawl: Crawl, now: float) -> None:
        """Draw how it stands."""
        self._requests.add(now, words.number(crawl.summary, "requests", "done"))
        self._items.add(now, words.number(crawl.summary, "items"))
        self._live.update(frame(crawl, self._requests.rate, self._items.rate), refresh=True)

    def close(self) -> None:
        """Wipe the drawing."""
        self._live.stop()


def frame(crawl: Crawl, requests_rate: float, items_rate: float) -> Group:
    """One picture of a crawl."""
    summary = crawl.summary
    head = Text.assemble((crawl.id, "bold"), "  ", (crawl.state.value, "cyan"))
    if summary.get("duration_s") is not None:
        head.append(f"  {words.clock(float(summary['duration_s']))}", "dim")
    parts: list[Any] = [head, _bars(crawl), _pace(crawl, requests_rate, items_rate)]
    nodes = summary.get("nodes") or ()
    if nodes:
        parts.append(_nodes(nodes))
    return Group(*parts)


def _bars(crawl: Crawl) -> Table:
    pages, total = words.number(crawl.summary, "index", "pages"), words.number(crawl.summary, "index", "total")
    done, batches = words.number(crawl.summary, "batches", "done"), words.number(crawl.summary, "batches", "total")
    grid = Table.grid(padding=(0, 1))
    for label, value, whole in (("index", pages, total), ("batches", done, batches)):
        bar = ProgressBar(total=whole or 1, completed=value if whole else 0, width=_BAR_WIDTH, complete_style="green")
        grid.add_row(label, bar, f"{value:,} of {whole:,}" if whole else f"{value:,}")
    return grid


def _pace(crawl: Crawl, requests_rate: float, items_rate: float) -> Text:
    outlook, done = words.Outlook.of(crawl), words.number(crawl.summary, "requests", "done")
    pieces = [
        f"requests {done:,} of {outlook.text()}",
        f"{requests_rate:.0f}/s",
        outlook.eta(done, requests_rate),
        f"items {words.number(crawl.summary, 'items'):,}",
        f"{items_rate:.0f}/s",
    ]
    return Text(" · ".join(piece for piece in pieces if piece))


def _nodes(nodes: Any) -> Table:
    grid = Table.grid(padding=(0, 2))
    for node in nodes:
        grid.add_row(*_node_cells(node))
    return grid


def _node_cells(node: Mapping[str, Any]) -> list[Text]:
    state = str(node.get("state") or "")
    slots = node.get("slots")
    running = f"{words.number(node, 'running')}{f'/{slots}' if slots else ''} running"
    return [
        Text(f"  {node.get('name')}"),
        Text(state, style=_STATES.get(state, "")),
        Text(running),
        Text(words.counted(words.number(node, "jobs"), "job")),
        Text(words.counted(words.number(node, "items"), "item")),
        Text(str(node.get("reason") or ""), style="yellow"),
    ]
