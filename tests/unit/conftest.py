"""What unit tests of the command line share: a project in the current folder, and `sdist` in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rig.commands import Result
from scrapyd_dist.cli import main


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current folder; nothing of this machine names a store or a node."""
    monkeypatch.delenv("SDIST_STORE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sdist(root: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`sdist("frontier", "count", "shop")`: exit code, standard output, standard error."""

    def run(*arguments: object) -> Result:
        code = main._run([*map(str, arguments)], debug=False)
        return Result(code, *capsys.readouterr())

    return run
