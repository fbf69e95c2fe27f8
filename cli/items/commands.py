"""`sdist items`: the items of jobs on their own: `pull`, `merge`, `tail`."""

from __future__ import annotations

import typer

from ..commands import add
from . import item_pull, merge, tail

items = typer.Typer(help="Fetch, merge and follow the items of crawls and jobs.")
add(items, "pull", item_pull.pull)
add(items, "merge", merge.merge)
add(items, "tail", tail.tail)
