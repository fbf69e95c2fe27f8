"""The test rows as their source has them: names, marks and text, read without importing a test."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A test function. A mark with an argument is `name:argument`; those of single parameters are not among them."""

    file: str
    name: str
    marks: frozenset[str]
    source: str

    @property
    def in_core(self) -> bool:
        """Whether `make test` or `make acceptance` runs it."""
        return "full" not in self.marks

    def promises(self) -> frozenset[str]:
        """The promises that it shows, each by the words in bold that it begins with."""
        return frozenset(
            mark.partition(":")[2] for mark in self.marks if mark.startswith("promise:")
        )


@cache
def read_rows() -> tuple[Row, ...]:
    """All test functions of this project."""
    return tuple(row for path in sorted(TESTS.glob("*/test_*.py")) for row in _rows_of(path))


def _rows_of(path: Path) -> Iterator[Row]:
    text = path.read_text(encoding="utf-8")
    # Not by `ast.get_source_segment`, which takes the whole file apart for each row.
    lines = text.splitlines()
    module = ast.parse(text)
    of_file = {mark for node in module.body for mark in _assigned_marks(node)}
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    owners: list[ast.Module | ast.ClassDef] = [module, *classes]
    for owner in owners:
        of_class = _marks(owner.decorator_list) if isinstance(owner, ast.ClassDef) else set()
        for node in owner.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                yield Row(
                    file=path.stem,
                    name=node.name,
                    marks=frozenset(of_file | of_class | _marks(node.decorator_list)),
                    source="\n".join(lines[node.lineno - 1 : node.end_lineno]),
                )


def _assigned_marks(node: ast.stmt) -> set[str]:
    """The marks of `pytestmark = …`."""
    if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) != "pytestmark":
        return set()
    return _marks(node.value.elts if isinstance(node.value, ast.List) else [node.value])


def _marks(expressions: list[ast.expr]) -> set[str]:
    found = set()
    for expression in expressions:
        arguments = expression.args if isinstance(expression, ast.Call) else []
        name = ast.unparse(expression.func if isinstance(expression, ast.Call) else expression)
        if name.startswith("pytest.mark."):
            words = [
                str(argument.value) for argument in arguments if isinstance(argument, ast.Constant)
            ]
            found.add(":".join([name.removeprefix("pytest.mark."), *words]))
    return found
