"""The manual: a page of Markdown for each command, made from its code; `make docs` writes it, a test compares.

The rule it keeps: not a word stands here that `--help` does not say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .described import OPTIONS, describe
from .helping import by_panel

if TYPE_CHECKING:
    from .described import Described, Parameter

_NOTE = "<!-- Made from the code by `make docs`. Change the help texts of the command instead. -->"
_CONTENTS = '''"""What each command does, in a sentence. Made from the help texts by `make docs`."""

# fmt: off
# ruff: noqa: E501 - a line is what a terminal shows

#: name, panel, summary'''
#: settings behind options that do not go over as they are
_SETTINGS = {
    "start_urls": "DISTRIBUTED_START_URLS_FILE",
    "add_to": "DISTRIBUTED_OUTPUTS",
    "overwrite": "DISTRIBUTED_OUTPUTS",
    "deploy": "DISTRIBUTED_DEPLOY",
    "name": "DISTRIBUTED_CRAWL",
}
#: the commands whose options are settings
_ASKING = {"sdist crawl", "sdist plan"}


def pages() -> dict[str, str]:
    """File name -> text, for each command and for the list of them."""
    from .app import program

    root = describe(program(), "sdist")
    texts = {f"{command.name}.md": page(command) for command in root.commands}
    return {"README.md": _contents(root), **texts}


def page(command: Described) -> str:
    """The page of a command, with those below it."""
    parts = [_NOTE, *_part(command, "#")]
    for below in command.commands:
        parts += _part(below, "##")
    parts.append("[All commands](README.md) · [what they are for](../commands.md)")
    return "\n\n".join(parts) + "\n"


def _contents(root: Described) -> str:
    parts = [_NOTE, "# The commands of sdist", *root.paragraphs]
    for panel, commands in by_panel(root.commands):
        rows = [f"| [`{one.path}`]({one.name}.md) | {_cell(one.summary)} |" for one in commands]
        parts.append("\n".join([f"## {panel}", "", "| command | what it does |", "|---|---|", *rows]))
    parts += [_parameters("Options of all commands", root.options, {}), _codes("sdist", all_of_them=True)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _part(command: Described, level: str) -> list[str]:
    settings = _settings() if command.path in _ASKING else {}
    parts = [f"{level} {command.path}", f"    {command.usage}", *(_text(one) for one in command.paragraphs)]
    parts += (
        ["\n".join(["Example:", "", *(f"    {example}" for example in command.examples)])] if command.examples else []
    )
    if command.commands:
        rows = [f"- [`{one.path}`](#{one.path.replace(' ', '-')}): {_text(one.summary)}" for one in command.commands]
        parts.append("\n".join(rows))
    panels: dict[str, list[Parameter]] = {}
    for parameter in command.parameters:
        panels.setdefault(parameter.panel, []).append(parameter)
    last = panels.pop(OPTIONS, [])
    for panel, parameters in [*panels.items(), (OPTIONS, last)]:
        parts.append(_parameters(panel, tuple(parameters), settings))
    parts.append(_codes(command.path))
    return [part for part in parts if part]


def _parameters(heading: str, parameters: tuple[Parameter, ...], settings: dict[str, str]) -> str:
    if not parameters:
        return ""
    kind = "argument" if parameters[0].is_argument else "option"
    with_settings = any(one.name in settings for one in parameters)
    columns = [kind, "meaning", *(["setting"] if with_settings else [])]
    lines = [f"**{heading}**", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for one in parameters:
        cells = [_names(one), _meaning(one)]
        if with_settings:
            cells.append(f"`{settings[one.name]}`" if one.name in settings else "")
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines)


def _names(parameter: Parameter) -> str:
    if parameter.is_argument:
        return f"`{_cell(parameter.usage)}`"
    value = f" {_cell(parameter.metavar)}" if parameter.metavar else ""
    return ", ".join(f"`{name}{value}`" for name in (*parameter.names, *parameter.opposite))


def _meaning(parameter: Parameter) -> str:
    default = f" Default: {parameter.default}." if parameter.default else ""
    again = (
        " Can be given again."
        if parameter.many and not parameter.is_argument and "epeatable" not in parameter.help
        else ""
    )
    return f"{_cell(parameter.help)}{default}{again}".strip()


def _codes(path: str, *, all_of_them: bool = False) -> str:
    from .codes import MEANINGS, codes_of

    codes = tuple(MEANINGS.items()) if all_of_them else codes_of(path)
    if not codes:
        return ""
    rows = [f"| {code} | {meaning} |" for code, meaning in codes]
    return "\n".join(["**Exit codes**", "", "| code | meaning |", "|---|---|", *rows])


def _settings() -> dict[str, str]:
    from .crawls.asking import SETTINGS

    return {**_SETTINGS, **SETTINGS}


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    # Outside of code, Markdown would take stars, underscores and angle brackets for markup.
    pieces = text.split("`")
    for place in range(0, len(pieces), 2):
        for sign in "*_<>":
            pieces[place] = pieces[place].replace(sign, f"\\{sign}")
    return "`".join(pieces)


def contents() -> str:
    """The module with the list of commands that `sdist --help` shows without importing them."""
    from .app import program

    rows = [(one.name, one.panel, one.summary) for one in describe(program(), "sdist").commands]
    lines = [f"    ({', '.join(json.dumps(cell, ensure_ascii=False) for cell in row)})," for row in rows]
    return "\n".join([_CONTENTS, "SUMMARIES = (", *lines, ")", ""])


def write(folder: Path) -> None:
    """Write all pages and the list, and remove the pages of commands that are gone."""
    Path(__file__).with_name("contents.py").write_text(contents(), encoding="utf-8")
    texts = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
