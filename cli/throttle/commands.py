"""`sdist throttle`: how many requests each domain gets, and which gets none."""

from __future__ import annotations

import typer

from . import throttle_apply, throttle_change, throttle_show


def register(app: typer.Typer) -> None:
    """Add the commands of these modules."""
    group = typer.Typer(help="Set, show and change while crawls run how many requests each domain gets.")
    group.command("show")(throttle_show.show)
    group.command("apply")(throttle_apply.apply)
    group.command("set")(throttle_change.set_)
    group.command("unset")(throttle_change.unset)
    group.command("block")(throttle_change.block)
    group.command("unblock")(throttle_change.unblock)
    group.command("pause")(throttle_change.pause)
    group.command("resume")(throttle_change.resume)
    app.add_typer(group, name="throttle")
