"""`--help`, written without Rich, which alone would take longer to import than all of this program.

The rule it keeps: only words of the code; colours on a terminal only.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from .described import OPTIONS, describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .described import Described, Parameter

#: lines longer than this are hard to read, however wide the terminal is
WIDEST = 100
#: the first column takes no more than this
COLUMN = 30

#: the order in which somebody new meets them; others come behind
PANELS = ("Start here", "Crawls", "Frontiers", "Items", "Nodes", "Code", "Jobs", "Store", "Help")


def explain(command: Any, path: str = "sdist") -> None:
    """Let a command of Typer, and all below it, show our help."""
    # By its class Typer would use Rich, or click's own list without panels.
    setattr(command, "format_help", partial(_write, command, path))  # noqa: B010 - the type has it as a method
    for name, below in getattr(command, "commands", {}).items():
        explain(below, f"{path} {name}")


def _write(command: Any, path: str, _context: Any, formatter: Any) -> None:
    formatter.write("\n".join(lines_here(describe(command, path))) + "\n")


def lines_here(command: Described) -> list[str]:
    """The help of a command as it is right for standard output."""
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    coloured = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    return lines_of(command, width, coloured=coloured)


def lines_of(command: Described, width: int = 80, *, coloured: bool = False) -> list[str]:
    """The help of a command."""
    from .codes import codes_of

    head = partial(_bold, on=coloured)
    lines = [f"{head('Usage:')} {command.usage}", ""]
    for paragraph in command.paragraphs:
        lines += [*_wrapped(paragraph, width, "  "), ""]
    # An example is there to be copied: it is not broken.
    lines += [f"  Example: {example}" for example in command.examples]
    lines += [""] if command.examples else []
    for panel, commands in by_panel(command.commands):
        rows = [(one.name, _first_sentence(one.summary)) for one in commands]
        lines += [head(panel), *_columns(rows, width, coloured=coloured), ""]
    for panel, parameters in _parameter_panels(command):
        rows = [(_name(one), _help(one)) for one in parameters]
        rows += [("-h, --help", "Say this.")] if panel == OPTIONS else []
        lines += [head(panel), *_columns(rows, width, coloured=coloured), ""]
    codes = [(str(code), meaning) for code, meaning in codes_of(command.path)]
    if codes and not (command.commands and not command.stands_alone):
        lines += [head("Exit codes"), *_columns(codes, width, coloured=coloured), ""]
    if command.commands:
        lines += [f"  {command.path} COMMAND --help tells more of a command.", ""]
    return lines[:-1]


def by_panel(commands: Iterable[Described]) -> list[tuple[str, list[Described]]]:
    """Commands under the headings of their panels, in the order of `PANELS`."""

    def place(command: Described) -> int:
        return PANELS.index(command.panel) if command.panel in PANELS else len(PANELS) - 1

    ordered = sorted(commands, key=place)
    return [(panel, list(group)) for panel, group in groupby(ordered, key=lambda one: one.panel)]


def _parameter_panels(command: Described) -> list[tuple[str, list[Parameter]]]:
    panels: dict[str, list[Parameter]] = {}
    for parameter in command.parameters:
        if parameter.help or not parameter.is_argument:
            panels.setdefault(parameter.panel, []).append(parameter)
    # What every command has comes last.
    common = panels.pop(OPTIONS, [])
    return [*panels.items(), (OPTIONS, common)]


def _name(parameter: Parameter) -> str:
    if parameter.is_argument:
        return parameter.usage
    names = ", ".join(parameter.names) + (f" / {', '.join(parameter.opposite)}" if parameter.opposite else "")
    return f"{names} {parameter.metavar}".rstrip()


def _help(parameter: Parameter) -> str:
    default = f" (default: {parameter.default})" if parameter.default else ""
    required = " (required)" if parameter.required and not parameter.is_argument else ""
    return f"{parameter.help}{default}{required}"


def _columns(rows: Sequence[tuple[str, str]], width: int, *, coloured: bool) -> list[str]:
    first = min(COLUMN, max(len(name) for name, _ in rows))
    lines = []
    for name, text in rows:
        told = _wrapped(text, width - first - 4, "") or [""]
        if len(name) > first:
            told = ["", *told]
        lines.append(f"  {_cyan(name, on=coloured)}{' ' * max(0, first - len(name))}  {told[0]}".rstrip())
        lines += [f"{' ' * (first + 4)}{line}" for line in told[1:]]
    return lines


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text, max(width, 30), initial_indent=indent, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _first_sentence(text: str) -> str:
    end = text.find(". ")
    return (text if end < 0 else text[:end]).rstrip(".")


def _bold(text: str, *, on: bool) -> str:
    return f"\x1b[1m{text}\x1b[0m" if on else text


def _cyan(text: str, *, on: bool) -> str:
    return f"\x1b[36m{text}\x1b[0m" if on else text
