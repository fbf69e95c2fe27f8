"""Nothing rests on `make full` alone: each promise, each command and each row of parity has a test in the core."""

import re
from functools import cache
from pathlib import Path

import pytest
from mutants import MUTANTS
from rig.rows import Row, read_rows
from scrapyd_dist.cli.commands import CODES

ROOT = Path(__file__).parents[2]
#: the words in bold that begin a line of the list
PROMISE_LIST = (ROOT / "docs/explanation/promises.md").read_text("utf-8")
PROMISES = re.findall(r"^- \*\*(.+?)\*\*", PROMISE_LIST, re.MULTILINE)
#: row, answer, tests
PARITY = re.findall(
    r"^\| ([A-Z]\d+[a-z]?) \| .+? \| (yes|partly|no) \| .+ \| (.+?) \|$",
    (ROOT / "tests/parity.md").read_text("utf-8"), re.MULTILINE,
)  # fmt: skip


def rows_in_core() -> list[Row]:
    """The rows with real processes that each change must pass."""
    return [row for row in read_rows() if row.in_core and _path(row).exists()]


@cache
def texts_in_core() -> dict[str, str]:
    """The texts of their files, without the rows of `make full`."""
    texts = {row.file: _path(row).read_text("utf-8") for row in rows_in_core()}
    for row in read_rows():
        if not row.in_core and row.file in texts:
            texts[row.file] = texts[row.file].replace(row.source, "")
    return texts


def _path(row: Row) -> Path:
    return ROOT / "tests/acceptance" / f"{row.file}.py"


def test_the_promises_are_found() -> None:
    assert len(PROMISES) > 10


@pytest.mark.parametrize("promise", PROMISES)
def test_each_promise_has_a_row_in_the_core(promise: str) -> None:
    assert [row for row in rows_in_core() if promise in row.promises()]


def test_no_row_names_a_promise_that_is_not_made() -> None:
    assert {promise for row in read_rows() for promise in row.promises()} <= set(PROMISES)


@pytest.mark.parametrize("command", sorted(set(CODES) - {""}))
def test_each_command_is_run_by_a_row_in_the_core(command: str) -> None:
    words = command.removesuffix(" list").split()
    typed = re.compile(r"\W+".join(words))
    assert [
        text
        for text in texts_in_core().values()
        if typed.search(text) or all(f'"{word}"' in text for word in words)
    ]


@pytest.mark.parametrize(("row", "answer", "shown"), PARITY, ids=[row for row, *_ in PARITY])
def test_each_row_of_parity_has_a_test_in_the_core(row: str, answer: str, shown: str) -> None:
    named = re.findall(r"`(\w+)::(\w+)`", shown)
    core = {(row.file, row.name) for row in read_rows() if row.in_core}
    assert answer != "yes" or core.intersection(named), f"{row} rests on {named}"


@pytest.mark.parametrize("test", [mutant[-1] for mutant in MUTANTS])
def test_each_rule_that_is_broken_on_purpose_is_guarded_by_the_core(test: str) -> None:
    file, name = Path(test.partition("::")[0]).stem, test.rpartition("::")[2].partition("[")[0]
    assert (file, name) in {(row.file, row.name) for row in read_rows() if row.in_core}
