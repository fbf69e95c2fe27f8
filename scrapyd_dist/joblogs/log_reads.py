"""Reads job logs from nodes by Range, at most a block at a time.

Only `survey` reads a whole log, as a stream.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from scrapyd_dist.errors import NotJson
from scrapyd_dist.joblogs.joblog import LogFacts, LogLine, LogLines, LogReader
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender

#: bytes of a log's end that show how nearly every job ended
TAIL = 32 * 1024
#: bytes of a log's end with a large stats dump
LONG_TAIL = 1024 * 1024
#: bytes of a log's beginning, with Scrapy's first messages
HEAD = 4 * 1024
#: bytes per read
BLOCK = 256 * 1024
#: maximum seconds between last line and last modification for the node's time zone to be inferred
_ZONE_SLACK = 120
#: maximum offset of a time zone in seconds
_ZONES = 15 * 3600


@dataclass(frozen=True, kw_only=True)
class LogExcerpt:
    """Holds the facts in the end of a log, and its age."""

    facts: LogFacts
    total: int  #: size of the file in bytes
    silent: float | None  #: seconds since the last write, by the node's clock
    offset: timedelta | None  #: the node's local time minus UTC, if it can be inferred
    says_info: bool  #: whether the log has entries of level INFO
    would_tell_end: bool  #: whether the closing line would be in it


def read_log_end(sender: Sender, node: Node, path: str, *, timeout: float) -> LogExcerpt | None:
    """Read the end of a job's log; None if there is no log.

    Raises:
        NodeError: a call failed.
    """
    # Not a Range of "the last n bytes": Twisted fails on that if the file is shorter.
    head = sender.send(node, api.fetch(path, start=0, limit=HEAD), timeout=timeout)
    if head is None:
        return None
    total = head.total or len(head.body)

    def fetch_end(size: int) -> api.Chunk:
        if total <= HEAD:
            return head
        call = api.fetch(path, start=max(0, total - size), limit=size + BLOCK)
        return sender.send(node, call, timeout=timeout) or head

    end = fetch_end(TAIL)
    facts = facts_in(end)
    if facts.closed and facts.stats is None and end.start:
        end = fetch_end(LONG_TAIL)
        facts = facts_in(end)
    return _make_excerpt(facts, end, facts_in(head))


def _make_excerpt(facts: LogFacts, end: api.Chunk, facts_of_head: LogFacts) -> LogExcerpt:
    """Put together the facts in the end of a log, and what only its beginning may show."""
    silent = None
    if end.modified and end.date:
        silent = max(0.0, (end.date - end.modified).total_seconds())
    return LogExcerpt(
        facts=facts,
        total=end.start + len(end.body),
        silent=silent,
        offset=_infer_offset(facts.last, end.modified),
        says_info="INFO" in facts.levels or "INFO" in facts_of_head.levels,
        would_tell_end=facts.would_tell_end or facts_of_head.would_tell_end,
    )


def survey(sender: Sender, node: Node, path: str, size: int | None = None) -> LogFacts | None:
    """Read a whole log, or its first `size` bytes; None if there is no log.

    Raises:
        NodeError: the call failed.
    """
    reader = LogReader()
    chunk = sender.send(node, api.fetch(path, limit=size or None, sink=reader.feed))
    if chunk is None:
        return None
    return reader.facts()


def _infer_offset(last: datetime | None, written: datetime | None) -> timedelta | None:
    """Infer the node's UTC offset from last line and last modification.

    It is rounded to quarters of an hour.
    """
    if last is None or written is None:
        return None
    seconds = (last - written.replace(tzinfo=None)).total_seconds()
    whole = round(seconds / 900) * 900
    if abs(seconds - whole) > _ZONE_SLACK or abs(whole) > _ZONES:
        return None
    return timedelta(seconds=whole)


def facts_in(chunk: api.Chunk) -> LogFacts:
    """Return the facts in a piece of a log."""
    reader = LogReader(chunk.start)
    reader.feed(chunk.body)
    return reader.facts()


class LogTap:
    """Reads a growing log from some offset on, a block at a time.

    `path` is relative to the node's base; `timeout` is in seconds, for each call.
    """

    def __init__(self, sender: Sender, node: Node, path: str, *, timeout: float) -> None:
        self._sender = sender
        self._node = node
        self._path = path
        self._timeout = timeout
        self._fetched = 0  #: offset of the first byte that was not fetched yet
        self._lines = LogLines()
        self._total: int | None = None  #: size of the file at the last read
        self._replaced = 0  #: how often the file was replaced by a shorter one

    def size(self) -> int:
        """Return the current size in bytes; 0 if there is no log."""
        chunk = self._fetch_chunk(0, 1)
        if chunk is None:
            return 0
        return chunk.total or 0

    def begin_at(self, position: int, *, torn: bool = False, entry: LogLine | None = None) -> None:
        """Move to an offset; `torn` if it may be inside a line, `entry` as of `LogLines`."""
        self._fetched = position
        self._lines = LogLines(position, torn=torn, entry=entry)

    def more(self) -> list[LogLine] | None:
        """Return the next complete lines, or None if the log has not grown."""
        chunk = self._fetch_chunk(self._fetched, BLOCK)
        if chunk is not None and chunk.total is not None and chunk.total < self._fetched:
            self.begin_at(0)  # the file was replaced by a shorter one
            self._replaced += 1
            chunk = self._fetch_chunk(0, BLOCK)
        if chunk is None or not chunk.body:
            return None
        self._fetched += len(chunk.body)
        self._total = chunk.total
        return list(self._lines.feed(chunk.body))

    def rest(self) -> list[LogLine]:
        """Return the last line if it has no line feed."""
        return list(self._lines.end())

    def blocks(self) -> Iterator[list[LogLine]]:
        """Yield the complete lines from here to the current end, a block at a time.

        Raises:
            NodeError: a call failed, or the file was replaced by a shorter one again and again.
        """
        end = None
        replaced = self._replaced
        while (lines := self.more()) is not None:
            if self._replaced > replaced + 1:
                raise NotJson.at(str(self._node), f"{self._path}: it gets shorter again and again")
            yield lines
            if end is None or self._fetched < BLOCK:
                end = self._total
            if end is not None and self._fetched >= end:
                return

    def all(self) -> Iterator[LogLine]:
        """Yield every line from here to the current end."""
        for lines in self.blocks():
            yield from lines
        yield from self.rest()

    def seek_last(
        self,
        count: int,
        wanted: Callable[[LogLine], bool],
        floor: int = 0,
        most: int | None = None,
    ) -> int:
        """Move to the last `count` lines that are `wanted`, but not before the offset `floor`.

        Return how many bytes behind the floor were not searched, since `most` were: 0 if fewer
        are there, or the lines were found. None as `most` is any number.
        """
        size = self.size()
        end = size
        while end > floor and count > 0:
            if most is not None and size - end >= most:
                self.begin_at(end)
                return end - floor
            begin = max(0, end - BLOCK)
            found, first = self._read_entries(begin, end)
            for place in reversed(range(len(found))):
                if wanted(found[place]):
                    count -= 1
                    if not count:
                        self.begin_at(found[place].offset, entry=_entry_before(found, place))
                        return 0
            # A line across two blocks is read with the earlier one; a line longer than a block is
            # skipped.
            end = first if begin < first < end else begin
        self.begin_at(end)
        return 0

    def seek_time(self, since: datetime) -> int:
        """Move to or shortly before the first line at this time of the node's local clock.

        Return the offset.
        """
        low = 0
        high = self.size()
        while high - low > BLOCK:
            middle = (low + high) // 2
            found, _ = self._read_lines(middle, min(high, middle + BLOCK // 4))
            at = _time_of_first_entry(found)
            if at is not None and at < since:
                low = middle
            else:
                high = middle
        self.begin_at(low, torn=low > 0)
        return low

    def _read_lines(self, begin: int, end: int) -> tuple[list[LogLine], int]:
        """Return the complete lines that begin between two offsets, and the first one's offset.

        Without lines the latter is `begin`.
        """
        chunk = self._fetch_chunk(begin, end - begin)
        body = chunk.body[: end - begin] if chunk is not None else b""
        lines = LogLines(begin, torn=begin > 0)
        found = [*lines.feed(body), *lines.end()]
        if not found:
            return [], begin
        return found, found[0].offset

    def _read_entries(self, begin: int, end: int) -> tuple[list[LogLine], int]:
        """Return the same, without lines whose entry began before: an earlier block has its level.

        An entry that is longer than a block is taken without its beginning.
        """
        found, first = self._read_lines(begin, end)
        if begin == 0:
            return found, first
        for place, line in enumerate(found):
            if line.head:
                return found[place:], line.offset
        return found, first

    def _fetch_chunk(self, start: int, limit: int) -> api.Chunk | None:
        return self._sender.send(
            self._node, api.fetch(self._path, start=start, limit=limit), timeout=self._timeout
        )


def _entry_before(lines: list[LogLine], place: int) -> LogLine | None:
    """Return the line that began the entry of the line at this place; None if it is not there."""
    for line in reversed(lines[: place + 1]):
        if line.head:
            return line
    return None


def _time_of_first_entry(lines: list[LogLine]) -> datetime | None:
    for line in lines:
        if line.head:
            return line.at
    return None
