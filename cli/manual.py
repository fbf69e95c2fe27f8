"""`make manual`: writes the generated pages of the reference.

They are a page of Markdown for each command, the definitions of settings, what changes in many
processes, and what to write instead of related systems' names. What is written by hand stays. Tests
compare the pages with the code.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from textwrap import indent
from typing import Any

import typer

from scrapyd_dist import differences, related_names
from scrapyd_dist.settings import GROUPS, Setting

from .commands import COMMANDS, MEANINGS, load
from .setting_options import as_sentence_start

_NOTE = (
    "<!-- Made from the code by `make manual`. Change the help texts of the command instead. -->"
)
#: what stands behind it is written by hand
_NOTES_MARKER = "<!-- From here on written by hand, and kept by `make manual`. -->"
_DIFFERENCES_NOTE = (
    "<!-- Made by `make manual` from scrapyd_dist/differences.py. Change the table there. -->"
)
_DIFFERENCES_HEAD = """# What changes in many processes

A spider stays as it is, and most of what a project uses means what it means with \
`scrapy crawl`: *same*.
Where many processes make a difference, either the crawl is *refused* before anything starts, \
or the difference is *reported*:
by `sdist plan`, at the start of `sdist crawl` (in the log of `scrapy crawl`), at its end, \
and in its report.
This page lists all that is noticed, how, and what to do. In the JSON of `sdist plan` and of a
[crawl's summary](json.md#the-summary-of-a-crawl), `differences` has the rows that concern a \
project; there, `told` stands for *reported*."""
#: how the page calls what becomes of something
_MEANING_WORDS: Mapping[differences.Meaning, str] = {
    differences.Meaning.SAME: "same",
    differences.Meaning.TOLD: "reported",
    differences.Meaning.REFUSED: "refused",
}
#: the tree of the site
_TREE = "```{toctree}\n:hidden:\n:glob:\n\n*\n```"
#: the options that the help of a command shows first
_FIRST_PANEL = "Options"
_EXAMPLES = re.compile(r"^Example: (.*\n(?:Example: .*\n)*)", re.MULTILINE)
#: definitions between two markers, the first of which has their heading
_DEFINITIONS = re.compile(
    r"(?P<start><!-- settings: (?P<heading>[^\n]+) -->)\n.*?(?P<end><!-- end of settings -->)",
    re.DOTALL,
)
#: names between two markers, the first of which has their system
_NAMES = re.compile(
    r"(?P<start><!-- names of (?P<system>[^\n]+) -->)\n.*?(?P<end><!-- end of names -->)", re.DOTALL
)
_CODES = re.compile(r"^Exit codes:\n((?: *\d+  .*\n)+)", re.MULTILINE)
_CODE = re.compile(r"^ *(\d+)  ", re.MULTILINE)


def read_notes(folder: Path) -> dict[str, str]:
    """Return what is written by hand on the pages of commands, by file name."""
    notes = {}
    for path in folder.glob("*.md"):
        _, _, text = path.read_text("utf-8").partition(_NOTES_MARKER)
        notes[path.name] = text.strip()
    return notes


def pages(notes: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each page, by file name: for each command, and for the list of them.

    Args:
        notes: file name -> what is written by hand; it ends the page.
    """
    parts = [_NOTE, "# The commands of sdist"]
    for panel, group in groupby(COMMANDS.items(), key=lambda row: row[1].panel):
        lines = [f"## {panel}", "", "| command | what it does |", "|---|---|"]
        for name, entry in group:
            lines.append(f"| [`sdist {name}`]({name}.md) | {entry.summary} |")
            lines += _verbs(name)
        parts.append("\n".join(lines))
    lines = ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    for code, meaning in MEANINGS.items():
        line = f"| {code} | {meaning} |"
        lines.append(line)
    parts += ["\n".join(lines), _TREE]
    texts = {"README.md": "\n\n".join(parts) + "\n"}
    for name in COMMANDS:
        texts[f"{name}.md"] = page(name)
    for name, text in texts.items():
        if notes.get(name):
            texts[name] = f"{text}\n{_NOTES_MARKER}\n\n{notes[name]}\n"
    return texts


def _verbs(group: str) -> Iterator[str]:
    """Generate a row for each verb of a group, which leads to its section."""
    for verb, command in getattr(load(group), "commands", {}).items():
        summary = " ".join(command.help.partition("\n\n")[0].split())
        yield f"| [`sdist {group} {verb}`]({group}.md#sdist-{group}-{verb}) | {summary} |"


def page(name: str) -> str:
    """Return the generated page of a command, with those below it."""
    text = "\n\n".join(_command_parts(load(name), f"sdist {name}", level=1))
    text = _EXAMPLES.sub(_example_block, text + "\n")
    text = _CODES.sub(_code_list, text).replace("\\[", "[")
    return f"{_NOTE}\n\n{text.strip()}\n\n[All commands](README.md)\n"


def _command_parts(command: Any, path: str, *, level: int) -> Iterator[str]:
    """Generate the paragraphs and lists of a command, then those of the commands below it."""
    context = typer.Context(command, help_option_names=["-h", "--help"])
    yield f"{'#' * level} `{path}`"
    if command.help:
        yield command.help.strip()
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"```console\n$ {usage}\n```"
    for panel, lines in _options_by_panel(command, context).items():
        yield f"**{panel}**:"
        yield "\n".join(lines)
    if command.epilog:
        yield command.epilog.strip("\n")
    for verb, inner in getattr(command, "commands", {}).items():
        yield from _command_parts(inner, f"{path} {verb}", level=level + 1)


def _options_by_panel(command: Any, context: typer.Context) -> dict[str, list[str]]:
    """Return a line for each argument and option, by the panel of the help that shows it."""
    panels: dict[str, list[str]] = {"Arguments": [], _FIRST_PANEL: []}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is None:
            continue
        names, text = record
        panel = getattr(param, "rich_help_panel", None) or _FIRST_PANEL
        if param.param_type_name == "argument":
            panel = "Arguments"
        panels.setdefault(panel, []).append(f"* `{names}`: {text}")
    return {panel: lines for panel, lines in panels.items() if lines}


def _example_block(found: re.Match[str]) -> str:
    lines = found[1].replace("Example: ", "")
    return f"Example:\n\n{indent(lines, '    ')}"


def _code_list(found: re.Match[str]) -> str:
    lines = _CODE.sub(r"* `\1`: ", found[1])
    return f"Exit codes:\n\n{lines}"


def settings_page(text: str) -> str:
    """Return `docs/reference/settings.md` with the definitions of today between their markers."""
    return _DEFINITIONS.sub(_definitions, text)


def _definitions(found: re.Match[str]) -> str:
    parts = [found["start"]]
    for row in GROUPS[found["heading"]]:
        parts += _definition(row)
    parts.append(found["end"])
    return "\n\n".join(parts)


def _definition(row: Setting) -> Iterator[str]:
    """Generate the heading of a setting, its default with its other names, and what it means."""
    yield f"### `{row.name}`"
    facts = [f"Default: `{row.default_text}`" if row.default_text else "Not set by default"]
    if row.option:
        facts.append(f"option `{row.option}`")
    if row.cluster:
        facts.append(f"in Scrapy Cluster `{row.cluster}`")
    yield "; ".join(facts) + "."
    yield f"{as_sentence_start(row.help)}."


def related_names_page(text: str) -> str:
    """Return `docs/coming-from/frontera.md` with the names of today between their markers."""
    return _NAMES.sub(_related_names, text)


def _related_names(found: re.Match[str]) -> str:
    system = found["system"]
    instead = {
        name: text.format(value="…") for name, text in related_names.SETTINGS_OF[system].items()
    }
    for name, (owner, text) in {**related_names.META, **related_names.OPTIONS}.items():
        if owner == system:
            instead[name] = as_sentence_start(text)
    lines = [f"- `{name}`: {text.removesuffix('.')}." for name, text in instead.items()]
    return "\n\n".join([found["start"], "\n".join(lines), found["end"]])


def differences_page() -> str:
    """Return `docs/reference/what-changes.md`.

    It lists what settings and components of a project mean in a distributed crawl.
    """
    parts = [_DIFFERENCES_NOTE, _DIFFERENCES_HEAD]
    for heading, rows in differences.GROUPS.items():
        parts.append(f"## {heading}")
        for row in rows:
            noticed = f"Noticed by {row.noticed}." if row.noticed else "In every crawl."
            word = _MEANING_WORDS[row.meaning]
            parts += [f"### {row.name}", f"*{word.capitalize()}.* {noticed}", row.sentence]
    return "\n\n".join(parts) + "\n"


def write(folder: Path) -> None:
    """Write the pages of commands, and bring the others up to date.

    Pages of commands that are gone are removed.

    Args:
        folder: `docs/reference/commands`, or one in a copy of `docs`.
    """
    reference = folder.parent
    _rewrite(reference / "settings.md", settings_page)
    _rewrite(reference.parent / "coming-from" / "frontera.md", related_names_page)
    (reference / "what-changes.md").write_text(differences_page(), encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    texts = pages(read_notes(folder))
    for old in folder.glob("*.md"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _rewrite(path: Path, make_page: Callable[[str], str]) -> None:
    path.write_text(make_page(path.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
