"""Files of a node's log folder in pieces, over each transport, also from a node that answers a range wrongly.

Its log is shown rightly, or the node is named; nothing waits for ever.
"""

import gzip
import hashlib
import itertools
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from rig.badpeer import BadPeer, Connection, Play
from rig.calls import SHORT, node_at

from scrapyd_dist.errors import AuthRefused, CutReply, NodeError, NoReply, NotJson, ServerFailed
from scrapyd_dist.items import download
from scrapyd_dist.items.download import (
    DownloadedFile,
    DownloadState,
    WantedFile,
    copy_home,
    count_lines,
    mend,
    pull,
)
from scrapyd_dist.joblogs.log_reads import BLOCK, LogTap, read_log_end, survey
from scrapyd_dist.joblogs.worker_report import PartInfo
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender
from scrapyd_dist.transports.requests import RequestsTransport

LINE = b"2026-11-20 20:00:%02d [shop] INFO: line %06d\n"
LOG = b"".join(LINE % (number // 200, number) for number in range(10_000))
SECONDS = 2.0
TEXT = "Content-Type: text/plain"


def asked(request: bytes) -> tuple[int, int]:
    match = re.search(rb"range: bytes=(\d+)-(\d*)", request.lower())
    assert match
    return int(match[1]), int(match[2] or len(LOG))


def piece(
    connection: Connection, request: bytes, total: object, longer: int = 0, told: int = 0
) -> None:
    """A 206 with the bytes that were asked for, or so many more or less; `told`: how far off it says that they are."""
    first, last = asked(request)
    body = LOG[first : last + 1 + longer]
    if not body:
        connection.answer(416, b"", f"Content-Range: bytes */{len(LOG)}")
        return
    begins = first + told
    connection.answer(
        206, body, f"Content-Range: bytes {begins}-{begins + len(body) - 1}/{total}", TEXT
    )


def rightly(connection: Connection, request: bytes, data: bytes) -> None:
    """As a node answers for a file with these bytes."""
    first, last = asked(request)
    if first >= len(data):
        connection.answer(416, b"", f"Content-Range: bytes */{len(data)}")
    else:
        body = data[first : last + 1]
        connection.answer(
            206, body, f"Content-Range: bytes {first}-{first + len(body) - 1}/{len(data)}", TEXT
        )


def whole(connection: Connection, _: bytes) -> None:
    connection.answer(200, LOG, TEXT)


def whole_without_length(connection: Connection, _: bytes) -> None:
    connection.say(f"HTTP/1.1 200 OK\r\n{TEXT}\r\nConnection: close\r\n\r\n".encode() + LOG)


def endless(status: str, *headers: str) -> Play:
    def play(connection: Connection, _: bytes) -> None:
        head = "\r\n".join([f"HTTP/1.1 {status}", TEXT, *headers, "Connection: close", "", ""])
        connection.say(head.encode())
        for _piece in range(1000):
            connection.say(LOG[:1000])
            connection.pause(0.02)

    return play


def shrinking() -> Play:
    """A file that is shorter than what was read of it at each look."""
    sizes = itertools.count(BLOCK + 100, -1)

    def play(connection: Connection, request: bytes) -> None:
        first, size = asked(request)[0], next(sizes)
        rightly(connection, request, LOG[: first - 1 if first else size])

    return play


RIGHT: dict[str, Play] = {
    "ranges": lambda c, r: rightly(c, r, LOG),
    "the whole": whole,
    "the whole, without its length": whole_without_length,
    "more than was asked for": lambda c, r: piece(c, r, len(LOG), longer=5000),
    "no size": lambda c, r: piece(c, r, "*"),
}
#: what the peer does, and the error
WRONG: dict[str, tuple[Play, type[NodeError]]] = {
    "other bytes": (lambda c, r: piece(c, r, len(LOG), told=7), NotJson),
    "no Content-Range": (lambda c, r: c.answer(206, LOG[: asked(r)[1] + 1], TEXT), NotJson),
    "a Content-Range that is none": (
        lambda c, _: c.answer(206, LOG, "Content-Range: bytes 0-9/3", TEXT),
        NotJson,
    ),
    "5,000 digits": (lambda c, r: piece(c, r, "9" * 5000), NotJson),
    "less than was asked for": (lambda c, r: piece(c, r, len(LOG), longer=-100), CutReply),
    "a size that is too large": (lambda c, r: piece(c, r, 10**15), CutReply),
    "416 for ever": (
        lambda c, _: c.answer(416, b"", f"Content-Range: bytes */{len(LOG)}"),
        NotJson,
    ),
    "a body without an end": (endless("200 OK"), NoReply),
    "a piece without an end": (
        endless("206 OK", f"Content-Range: bytes 0-9/{len(LOG)}"),
        NodeError,
    ),
    "a size that shrinks": (shrinking(), NotJson),
}


def read(play: Play, last: int | None = None) -> list[str]:
    """The messages of the log, or its last ones, as `logs` and `grep` read them."""
    with closing(BadPeer(play)) as server:
        tap = LogTap(RequestsTransport(), node_at(server.port), "logs/p/s/j.log", timeout=SECONDS)
        if last is not None:
            tap.seek_last(last, lambda line: line.head)
        return [line.message for line in tap.all()]


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_text_comes_all_the_same(name: str) -> None:
    messages = [f"line {number:06d}" for number in range(10_000)]
    assert read(RIGHT[name]) == messages
    if name != "no size":
        assert read(RIGHT[name], 3) == messages[-3:]


@pytest.mark.parametrize("name", WRONG)
def test_or_the_node_is_named_in_time(name: str) -> None:
    play, kind = WRONG[name]
    began = time.monotonic()
    with pytest.raises(kind):
        read(play)
    assert time.monotonic() - began < 5 * SECONDS


def test_a_log_that_is_replaced_by_a_shorter_one_is_read_on() -> None:
    now = [LOG]
    with closing(
        BadPeer(lambda connection, request: rightly(connection, request, now[0]))
    ) as server:
        tap = LogTap(RequestsTransport(), node_at(server.port), "logs/p/s/j.log", timeout=SECONDS)
        assert len(list(tap.all())) == 10_000
        now[0] = LINE % (0, 1)
        assert [line.message for line in tap.more() or ()] == ["line 000001"]
        now[0] += LINE % (0, 2)
        assert [line.message for line in tap.more() or ()] == ["line 000002"]


def test_no_more_of_a_whole_log_is_read_than_it_had() -> None:
    with closing(BadPeer(endless("200 OK"))) as server:
        began = time.monotonic()
        facts = survey(RequestsTransport(), node_at(server.port), "logs/p/s/j.log", 5000)
        assert facts is not None
        assert facts.size == 5000
        assert time.monotonic() - began < SECONDS


def test_a_look_at_times_that_are_none() -> None:
    def play(connection: Connection, _: bytes) -> None:
        times = (
            "Date: Fri, 31 Dec 99999999999 1:1:1 GMT",
            "Last-Modified: Mon, 01 Jan 0001 00:00:00 +2300",
        )
        connection.answer(200, b"0001-01-01 00:00:00 [x] INFO: y\n", TEXT, *times)

    with closing(BadPeer(play)) as server:
        seen = read_log_end(
            RequestsTransport(), node_at(server.port), "logs/p/s/j.log", timeout=SECONDS
        )
    assert seen is not None
    assert (seen.silent, seen.offset, seen.facts.last) == (None, None, None)


PLAYS = pytest.mark.parametrize(
    "play", [RIGHT["ranges"], whole, whole_without_length], ids=["ranges", "no ranges", "no length"]
)


def received(
    sender: Sender,
    node: Node,
    error: type[NodeError] | None = None,
    silence: float = 30,
    **options: Any,
) -> bytes:
    """What a download of the log from there on gives to its sink, until this error if one is named."""
    got = bytearray()
    with nullcontext() if error is None else pytest.raises(error):
        sender.send(node, api.fetch("logs/a", sink=got.extend, **options), timeout=silence)
    return bytes(got)


@PLAYS
def test_a_file_is_read_from_a_place_on_and_no_more_than_was_asked_for(
    sender: Sender, peer: Callable[..., BadPeer], play: Play
) -> None:
    node = node_at(peer(play).port)
    assert received(sender, node, start=1000) == LOG[1000:]
    assert received(sender, node, start=1000, limit=10) == LOG[1000:1010]
    for limit in (10, None):
        chunk = sender.send(node, api.fetch("logs/a", start=1000, limit=limit))
        assert chunk is not None
        assert chunk.body == LOG[1000 : 1000 + limit if limit else None]
        assert (chunk.start, chunk.total) == (1000, len(LOG))


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e3", "x"])
def test_a_length_that_is_none(sender: Sender, peer: Callable[..., BadPeer], length: str) -> None:
    head = f"HTTP/1.1 200 OK\r\n{TEXT}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    node = node_at(peer(lambda c, _: c.say(head.encode() + LOG[:100])).port)
    try:
        chunk = sender.send(node, api.fetch("logs/a", start=0, limit=10), timeout=5)
    except NodeError:
        return
    assert chunk is not None
    assert chunk.body == LOG[:10]


def test_nothing_new(sender: Sender, peer: Callable[..., BadPeer]) -> None:
    got = bytearray()
    chunk = sender.send(
        node_at(peer(RIGHT["ranges"]).port), api.fetch("logs/a", start=len(LOG), sink=got.extend)
    )
    assert chunk is not None
    assert (bytes(got), chunk.body, chunk.total) == (b"", b"", len(LOG))


@pytest.mark.parametrize("way", ["gzip", "GZIP", "x-gzip", "deflate"])
@pytest.mark.parametrize("start", [None, 0, 70])
def test_what_a_proxy_has_compressed_is_unpacked(
    sender: Sender, peer: Callable[..., BadPeer], way: str, start: int | None
) -> None:
    text = b"a line\n" * 50_000
    packed = zlib.compress(text) if way == "deflate" else gzip.compress(text)
    node = node_at(peer(lambda c, _: c.answer(200, packed, f"Content-Encoding: {way}")).port)
    got = bytearray()
    chunk = sender.send(node, api.fetch("logs/a.jl", start=start, sink=got.extend))
    assert chunk is not None
    assert (bytes(got), chunk.total) == (text[start or 0 :], len(text))
    limited = sender.send(node, api.fetch("logs/a.jl", start=7, limit=14))
    assert limited is not None
    assert limited.body == b"a line\n" * 2


@pytest.mark.parametrize("status", [200, 404])
def test_a_log_folder_behind_a_proxy_that_compresses_is_there(
    sender: Sender, peer: Callable[..., BadPeer], status: int
) -> None:
    page = gzip.compress(b"<html>No Such Resource: File not found.</html>")
    node = node_at(
        peer(
            lambda c, _: c.answer(status, page, "Content-Encoding: gzip", "Content-Type: text/html")
        ).port
    )
    assert sender.send(node, api.serves("logs")) is True


@pytest.mark.parametrize(
    ("status", "headers", "why"),
    [
        (200, ("Content-Encoding: br",), "a proxy compresses it"),
        (206, ("Content-Encoding: gzip", "Content-Range: bytes 0-2/3"), "a proxy compresses it"),
        (200, ("Content-Encoding: gzip",), "damaged"),
    ],
)
def test_what_cannot_be_unpacked_is_told_as_that(
    sender: Sender, peer: Callable[..., BadPeer], status: int, headers: tuple[str, ...], why: str
) -> None:
    node = node_at(peer(lambda c, _: c.answer(status, b"xyz", *headers)).port)
    with pytest.raises(NodeError, match=why):
        sender.send(node, api.fetch("logs/a.jl", start=0, limit=3))


def test_packed_bytes_stay_packed(sender: Sender, peer: Callable[..., BadPeer]) -> None:
    packed = gzip.compress(b"a line\n" * 100)
    node = node_at(peer(lambda c, _: c.answer(200, packed, "Content-Encoding: gzip")).port)
    chunk = sender.send(node, api.fetch("logs/a.jl.gz"))
    assert chunk is not None
    assert chunk.body == packed


@pytest.mark.parametrize(
    ("play", "kind"),
    [
        (lambda c, _: c.answer(401, b"<html>Unauthorized"), AuthRefused),
        (
            lambda c, _: c.answer(
                200, b"<html>Log in here", "Content-Type: text/html; charset=utf-8"
            ),
            NotJson,
        ),
        (lambda c, _: c.answer(206, b"xyz", "Content-Range: bytes 0-2/3"), NotJson),
        (lambda c, _: c.answer(302, b"moved", "Location: /x/"), NotJson),
        (lambda c, _: c.answer(503, b"wait"), ServerFailed),
    ],
)
def test_what_is_not_the_file_never_reaches_the_sink(
    sender: Sender, peer: Callable[..., BadPeer], play: Any, kind: type[NodeError]
) -> None:
    assert received(sender, node_at(peer(play).port), kind, start=5) == b""


def test_no_such_file(sender: Sender, peer: Callable[..., BadPeer]) -> None:
    node = node_at(peer(lambda c, _: c.answer(404, b"<html>")).port)
    got = bytearray()
    assert sender.send(node, api.fetch("logs/a")) is None
    assert sender.send(node, api.fetch("logs/a", sink=got.extend)) is None
    assert not got


def test_a_broken_download_keeps_what_came(sender: Sender, peer: Callable[..., BadPeer]) -> None:
    def play(connection: Connection, _: bytes) -> None:
        connection.answer(200, LOG[:5000], length=len(LOG))

    assert received(sender, node_at(peer(play).port), CutReply) == LOG[:5000]


def test_silence_ends_a_download(sender: Sender, peer: Callable[..., BadPeer]) -> None:
    def play(connection: Connection, _: bytes) -> None:
        connection.answer(200, LOG[:5000], length=len(LOG))
        connection.hang()

    assert received(sender, node_at(peer(play).port), NoReply, SHORT) == LOG[:5000]


def test_a_slow_download_is_no_silence(sender: Sender, peer: Callable[..., BadPeer]) -> None:
    def play(connection: Connection, _: bytes) -> None:
        connection.answer(200, b"", length=8)
        for _drop in range(8):
            connection.pause(SHORT / 4)
            connection.say(b"x")

    assert received(sender, node_at(peer(play).port), silence=SHORT) == b"x" * 8


def test_the_error_of_a_sink_comes_through(sender: Sender, peer: Callable[..., BadPeer]) -> None:
    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        sender.send(node_at(peer(whole).port), api.fetch("logs/a", sink=full))


# files of items come home, whole ones and broken ones: no byte is fetched twice

DATA = b"".join(b'{"number": %d}\n' % number for number in range(5000))
PART = "logs/_sdist/c.12345678/c.b1.a1.jl"


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
    return PartInfo(
        file="x", items=data.count(b"\n"), bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
    )


def bring(shelf: Any, folder: Path, **more: Any) -> DownloadedFile:
    node = node_at(shelf.port)
    wanted = WantedFile(node=node, path=PART, target=folder / "c.b1.a1.jl", **more)
    return pull(RequestsTransport(), wanted, silence=20)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_part_comes_home_once(shelf: Shelf, tmp_path: Path) -> None:
    first = bring(shelf, tmp_path, part=part_of(DATA))
    assert (first.state, first.fetched, first.items, first.bytes) == (
        DownloadState.WHOLE,
        len(DATA),
        5000,
        len(DATA),
    )
    assert (tmp_path / "c.b1.a1.jl").read_bytes() == DATA
    again = bring(shelf, tmp_path, part=part_of(DATA))
    assert (again.state, again.fetched, again.items, len(shelf.sent)) == (
        DownloadState.PRESENT,
        0,
        5000,
        1,
    )


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
    assert (whole.state, whole.fetched, whole.items) == (
        DownloadState.WHOLE,
        len(DATA) - 30_000,
        5000,
    )
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
def test_a_part_that_is_not_what_its_worker_wrote_is_lost(
    shelf: Shelf, tmp_path: Path, data: bytes
) -> None:
    shelf.data = data
    lost = DownloadedFile(
        state=DownloadState.LOST,
        fetched=len(data),
        reason="it is not what its worker wrote: the hashes differ",
    )
    assert bring(shelf, tmp_path, part=part_of(DATA)) == lost
    assert names(tmp_path) == []


def test_while_its_job_writes_it_a_file_grows(shelf: Shelf, tmp_path: Path) -> None:
    shelf.data = DATA[:1005]
    growing = bring(shelf, tmp_path, over=False)
    assert (growing.state, growing.fetched, growing.items) == (
        DownloadState.GROWING,
        1005,
        DATA[:1005].count(b"\n"),
    )
    assert (tmp_path / "c.b1.a1.jl.part").read_bytes() == DATA[:1005]
    shelf.data = DATA + b'{"number": 5'
    whole = bring(shelf, tmp_path)
    assert (whole.state, whole.fetched, whole.items) == (
        DownloadState.WHOLE,
        len(DATA) + 12 - 1005,
        5000,
    )
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
    with path.open("rb+") as file:
        assert mend(file) == torn
    assert path.read_bytes() == left


def test_files_of_this_machine_are_copied_when_they_changed(tmp_path: Path) -> None:
    source, target = tmp_path / "own-0.jl", tmp_path / "there" / "own-0.jl"
    assert copy_home(source, target).state is DownloadState.LOST
    source.write_bytes(b'{"a": 1}\n{"a"')
    first = copy_home(source, target)
    assert (first.state, first.items, first.torn, target.read_bytes()) == (
        DownloadState.WHOLE,
        1,
        4,
        b'{"a": 1}\n',
    )
    source.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    assert copy_home(source, target).items == 2
    assert copy_home(source, target).state is DownloadState.PRESENT
    assert count_lines(target) == 2
