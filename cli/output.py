r"""Prints for all commands: data to standard output, all else to standard error.

The rule it keeps: nothing else in this wing prints what comes from nodes and sites. Names, messages
and log lines do: what could steer a terminal, or show a text in another order than it has, is
printed as its escape, `\x1b` or `\u202e`. JSON keeps its exact values, by its own escapes.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, TextIO

import typer

from scrapyd_dist.errors import INTERRUPTED, ConfigError, NodeError
from scrapyd_dist.escapes import HAZARDS, harmless

from .wrapping import wrap

#: nodes with the same error that are named, each with its own
MOST_ERRORS = 5
#: seconds between two lines about what goes on, where there is no terminal
LINE_EVERY = 30.0
#: seconds before a line that is for terminals only
NEVER = float("inf")
_NO_ASCII = re.compile(r"[^\t\n\x20-\x7e]")
#: the colours of the states of nodes, jobs and crawls
COLOURS = {
    "up": "green",
    "down": "red",
    "unfit": "red",
    "failed": "red",
    "refused": "red",
    "died": "red",
    "wedged": "red",
    "uploaded": "green",
    "present": "green",
    "finished": "green",
    "stopped": "yellow",
    "incomplete": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "busy": "yellow",
    "left": "yellow",
}


def colour_of(state: str) -> str:
    """Return the colour of a state; yellow for one that is finished with something missing.

    Also for a node in trouble that gets no new work, so that it counts for nothing.
    """
    if state.startswith("finished, ") or state.endswith((", drained", ", draining")):
        return "yellow"
    return COLOURS.get(state, "")


def one_line(text: str) -> str:
    """Return a foreign name or message as a part of a line."""
    return harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def say(text: str = "") -> None:
    """Print a line for people, beside the data; on a terminal it is wrapped."""
    print(_fitted(harmless(text), sys.stderr), file=sys.stderr, flush=True)


def _fitted(text: str, stream: TextIO) -> str:
    """Return a text as it is for a file or a pipe, and for a terminal wrapped to its width."""
    if not stream.isatty():
        return text
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # it only looks like a terminal
        return text
    return wrap(text, columns)


def complain(text: str) -> None:
    """Print what went wrong: one paragraph on standard error."""
    say(f"sdist: {text}")


def complain_each(errors: Iterable[object]) -> None:
    """Complain of each of these texts or errors once; a None is none.

    Of many nodes with one error a few are named.
    """
    texts: dict[str, None] = {}
    by_kind: dict[type[NodeError], dict[str, None]] = {}
    for error in errors:
        if isinstance(error, NodeError):
            by_kind.setdefault(type(error), {})[str(error)] = None
        elif error is not None:
            texts[str(error)] = None
    for text in texts:
        complain(text)
    for kind, of_nodes in by_kind.items():
        for text in list(of_nodes)[:MOST_ERRORS]:
            complain(text)
        if len(of_nodes) > MOST_ERRORS:
            complain(
                f"and {len(of_nodes) - MOST_ERRORS:,} more nodes: {kind.short}. See: sdist nodes"
            )


class PrintingMessenger:
    """Prints on standard error what a step of a command has to tell."""

    def __init__(self) -> None:
        self._said_once = set[str]()

    def say(self, text: str) -> None:
        """Print a line for people."""
        say(text)

    def say_once(self, text: str) -> None:
        """Print a line for people, unless it was printed before."""
        if text not in self._said_once:  # some commands ask again and again
            self._said_once.add(text)
            say(text)

    def complain(self, text: str) -> None:
        """Print what went wrong."""
        complain(text)

    def complain_each(self, errors: Iterable[object]) -> None:
        """Print each of these texts or errors once."""
        complain_each(errors)


def put(text: str) -> None:
    """Print a line of what was asked for."""
    print(harmless(text), flush=True)


def put_text(text: str) -> None:
    """Print sentences that were asked for; on a terminal they are wrapped."""
    print(_fitted(harmless(text), sys.stdout), flush=True)


def put_raw(head: str, data: bytes) -> None:
    """Print a line that ends in foreign bytes, as they are (`--raw`)."""
    sys.stdout.flush()
    sys.stdout.buffer.write(harmless(head).encode() + data + b"\n")
    sys.stdout.buffer.flush()


def put_values(text: str) -> None:
    """Print JSON, or lines of it.

    What people should not be shown has JSON's own escapes, so that every value is exact.
    """
    encoding = (sys.stdout.encoding or "").lower()
    foreign = HAZARDS if encoding.startswith("utf") else _NO_ASCII
    print(foreign.sub(_json_escape, text), flush=True)


def _json_escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f")


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    shortened: Mapping[str, Callable[[str], str]] = MappingProxyType({}),
    left_out: Sequence[str] = (),
    below: Collection[str] = (),
) -> None:
    """Print rows: whole into a pipe; on a terminal in colours, and so that they fit.

    What gives way there is named by its heading: see `screen_table.Narrowing`.
    """
    cells = [list(map(_text, row)) for row in rows]
    is_plain = not sys.stdout.isatty() and not os.environ.get("FORCE_COLOR")
    if is_plain or os.environ.get("TERM") == "dumb":
        for line in plain_lines(headings, cells):
            put(line)
        return
    from rich.console import Console

    from .screen_table import Narrowing, screen_lines

    console = Console()
    narrowing = Narrowing(shortened=shortened, left_out=left_out, below=below)
    for drawn in screen_lines(headings, cells, console.width, narrowing, colour_of):
        console.print(drawn, no_wrap=True, overflow="ignore", highlight=False)


def plain_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the table as lines, in columns that are as wide as their widest cell."""
    everything = [[heading.upper() for heading in headings], *rows]
    widths = [0] * len(headings)
    for row in everything:
        widths = list(map(max, widths, map(len, row)))
    lines = []
    for row in everything:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else one_line(str(cell))


@dataclass(frozen=True, kw_only=True)
class Output:
    """The result of a command: one JSON document, or a table or lines for people.

    As a parameter of a command it is the option `--json`.
    """

    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON document on standard output, and nothing else there."
        ),
    ] = False

    @property
    def wants_document(self) -> bool:
        """Whether the one JSON document was asked for."""
        return self.as_json

    def document(self, document: Mapping[str, Any]) -> bool:
        """Print the document if it was asked for; False if the command is to print its lines."""
        if self.wants_document:
            put_values(json.dumps({"schema": 1, **document}, indent=2, ensure_ascii=False))
        return self.wants_document

    def table(
        self, document: Mapping[str, Any], headings: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        """Print the document, or the rows as a table."""
        if not self.document(document):
            table(headings, rows)

    def columns(self, document: Mapping[str, Any], rows: str, names: Sequence[str]) -> None:
        """Print the document, or of its rows with this key the named columns."""
        cells = []
        for row in document[rows]:
            values = [row[name] for name in names]
            cells.append(values)
        self.table(document, names, cells)


@dataclass(frozen=True, kw_only=True)
class Listing(Output):
    """The rows of a list, for people or for scripts.

    As a parameter of a command it is the options `-o` and `--json`, which is `-o json`.
    """

    form: Annotated[
        Literal["names", "lines", "json"] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="names|lines|json",
            help="Only the names, one a line; a JSON document for each, one a line; or as --json.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse two forms at once."""
        if self.as_json and self.form not in (None, "json"):
            raise ConfigError(f"--json is -o json, and -o {self.form} another form. Take one.")

    @property
    def wants_document(self) -> bool:
        """Whether the one JSON document was asked for."""
        return self.as_json or self.form == "json"

    def rows(self, document: Mapping[str, Any], rows: str, name: str) -> bool:
        """Print the rows of this key for a script, or the document; False if it is for people.

        name: the key in a row that `-o names` shows.
        """
        if self.form == "names":
            for row in document[rows]:
                put(one_line(str(row[name])))
            return True
        if self.form == "lines":
            for row in document[rows]:
                put_values(json.dumps(row, ensure_ascii=False))
            return True
        return self.document(document)


def on_terminal() -> bool:
    """Tell whether standard error is a terminal that can be drawn on."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def can_ask() -> bool:
    """Tell whether there is a terminal to ask a question on."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(
    question: str, lines: Iterable[str] = (), *, most: int | None = None, refusal: str
) -> None:
    """Show what is about to be done, and ask for a yes; without one the command ends with 130.

    most: of more lines, only so many are shown; refusal: begins the error where there is no
    terminal, as in `3 crawls would be removed`.
    """
    if not can_ask():
        raise ConfigError(f"{refusal}, and there is no terminal to ask on. Add --yes to do it.")
    shown = list(lines)
    for line in shown[:most]:
        say(f"  {line}")
    if most is not None and len(shown) > most:
        say(f"  and {len(shown) - most:,} more")
    if not ask_yes_or_no(question):
        raise typer.Exit(INTERRUPTED)


def ask_yes_or_no(question: str) -> bool:
    """Ask a yes-or-no question on standard error; anything but yes is no."""
    print(f"{harmless(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def poll_until(done: Callable[[], bool], every: float, deadline: float) -> bool:
    """Ask until the answer is yes, and return whether it was before the deadline.

    It is asked once in any case. every: seconds between two questions; deadline: by the monotonic
    clock.
    """
    while not (answer := done()) and time.monotonic() < deadline:
        time.sleep(every)
    return answer


@contextmanager
def waiting(every: float = LINE_EVERY, *, first: float = 0.0) -> Iterator[Callable[[str], None]]:
    """Give a function that says how it stands, on standard error.

    every: seconds between two lines where there is no terminal; first: seconds before the first.
    """
    if on_terminal():
        from rich.console import Console
        from rich.status import Status
        from rich.text import Text

        with Status("", console=Console(stderr=True), refresh_per_second=4) as status:
            yield lambda text: status.update(Text(one_line(text)))
        return
    due = time.monotonic() + first

    def show(text: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + every
            say(text)

    yield show
