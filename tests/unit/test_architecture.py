"""The walks of docs/internals/architecture.md: each file is there, and they pass as many as they say.

A walk is a table of steps and files below a line that ends in `: N files.`
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "internals" / "architecture.md").read_text("utf-8")
#: a table whose second column has files
TABLE = re.compile(r"^\| step \| files \|\n\|[-|]+\|\n((?:\|.*\n)+)", re.MULTILINE)
#: what stands above the table of a walk
TITLE = re.compile(r"\*\*(?P<title>[^*]+): (?P<count>\d+) files\.\*\*[^|]*\Z")
#: where the packages lie
FOLDERS = (ROOT, ROOT / "scrapyd_dist")


def find_folders(name: str) -> list[Path]:
    """Return the folders that a path means."""
    return [path for folder in FOLDERS if (path := folder / name).is_dir()]


class Walk(NamedTuple):
    """A walk as the document tells it."""

    title: str
    size: int  #: in files, as its title says
    files: list[str]


def files_in(table: str) -> list[str]:
    """Return the names in the second column of a table."""
    names: list[str] = []
    for row in table.splitlines():
        names += re.findall(r"`([\w/]+)`", row.split("|")[2])
    return names


def find_walks() -> list[Walk]:
    """Return the walks of the document, in its order."""
    found = []
    for table in TABLE.finditer(DOCUMENT):
        title = TITLE.search(DOCUMENT[: table.start()])
        if title is not None:
            found.append(Walk(title["title"], int(title["count"]), files_in(table[1])))
    return found


WALKS = find_walks()


def find_module(name: str) -> list[Path]:
    """Return the modules that a name means: a path without its suffix, or what stands at its end."""
    if "/" in name:
        return [path for folder in FOLDERS if (path := folder / f"{name}.py").is_file()]
    parts = ("cli", "deploy", "middlewares", "scrapyd_dist")
    return [path for part in parts for path in (ROOT / part).rglob(f"{name}.py")]


def test_each_path_in_the_text_is_there() -> None:
    packages = {path.name for folder in FOLDERS for path in folder.iterdir() if path.is_dir()}
    paths = re.findall(r"`(\w+/[\w/]*\w)(?:\.py)?`", DOCUMENT)
    own = [path for path in paths if path.partition("/")[0] in packages]
    assert len(own) > 40
    assert [path for path in own if not find_module(path) and not find_folders(path)] == []


def test_the_walks_are_found() -> None:
    assert [walk.title for walk in WALKS] == [
        "A URL in pull",
        "The start of its worker",
        "An option of `sdist crawl`",
        "A command begins and ends",
        "A call from an event loop",
        "A drained node",
    ]


@pytest.mark.parametrize("table", TABLE.findall(DOCUMENT), ids=lambda table: table.split("|")[1])
def test_each_file_of_a_table_is_there(table: str) -> None:
    names = files_in(table)
    assert names
    assert [name for name in names if len(find_module(name)) != 1] == []


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.title)
def test_a_walk_passes_as_many_files_as_it_says_and_none_twice(walk: Walk) -> None:
    modules = [find_module(name)[0] for name in walk.files]
    assert [path.name for path in modules if modules.count(path) > 1] == []
    assert len(modules) == walk.size
