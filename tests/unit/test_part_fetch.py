"""How long a part is tried for whose connection breaks: its node is in memory, and its clock is turned by hand."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scrapyd_dist.errors import ConnectionLost
from scrapyd_dist.items import part_fetch
from scrapyd_dist.items.part_fetch import PartOutOfReach, fetch_part
from scrapyd_dist.joblogs.worker_report import PartInfo
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Chunk

TEXT = b'{"n": 1}\n' * 40
PART = PartInfo(
    file="c.b1.a1.jl", bytes=len(TEXT), items=40, sha256=hashlib.sha256(TEXT).hexdigest()
)
NODE = Node.parse("one:6800", name="one")
PATIENCE = 30.0


class Breaking:
    """Sends so many bytes per call, and then breaks; each call takes so many seconds."""

    def __init__(self, pieces: list[int], seconds: float) -> None:
        self.pieces = pieces
        self.seconds = seconds
        self.now = 1000.0
        self.calls = 0

    def close(self) -> None: ...

    async def send(self, node: Node, call: Any, *, timeout: float | None = None) -> Any:
        self.calls += 1
        self.now += self.seconds
        end = call.start + self.pieces.pop(0)
        call.sink(TEXT[call.start : end])
        if end < len(TEXT):
            raise ConnectionLost.at("one")
        return Chunk(body=b"", start=call.start, total=len(TEXT), date=None)


async def fetched(sender: Breaking, folder: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(part_fetch, "RETRY_PAUSE", 0.0)
    patch.setattr(part_fetch, "time", SimpleNamespace(monotonic=lambda: sender.now))
    return await fetch_part(sender, NODE, "home", "c.b1.a1", PART, folder, PATIENCE)


async def test_a_part_that_takes_longer_than_the_patience_goes_on_where_it_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Breaking([100, 100, 100, 100], seconds=2 * PATIENCE)
    name = await fetched(sender, tmp_path, monkeypatch)
    assert (tmp_path / name).read_bytes() == TEXT


async def test_without_a_byte_it_is_given_up_after_the_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Breaking([100, *[0] * 9], seconds=PATIENCE / 3)
    with pytest.raises(PartOutOfReach):
        await fetched(sender, tmp_path, monkeypatch)
    assert sender.calls == 5
