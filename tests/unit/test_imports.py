"""No two modules lead to each other: a circle can only be read, tested and changed as a whole."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: folder -> the package that it installs as
FOLDERS = {
    "scrapyd_dist": "scrapyd_dist",
    "middlewares": "scrapyd_dist.middlewares",
    "deploy": "scrapyd_dist.deploy",
    "cli": "scrapyd_dist.cli",
}


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


KNOWN = modules()
IMPORTS = {name: imported(name, path, KNOWN) for name, path in KNOWN.items()}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert len(KNOWN) > 200  # all folders were found
    assert "scrapyd_dist.middlewares.producer.run" in IMPORTS["scrapyd_dist.middlewares.producer.producer"]
    circle: list[str] = []
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle == []
