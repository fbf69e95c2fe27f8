"""The live view of a crawl on a terminal: bars, the pace, a line per node; drawn at most four times a second."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scrapyd_dist.batches import Crawl
from scrapyd_dist.progress import succeeded, told

from ..output import one_line
from . import wording

if TYPE_CHECKING:
    from rich.console import RenderableType

#: redraws per second, at most
REDRAWS = 4
_BAR_WIDTH = 32
#: lines of the picture that are not about nodes
_OTHER_LINES = 14
#: nodes that are drawn where the height is not known
_NODES = 40
_STATES = {"up": "green", "down": "red", "unfit": "red", "draining": "yellow", "wedged": "red", "left": "yellow"}
_HEADINGS = ("node", "state", "running", "done", "pages", "/s", "items", "/s", "errors", "/s", "")
#: rich names fonts that a page would fetch from elsewhere; what is on the machine does
_FONT_FACE = re.compile(r"@font-face\s*{[^}]*}\s*")
_LEFT = {"node", "state", ""}


#: shows how a crawl, or the document of a fleet, stands at a moment of the monotonic clock
Show = Callable[[Any, float], object]
View = AbstractContextManager[Show]


@contextmanager
def live_view(draw: Callable[[Any, int], RenderableType], console: Console | None = None) -> Iterator[Show]:
    """Draws in place, on standard error; draw: makes the picture of a subject for so many lines."""
    console = console or Console(stderr=True)
    with Live(console=console, refresh_per_second=REDRAWS, auto_refresh=False, transient=True) as live:
        yield lambda subject, _now: live.update(draw(subject, console.height), refresh=True)


def crawl_picture(crawl: Crawl, lines: int) -> Group:
    return frame(told(crawl), most_nodes=max(3, lines - _OTHER_LINES))


def frame(document: Mapping[str, Any], *, most_nodes: int = _NODES) -> Group:
    """One picture of a crawl's summary; of more nodes than `most_nodes` those in trouble are drawn, then the first."""
    colour = "yellow" if wording.rests(document) else "cyan"
    head = Text.assemble((str(document.get("crawl")), "bold"), "  ", (wording.state_of(document), colour))
    if document.get("duration_s") is not None:
        head.append(f"  {wording.clock(float(document['duration_s']))}", "dim")
    parts: list[RenderableType] = [head, *(Text(str(note), style="yellow") for note in document.get("code") or ())]
    pace = [*(wording.rated(document, name) for name in ("pages", "items", "failed")), wording.outlook(document)[1]]
    parts += [_bars(document), Text(" · ".join(filter(None, pace)))]
    nodes = document.get("nodes") or ()
    if nodes:
        parts += [Text(), _nodes(nodes, most_nodes)]
    parts += [remark(line) for line in wording.lagging(document)]
    return Group(*parts)


def svg(document: Mapping[str, Any], *, columns: int = 110, title: str = "sdist watch") -> str:
    """The same picture as an SVG document, for pages; columns: its width in characters."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 - rich writes what it records
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor",
                          legacy_windows=False)  # fmt: skip
        console.print(frame(document))
        drawn = console.export_svg(title=title)
    return _FONT_FACE.sub("", drawn)


def _bars(document: Mapping[str, Any]) -> Table:
    pages, total = wording.number(document, "index", "pages"), wording.number(document, "index", "total")
    done, batches = wording.number(document, "batches", "done"), wording.number(document, "batches", "total")
    expected, _ = wording.outlook(document)
    ended = wording.number(document, "requests", "done")
    good = succeeded(document)
    gone, failed = wording.number(document, "gone_urls"), wording.number(document, "failed_urls")
    missed = (f" · {gone:,} gone" if gone else "") + (f" · {failed:,} failed" if failed else "")
    found, sent = wording.number(document, "urls_found"), wording.number(document, "requests", "sent")
    whole = wording.number(document, "outlook", "requests")
    rows = (
        ("index", pages, total, _of(pages, total)),
        ("requests", ended, whole, f"{good:,} done of {expected}{missed} · {sent:,} sent · {found:,} found"),
        ("batches", done, batches, _of(done, batches)),
    )
    grid = Table.grid(padding=(0, 1))
    for label, value, most, text in rows:
        bar = ProgressBar(
            total=most or 1, completed=min(value, most) if most else 0, width=_BAR_WIDTH, complete_style="green",
            finished_style="green",
        )  # fmt: skip
        grid.add_row(label, bar, text)
    return grid


def _of(value: int, whole: int) -> str:
    return f"{value:,} of {whole:,}" if whole else f"{value:,}"


def _nodes(nodes: Sequence[Mapping[str, Any]], most: int) -> RenderableType:
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for heading in _HEADINGS:
        grid.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=heading != "")
    shown = nodes if len(nodes) <= most else sorted(nodes, key=lambda one: one.get("state") == "up")[: most - 1]
    for node in shown:
        grid.add_row(*_cells(node))
    if len(shown) == len(nodes):
        return grid
    rest = len(nodes) - len(shown)
    return Group(grid, Text(f"and {wording.counted(rest, 'more node')}", style="dim"))


def _cells(node: Mapping[str, Any]) -> list[Text]:
    rates, state = node.get("per_s"), str(node.get("state") or "")
    failed = wording.number(node, "failed")
    return [
        Text(one_line(str(node.get("name")))),
        Text(state, style=_STATES.get(state, "")),
        Text(wording.jobs_of(node).replace(" running", "").replace(" waiting", " wait")),
        Text(f"{wording.number(node, 'jobs'):,}"),
        Text(f"{wording.number(node, 'pages'):,}"),
        Text(wording.per_second(rates, "pages").removesuffix("/s"), style="cyan"),
        Text(f"{wording.number(node, 'items'):,}"),
        Text(wording.per_second(rates, "items").removesuffix("/s"), style="cyan"),
        Text(f"{failed:,}" if failed else "", style="red"),
        Text(wording.per_second(rates, "failed").removesuffix("/s"), style="red"),
        remark(str(node.get("reason") or "")),
    ]


def remark(text: str) -> Text:
    """A text that may be long: it gives way to the other columns of a table, in whose last one it stands."""
    return Text(one_line(text), style="yellow", no_wrap=True, overflow="ellipsis")
