"""Reads the logs of many jobs as one, from their ends on.

The rule it keeps: of each log no more than a block is in memory.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from operator import itemgetter

from scrapyd_dist.errors import NodeError, NothingMatched
from scrapyd_dist.joblogs.joblog import LEVELS, LogLine
from scrapyd_dist.joblogs.log_reads import LogExcerpt, LogTap, read_log_end
from scrapyd_dist.messenger import Messenger
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.transports import sweep

from .job_list import JobFilter, JobList, ListedJob, utc
from .job_site import JobSite

#: seconds between two looks at logs that are followed
LOOK = 1.0
#: seconds between two looks at the list of jobs, while logs are followed
LIST = 5.0
#: bytes of each log's end in which the last lines of a level are searched
SEARCHED = 64 * 1024 * 1024
_EARLIEST = datetime.min.replace(tzinfo=timezone.utc)
#: one line of one log: when it was, UTC; whose it is; the line
Moment = tuple[datetime, ListedJob, LogLine]


@dataclass(frozen=True, kw_only=True)
class LogFilter:
    """Which lines of logs are wanted."""

    level: int = 0  #: least, by its place in LEVELS; 0 = any
    since: datetime | None = None  #: UTC

    def wants(self, line: LogLine, offset: timedelta) -> bool:
        """Tell whether a line is of the level and of the time; offset: local time minus UTC.

        A line that has neither is wanted where neither is asked for.
        """
        if self.since is not None and (line.at is None or utc(line.at, offset) < self.since):
            return False
        return reaches(line, self.level)


def offset_in(seen: LogExcerpt | None) -> timedelta:
    """Return a node's local time minus UTC, as the end of a log tells it; none if it does not."""
    if seen is None or seen.offset is None:
        return timedelta()
    return seen.offset


@dataclass(kw_only=True)
class LogStream:
    """The log of one job as it is read on."""

    row: ListedJob
    tap: LogTap
    offset: timedelta  #: the node's local time minus UTC
    keep: LogFilter
    messenger: Messenger
    alive: bool = True  #: whether the job may still write
    has_log: bool = True  #: whether there was one when it was opened
    broken: str = ""  #: why the log could not be read the last time
    _last: datetime = _EARLIEST  #: time of the last line that had one, UTC

    def now(self) -> Iterator[Moment]:
        """Generate all wanted lines up to the end of the log as it is now."""
        try:
            for lines in self.tap.blocks():
                yield from self.moments(lines)
        except NodeError as error:
            self._complain(error)
        if not self.alive:
            yield from self.moments(self.tap.rest())

    def news(self) -> list[Moment] | None:
        """Return the wanted ones of the next lines; None where nothing is new."""
        try:
            lines = self.tap.more()
        except NodeError as error:
            self._complain(error)
            return None
        if lines is None:
            return None
        return self.moments(lines)

    def _complain(self, error: NodeError) -> None:
        if self.broken != error.short:
            self.messenger.complain(str(error))
        self.broken = error.short

    def moments(self, lines: Sequence[LogLine]) -> list[Moment]:
        """Return the wanted ones of these lines; a log's last may have no line feed at its end."""
        found = []
        for line in lines:
            if line.at is not None:
                self._last = utc(line.at, self.offset)
            if self.keep.wants(line, self.offset):
                found.append((self._last, self.row, line))
        return found


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """Where logs come from, and which of their lines are wanted."""

    site: JobSite
    wanted: JobFilter
    names: Sequence[str]
    keep: LogFilter
    _opened: set[tuple[str, str]] = field(default_factory=set)  #: keys of jobs

    def rows(self) -> tuple[JobList, tuple[ListedJob, ...]]:
        """Return what the nodes list, and of that the jobs that were named, or that run."""
        listed, rows = self.wanted.named(self.site, self.names)
        if self.names:
            return listed, rows
        running = [row for row in rows if row.state is JobState.RUNNING]
        return listed, tuple(running)

    def open(self, rows: Sequence[ListedJob], count: int | None) -> list[LogStream]:
        """Open the logs of those jobs that are not open yet, each at its first line to be shown.

        count: so many lines from the end, None = from the start.
        """
        fresh = [row for row in rows if row.key not in self._opened]
        for row in fresh:
            self._opened.add(row.key)
        answers = {}
        errors = []
        for answer in sweep(fresh, partial(self._open, count)):
            answers[answer.asked] = answer
            errors.append(answer.error)
        self.site.messenger.complain_each(errors)
        streams = []
        for row in fresh:
            stream = answers[row].value
            if stream is not None:
                streams.append(stream)
        return streams

    def _open(self, count: int | None, row: ListedJob) -> LogStream:
        sender = self.site.sender
        keep = self.keep
        timeout = self.wanted.timeout
        seen = read_log_end(sender, row.node, row.log, timeout=timeout)
        offset = offset_in(seen)
        tap = LogTap(sender, row.node, row.log, timeout=timeout)
        floor = 0
        if keep.since is not None:
            floor = tap.seek_time((keep.since + offset).replace(tzinfo=None))
        if count is not None:
            most = SEARCHED if keep.level else None
            left = tap.seek_last(count, lambda line: keep.wants(line, offset), floor, most)
            if left:
                self._tell_bound(row, left)
        return LogStream(
            row=row,
            tap=tap,
            offset=offset,
            keep=keep,
            messenger=self.site.messenger,
            alive=not row.over,
            has_log=seen is not None,
        )

    def _tell_bound(self, row: ListedJob, left: int) -> None:
        """Say that `left` bytes of a log were not searched, and what searches them."""
        self.site.messenger.say(
            f"{row.node.name} {row.job}: only the last {SEARCHED >> 20} MiB of its log were "
            f"searched for the last lines of {LEVELS[self.keep.level]} or above, and not the "
            f"{(left >> 20) + 1:,} MiB before. All of it: sdist jobs grep --level "
            f"{LEVELS[self.keep.level]} '' {row.job}"
        )

    def follow(
        self, streams: list[LogStream], pause: Callable[[float], None] = time.sleep
    ) -> Iterator[list[Moment]]:
        """Generate new lines until all jobs are over and nothing has come twice in a row.

        The logs of jobs that start meanwhile are opened, too.
        """
        listed_at = time.monotonic()
        quiet = 0  # looks in a row that found no new line
        while not streams or quiet < 2 or any(stream.alive for stream in streams):
            if time.monotonic() - listed_at >= LIST:
                listed_at = time.monotonic()
                with suppress(NothingMatched):  # a node that does not answer now may do so later
                    self._list_again(streams)
            moments: list[Moment] = []
            for answer in sweep(streams, LogStream.news):
                moments += answer.value or ()
            yield sorted(moments, key=itemgetter(0))
            quiet = 0 if moments else quiet + 1
            pause(LOOK)
        for stream in streams:
            yield stream.moments(stream.tap.rest())

    def _list_again(self, streams: list[LogStream]) -> None:
        """Note which jobs are over, and add the logs of those that have started."""
        listed, rows = self.rows()
        over = set()
        for row in listed.jobs:
            if row.over:
                over.add(row.key)
        for stream in streams:
            stream.alive &= stream.row.key not in over
        streams += self.open(rows, None)


def merge_moments(streams: Sequence[LogStream]) -> Iterator[Moment]:
    """Generate the wanted lines of all logs as they are now, in the order of time."""
    return heapq.merge(*map(LogStream.now, streams), key=itemgetter(0))


def reaches(line: LogLine, level: int) -> bool:
    """Tell whether a line is of this level or above; 0 = any line."""
    return not level or (line.level in LEVELS and LEVELS.index(line.level) >= level)
