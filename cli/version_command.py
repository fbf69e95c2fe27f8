"""`sdist version`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapyd_dist.version import __version__

from .output import put

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("version")(version)


def version() -> None:
    """Print the version.

    Example: sdist version
    """
    put(f"scrapyd-dist {__version__}")
