"""`sdist frontier`: what lies in the slots of frontiers, and what a person does about it."""

from __future__ import annotations

import typer

from . import frontier_add, frontier_count, frontier_delete, frontier_list, frontier_move, frontier_requeue


def register(app: typer.Typer) -> None:
    """Add the commands of these modules."""
    group = typer.Typer(help="List, fill, count, move and empty the slots of crawl frontiers.")
    group.command("list")(frontier_list.list_)
    group.command("count")(frontier_count.count)
    group.command("dump")(frontier_count.dump)
    group.command("add")(frontier_add.add)
    group.command("move")(frontier_move.move)
    group.command("requeue")(frontier_requeue.requeue)
    group.command("delete")(frontier_delete.delete)
    app.add_typer(group, name="frontier")
