"""Files of a node's log folder in pieces, over each transport, also from a node that answers a range wrongly.

Its log is shown rightly, or the node is named; nothing waits for ever.
"""

import gzip
import itertools
import re
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any

import pytest
from rig.badpeer import BadPeer, Connection, Play
from rig.calls import SHORT, node_at

from scrapyd_dist.errors import AuthRefused, CutReply, NodeError, NoReply, NotJson, ServerFailed
from scrapyd_dist.joblogs.log_reads import BLOCK, LogTap, look, survey
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


def piece(connection: Connection, request: bytes, total: object, longer: int = 0, told: int = 0) -> None:
    """A 206 with the bytes that were asked for, or so many more or less; `told`: how far off it says that they are."""
    first, last = asked(request)
    body = LOG[first : last + 1 + longer]
    if not body:
        connection.answer(416, b"", f"Content-Range: bytes */{len(LOG)}")
        return
    begins = first + told
    connection.answer(206, body, f"Content-Range: bytes {begins}-{begins + len(body) - 1}/{total}", TEXT)


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
        (first, last), size = asked(request), next(sizes)
        if first:
            connection.answer(416, b"", f"Content-Range: bytes */{first - 1}")
        else:
            body = LOG[first : min(last + 1, size)]
            connection.answer(206, body, f"Content-Range: bytes {first}-{first + len(body) - 1}/{size}", TEXT)

    return play


RIGHT: dict[str, Play] = {
    "ranges": lambda c, r: piece(c, r, len(LOG)),
    "the whole": whole,
    "the whole, without its length": whole_without_length,
    "more than was asked for": lambda c, r: piece(c, r, len(LOG), longer=5000),
    "no size": lambda c, r: piece(c, r, "*"),
}
#: what the peer does, and the error
WRONG: dict[str, tuple[Play, type[NodeError]]] = {
    "other bytes": (lambda c, r: piece(c, r, len(LOG), told=7), NotJson),
    "no Content-Range": (lambda c, r: c.answer(206, LOG[: asked(r)[1] + 1], TEXT), NotJson),
    "a Content-Range that is none": (lambda c, _: c.answer(206, LOG, "Content-Range: bytes 0-9/3", TEXT), NotJson),
    "5,000 digits": (lambda c, r: piece(c, r, "9" * 5000), NotJson),
    "less than was asked for": (lambda c, r: piece(c, r, len(LOG), longer=-100), CutReply),
    "a size that is too large": (lambda c, r: piece(c, r, 10**15), CutReply),
    "416 for ever": (lambda c, _: c.answer(416, b"", f"Content-Range: bytes */{len(LOG)}"), NotJson),
    "a body without an end": (endless("200 OK"), NoReply),
    "a piece without an end": (endless("206 OK", f"Content-Range: bytes 0-9/{len(LOG)}"), NodeError),
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

    def play(connection: Connection, request: bytes) -> None:
        first, last = asked(request)
        if first >= len(now[0]):
            connection.answer(416, b"", f"Content-Range: bytes */{len(now[0])}")
        else:
            body = now[0][first : last + 1]
            connection.answer(206, body, f"Content-Range: bytes {first}-{first + len(body) - 1}/{len(now[0])}", TEXT)

    with closing(BadPeer(play)) as server:
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
        times = ("Date: Fri, 31 Dec 99999999999 1:1:1 GMT", "Last-Modified: Mon, 01 Jan 0001 00:00:00 +2300")
        connection.answer(200, b"0001-01-01 00:00:00 [x] INFO: y\n", TEXT, *times)

    with closing(BadPeer(play)) as server:
        seen = look(RequestsTransport(), node_at(server.port), "logs/p/s/j.log", timeout=SECONDS)
    assert seen is not None
    assert (seen.silent, seen.offset, seen.facts.last) == (None, None, None)


PLAYS = pytest.mark.parametrize(
    "play", [RIGHT["ranges"], whole, whole_without_length], ids=["ranges", "no ranges", "no length"]
)


def received(
    sender: Sender, node: Node, error: type[NodeError] | None = None, silence: float = 30, **options: Any
) -> bytes:
    """What a download of the log from there on gives to its sink, until this error if one is named."""
    got = bytearray()
    with nullcontext() if error is None else pytest.raises(error):
        sender.download(node, api.fetch("logs/a", **options), got.extend, silence=silence)
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
    chunk = sender.download(node_at(peer(RIGHT["ranges"]).port), api.fetch("logs/a", start=len(LOG)), got.extend)
    assert chunk is not None
    assert (bytes(got), chunk.body, chunk.total) == (b"", b"", len(LOG))


def test_packed_bytes_stay_packed(sender: Sender, peer: Callable[..., BadPeer]) -> None:
    packed = gzip.compress(b"a line\n" * 100)
    node = node_at(peer(lambda c, _: c.answer(200, packed, "Content-Encoding: gzip")).port)
    chunk = sender.send(node, api.fetch("logs/a.jl.gz"))
    assert chunk is not None
    assert chunk.body == received(sender, node) == packed


@pytest.mark.parametrize(
    ("play", "kind"),
    [
        (lambda c, _: c.answer(401, b"<html>Unauthorized"), AuthRefused),
        (lambda c, _: c.answer(200, b"<html>Log in here", "Content-Type: text/html; charset=utf-8"), NotJson),
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
    assert sender.download(node, api.fetch("logs/a"), got.extend) is None
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
        sender.download(node_at(peer(whole).port), api.fetch("logs/a"), full)
