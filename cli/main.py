"""The command `sdist`, and its one door for errors: an error of ours becomes a paragraph and an exit code.

Neither Scrapy, Twisted nor requests is imported here; a command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import typer

from scrapyd_dist.errors import DistError

from .app import DEBUG, program
from .output import complain

#: exit code after Ctrl-C
INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command that sys.argv names, and end the process."""
    arguments = [text for text in sys.argv[1:] if text != DEBUG]
    try:
        code = _run(arguments or ["--help"], debug=len(arguments) < len(sys.argv) - 1)
        # The command has its result: a Ctrl-C from here on must not turn it into a death by signal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        _close_pipe()
    if code == INTERRUPTED:
        # Calls to nodes that are still under way would keep the process until they time out.
        with suppress(OSError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        # Without the library's own error boxes: an error is one paragraph, which can be searched for.
        code = program()(args=arguments, prog_name="sdist", standalone_mode=False)
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
        said = str(error.format_message()).rstrip(".").replace(": Value error, ", ": ")  # words of typer's own checks
        complain(f"{said}{'' if said.endswith('?') else '.'} Try: {path} --help")
        return int(getattr(error, "exit_code", 2))
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    complain(
        f"something went wrong that scrapyd-dist has no words for ({text}). Run the same with {DEBUG} to see where, "
        "and please report it."
    )
    return 1


def _close_pipe() -> None:
    # Whoever read our output has enough; Python's own last flush must not complain about that.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
