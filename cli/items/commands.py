"""`sdist items`: the items of jobs on their own: `pull`, `merge`, `tail`."""

from __future__ import annotations

import typer

from . import item_pull, merge, tail


def register(app: typer.Typer) -> None:
    """Add the commands of these modules."""
    group = typer.Typer(help="Fetch, merge and follow the items of crawls and jobs.")
    group.command("pull")(item_pull.pull)
    group.command("merge")(merge.merge)
    group.command("tail")(tail.tail)
    app.add_typer(group, name="items")
