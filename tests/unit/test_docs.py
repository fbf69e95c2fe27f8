"""The documents name what the code has, and nothing else; each row of docs/parity.md names tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from scrapyd_dist.settings import SETTINGS

ROOT = Path(__file__).parents[2]
SETTING = re.compile(r"DISTRIBUTED_[A-Z_]+[A-Z]")
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
ROWS = {row: (here, shown) for row, _, here, shown in ROW.findall((ROOT / "docs" / "parity.md").read_text("utf-8"))}
#: what the list of parity has to answer for
LAST = {"H": 38, "C": 14, "B": 9, "N": 18}
WANTED = [f"{letter}{number}" for letter, last in LAST.items() for number in range(1, last + 1)] + ["L12", "L18", "W5"]


def settings_in(*paths: Path) -> set[str]:
    return {name for path in paths for name in SETTING.findall(path.read_text("utf-8"))}


CODE = settings_in(*(ROOT / "middlewares").rglob("*.py"), ROOT / "scrapyd_dist" / "payload.py") | SETTINGS.keys()
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_row_is_answered_once() -> None:
    lines = ROW.findall((ROOT / "docs" / "parity.md").read_text("utf-8"))
    assert sorted(row for row, *_ in lines) == sorted(WANTED)


@pytest.mark.parametrize("row", sorted(ROWS))
def test_a_row_names_its_tests_or_says_why_it_has_none(row: str) -> None:
    here, shown = ROWS[row]
    if shown == "-":
        assert "does not apply" in here.lower()
        return
    names = re.findall(r"`([^`]+)`", shown)
    assert names
    for name in names:
        module, _, test = name.partition("::")
        found = list((ROOT / "tests").glob(f"*/{module}.py"))
        assert len(found) == 1, f"{module} is in {found}"
        assert test in names_in(found[0]), name


def test_every_setting_is_documented_and_every_documented_one_is_read() -> None:
    assert settings_in(ROOT / "docs" / "settings.md") == CODE


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
