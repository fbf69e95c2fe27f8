"""The documents name what the code has, and nothing else; tests/parity.md answers each of its rows."""

import ast
import re
import runpy
from functools import cache
from pathlib import Path

import pytest

from scrapyd_dist.settings import SETTINGS

ROOT = Path(__file__).parents[2]
SETTING = re.compile(r"DISTRIBUTED_[A-Z_]+[A-Z]")
PARITY = ROOT / "tests" / "parity.md"
#: a line of the table: id, what one relies on, answer, how it is done here, tests
ROW = re.compile(r"^\| ([A-Z]\d+[a-z]?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
ROWS = {
    row: (answer, here, shown)
    for row, _, answer, here, shown in ROW.findall(PARITY.read_text("utf-8"))
}
#: rows of each system, which are numbered from 1: so none is left out unseen
ROWS_OF = {"L": 19, "D": 12, "H": 38, "C": 29, "B": 9, "W": 16, "F": 21, "N": 18}
#: rows between two numbers
ROWS_BETWEEN = ["L1b", "L1c"]


def settings_in(*paths: Path) -> set[str]:
    return {name for path in paths for name in SETTING.findall(path.read_text("utf-8"))}


CODE = (
    settings_in(*(ROOT / "middlewares").rglob("*.py"), ROOT / "scrapyd_dist" / "payload.py")
    | SETTINGS.keys()
)
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), PARITY]
)


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_row_has_one_answer() -> None:
    numbered = [f"{system}{row + 1}" for system, count in ROWS_OF.items() for row in range(count)]
    found = [row for row, *_ in ROW.findall(PARITY.read_text("utf-8"))]
    assert sorted(found) == sorted([*numbered, *ROWS_BETWEEN])


@pytest.mark.parametrize("row", sorted(ROWS))
def test_an_answer_names_its_tests_or_says_why_it_is_no(row: str) -> None:
    answer, here, shown = ROWS[row]
    assert answer in ("yes", "partly", "no")
    assert ("Not here: " in here) == (answer == "partly")
    if answer == "no":
        assert re.match(r"because (\S+ ){3}", here)
    names = re.findall(r"`([^`]+)`", shown)
    assert names or answer == "no"
    for name in names:
        module, _, test = name.partition("::")
        found = list((ROOT / "tests").glob(f"*/{module}.py"))
        assert len(found) == 1, f"{module} is in {found}"
        assert test in names_in(found[0]), name


def test_every_setting_is_documented_and_every_documented_one_is_read() -> None:
    assert settings_in(ROOT / "docs" / "reference" / "settings.md") == CODE


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_between_documents_lead_somewhere(path: str) -> None:
    source = ROOT / path
    for target in re.findall(r"\]\(([^)#]+)\)", source.read_text("utf-8")):
        if "://" not in target:
            assert (source.parent / target).exists(), target


def test_pictures_fetch_nothing() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "docs" / "pictures").glob("*.svg")]
    assert texts
    assert [text for text in texts if "@font-face" in text or "url(http" in text] == []


def test_the_diagram_is_as_its_program_draws_it() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "diagram.py"))
    assert drawn["PICTURE"].read_text("utf-8") == drawn["draw"]()


def test_the_benchmarks_that_make_runs_are_those_that_the_page_quotes() -> None:
    page = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text("utf-8")
    rules = (ROOT / "Makefile").read_text("utf-8")
    made = set(re.findall(r"python benchmarks/(\w+\.py)", rules))
    assert len(made) == 7
    assert set(re.findall(r"benchmarks/(\w+\.py)", page)) == made
