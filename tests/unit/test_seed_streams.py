"""Where a strategy's seeds come from: lines of files, of standard input, of web servers and of buckets."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rig.fixtures import StartSite
from rig.http import fetch
from scrapyd_dist.cli.frontier.seed_streams import SeedsBroken, open_seeds

from scrapyd_dist.errors import ConfigError, NothingMatched

LINES = ["http://a/", "", "http://b/ä"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_a_file_and_standard_input(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\ufeff" + "\r\n".join(LINES)
    (tmp_path / "seeds.txt").write_bytes(text.encode())
    assert list(open_seeds(stack, str(tmp_path / "seeds.txt"))()) == LINES
    monkeypatch.setattr(
        sys, "stdin", stack.enter_context((tmp_path / "seeds.txt").open(encoding="utf-8"))
    )
    assert list(open_seeds(stack, "-")()) == LINES


def test_a_line_that_is_no_text_is_named(stack: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_bytes(b"http://a/\nhttp://\xff/\n")
    lines = open_seeds(stack, str(tmp_path / "seeds.txt"))()
    assert next(lines) == "http://a/"
    with pytest.raises(SeedsBroken, match=r"Line 2 of the seeds in .*seeds\.txt is not UTF-8"):
        next(lines)


def test_a_bucket(stack: ExitStack) -> None:
    memory: Any = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/bucket/seeds.txt", "\n".join(LINES).encode())
    assert list(open_seeds(stack, "memory://bucket/seeds.txt")()) == LINES
    with pytest.raises(NothingMatched, match="no seeds at memory://bucket/other"):
        open_seeds(stack, "memory://bucket/other.txt")


def test_a_web_server(stack: ExitStack, site: StartSite) -> None:
    web = site(3)
    assert (
        list(open_seeds(stack, web.start_url)()) == fetch(web.start_url).body.decode().splitlines()
    )
    with pytest.raises(NothingMatched, match=r"the server answers 404"):
        open_seeds(stack, f"{web.url}/nothing")


def test_what_cannot_be_opened_is_told(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NothingMatched, match="standard input is -"):
        open_seeds(stack, str(tmp_path / "none.txt"))
    with pytest.raises(ConfigError, match=r"has a password.*\.netrc"):
        open_seeds(stack, "https://me:secret@host/seeds")
    with pytest.raises(ConfigError, match="this one begins with nothing://"):
        open_seeds(stack, "nothing://host/seeds")
    with pytest.raises(
        ConfigError, match=r"http://127\.0\.0\.1:1/seeds cannot be read: ConnectionError"
    ):
        open_seeds(stack, "http://127.0.0.1:1/seeds?signature=1")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r'pip install "scrapyd-dist\[deliver\]"'):
        open_seeds(stack, "s3://bucket/seeds.txt")
