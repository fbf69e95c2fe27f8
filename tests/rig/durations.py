"""How many seconds each test file takes: the record by which pytest's workers share the files, the longest first.

`make durations` writes it. A file has two numbers: one for `make test`, one for its rows of `make acceptance`.
"""

import json
from collections import defaultdict
from collections.abc import Container
from pathlib import Path

import pytest

RECORD = Path(__file__).parent.parent / "durations.json"


def read() -> dict[str, dict[str, float]]:
    """Seconds by file, of each of the two runs."""
    record: dict[str, dict[str, float]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the recorded seconds of their files; within a file the order stays."""
    record = read()
    rows: dict[str, set[str]] = defaultdict(set)
    for item in items:
        rows[_file(item.nodeid)].add(_run(item.keywords))
    # A file without a record is new, and may be long.
    seconds = {
        file: sum(record[run].get(file, 60.0) for run in runs) for file, runs in rows.items()
    }
    items.sort(key=lambda item: (-seconds[_file(item.nodeid)], _file(item.nodeid)))


class DurationRecorder:
    """A pytest plugin that adds up what each file takes, and writes the record at the end."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds: dict[str, dict[str, float]] = {
            run: defaultdict(float) for run in ("test", "acceptance")
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called three times for each test: setup, call and teardown."""
        self._seconds[_run(report.keywords)][_file(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write what was measured; what was not run keeps its number while its file exists."""
        lines = []
        for run, known in read().items():
            files = {**known, **self._seconds[run]}
            rows = [
                f'  "{file}": {files[file]:.1f}'
                for file in sorted(files)
                if (self._root / file).exists()
            ]
            lines.append(f'"{run}": {{\n' + ",\n".join(rows) + "\n}")
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _run(keywords: Container[str]) -> str:
    return "acceptance" if "black_box" in keywords else "test"


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
