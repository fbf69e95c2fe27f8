"""How far a roll-out is: a bar on a terminal, elsewhere a line for each node that is done."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..speaking import on_terminal, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapyd_dist.deploy.talk import Step

    from scrapyd_dist.nodes import Node

_DONE = {"present", "uploaded", "failed"}
#: names in the line beside the bar
_SHOWN = 4

Note = "Callable[[Node, Step], None]"


@contextmanager
def bar(nodes: int, *, shown: bool) -> Iterator[Callable[[Node, Step], None]]:
    """Gives what is to be called with each step of each node.

    Args:
        nodes: how many there are.
        shown: False draws and says nothing.
    """
    if not shown:
        yield lambda _node, _step: None
    elif on_terminal():
        with _drawn(nodes) as note:
            yield note
    else:
        yield _plain(nodes)


def _plain(nodes: int) -> Callable[[Node, Step], None]:
    done = 0

    def note(node: Node, step: Step) -> None:
        nonlocal done
        if step.value in _DONE:
            done += 1
            say(f"{done} of {nodes}: {node.name} {step.value}")
        elif step.value == "undone":
            say(f"{node.name} undone")

    return note


@contextmanager
def _drawn(nodes: int) -> Iterator[Callable[[Node, Step], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as progress:
        task, busy = progress.add_task("", total=nodes), dict[str, str]()

        def note(node: Node, step: Step) -> None:
            if step.value in _DONE or step.value == "undone":
                busy.pop(node.name, None)
            else:
                busy[node.name] = step.value
            words = ", ".join(f"{name} {what}" for name, what in list(busy.items())[:_SHOWN])
            progress.update(task, advance=step.value in _DONE, description=words + " …" * (len(busy) > _SHOWN))

        yield note
