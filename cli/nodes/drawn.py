"""The answers of nodes as they come, drawn in place on a terminal; rule: nothing of it stays, the table comes after."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.text import Text

    from .looks import Seen

#: most drawings in a second
RATE = 4
#: lines that are drawn on a terminal whose height is not known
LINES = 20


@contextmanager
def drawing(total: int, *, shown: bool) -> Iterator[Callable[[Sequence[Seen]], None]]:
    """Draws the nodes that have answered, the last ones where there is no room for all; nothing off a terminal."""
    from ..speaking import on_terminal

    if not shown or not on_terminal():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    room = max(2, min(console.size.height - 3, LINES))
    with Live("", console=console, refresh_per_second=RATE, transient=True) as live:
        live.update(_picture([], total, room), refresh=True)
        yield lambda seen: live.update(_picture(seen, total, room))


def _picture(seen: Sequence[Seen], total: int, room: int) -> Text:
    from rich.text import Text

    lines = [_line(one) for one in seen[-room:]]
    return Text("\n".join([*lines, f"{len(seen)} of {total} nodes answered …"]), no_wrap=True, overflow="ellipsis")


def _line(seen: Seen) -> str:
    words = [seen.node.name, seen.state.value]
    if seen.load is not None:
        words.append(f"running {seen.load.running}, pending {seen.load.pending}")
    elif seen.error is not None:
        words.append(seen.error.short)
    return "  ".join(words)
