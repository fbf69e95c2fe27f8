"""`make manual`: writes a page of Markdown for each command, and the tables of settings.

The pages are as Typer writes them; tests compare them with the code.
"""

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import indent

import typer
from typer.cli import get_docs_for_click

from scrapyd_dist import differences
from scrapyd_dist.settings import GROUPS, Setting

from .commands import COMMANDS, MEANINGS, load

_NOTE = (
    "<!-- Made from the code by `make manual`. Change the help texts of the command instead. -->"
)
_DIFFERENCES_NOTE = (
    "<!-- Made by `make manual` from scrapyd_dist/differences.py. Change the table there. -->"
)
_DIFFERENCES_HEAD = """# What changes in many processes

A spider stays as it is, and most of what a project uses means what it means with \
`scrapy crawl`: *same*.
Where many processes make a difference, the crawl is *refused* before anything starts, \
or it is *told*: by
`sdist plan`, at the start of `sdist crawl` (in the log of `scrapy crawl`), at its end, \
and in its report.
This page lists all that is noticed, how, and what to do. In the JSON of `sdist plan` and of a
[crawl's summary](summary.md) the rows that concern a project are `differences`."""
#: the tree of the site
_TREE = "```{toctree}\n:hidden:\n:glob:\n\n*\n```"
_EXAMPLES = re.compile(r"^Example: (.*\n(?:Example: .*\n)*)", re.MULTILINE)
#: a table behind the marker with its heading
_TABLE = re.compile(r"(<!-- settings: (.+) -->)\n(?:\n(?:\|.*\n)+)?")
_CODES = re.compile(r"^Exit codes:\n((?: *\d+  .*\n)+)", re.MULTILINE)
_CODE = re.compile(r"^ *(\d+)  ", re.MULTILINE)


def pages() -> dict[str, str]:
    """Return the text of each page, by file name: for each command, and for the list of them."""
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
    return texts


def _verbs(group: str) -> Iterator[str]:
    """Generate a row for each verb of a group, which leads to its section."""
    for verb, command in getattr(load(group), "commands", {}).items():
        summary = " ".join(command.help.partition("\n\n")[0].split())
        yield f"| [`sdist {group} {verb}`]({group}.md#sdist-{group}-{verb}) | {summary} |"


def page(name: str) -> str:
    """Return the page of a command, with those below it."""
    command = load(name)
    context = typer.Context(command, help_option_names=["-h", "--help"])
    text = get_docs_for_click(obj=command, ctx=context, name=name, call_prefix="sdist")
    text = _EXAMPLES.sub(_example_block, text + "\n")
    text = _CODES.sub(_code_list, text).replace("\\[", "[")
    end = "[All commands](README.md) · [what they are for](../commands.md)"
    return f"{_NOTE}\n\n{text.strip()}\n\n{end}\n"


def _example_block(found: re.Match[str]) -> str:
    lines = found[1].replace("Example: ", "")
    return f"Example:\n\n{indent(lines, '    ')}"


def _code_list(found: re.Match[str]) -> str:
    lines = _CODE.sub(r"* `\1`: ", found[1])
    return f"Exit codes:\n\n{lines}"


def settings_page(text: str) -> str:
    """Return `docs/reference/settings.md` with the tables of today behind their markers."""
    return _TABLE.sub(lambda found: f"{found[1]}\n\n{_settings_table(GROUPS[found[2]])}\n", text)


def _settings_table(rows: tuple[Setting, ...]) -> str:
    heading = "Scrapy Cluster's" if any(row.cluster for row in rows) else "option"
    lines = [f"| setting | {heading} | default | meaning |", "|---|---|---|---|"]
    for row in rows:
        name = _as_code(row.name)
        second = _as_code(row.cluster or row.option)
        default = _as_code(row.default_text)
        line = f"| {name} | {second} | {default} | {row.help} |"
        lines.append(re.sub(" +", " ", line))
    return "\n".join(lines)


def _as_code(text: str) -> str:
    return f"`{text}`" if text else ""


def differences_page() -> str:
    """Return `docs/reference/what-changes.md`.

    It lists what settings and components of a project mean in a distributed crawl.
    """
    parts = [_DIFFERENCES_NOTE, _DIFFERENCES_HEAD]
    for heading, rows in differences.GROUPS.items():
        lines = [f"## {heading}", "", "| what | noticed by | | meaning |", "|---|---|---|---|"]
        for row in rows:
            noticed = row.noticed or "always"
            lines.append(f"| {row.name} | {noticed} | {row.meaning.value} | {row.sentence} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def write(folder: Path) -> None:
    """Write all pages, and bring the two pages of tables beside the folder up to date.

    Pages of commands that are gone are removed.
    """
    settings = folder.parent / "settings.md"
    settings.write_text(settings_page(settings.read_text("utf-8")), encoding="utf-8")
    (folder.parent / "what-changes.md").write_text(differences_page(), encoding="utf-8")
    texts = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
