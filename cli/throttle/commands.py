"""`sdist throttle`: how many requests each domain gets, and which gets none."""

from __future__ import annotations

import typer

from . import applying, limiting, showing, stopping


def register(app: typer.Typer) -> None:
    """Add the commands of these modules."""
    group = typer.Typer(help="Set, show and change while crawls run how many requests each domain gets.")
    group.command("show")(showing.show)
    group.command("apply")(applying.apply)
    group.command("set")(limiting.set_)
    group.command("unset")(limiting.unset)
    group.command("block")(stopping.block)
    group.command("unblock")(stopping.unblock)
    group.command("pause")(stopping.pause)
    group.command("resume")(stopping.resume)
    app.add_typer(group, name="throttle")
