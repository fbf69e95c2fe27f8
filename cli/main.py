"""The command `sdist`: its own options, `completion`, `help`, and the words of every error."""

import os
import re
import signal
import sys
import traceback
from contextlib import redirect_stdout, suppress
from io import TextIOWrapper
from typing import Annotated, Any, Literal, NoReturn

import typer

from scrapyd_dist.errors import INTERRUPTED, ConfigError, DistError
from scrapyd_dist.near_names import ask_about, did_you_mean
from scrapyd_dist.related_names import option_answer
from scrapyd_dist.version import __version__

from . import producer_standby
from .commands import MARKUP, LazyGroup
from .output import complain, put, say

DEBUG = "--debug"
#: halves of characters, by which Python keeps bytes that are no text
_NO_TEXT = re.compile("[\ud800-\udfff]")
#: of the library's message about a word that is none of some
_WRONG_CHOICE = re.compile(r"'(?P<word>[^']*)' is not one of (?P<known>.*)")
#: of its message about words behind the last argument
_TOO_MANY = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((?P<words>.*)\)")
#: how the help has the value of an option that is a name and a value in one word
_PAIR = "NAME=VALUE"
#: commands in whose place another one is meant where several crawls are named
_OF_ONE_CRAWL = {"report", "status"}
_PLACES = {
    "bash": 'eval "$(sdist completion bash)"    # in ~/.bashrc; bash 4.4 or later',
    "zsh": 'eval "$(sdist completion zsh)"    # in ~/.zshrc, behind compinit',
    "fish": "sdist completion fish > ~/.config/fish/completions/sdist.fish",
}


def completion(
    context: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh", "fish"],
        typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False),
    ],
) -> None:
    """Print the script with which a shell completes a command.

    It completes commands, options, nodes, crawls and spiders, and only looks at this
    machine: scrapy.cfg, the project's files, the store in .sdist.
    `sdist --install-completion` writes the script to where your shell finds it.

    Example: eval "$(sdist completion bash)"
    """
    if sys.stdout.isatty():
        say(f"To use it: {_PLACES[shell]}")
    # The library's own way to ask for the script; it ends the process.
    os.environ["_SDIST_COMPLETE"] = f"source_{shell}"
    context.find_root().command.main(prog_name="sdist")


def help_(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="As it would be called.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="With all options, also those that are rarely used.")
    ] = False,
) -> None:
    """Show the help of a command.

    Example: sdist help nodes drain
    Example: sdist help --all frontier consume
    """
    sdist: Any = context.find_root().command
    sdist.whole = all_
    sdist.main([*(command or ()), "--help"], prog_name="sdist", standalone_mode=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        put(f"scrapyd-dist {__version__}")
        raise typer.Exit


def top(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version and leave.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
    # main() takes it from anywhere on the line; here it only appears in the help.
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show tracebacks; works behind any command.")
    ] = False,
) -> None:
    """Spread one Scrapy crawl over a fleet of Scrapyd nodes, and bring the items home as one file.

    New here? `sdist demo` shows it all on this machine. In a Scrapy project:
    `sdist init` names the nodes (or `sdist nodes up 3` starts some), `sdist crawl
    SPIDER` crawls with them, `sdist watch` comes back to a crawl that runs.
    """


def program() -> Any:
    """Return the command line as Typer's object for it; it loads a command when that is called."""
    app = typer.Typer(
        name="sdist",
        cls=LazyGroup,
        pretty_exceptions_enable=False,
        rich_markup_mode=MARKUP,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(
        cls=LazyGroup, epilog="sdist COMMAND --help tells more of a command; with --all, all of it."
    )(top)
    return typer.main.get_command(app)


def main() -> NoReturn:
    """Run the command that sys.argv names, and end the process."""
    _open_streams()
    arguments = [text for text in sys.argv[1:] if text != DEBUG]
    if isinstance(sys.stdout, TextIOWrapper):
        # A name that the terminal's encoding lacks must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        producer_standby.start_for(arguments)
        code = _run(arguments or ["--help"], debug=len(arguments) < len(sys.argv) - 1)
        # The command has its result: a Ctrl-C from here on must not turn it into a death by
        # signal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        _close_pipe()
        code = 1
    except OSError as error:  # what is left in its buffer cannot be written
        code = _report_full(error)
    finally:
        producer_standby.end()
    if code == INTERRUPTED:
        # Calls to nodes that are still under way would keep the process until they time out.
        with suppress(OSError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(arguments: list[str], *, debug: bool) -> int:
    """Run a command, and return its exit code; debug: errors show where they came from."""
    for text in arguments:
        if _NO_TEXT.search(text):
            return _report(
                ConfigError(
                    f"{text!r} is no text in the encoding of this terminal,"
                    f" {sys.getfilesystemencoding()}. Use another one, such as by LANG=C.UTF-8 in"
                    " the environment."
                )
            )
    try:
        # Without the library's own error boxes: an error is one paragraph, to be searched for.
        code = program()(args=arguments, prog_name="sdist", standalone_mode=False)
    except SystemExit as leaving:
        return _exit_code_of(leaving)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _close_pipe()
        return 1
    except Exception as error:  # noqa: BLE001  # whatever it is becomes one paragraph
        if debug:
            traceback.print_exc()
        return _report(error)
    return code if isinstance(code, int) else 0


def _exit_code_of(leaving: SystemExit) -> int:
    if isinstance(leaving.code, int):
        return leaving.code
    return 0 if leaving.code is None else 1


def _report(error: Exception) -> int:
    """Say what went wrong in a paragraph, and return the exit code."""
    if isinstance(error, DistError):
        complain(str(error))
        return error.exit_code
    # A wrong option: its class has another home in each version of typer.
    if hasattr(error, "format_message"):
        return _report_usage(error)
    if isinstance(error, OSError):
        full = _why_full()
        if full is not None:
            return _report_full(full)
        if error.filename:
            complain(f"{os.fsdecode(error.filename)} cannot be read or written: {error.strerror}.")
            return ConfigError.exit_code
    text = type(error).__name__
    if str(error):
        text += f": {error}"
    complain(
        f"something went wrong that scrapyd-dist has no words for ({text}). Run the same with"
        f" {DEBUG} to see where, and please report it."
    )
    return 1


def _report_usage(error: Any) -> int:
    """Say what is wrong about the words of a command line, and return the exit code."""
    message = _say_what_is_meant(str(error.format_message()), error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "sdist"
    if context and message.startswith("Missing"):
        with redirect_stdout(sys.stderr):  # the library's own printer has no other way
            context.get_help()
    # In the words of typer's own checks.
    text = message.rstrip(".").replace(": Value error, ", ": ")
    if not text.endswith("?"):
        text += "."
    hint = option_answer(str(getattr(error, "option_name", "")))
    complain(f"{text}{hint} Try: {path} --help")
    return int(getattr(error, "exit_code", 2))


def _say_what_is_meant(message: str, error: Any) -> str:
    """Return a message of the library about an unknown word with a question, as ours have it."""
    option = getattr(error, "option_name", None)
    if option and message.startswith("No such option"):
        return f"There is no option {option!r}.{ask_about(*(error.possibilities or ()))}"
    too_many = _TOO_MANY.match(message)
    if too_many is not None:
        refusal = _refuse_split_pair(error) or _refuse_more_crawls(error, too_many["words"])
        return refusal or message
    choice = _WRONG_CHOICE.search(message)
    if choice is None:
        return message
    known = [word.strip(" '") for word in choice["known"].split(",")]
    return f"{message.rstrip('.')}.{did_you_mean(choice['word'], known)}"


def _refuse_split_pair(error: Any) -> str:
    """Say that a name and its value are one word, where an option has a name alone; else empty."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    for option in context.command.params:
        if option.metavar != _PAIR:
            continue
        for text in context.params.get(option.name) or ():
            if "=" not in text:
                flag = min(option.opts, key=len)
                return f"A name and its value are one word: {flag} {text}=VALUE"
    return ""


def _refuse_more_crawls(error: Any, words: str) -> str:
    """Say that a command is of one crawl, which these words follow; empty if it is of none."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    names = [one.metavar for one in context.command.params if one.param_type_name == "argument"]
    if names != ["CRAWL"]:
        return ""
    text = f"{context.command_path} is of one crawl: leave out {words}."
    if context.info_name in _OF_ONE_CRAWL:
        text += " `sdist crawls` compares several."
    return text


class _LenientStream(TextIOWrapper):
    """Standard error that may be full: what cannot be said there ends nothing.

    That its reader is gone is an error nevertheless.
    """

    def write(self, text: str) -> int:
        """Write a text as far as that can be done."""
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Flush what was written, as far as that can be done."""
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError:
            return


def _open_streams() -> None:
    """Let those of the three streams lead nowhere that are closed.

    Else the next file that is opened would get their number, and their text.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    # Streams stay open until the process ends.
    if not sys.stdin:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if not sys.stdout:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    encoding = sys.stderr.encoding if sys.stderr else "utf-8"
    whole = open(2, "wb", closefd=False)  # noqa: SIM115
    if not isinstance(sys.stderr, _LenientStream):
        sys.stderr = _LenientStream(whole, encoding, "backslashreplace", line_buffering=True)


def _why_full() -> OSError | None:
    """Return why standard output takes no more; None if it does."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def _report_full(error: OSError) -> int:
    _close_pipe()
    complain(
        f"Standard output takes no more: {error.strerror}. What was to be written there is not all"
        " there."
    )
    return 1


def _close_pipe() -> None:
    # The reader of our output has closed the pipe; Python's own last flush must not complain.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
