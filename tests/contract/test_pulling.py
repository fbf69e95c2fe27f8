"""Files of items come home over real connections, whole ones and broken ones: no byte is fetched twice."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.badpeer import BadPeer, Connection
from rig.calls import node_at

from scrapyd_dist.items import download
from scrapyd_dist.items.download import DownloadedFile, DownloadState, WantedFile, copy_home, count_lines, mend, pull
from scrapyd_dist.joblogs.worker_report import PartInfo
from scrapyd_dist.transports.requests import RequestsTransport

DATA = b"".join(b'{"number": %d}\n' % number for number in range(5000))
PATH = "logs/_sdist/c.12345678/c.b1.a1.jl"


class Shelf:
    """A node with one file, which breaks connections as it is told.

    Attributes:
        data: the file; None where there is none.
        cuts: after how many bytes of the body each of the next connections breaks.
        sent: (first byte, bytes that went out) of each answer.
    """

    def __init__(self, data: bytes | None) -> None:
        self.data = data
        self.cuts: list[int] = []
        self.sent: list[tuple[int, int]] = []

    def play(self, connection: Connection, request: bytes) -> None:
        first = int(re.search(rb"bytes=(\d+)-", request)[1])  # type: ignore[index]  # it is there
        if self.data is None:
            connection.answer(404, b"No Such Resource")
        elif first >= len(self.data):
            self.sent.append((first, 0))
            connection.answer(416, b"", f"Content-Range: bytes */{len(self.data)}")
        else:
            body = self.data[first:]
            shown = body[: self.cuts.pop(0)] if self.cuts else body
            self.sent.append((first, len(shown)))
            span = f"Content-Range: bytes {first}-{len(self.data) - 1}/{len(self.data)}"
            connection.answer(206, shown, span, length=len(body))


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setattr(download, "PAUSE", 0)
    made = Shelf(DATA)
    with closing(BadPeer(made.play)) as peer:
        made.port = peer.port  # type: ignore[attr-defined]  # kept for the tests
        yield made


def part_of(data: bytes) -> PartInfo:
    return PartInfo(file="x", items=data.count(b"\n"), bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def bring(shelf: Any, folder: Path, **more: Any) -> DownloadedFile:
    node = node_at(shelf.port)
    wanted = WantedFile(node=node, path=PATH, target=folder / "c.b1.a1.jl", **more)
    return pull(RequestsTransport(), wanted, silence=20)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_part_comes_home_once(shelf: Shelf, tmp_path: Path) -> None:
    first = bring(shelf, tmp_path, part=part_of(DATA))
    assert (first.state, first.fetched, first.items, first.bytes) == (DownloadState.WHOLE, len(DATA), 5000, len(DATA))
    assert (tmp_path / "c.b1.a1.jl").read_bytes() == DATA
    again = bring(shelf, tmp_path, part=part_of(DATA))
    assert (again.state, again.fetched, again.items, len(shelf.sent)) == (DownloadState.PRESENT, 0, 5000, 1)


@pytest.mark.parametrize("part", [part_of(DATA), None], ids=["told by a worker", "a plain feed"])
def test_broken_off_and_pulled_again_it_fetches_only_what_is_missing(
    shelf: Shelf, tmp_path: Path, part: PartInfo | None
) -> None:
    shelf.cuts = [30_000, 0, 0, 0]
    broken = bring(shelf, tmp_path, part=part)
    assert (broken.state, broken.fetched) == (DownloadState.LOST, 30_000)
    assert "node one" in broken.reason
    assert names(tmp_path) == ["c.b1.a1.jl.part"]
    assert (tmp_path / "c.b1.a1.jl.part").read_bytes() == DATA[:30_000]
    shelf.sent.clear()
    shelf.cuts = [20_000]
    whole = bring(shelf, tmp_path, part=part)
    assert (whole.state, whole.fetched, whole.items) == (DownloadState.WHOLE, len(DATA) - 30_000, 5000)
    assert (tmp_path / "c.b1.a1.jl").read_bytes() == DATA
    assert sum(count for _, count in shelf.sent) == len(DATA) - 30_000
    assert [first for first, _ in shelf.sent] == [30_000, 50_000]
    assert names(tmp_path) == ["c.b1.a1.jl"]


@pytest.mark.parametrize(
    ("ending", "there", "part"),
    [
        (".part", b"x" * 1000, part_of(DATA)),
        ("", DATA[:-1] + b"x", part_of(DATA)),
        (".part", DATA * 2, part_of(DATA)),
        (".part", b"x" * (len(DATA) + 1), None),
    ],
    ids=["begun", "complete", "longer", "longer, of no known length"],
)
def test_what_is_here_of_another_file_is_thrown_away(
    shelf: Shelf, tmp_path: Path, ending: str, there: bytes, part: PartInfo | None
) -> None:
    (tmp_path / f"c.b1.a1.jl{ending}").write_bytes(there)
    assert bring(shelf, tmp_path, part=part).state is DownloadState.WHOLE
    assert (tmp_path / "c.b1.a1.jl").read_bytes() == DATA


@pytest.mark.parametrize("data", [DATA[:-3] + b"0}\n", DATA[:100]])
def test_a_part_that_is_not_what_its_worker_wrote_is_lost(shelf: Shelf, tmp_path: Path, data: bytes) -> None:
    shelf.data = data
    lost = DownloadedFile(
        state=DownloadState.LOST, fetched=len(data), reason="it is not what its worker wrote: the hashes differ"
    )
    assert bring(shelf, tmp_path, part=part_of(DATA)) == lost
    assert names(tmp_path) == []


def test_while_its_job_writes_it_a_file_grows(shelf: Shelf, tmp_path: Path) -> None:
    shelf.data = DATA[:1005]
    growing = bring(shelf, tmp_path, over=False)
    assert (growing.state, growing.fetched, growing.items) == (DownloadState.GROWING, 1005, DATA[:1005].count(b"\n"))
    assert (tmp_path / "c.b1.a1.jl.part").read_bytes() == DATA[:1005]
    shelf.data = DATA + b'{"number": 5'
    whole = bring(shelf, tmp_path)
    assert (whole.state, whole.fetched, whole.items) == (DownloadState.WHOLE, len(DATA) + 12 - 1005, 5000)
    assert whole.torn == 12
    assert (tmp_path / "c.b1.a1.jl").read_bytes() == DATA


def test_no_such_file_leaves_nothing_behind(shelf: Shelf, tmp_path: Path) -> None:
    shelf.data = None
    assert bring(shelf, tmp_path, part=part_of(DATA)).state is DownloadState.NONE
    assert names(tmp_path) == []


def test_an_empty_part_is_a_part(shelf: Shelf, tmp_path: Path) -> None:
    shelf.data = b""
    whole = bring(shelf, tmp_path, part=part_of(b""))
    assert (whole.state, whole.items, names(tmp_path)) == (DownloadState.WHOLE, 0, ["c.b1.a1.jl"])


@pytest.mark.parametrize(
    ("text", "torn", "left"),
    [
        (b"", 0, b""),
        (b'{"a": 1}\n', 0, b'{"a": 1}\n'),
        (b'{"a": 1}', 0, b'{"a": 1}\n'),
        (b'{"a": 1}\n{"a"', 4, b'{"a": 1}\n'),
        (b'{"a"', 4, b""),
        (b"\n" + b"x" * 3_000_000, 3_000_000, b"\n"),
    ],
)
def test_a_torn_last_line_is_cut_off(tmp_path: Path, text: bytes, torn: int, left: bytes) -> None:
    path = tmp_path / "a.jl"
    path.write_bytes(text)
    assert mend(path) == torn
    assert path.read_bytes() == left


def test_files_of_this_machine_are_copied_when_they_changed(tmp_path: Path) -> None:
    source, target = tmp_path / "own-0.jl", tmp_path / "there" / "own-0.jl"
    assert copy_home(source, target).state is DownloadState.LOST
    source.write_bytes(b'{"a": 1}\n{"a"')
    first = copy_home(source, target)
    assert (first.state, first.items, first.torn, target.read_bytes()) == (DownloadState.WHOLE, 1, 4, b'{"a": 1}\n')
    source.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    assert copy_home(source, target).items == 2
    assert copy_home(source, target).state is DownloadState.PRESENT
    assert count_lines(target) == 2
