"""What `sdist` itself takes: the options before a command, and `--help` over the table of commands."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from scrapyd_dist.version import __version__

from .commands import MARKUP, LazyGroup
from .output import put_ours

DEBUG = "--debug"


def _print_version(wanted: bool) -> None:
    if wanted:
        put_ours(f"scrapyd-dist {__version__}")
        raise typer.Exit


def top(
    version: Annotated[
        Optional[bool],
        typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True),
    ] = None,
    # main() takes it from anywhere on the line; here it only appears in the help.
    debug: Annotated[bool, typer.Option(DEBUG, help="Show tracebacks; works behind any command.")] = False,
) -> None:
    """Spread one Scrapy crawl over a fleet of Scrapyd nodes, and bring the items home as one file.

    New here? `sdist demo` shows it all on this machine. In a Scrapy project:
    `sdist init` names the nodes (or `sdist nodes up 3` starts some), `sdist crawl
    SPIDER` crawls with them, `sdist watch` comes back to a crawl that runs.
    """


def program() -> Any:
    """The command line as Typer's object for it; `commands.load` gives a command with all that it takes."""
    app = typer.Typer(
        name="sdist",
        cls=LazyGroup,
        pretty_exceptions_enable=False,
        rich_markup_mode=MARKUP,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(cls=LazyGroup, epilog="sdist COMMAND --help tells more of a command.")(top)
    return typer.main.get_command(app)
