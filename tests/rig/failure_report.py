"""What a failed test saw: its commands with their output, and the last lines of the logs of producers and nodes."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from .commands import LINES as COMMAND_LINES
from .nodes import ScrapydNode

#: lines of each file that are shown, the last ones
LINES = 25
#: files of each kind that are shown, those that were written last
FILES = 6


def describe_failure(folder: Path, fixtures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Title and text of each section of the report.

    Args:
        folder: the test's own, with its projects and its nodes.
        fixtures: the values of its fixtures; they hold the nodes that the tests of a module share.
    """
    for line in _newest(folder.glob(f"*{COMMAND_LINES}/*")):
        output = line.parent.with_name(line.parent.name.removesuffix(COMMAND_LINES)) / line.name
        text = _last_lines(output.with_suffix(".out")) + _last_lines(output.with_suffix(".err"))
        yield f"command: {line.read_text(encoding='utf-8')}", text
    logs = list(folder.glob("**/.sdist/crawls/*/producer.log"))
    for log in _newest(logs):
        yield f"producer: {log.parent.name}", _last_lines(log)
    # Of jobs that a test starts without a node.
    for log in _newest(folder.glob("project*/logs/*/*/*.log")):
        yield f"job without a node: {log.stem}", _last_lines(log)
    for node in _nodes_in(fixtures.values()):
        yield f"{node.name}: {node.url}", _tail(node.log)
        for log in _newest(node.logs_dir.glob("*/*/*.log")):
            yield f"{node.name}: job {log.stem}", _last_lines(log)


class FailurePrinter:
    """A pytest plugin that prints what a failed row saw at once: a run of an hour prints it at its end otherwise."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called three times for each row: setup, call and teardown."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or not report.failed:
            return
        terminal.write_line("")
        terminal.write_sep("=", f"FAILED {report.nodeid} ({report.when})", red=True)
        terminal.write_line(report.longreprtext)
        for title, text in report.sections:
            terminal.write_sep("-", title)
            terminal.write_line(text)


def _nodes_in(values: Iterable[Any]) -> list[ScrapydNode]:
    """The nodes among these values, in lists of them, and of the makers of nodes. Each once."""
    found: dict[int, ScrapydNode] = {}
    for value in values:
        owner = getattr(value, "__self__", value)  # the fixture `fleet` is a method of the maker
        several = getattr(owner, "nodes", owner)
        for one in several if isinstance(several, list | tuple) else [several]:
            if isinstance(one, ScrapydNode):
                found[id(one)] = one
    return list(found.values())


def _newest(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime)[-FILES:]


def _last_lines(path: Path) -> str:
    return _tail(path.read_text(encoding="utf-8", errors="replace")) if path.exists() else ""


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-LINES:]) + "\n"
