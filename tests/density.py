"""Counts how packed the program's source is: `python tests/density.py [FOLDER]` prints one line per top folder, and one for all."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("scrapyd_dist", "middlewares", "deploy", "cli")
COLUMNS = 100

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.match_case,
)


@dataclass
class Density:
    """What was counted in some files; counts add up."""

    statements: int = 0
    comprehensions: int = 0
    conditionals: int = 0
    #: conditional expressions inside another
    nested: int = 0
    #: `a, b = x, y`
    packed: int = 0
    functions: int = 0
    #: functions of a complexity over 10
    complicated: int = 0
    lines: int = 0
    long_lines: int = 0
    skips: int = 0
    public: int = 0
    #: public functions and methods whose docstring is a sentence
    documented: int = 0

    def add(self, other: Density) -> None:
        """Add the counts of other files."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def per_100_statements(self, count: int) -> float:
        """Return a count per 100 statements."""
        return 100 * count / max(self.statements, 1)

    @property
    def long_percent(self) -> float:
        """Return the share of lines over 100 columns, in percent."""
        return 100 * self.long_lines / max(self.lines, 1)

    @property
    def documented_percent(self) -> float:
        """Return the share of public functions with a docstring, in percent."""
        return 100 * self.documented / max(self.public, 1)


def complexity(function: ast.AST) -> int:
    """Return 1 and one more for each branch, loop, handler, operator `and` or `or`, conditional expression and comprehension.

    What is inside a function that it defines counts as its own, the inner definition does not.
    """
    paths = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            paths += 1
        elif isinstance(node, ast.BoolOp):
            paths += len(node.values) - 1
        elif isinstance(node, COMPREHENSIONS):
            paths += sum(1 + len(generator.ifs) for generator in node.generators)
    return paths


def is_sentence(docstring: str | None) -> bool:
    """Whether a docstring opens with several words and a full stop, a question mark or a colon."""
    summary = (docstring or "").strip().partition("\n\n")[0]
    return len(summary.split()) > 1 and summary[-1] in ".?:!"


def _holds_another(node: ast.IfExp) -> bool:
    return any(isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node)


def _is_packed(node: ast.Assign) -> bool:
    return isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def count(source: str) -> Density:
    """Count one file, by its text."""
    lines = source.splitlines()
    density = Density(lines=len(lines))
    for line in lines:
        density.long_lines += len(line) > COLUMNS
        density.skips += "fmt: skip" in line or "fmt: off" in line
    for node in ast.walk(ast.parse(source)):
        density.statements += isinstance(node, ast.stmt)
        density.comprehensions += isinstance(node, COMPREHENSIONS)
        if isinstance(node, ast.IfExp):
            density.conditionals += 1
            density.nested += _holds_another(node)
        elif isinstance(node, ast.Assign):
            density.packed += _is_packed(node)
        elif isinstance(node, FUNCTIONS):
            density.functions += 1
            density.complicated += complexity(node) > 10
            if not node.name.startswith("_"):
                density.public += 1
                density.documented += is_sentence(ast.get_docstring(node))
    return density


def source_files(folder: Path) -> Iterator[Path]:
    """Give the Python files below a folder, the hidden ones left out."""
    for path in sorted(folder.rglob("*.py")):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def count_folder(folder: Path) -> Density:
    """Count all files below a folder."""
    density = Density()
    for path in source_files(folder):
        density.add(count(path.read_text("utf-8")))
    return density


def describe(density: Density) -> str:
    """Return the figures of one row."""
    return (
        f"{density.statements:7d} statements: "
        f"{density.per_100_statements(density.comprehensions):4.1f} comprehensions and "
        f"{density.per_100_statements(density.conditionals):4.1f} conditional expressions per 100, "
        f"{density.nested} nested, {density.packed} packed assignments, {density.complicated} of "
        f"{density.functions} functions over 10, {density.long_percent:.1f} % long lines, "
        f"{density.skips} fmt: skip, {density.documented_percent:.0f} % documented"
    )


def main() -> None:
    """Print the figures of each folder, and of all."""
    folders = [Path(name) for name in sys.argv[1:]] or [ROOT / name for name in FOLDERS]
    total = Density()
    for folder in folders:
        density = count_folder(folder)
        total.add(density)
        print(f"{folder.name:14}{describe(density)}")
    print(f"{'all':14}{describe(total)}")


if __name__ == "__main__":
    main()
