"""What the tutorial and the how-to guides tell to type, typed in its order."""

import socket
from pathlib import Path

import pytest
from rig.pages import follow, page

pytestmark = pytest.mark.black_box


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


@pytest.mark.timeout(500)
def test_the_tutorial(tmp_path: Path) -> None:
    folder = tmp_path / "tutorial"
    said = follow(page("tutorial"), folder, replaced={"9312": free_port()})
    assert lines(folder / "shop" / "homes.jl") == 1200
    assert "finished" in said
    assert "<svg" in (folder / "shop" / "third.html").read_text("utf-8")
