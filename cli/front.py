"""`sdist --help` without importing a command: from a list that `make docs` makes of the code; a test compares them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .contents import SUMMARIES
from .described import Described, describe
from .helping import lines_here

if TYPE_CHECKING:
    from collections.abc import Sequence


def front(top: Any, commands: Sequence[str]) -> list[str]:
    """The lines of the help, for a terminal if there is one; none when the list is not of these commands.

    Args:
        top: Typer's object for `sdist` itself.
        commands: the names of all commands.
    """
    if [name for name, _, _ in SUMMARIES] != list(commands):
        return []
    listed = tuple(_listed(*row) for row in SUMMARIES)
    return lines_here(replace(describe(top, "sdist"), commands=listed))


def _listed(name: str, panel: str, summary: str) -> Described:
    return Described(
        path=f"sdist {name}", paragraphs=(summary,), examples=(), panel=panel, parameters=(), commands=(),
        stands_alone=True,
    )  # fmt: skip
