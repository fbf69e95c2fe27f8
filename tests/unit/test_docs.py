"""The documents name what the code has, and nothing else."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTING = re.compile(r"DISTRIBUTED_[A-Z_]+[A-Z]")


def settings_in(*paths: Path) -> set[str]:
    return {name for path in paths for name in SETTING.findall(path.read_text("utf-8"))}


CODE = settings_in(*(ROOT / "middlewares").rglob("*.py"), ROOT / "scrapyd_dist" / "payload.py")
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_every_setting_is_documented_and_every_documented_one_is_read() -> None:
    assert settings_in(ROOT / "docs" / "settings.md") == CODE


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_between_documents_lead_somewhere(path: str) -> None:
    source = ROOT / path
    for target in re.findall(r"\]\(([^)#]+)\)", source.read_text("utf-8")):
        if "://" not in target:
            assert (source.parent / target).exists(), target
