"""The command `sdist`, and its one door for errors: what is ours leaves as a paragraph and an exit code.

The rule it keeps: nothing here imports Scrapy, Twisted or requests; a command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Annotated, NoReturn, Optional

import typer

from scrapyd_dist import __version__
from scrapyd_dist.errors import DistError

from . import (
    cancelling,
    crawl,
    demo,
    deploying,
    grepping,
    jobs,
    logs,
    nodes,
    raw,
    schedule,
    statistics,
    undoing,
    versions,
)
from .speaking import complain, put

_DEBUG = "--debug"

app = typer.Typer(
    name="sdist",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        put(f"scrapyd-dist {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        Optional[bool],
        typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True),
    ] = None,
    # It works behind any command, since main() looks for it; here it is only told.
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show tracebacks; works behind any command.")] = False,
) -> None:
    """Spread one Scrapy crawl over a fleet of Scrapyd nodes, and bring the items home as one file.

    In a Scrapy project: `sdist nodes up 3` starts nodes on this machine,
    `sdist crawl SPIDER` crawls with them. `sdist demo` shows it all.
    """


for _module in (
    *(demo, crawl, nodes, deploying, versions, undoing),
    *(schedule, jobs, logs, grepping, statistics, cancelling, raw),
):
    _module.register(app)


@app.command("version", rich_help_panel="Help")
def version_() -> None:
    """Print the version.

    Example: sdist version
    """
    put(f"scrapyd-dist {__version__}")


def main() -> NoReturn:
    """Run the command that sys.argv names, and end the process."""
    arguments = [text for text in sys.argv[1:] if text != _DEBUG]
    try:
        code = _run(arguments or ["--help"], debug=len(arguments) < len(sys.argv) - 1)
        # The command has its result: a Ctrl-C from here on must not turn it into a death by signal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        _close_pipe()
    sys.exit(code)


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        # Without the library's own error boxes: an error is one paragraph, which can be searched for.
        code = typer.main.get_command(app)(args=arguments, prog_name="sdist", standalone_mode=False)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _close_pipe()
        return 1
    except typer.Abort:
        return 130
    except Exception as error:  # noqa: BLE001 - no traceback may reach a user who did not ask for one
        if debug:
            traceback.print_exc()
        return _told(error)
    return code if isinstance(code, int) else 0


def _told(error: Exception) -> int:
    """Say what went wrong in a paragraph; gives the exit code."""
    if isinstance(error, DistError):
        complain(str(error))
        return error.exit_code
    if hasattr(error, "format_message"):  # a wrong option; its class has another home in each version of typer
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "sdist"
        complain(f"{str(error.format_message()).rstrip('.')}. Try: {path} --help")
        return int(getattr(error, "exit_code", 2))
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    complain(
        f"something went wrong that scrapyd-dist has no words for ({text}). Run the same with {_DEBUG} to see where, "
        "and please report it."
    )
    return 1


def _close_pipe() -> None:
    # Whoever read our output has enough; Python's own last flush must not complain about that.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
