"""The newest lines of item files that grow. Rule: of each no more than a block and one line is in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scrapyd_dist.scrapyd import api

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

#: bytes that are read at once
BLOCK = 256 * 1024
#: bytes of the longest line that is given out; a longer one is passed over
LINE_MAX = 16 * 1024 * 1024


class Reader(Protocol):
    """A file that can be read anywhere."""

    def size(self) -> int:
        """Bytes that it has now; 0 where it is not there."""

    def read(self, start: int, limit: int) -> bytes:
        """At most so many bytes from there on; none where there is no more, or no file."""


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A file of this machine."""

    path: Path

    def size(self) -> int:
        """See `Reader`."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, start: int, limit: int) -> bytes:
        """See `Reader`."""
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(limit)
        except FileNotFoundError:
            return b""


@dataclass(frozen=True, kw_only=True)
class RemotePart:
    """A part on its node, which has another name while it grows, and the same bytes under both."""

    sender: Sender
    node: Node
    path: str  #: of the whole part, below the node's base
    timeout: float  #: seconds for each block

    def size(self) -> int:
        """See `Reader`."""
        chunk = self._chunk(0, 1)
        return 0 if chunk is None else chunk.total or 0

    def read(self, start: int, limit: int) -> bytes:
        """See `Reader`."""
        chunk = self._chunk(start, limit)
        return b"" if chunk is None else chunk.body

    def _chunk(self, start: int, limit: int) -> api.Chunk | None:
        for path in (f"{self.path}.part", self.path):
            chunk = self.sender.send(self.node, api.fetch(path, start=start, limit=limit), timeout=self.timeout)
            if chunk is not None:
                return chunk
        return None


class Tap:
    """Reads whole lines on from some place.

    Attributes:
        reader: what it reads; may be replaced by another place that has the same bytes.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._position = 0  #: of the first byte that was not read yet
        self._rest = bytearray()  #: the beginning of a line that is not whole yet
        self._passing = False  #: whether what comes is the rest of a line too long

    def seek_last(self, count: int) -> int:
        """Begin at the last `count` lines that are whole; gives how many there are, `count` at most."""
        self._rest, self._passing = bytearray(), False
        end = self.reader.size()
        found = -1  # the line feed that ends the last whole line begins none of them
        while end > 0:
            begin = max(0, end - BLOCK)
            data = self.reader.read(begin, end - begin)[: end - begin]
            at = len(data)
            while (at := data.rfind(b"\n", 0, at)) >= 0:
                found += 1
                if found == count:
                    self._position = begin + at + 1
                    return count
            end = begin
        self._position = 0
        return found + 1

    def more(self) -> list[bytes] | None:
        """The next lines that are whole, without line feeds; None where nothing is new."""
        block = self.reader.read(self._position, BLOCK)
        if not block:
            return None
        self._position += len(block)
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest = bytearray()
            if self._passing:
                del lines[0]
                self._passing = False
        self._rest += rest
        if len(self._rest) > LINE_MAX:
            self._rest, self._passing = bytearray(), True
        return [line for line in lines if line.strip()]


def shares(available: Sequence[int], total: int) -> list[int]:
    """How many each gives so that all give `total`, or all they have: as evenly as that goes."""
    given = [0] * len(available)
    rest = total
    while rest > 0:
        open_ = [at for at, count in enumerate(available) if given[at] < count]
        if not open_:
            break
        each = max(1, rest // len(open_))
        for at in open_[-rest:] if rest < len(open_) else open_:
            more = min(each, available[at] - given[at])
            given[at] += more
            rest -= more
    return given
