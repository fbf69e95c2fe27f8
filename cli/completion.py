"""`sdist completion`: the script of Typer with which a shell completes; `--install-completion` puts it in place."""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import Annotated

import typer

_PLACES = {
    "bash": 'eval "$(sdist completion bash)"    # in ~/.bashrc; bash 4.4 or later',
    "zsh": 'eval "$(sdist completion zsh)"    # in ~/.zshrc, behind compinit',
    "fish": "sdist completion fish > ~/.config/fish/completions/sdist.fish",
}


class Shell(str, Enum):
    """A shell that there is a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("completion")(completion)


def completion(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
) -> None:
    """Print the script with which a shell completes commands, options, nodes, crawls and spiders.

    It only looks at this machine: scrapy.cfg, the project's files, the store in .sdist.
    `sdist --install-completion` writes the script to where your shell finds it.

    Example: eval "$(sdist completion bash)"
    """
    from .output import say

    if sys.stdout.isatty():
        say(f"To use it: {_PLACES[shell.value]}")
    # The library's own way to ask for the script; it ends the process.
    os.environ["_SDIST_COMPLETE"] = f"source_{shell.value}"
    context.find_root().command.main(prog_name="sdist")
