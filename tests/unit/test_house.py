"""The house rules that code can check: names, waiting for events, and documents that have their shape."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from density import FOLDERS, Density, count_folder
from rig.documents import NUMBER, misfits

ROOT = Path(__file__).parents[2]
SOURCE = [
    path
    for top in ("scrapyd_dist", "cli", "middlewares", "deploy")
    for path in (ROOT / top).rglob("*.py")
]
#: words that a search finds everywhere: no function, parameter, variable or field is called so
BARE_WORDS = {
    *("look", "take", "tell", "told", "of", "its", "some", "fate", "wish", "deaf", "guest"),
    *("meant", "said", "heard", "there", "much", "fine"),
}
#: names that mean the same in every folder
COMMON_MODULES = {"__init__"}


def several(found: Iterable[tuple[str, object]]) -> set[str]:
    """The names that are found in more than one place."""
    places = defaultdict(set)
    for name, place in found:
        places[name].add(place)
    return {name for name, where in places.items() if len(where) > 1}


def test_a_class_name_stands_in_one_file() -> None:
    trees = [(path, ast.parse(path.read_text("utf-8"))) for path in SOURCE]
    classes = [
        (node.name, path)
        for path, tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    assert several(classes) == set()


def test_a_module_name_stands_in_one_folder() -> None:
    assert several((path.stem, path.parent) for path in SOURCE) <= COMMON_MODULES


@pytest.mark.parametrize("folder", ["unit", "contract", "acceptance", "fidelity", "rig", "faults"])
def test_tests_wait_for_events_and_not_for_time_to_pass(folder: str) -> None:
    for path in (ROOT / "tests" / folder).rglob("*.py"):
        calls = [
            node.func
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call)
        ]
        assert "time.sleep" not in map(ast.unparse, calls), path


@pytest.mark.parametrize(
    ("value", "shape", "found"),
    [
        (None, (str, None), []),
        (1.5, NUMBER, []),
        ([], [int], []),
        ({"a": 1}, {"a": int, "more?": int}, []),
        ({"a": 1, "more": ""}, {"a": int, "more?": int}, ["$.more: '' is not int"]),
        ({"a": 1, "more": 2}, {"a": int}, ["$.more: is not in the shape"]),
        ({"x": [1]}, {str: [int]}, []),
        (True, int, ["$: True is not int"]),
        (1, bool, ["$: 1 is not bool"]),
        ("1", NUMBER, ["$: '1' is not int"]),
        ({"a": 1}, [int], ["$: {'a': 1} is not a list"]),
        ([1, "2"], [int], ["$[1]: '2' is not int"]),
        ({}, {"a": int}, ["$.a: is not there"]),
        ({"a": {"b": None}}, {"a": {"b": str}}, ["$.a.b: None is not str"]),
        ({"a": ""}, {str: int}, ["$.a: '' is not int"]),
        ([], {"a": int}, ["$: [] is not an object"]),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(value: Any, shape: Any, found: list[str]) -> None:
    assert misfits(value, shape) == found


def bare_names(tree: ast.AST) -> Iterable[str]:
    """The bare words that a module gives to functions, parameters, variables and fields."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        else:
            continue
        if name.strip("_") in BARE_WORDS:
            yield name.strip("_")


def test_names_can_be_searched() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCE
        for name in bare_names(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


def test_the_source_is_not_packed() -> None:
    density = Density()
    for folder in FOLDERS:
        density.add(count_folder(ROOT / folder))
    assert density.nested == 0
    assert density.packed <= 20
    assert density.complicated == 0
    assert density.skips == 0
    assert density.long_percent <= 2
    assert density.documented_percent >= 90
    assert density.per_100_statements(density.comprehensions) <= 2.0
    assert density.per_100_statements(density.conditionals) <= 1.5


def written_outside(tree: ast.AST) -> Iterable[str]:
    """The attributes that a module writes, of objects that are not its own `self`."""
    for node in ast.walk(tree):
        written = node
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            written = node.value
        elif not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
            continue
        if isinstance(written, ast.Attribute) and ast.unparse(written.value) != "self":
            yield ast.unparse(written)


def test_the_state_of_a_scheduler_is_written_by_its_owners_alone() -> None:
    """Others call a method that says what has happened."""
    found = []
    for path in SOURCE:
        names = set(written_outside(ast.parse(path.read_text("utf-8"))))
        if not path.is_relative_to(ROOT / "scrapyd_dist" / "scheduling"):
            names = {name for name in names if re.search(r"\b(member|scheduler|state)\.", name)}
        found += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    assert found == []
