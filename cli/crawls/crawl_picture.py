"""Draws how a crawl stands, for a terminal of 80 columns or more. Values in, pictures out.

While a crawl goes on its lines stay where they are: what comes and goes stands below the table.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scrapyd_dist.batches import Crawl
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.crawl_words import outlook, state_of
from scrapyd_dist.progress.summary_document import (
    count_done,
    count_expected,
    count_in,
    is_paused,
    summary_of,
)
from scrapyd_dist.time_spans import describe_span

from ..output import COLOURS, one_line
from . import wording

#: lines of the picture that are not about nodes
_OTHER_LINES = 12
#: lines that a sentence about a node may take
_LINES_OF_TROUBLE = 2
#: nodes in trouble that have a sentence
_MOST_TROUBLES = 3
#: columns of a bar
_BAR = 32
#: the colours of what is done and what is not, which show on dark and on light terminals
_DONE = "green"
_OPEN = "bright_black"
#: heading -> the columns of the terminal that it has at least, so that growing numbers move nothing
_HEADINGS = (
    ("node", 0),
    ("state", 8),
    ("running", 7),
    ("done", 4),
    ("pages", 7),
    ("/min", 6),
    ("items", 7),
    ("/min", 6),
    ("errors", 6),
)
_LEFT = frozenset({"node", "state"})


def crawl_picture(crawl: Crawl, lines: int) -> Group:
    """Draw one picture of a crawl that fits into so many lines, if it has few notes.

    Until it has begun that is its name, and nothing if it was refused.
    """
    document = summary_of(crawl)
    if not crawl.summary:
        return Group() if crawl.state.ended else Group(_head(document))
    troubles = min(len(wording.troubles(document)), _MOST_TROUBLES + 1)
    room = lines - _OTHER_LINES - _LINES_OF_TROUBLE * troubles
    return frame(document, most_nodes=max(3, room))


def frame(document: Mapping[str, Any], *, most_nodes: int = 40) -> Group:
    """Draw one picture of a crawl's summary.

    Of more nodes than `most_nodes` those in trouble are drawn, then the first.
    """
    parts: list[RenderableType] = [_head(document)]
    parts += map(_line, wording.crawled_by(document))
    parts += [Text(str(note), style="yellow") for note in document.get("code") or ()]
    parts += map(remark, wording.differing(document))
    parts += [_bars(document), _line(_counts(document)), _line(wording.pace(document))]
    nodes = document.get("nodes") or ()
    if nodes:
        parts += [Text(), _nodes(nodes, most_nodes)]
    parts += _troubles(document)
    parts += map(remark, wording.lagging(document))
    return Group(*parts)


def _head(document: Mapping[str, Any]) -> Text:
    """Return the name of a crawl, its state, and how long it has taken and will take."""
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(str(document.get("crawl")), style="bold")
    colour = "yellow" if is_paused(document) else "cyan"
    head.append(f"  {state_of(document)}", style=colour)
    if document.get("duration_s") is not None:
        head.append(f"  {describe_span(float(document['duration_s']))}", style="dim")
    _, to_go = outlook(document)
    if to_go:
        head.append(f"  {to_go}")
    return head


def _line(text: str) -> Text:
    return Text(one_line(text), no_wrap=True, overflow="ellipsis")


def _bars(document: Mapping[str, Any]) -> Table:
    pages = count_in(document, "index", "pages")
    all_pages = count_in(document, "index", "total")
    ended = count_in(document, "requests", "done")
    all_requests = count_expected(document)
    expected, _ = outlook(document)
    done = count_in(document, "batches", "done")
    batches = count_in(document, "batches", "total")
    rows = (
        ("index", pages, all_pages, _part_of(pages, all_pages)),
        ("requests", ended, all_requests, f"{count_done(document):,} done of {expected}"),
        ("batches", done, batches, _part_of(done, batches)),
    )
    grid = Table.grid(padding=(0, 1))
    for label, value, most, text in rows:
        bar = ProgressBar(
            total=most or 1,
            completed=min(value, most),
            width=_BAR,
            style=_OPEN,
            complete_style=_DONE,
            finished_style=_DONE,
        )
        grid.add_row(label, bar, _line(text))
    return grid


def _part_of(value: int, whole: int) -> str:
    if whole:
        return f"{value:,} of {whole:,}"
    return f"{value:,}"


def _counts(document: Mapping[str, Any]) -> str:
    """Return how many URLs were found and sent, and how many gave no result."""
    pieces = [
        f"found {count_in(document, 'urls_found'):,}",
        f"sent {count_in(document, 'requests', 'sent'):,}",
    ]
    for name, field in (("gone", "gone_urls"), ("failed", "failed_urls")):
        count = count_in(document, field)
        if count:
            pieces.append(f"{name} {count:,}")
    return " · ".join(pieces)


def _nodes(nodes: Sequence[Mapping[str, Any]], most: int) -> RenderableType:
    """Draw the table of the nodes, of so many lines at most."""
    grid = Table(box=None, pad_edge=False, collapse_padding=True, header_style="dim")
    for heading, least in _HEADINGS:
        side: Literal["left", "right"] = "left" if heading in _LEFT else "right"
        # Where it is too narrow for all, the names give way.
        grid.add_column(heading, justify=side, min_width=least or None, no_wrap=heading != "node")
    shown = nodes
    if len(nodes) > most:
        shown = sorted(nodes, key=lambda node: node.get("state") == "up")[: most - 1]
    for node in shown:
        grid.add_row(*_cells(node))
    if len(shown) == len(nodes):
        return grid
    rest = len(nodes) - len(shown)
    return Group(grid, Text(f"and {counted(rest, 'more node')}", style="dim"))


def _cells(node: Mapping[str, Any]) -> list[Text]:
    rates = node.get("per_s")
    state = str(node.get("state") or "")
    failed = count_in(node, "failed")
    return [
        _line(str(node.get("name"))),
        Text(state, style=COLOURS.get(state, "")),
        Text(_running(node)),
        Text(f"{count_in(node, 'jobs'):,}"),
        Text(f"{count_in(node, 'pages'):,}"),
        Text(wording.rate_in(rates, "pages"), style="cyan"),
        Text(f"{count_in(node, 'items'):,}"),
        Text(wording.rate_in(rates, "items"), style="cyan"),
        Text(f"{failed:,}" if failed else "", style="red"),
    ]


def _running(node: Mapping[str, Any]) -> str:
    """Return `2/4`; where some wait for a process slot, `2/2 3 wait`."""
    if wording.are_jobs_unknown(node):
        return "?"
    words = wording.jobs_of(node).replace(" running", "").replace(",", "")
    return words.replace("waiting", "wait")


def _troubles(document: Mapping[str, Any]) -> Iterable[Text]:
    """Generate a sentence for each node in trouble, which is never cut; of many, for the first."""
    sentences = wording.troubles(document)
    for sentence in sentences[:_MOST_TROUBLES]:
        yield Text(one_line(sentence), style="red")
    rest = len(sentences) - _MOST_TROUBLES
    if rest > 0:
        yield Text(f"and {counted(rest, 'node')} more in trouble: sdist nodes", style="red")


def remark(text: str) -> Text:
    """Return a text that gives way to what stands beside it."""
    return Text(one_line(text), style="yellow", no_wrap=True, overflow="ellipsis")
