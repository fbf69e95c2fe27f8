"""What imports what: no two modules lead to each other, and a package imports only those below it.

A circle can only be read, tested and changed as a whole.
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: folder -> the package that it installs as
FOLDERS = {
    "scrapyd_dist": "scrapyd_dist",
    **{name: f"scrapyd_dist.{name}" for name in ("middlewares", "deploy", "cli")},
}
DOCUMENT = (ROOT / "docs" / "internals" / "architecture.md").read_text("utf-8")
SECTION = DOCUMENT.partition("## Which package may import which")[2].partition("\n## ")[0]
#: as the document has it, the lowest first; a module is of the longest name here that its own begins with
ORDER = re.findall(r"^\d+\. `([\w.]+)`", SECTION, re.MULTILINE)
#: what users name or start; they lead to where that is, and nothing of ours imports them
DOORS = {"scrapyd_dist", "scrapyd_dist.__main__"}


def modules() -> dict[str, Path]:
    """All modules by their dotted names."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that a module imports: at the top, inside functions, and for types only."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = {alias.name: f"{base}.{alias.name}" for alias in node.names}
            found |= {full if full in known else base for full in inside.values()}
    return {one for one in found if one in known and one != name}


@pytest.fixture(scope="module")
def known() -> dict[str, Path]:
    return modules()


@pytest.fixture(scope="module")
def imports(known: dict[str, Path]) -> dict[str, set[str]]:
    """The modules that each module of ours imports."""
    return {name: imported(name, path, known) for name, path in known.items()}


def test_no_modules_import_each_other_in_a_circle(
    known: dict[str, Path], imports: dict[str, set[str]]
) -> None:
    assert len(known) > 100  # all folders were found
    assert (
        "scrapyd_dist.middlewares.producer.crawl_run"
        in imports["scrapyd_dist.middlewares.producer.producer"]
    )
    circle: list[str] = []
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle == []


def place(name: str) -> int:
    """Where in the order a module is."""
    return ORDER.index(
        max((package for package in ORDER if f"{name}.".startswith(f"{package}.")), key=len)
    )


def test_each_package_imports_only_packages_below_it(
    known: dict[str, Path], imports: dict[str, set[str]]
) -> None:
    packages = {name for name, path in known.items() if path.name == "__init__.py"}
    assert packages <= set(ORDER), "each package has a line in docs/internals/architecture.md"
    inside = {(name, one) for name in imports.keys() - DOORS for one in imports[name]}
    assert {ORDER[place(name)] for name in imports} == set(ORDER)
    assert [
        f"{name} imports {one}"
        for name, one in sorted(inside)
        if place(one) > place(name) or one in DOORS
    ] == []
