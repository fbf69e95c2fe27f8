"""`sdist frontier`: the commands about the slots of frontiers."""

from __future__ import annotations

from ..options import group
from .frontier_add import add
from .frontier_list import count, dump, list_
from .frontier_move import delete, move, requeue

frontier = group(
    "List, fill, count, move and empty the slots of crawl frontiers.",
    list=list_, count=count, dump=dump, add=add, move=move, requeue=requeue, delete=delete,
)  # fmt: skip
