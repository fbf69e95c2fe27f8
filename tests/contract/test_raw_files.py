"""Files of a node's log folder in pieces, over each transport."""

import gzip
from collections.abc import Callable
from typing import Any

import pytest
from rig.badpeer import BadPeer, Connection
from rig.calls import SHORT, node_at

from scrapyd_dist.errors import AuthRefused, CutReply, NodeError, NoReply, NotJson, ServerFailed
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender

LOG = bytes(range(256)) * 400


def _ranges(connection: Connection, request: bytes) -> None:
    """A server that knows ranges as Scrapyd does."""
    line = next((li for li in request.split(b"\r\n") if li.lower().startswith(b"range:")), b"")
    first = int(line.decode().split("=")[1].split("-")[0]) if line else 0
    if first >= len(LOG):
        connection.answer(416, b"", f"Content-Range: bytes */{len(LOG)}")
    elif line:
        connection.answer(206, LOG[first:], f"Content-Range: bytes {first}-{len(LOG) - 1}/{len(LOG)}")
    else:
        connection.answer(200, LOG)


class TestRawFiles:
    def test_a_file_is_downloaded_in_pieces(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        got = bytearray()
        chunk = sender.download(node_at(peer(_ranges).port), api.fetch("logs/a"), got.extend)
        assert bytes(got) == LOG
        assert chunk is not None
        assert (chunk.body, chunk.start, chunk.total) == (b"", 0, len(LOG))

    @pytest.mark.parametrize("play", [_ranges, lambda c, _: c.answer(200, LOG)], ids=["ranges", "no ranges"])
    def test_it_goes_on_where_it_was(self, sender: Sender, peer: Callable[..., BadPeer], play: Any) -> None:
        node = node_at(peer(play).port)
        got = bytearray(LOG[:1000])
        sender.download(node, api.fetch("logs/a", start=1000), got.extend)
        assert bytes(got) == LOG
        chunk = sender.send(node, api.fetch("logs/a", start=1000))
        assert chunk is not None
        assert (chunk.body, chunk.start, chunk.total) == (LOG[1000:], 1000, len(LOG))

    @pytest.mark.parametrize("play", [_ranges, lambda c, _: c.answer(200, LOG)], ids=["ranges", "no ranges"])
    def test_no_more_is_taken_than_was_asked_for(self, sender: Sender, peer: Callable[..., BadPeer], play: Any) -> None:
        node = node_at(peer(play).port)
        chunk = sender.send(node, api.fetch("logs/a", start=1000, limit=10))
        assert chunk is not None
        assert (chunk.body[:10], chunk.start, chunk.total) == (LOG[1000:1010], 1000, len(LOG))
        if play is not _ranges:  # the other one here only knows where to begin
            assert len(chunk.body) == 10

    def test_nothing_new(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        got = bytearray()
        chunk = sender.download(node_at(peer(_ranges).port), api.fetch("logs/a", start=len(LOG)), got.extend)
        assert chunk is not None
        assert (bytes(got), chunk.body, chunk.total) == (b"", b"", len(LOG))

    def test_packed_bytes_stay_packed(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        packed = gzip.compress(b"a line\n" * 100)
        node = node_at(peer(lambda c, _: c.answer(200, packed, "Content-Encoding: gzip")).port)
        chunk = sender.send(node, api.fetch("logs/a.jl.gz"))
        assert chunk is not None
        assert chunk.body == packed
        got = bytearray()
        sender.download(node, api.fetch("logs/a.jl.gz"), got.extend)
        assert bytes(got) == packed

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
        self, sender: Sender, peer: Callable[..., BadPeer], play: Any, kind: type[NodeError]
    ) -> None:
        got = bytearray()
        with pytest.raises(kind):
            sender.download(node_at(peer(play).port), api.fetch("logs/a", start=5), got.extend)
        assert not got

    def test_no_such_file(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        node = node_at(peer(lambda c, _: c.answer(404, b"<html>")).port)
        got = bytearray()
        assert sender.send(node, api.fetch("logs/a")) is None
        assert sender.download(node, api.fetch("logs/a"), got.extend) is None
        assert not got

    def test_a_broken_download_keeps_what_came(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        def play(connection: Connection, _: bytes) -> None:
            connection.answer(200, LOG[:5000], length=len(LOG))

        got = bytearray()
        with pytest.raises(CutReply):
            sender.download(node_at(peer(play).port), api.fetch("logs/a"), got.extend)
        assert bytes(got) == LOG[:5000]

    def test_silence_ends_a_download(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        def play(connection: Connection, _: bytes) -> None:
            connection.answer(200, LOG[:5000], length=len(LOG))
            connection.hang()

        got = bytearray()
        with pytest.raises(NoReply):
            sender.download(node_at(peer(play).port), api.fetch("logs/a"), got.extend, silence=SHORT)
        assert bytes(got) == LOG[:5000]

    def test_a_slow_download_is_no_silence(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        def play(connection: Connection, _: bytes) -> None:
            connection.answer(200, b"", length=8)
            for _drop in range(8):
                connection.pause(SHORT / 4)
                connection.say(b"x")

        got = bytearray()
        sender.download(node_at(peer(play).port), api.fetch("logs/a"), got.extend, silence=SHORT)
        assert bytes(got) == b"x" * 8

    def test_the_error_of_a_sink_comes_through(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        def full(_: bytes) -> None:
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space left"):
            sender.download(node_at(peer(_ranges).port), api.fetch("logs/a"), full)
