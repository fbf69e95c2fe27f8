"""The command `sdist`, and its one door for errors: what is ours leaves as a paragraph and an exit code.

The rule it keeps: nothing here imports Scrapy, Twisted or requests; a command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated, NoReturn, Optional

import typer

from scrapyd_dist import __version__
from scrapyd_dist.errors import DistError

from . import crawl, demo, deploying, nodes

_DEBUG = "--debug"

app = typer.Typer(
    name="sdist",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"scrapyd-dist {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[  # noqa: ARG001 - its callback does it
        Optional[bool], typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True)
    ] = None,
    debug: Annotated[  # noqa: ARG001 - main() looks for it, so that it works behind any command
        bool, typer.Option(_DEBUG, help="Show tracebacks; works behind any command.")
    ] = False,
) -> None:
    """Spread one Scrapy crawl over a fleet of Scrapyd nodes, and bring the items home as one file.

    In a Scrapy project: `sdist nodes up 3` starts nodes here, `sdist crawl SPIDER` crawls; `sdist demo` shows it all.
    """


@app.command()
def version() -> None:
    """Print the version.

    Example: sdist version
    """
    print(f"scrapyd-dist {__version__}")


for _module in (crawl, deploying, nodes, demo):
    _module.register(app)


def main() -> NoReturn:
    """Run the command that sys.argv names, and end the process."""
    arguments = [text for text in sys.argv[1:] if text != _DEBUG]
    code = _run(arguments, debug=len(arguments) < len(sys.argv) - 1)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _close_pipe()
    sys.exit(code)


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        typer.main.get_command(app)(args=arguments, prog_name="sdist")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except DistError as error:
        if debug:
            raise
        print(f"sdist: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _close_pipe()
        return 1
    except Exception as error:
        if debug:
            raise
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        print(
            f"sdist: something went wrong that scrapyd-dist has no words for ({text}). Run the same with {_DEBUG} to see "
            "where, and please report it.",
            file=sys.stderr,
        )
        return 1
    return 0


def _close_pipe() -> None:
    # Whoever read our output has enough; Python's own last flush must not complain about that.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
