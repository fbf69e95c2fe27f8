"""`sdist frontier`: what lies in the slots of frontiers, and what a person does about it."""

from __future__ import annotations

import typer

from ..commands import add
from .frontier_add import add as add_rows
from .frontier_list import count, dump, list_
from .frontier_move import delete, move, requeue

frontier = typer.Typer(help="List, fill, count, move and empty the slots of crawl frontiers.")
_VERBS = {
    "list": list_, "count": count, "dump": dump, "add": add_rows, "move": move, "requeue": requeue, "delete": delete,
}  # fmt: skip
for _name, _verb in _VERBS.items():
    add(frontier, _name, _verb)
