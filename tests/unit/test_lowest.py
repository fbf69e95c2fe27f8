"""`make lowest` means what pyproject.toml promises: each lower bound there is the version that is installed for it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = dict(re.findall(r"^([a-z-]+)==([\d.]+)", (ROOT / "tests/lowest.txt").read_text("utf-8"), re.MULTILINE))
#: what builds, checks or is compared with, and is promised to nobody
TOOLS = {
    "scrapy-redis",
    "setuptools",
    "ruff",
    "mypy",
    "pytest",
    "pytest-timeout",
    "pytest-twisted",
    "pytest-xdist",
    "hypothesis",
    "pyftpdlib",
}
BOUNDS = sorted(set(re.findall(r'"([a-z-]+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))))


@pytest.mark.parametrize(("name", "bound"), [(name, bound) for name, bound in BOUNDS if name not in TOOLS])
def test_the_lowest_version_is_the_one_that_is_tested(name: str, bound: str) -> None:
    assert name in PINS, f"add {name}=={bound} to tests/lowest.txt"
    assert f"{PINS[name]}.".startswith(f"{bound}."), f"pyproject.toml promises {name} {bound}"


def test_the_bounds_are_found() -> None:
    assert {"scrapy", "treq", "scrapyd", "rich"} <= dict(BOUNDS).keys()
