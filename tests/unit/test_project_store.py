"""Where a project's store is, as it is found without running the project's settings."""

from pathlib import Path

import pytest

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.project_store import find_store_address, maybe_store


def settings(root: Path, text: str) -> None:
    """Settings that must not be run."""
    (root / "shop").mkdir(exist_ok=True)
    (root / "shop" / "settings.py").write_text(f"raise SystemExit('it was run')\n{text}\n", "utf-8")


def test_with_nothing_said_it_is_the_file_in_the_state_folder(root: Path) -> None:
    assert find_store_address(root) == str(root / ".sdist" / "store.db")
    settings(root, "BOT_NAME = 'shop'")
    assert find_store_address(root) == str(root / ".sdist" / "store.db")
    assert maybe_store(root) is None
    assert not (root / ".sdist").exists()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("DISTRIBUTED_STORE = 'redis://:p@h/0'", "redis://:p@h/0"),
        ("DISTRIBUTED_STORE = 'a.db'\nDISTRIBUTED_STORE: str = '/b.db'", "/b.db"),
        ("A = DISTRIBUTED_STORE = '/b.db'", "/b.db"),
        ("DISTRIBUTED_STORE = None", None),
        ("# DISTRIBUTED_STORE = 'a.db'", None),
        ("DISTRIBUTED_STORE = 'a.db", None),  # the producer tells what is wrong with it
    ],
)
def test_a_setting_is_read_where_it_is_a_plain_text(
    root: Path, text: str, address: str | None
) -> None:
    settings(root, text)
    assert find_store_address(root) == (address or str(root / ".sdist" / "store.db"))


def test_the_environment_goes_before_scrapy_cfg_and_that_before_the_settings(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(root, "import os\nDISTRIBUTED_STORE = os.environ['X']")
    with pytest.raises(ConfigError, match="SDIST_STORE"):
        find_store_address(root)
    (root / "scrapy.cfg").write_text(
        "[settings]\ndefault = shop.settings\n[sdist]\nstore = $THE_STORE\n", "utf-8"
    )
    with pytest.raises(ConfigError, match="THE_STORE, which is not in the environment"):
        find_store_address(root)
    monkeypatch.setenv("THE_STORE", "redis://:%40@h/0")
    assert find_store_address(root) == "redis://:%40@h/0"
    monkeypatch.setenv("SDIST_STORE", "mine.db")
    assert find_store_address(root) == str(root / "mine.db")


def test_a_project_that_cannot_be_read_has_its_usual_store(tmp_path: Path) -> None:
    (tmp_path / "scrapy.cfg").write_text("", "utf-8")
    assert find_store_address(tmp_path) == str(tmp_path / ".sdist" / "store.db")
