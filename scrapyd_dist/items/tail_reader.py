"""Follows the newest lines of growing item files.

At most one block and one line of each is in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scrapyd_dist.joblogs.log_reads import BLOCK
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender
from scrapyd_dist.typed_lines import plain_line

#: maximum bytes of a line; longer lines are skipped
LINE_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A file on this machine."""

    path: Path

    def size(self) -> int:
        """Return the current size in bytes; 0 if the file does not exist."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, start: int, limit: int) -> bytes:
        """Return at most `limit` bytes from `start`.

        They are empty at the end of the file, or if it does not exist.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(limit)
        except FileNotFoundError:
            return b""


@dataclass(frozen=True, kw_only=True)
class RemotePart:
    """A part on its node, read like a `LocalFile`; while it grows, its name ends in `.part`."""

    sender: Sender
    node: Node
    path: str  #: path of the complete part, relative to the node's base
    timeout: float  #: seconds per call

    def size(self) -> int:
        """Return the current size in bytes; 0 if the node has no such part."""
        chunk = self._fetch(0, 1)
        if chunk is None:
            return 0
        return chunk.total or 0

    def read(self, start: int, limit: int) -> bytes:
        """Return at most `limit` bytes from `start`; empty if the node has no such part."""
        chunk = self._fetch(start, limit)
        return b"" if chunk is None else chunk.body

    def _fetch(self, start: int, limit: int) -> api.Chunk | None:
        for path in (f"{self.path}.part", self.path):
            call = api.fetch(path, start=start, limit=limit)
            chunk = self.sender.send(self.node, call, timeout=self.timeout)
            if chunk is not None:
                return chunk
        return None


class TailSource:
    """Reads complete lines from a growing file."""

    def __init__(self, reader: LocalFile | RemotePart) -> None:
        self.reader = reader  #: may be replaced by another reader of the same bytes
        self._position = 0  #: offset of the next byte to read
        self._rest = bytearray()  #: the beginning of an incomplete line
        self._passing = False  #: whether the rest of a line that is too long is being skipped

    def seek_last(self, count: int) -> int:
        """Move to the last `count` complete lines; return how many there are, at most `count`."""
        self._rest = bytearray()
        self._passing = False
        end = self.reader.size()
        found = -1  # the last line feed ends a line and begins none
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
        """Return the next complete lines without line feeds, or None if the file has not grown."""
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
            self._rest = bytearray()
            self._passing = True
        return [plain_line(line) for line in lines if line.strip()]


def shares(available: Sequence[int], total: int) -> list[int]:
    """Divide `total` among sources as evenly as their available counts allow."""
    given = [0] * len(available)
    smallest_first = sorted(range(len(available)), key=available.__getitem__)
    for place, at in enumerate(smallest_first):
        given[at] = min(available[at], total // (len(available) - place))
        total -= given[at]
    return given
