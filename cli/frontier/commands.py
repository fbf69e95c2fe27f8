"""`sdist frontier`: what lies in the slots of frontiers, and what a person does about it."""

from __future__ import annotations

import typer

from . import adding, counting, listing, moving, removing, requeuing


def register(app: typer.Typer) -> None:
    """Add the commands of these modules."""
    group = typer.Typer(help="List, fill, count, move and empty the slots of crawl frontiers.")
    group.command("list")(listing.list_)
    group.command("count")(counting.count)
    group.command("dump")(counting.dump)
    group.command("add")(adding.add)
    group.command("move")(moving.move)
    group.command("requeue")(requeuing.requeue)
    group.command("delete")(removing.delete)
    app.add_typer(group, name="frontier")
