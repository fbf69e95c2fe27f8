"""What a project's settings say: read from their file, or by a process that runs them."""

import ast
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from scrapyd_dist.python_process import command_of_code
from scrapyd_dist.settings import SETTINGS
from scrapyd_dist.syntax_trees import parse_module

#: seconds that the project's settings may take to load
SETTINGS_TIMEOUT = 60


def written_names(root: Path, module: str) -> list[str]:
    """Return the names that a settings module gives values to, outside of blocks.

    The module is read, not imported.
    """
    return [name for name, _ in _assignments(root, module)]


def written_setting(root: Path, module: str, name: str) -> ast.expr | None:
    """Return the value that a settings module gives a name last.

    The module is read, not imported: that could take seconds, or fail. None where it does not give
    the name a value, or cannot be read; the command that loads the settings says why.
    """
    last: ast.expr | None = None
    for written, value in _assignments(root, module):
        if written == name:
            last = value or last
    return last


def written_number(root: Path, module: str, name: str) -> float:
    """Return a setting, if the module gives it as a plain number; else its default."""
    row = SETTINGS[name]
    found = written_setting(root, module, row.name)
    if not isinstance(found, ast.Constant) or isinstance(found.value, bool):
        return float(row.default)
    if not isinstance(found.value, int | float) or found.value < 0:
        return float(row.default)
    return float(found.value)


def _assignments(root: Path, module: str) -> Iterator[tuple[str, ast.expr | None]]:
    """Generate the assignments of a module of the project, outside of blocks: name and value.

    The value is None for a name that has only an annotation.
    """
    for node in _statements(root, module):
        targets: Sequence[ast.expr] = ()
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets = node.targets
            value = node.value
        elif isinstance(node, ast.AnnAssign):
            targets = (node.target,)
            value = node.value
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, value


def _statements(root: Path, module: str) -> list[ast.stmt]:
    """Return the statements of a module of the project; none if it cannot be read."""
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            try:
                return parse_module(file.read_bytes()).body
            except (OSError, ValueError, SyntaxError):
                return []
    return []


def code_of_setting(name: str) -> str:
    """Return code that prints a setting of the project, as `scrapy settings --get` does."""
    return f"from scrapy.cmdline import execute; execute(['scrapy', 'settings', '--get', {name!r}])"


def with_settings(root: Path, code: str) -> tuple[list[str], str]:
    """Run Python code that loads the project's settings, and so runs the project's code.

    It runs in a process of its own. Returns the lines of its output, and the reason if it failed.
    """
    try:
        done = subprocess.run(
            command_of_code(code),
            cwd=root,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=SETTINGS_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return [], f"they did not load within {SETTINGS_TIMEOUT} seconds"
    lines = done.stdout.strip().splitlines()
    if not done.returncode:
        return lines, ""
    reasons = done.stderr.strip().splitlines() or ["it gave no reason"]
    return lines, reasons[-1].rstrip(".")
