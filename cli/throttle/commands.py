"""`sdist throttle`: how many requests each domain gets, and which gets none."""

from __future__ import annotations

import typer

from . import applying, changing, showing


def register(app: typer.Typer) -> None:
    """Add the commands of these modules."""
    group = typer.Typer(help="Set, show and change while crawls run how many requests each domain gets.")
    group.command("show")(showing.show)
    group.command("apply")(applying.apply)
    group.command("set")(changing.set_)
    group.command("unset")(changing.unset)
    group.command("block")(changing.block)
    group.command("unblock")(changing.unblock)
    group.command("pause")(changing.pause)
    group.command("resume")(changing.resume)
    app.add_typer(group, name="throttle")
