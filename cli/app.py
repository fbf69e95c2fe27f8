"""`sdist` itself: the options before a command, and the commands `version` and `completion`."""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import Annotated, Any, Optional

import typer

from scrapyd_dist.version import __version__

from .commands import MARKUP, LazyGroup
from .output import put, put_ours, say

DEBUG = "--debug"
_PLACES = {
    "bash": 'eval "$(sdist completion bash)"    # in ~/.bashrc; bash 4.4 or later',
    "zsh": 'eval "$(sdist completion zsh)"    # in ~/.zshrc, behind compinit',
    "fish": "sdist completion fish > ~/.config/fish/completions/sdist.fish",
}


def version() -> None:
    """Print the version.

    Example: sdist version
    """
    put(f"scrapyd-dist {__version__}")


class Shell(str, Enum):
    """A shell that there is a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
) -> None:
    """Print the script with which a shell completes commands, options, nodes, crawls and spiders.

    It only looks at this machine: scrapy.cfg, the project's files, the store in .sdist.
    `sdist --install-completion` writes the script to where your shell finds it.

    Example: eval "$(sdist completion bash)"
    """
    if sys.stdout.isatty():
        say(f"To use it: {_PLACES[shell.value]}")
    # The library's own way to ask for the script; it ends the process.
    os.environ["_SDIST_COMPLETE"] = f"source_{shell.value}"
    context.find_root().command.main(prog_name="sdist")


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
