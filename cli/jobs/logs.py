"""`sdist logs` and `sdist jobs grep`: show and search the logs of many jobs.

The rule it keeps: of each log no more than a block is in memory.
"""

import heapq
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from operator import itemgetter
from typing import Annotated, Any

from scrapyd_dist.errors import ConfigError, NodeError, NothingMatched
from scrapyd_dist.joblogs.joblog import LEVELS, LogLine
from scrapyd_dist.joblogs.log_reads import LogTap, read_log_end
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.transports import sweep

from ..context import Context
from ..crawls.producer_process import crawl_or_latest
from ..options import argument, crawls, one_of, option, span
from ..output import (
    Output,
    colourless,
    complain,
    complain_each,
    one_line,
    put,
    put_raw,
    say,
    some_of,
)
from .job_list import JobList, JobQuery, Listed, utc

#: lines of each log that are shown when nothing else is said
LINES = 20
#: seconds between two looks at logs that are followed
LOOK = 1.0
#: seconds between two looks at the list of jobs, while logs are followed
LIST = 5.0
Names = Annotated[list[str] | None, argument("JOB|CRAWL", "Ids of jobs, and crawls.", crawls)]
_EARLIEST = datetime.min.replace(tzinfo=timezone.utc)
#: one line of one log: when it was, UTC; what is shown before it; the line
Moment = tuple[datetime, str, LogLine]


def level_of(text: str) -> int:
    """Return the place of a level in LEVELS; ConfigError for another word."""
    if text.upper() not in LEVELS:
        raise ConfigError(f"--level {text!r} is none of {', '.join(LEVELS)}.")
    return LEVELS.index(text.upper())


Level = Annotated[
    int | None,
    option(
        f"Only lines of this level or above: {', '.join(LEVELS)}.",
        metavar="LEVEL",
        parser=level_of,
        autocompletion=one_of(*LEVELS),
    ),
]
Raw = Annotated[bool, option("Lines as they are, byte for byte, with whatever steers a terminal.")]


def logs(
    *,
    context: Context,
    name: Names = None,
    follow: Annotated[bool, option("Go on until the jobs are over.", "--follow", "-f")] = False,
    lines: Annotated[
        int | None,
        option(f"The last lines of each log; {LINES} without --since.", "--lines", "-n", min=0),
    ] = None,
    level: Level = None,
    since: Annotated[
        float | None, span("--since", "Only lines of the last 90 (seconds), 30m, 2h.")
    ] = None,
    query: JobQuery,
    raw: Raw = False,
) -> int:
    """Show the logs of jobs on all nodes as one.

    Lines are ordered by time, each with its node and job. Without a name these
    are the jobs that run now, else those of the newest crawl. Logs are read from
    their end by Range, whatever their size. Colours are left out, and what else
    would steer a terminal is shown by its code.

    Example: sdist logs -f easy-20260102T030405Z --level WARNING
    """
    begin = None
    count = lines
    if since is not None:
        begin = datetime.now(timezone.utc) - timedelta(seconds=since)
    elif lines is None:
        count = LINES
    keep = LogFilter(level=level or 0, since=begin)
    source = LogSource(context=context, query=query, names=name or (), keep=keep)
    listed, rows = source.rows()
    if not rows and not follow:
        listed.must_answer()
        source = _of_newest_crawl(source, listed)
        listed, rows = source.rows()
        say(f"No job is running; the newest crawl is {source.names[0]}.")
    if not rows:
        say("No job is running. The logs of those that start come here; Ctrl-C ends it.")
    streams = source.open(rows, count)
    _put(heapq.merge(*map(LogStream.now, streams), key=itemgetter(0)), raw=raw)
    complain_each(listed.errors)
    if follow:
        _follow(source, streams, raw=raw)
    return listed.exit_code


def _of_newest_crawl(source: "LogSource", listed: JobList) -> "LogSource":
    """Return the logs of the newest crawl; NothingMatched if jobs were named, or there is none."""
    store = source.context.store_if_any
    if source.names or store is None:
        complain_each(listed.errors)
        raise NothingMatched(
            "No job is running. Name one, or a crawl: `sdist jobs` and `sdist crawls` list them."
        )
    return replace(source, names=[crawl_or_latest(store, None).id])


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


@dataclass(kw_only=True)
class LogStream:
    """The log of one job as it is read on."""

    row: Listed
    tap: LogTap
    offset: timedelta  #: the node's local time minus UTC
    keep: LogFilter
    alive: bool = True  #: whether the job may still write
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
            complain(str(error))
        self.broken = error.short

    def moments(self, lines: Sequence[LogLine]) -> list[Moment]:
        """Return the wanted ones of these lines; a log's last may have no line feed at its end."""
        found = []
        head = f"{self.row.node.name} {one_line(self.row.job)} | "
        for line in lines:
            if line.at is not None:
                self._last = utc(line.at, self.offset)
            if self.keep.wants(line, self.offset):
                found.append((self._last, head, line))
        return found


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """Where logs come from, and which of their lines are wanted."""

    context: Context
    query: JobQuery
    names: Sequence[str]
    keep: LogFilter
    _opened: set[tuple[str, str]] = field(default_factory=set)  #: keys of jobs

    def rows(self) -> tuple[JobList, tuple[Listed, ...]]:
        """Return what the nodes list, and of that the jobs that were named, or that run."""
        listed, rows = self.query.named(self.context, self.names)
        if self.names:
            return listed, rows
        running = [row for row in rows if row.state is JobState.RUNNING]
        return listed, tuple(running)

    def open(self, rows: Sequence[Listed], count: int | None) -> list[LogStream]:
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
        complain_each(errors)
        streams = []
        for row in fresh:
            stream = answers[row].value
            if stream is not None:
                streams.append(stream)
        return streams

    def _open(self, count: int | None, row: Listed) -> LogStream:
        sender = self.context.sender
        keep = self.keep
        timeout = self.query.timeout
        seen = read_log_end(sender, row.node, row.log, timeout=timeout)
        offset = timedelta()
        if seen is not None and seen.offset is not None:
            offset = seen.offset
        tap = LogTap(sender, row.node, row.log, timeout=timeout)
        floor = 0
        if keep.since is not None:
            floor = tap.seek_time((keep.since + offset).replace(tzinfo=None))
        if count is not None:
            tap.seek_last(count, lambda line: keep.wants(line, offset), floor)
        return LogStream(row=row, tap=tap, offset=offset, keep=keep, alive=not row.over)


def _follow(source: LogSource, streams: list[LogStream], *, raw: bool) -> None:
    """Show new lines until all jobs are over and nothing has come twice in a row."""
    listed_at = time.monotonic()
    quiet = 0  # looks in a row that found no new line
    while not streams or quiet < 2 or any(stream.alive for stream in streams):
        if time.monotonic() - listed_at >= LIST:
            listed_at = time.monotonic()
            with suppress(NothingMatched):  # a node that does not answer now may do so later
                _list_again(source, streams)
        moments: list[Moment] = []
        for answer in sweep(streams, LogStream.news):
            moments += answer.value or ()
        _put(sorted(moments, key=itemgetter(0)), raw=raw)
        quiet = 0 if moments else quiet + 1
        time.sleep(LOOK)
    for stream in streams:
        _put(stream.moments(stream.tap.rest()), raw=raw)


def _list_again(source: LogSource, streams: list[LogStream]) -> None:
    """Note which jobs are over, and add the logs of those that have started."""
    listed, rows = source.rows()
    over = set()
    for row in listed.jobs:
        if row.over:
            over.add(row.key)
    for stream in streams:
        stream.alive &= stream.row.key not in over
    streams += source.open(rows, None)


def _put(moments: Iterable[Moment], *, raw: bool) -> None:
    for _, head, line in moments:
        put_line(head, line, raw=raw)


def put_line(head: str, line: LogLine, *, raw: bool) -> None:
    """Print a line of a log behind its head; raw: byte for byte."""
    if raw:
        put_raw(head, line.raw)
    else:
        put(head + colourless(line.text))


def reaches(line: LogLine, level: int) -> bool:
    """Tell whether a line is of this level or above; 0 = any line."""
    return not level or (line.level in LEVELS and LEVELS.index(line.level) >= level)


def grep(
    *,
    context: Context,
    pattern: Annotated[str, argument("PATTERN", "A regular expression of Python.")],
    name: Names = None,
    ignore_case: Annotated[bool, option("Take A for a.", "--ignore-case", "-i")] = False,
    around: Annotated[
        int, option("Lines around a match.", "--context", "-C", metavar="LINES", min=0, max=1000)
    ] = 0,
    most: Annotated[
        int, option("Matches of each job, at most.", "--max-count", "-m", min=1)
    ] = 1000,
    level: Level = None,
    query: JobQuery,
    raw: Raw = False,
    output: Output,
) -> int:
    """Search the logs of the jobs on all nodes, side by side; without a name, of all jobs that they list.

    Exit code 4 when nothing matches.

    Example: sdist jobs grep 'DNS lookup failed' --spider easy -C 2
    """  # noqa: E501  # the summary is the help, which is one line
    try:
        regex = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise ConfigError(f"The pattern {pattern!r} is no regular expression: {error}.") from error
    listed, rows = query.named(context, name or ())
    search = _Search(
        regex=regex,
        around=around,
        most=most,
        level=level or 0,
        raw=raw,
        as_json=output.as_json,
    )

    def read(row: Listed) -> None:
        tap = LogTap(context.sender, row.node, row.log, timeout=query.timeout)
        search.read(row, tap.all())

    for answer in sweep(rows, read):
        complain_each([answer.error])
    complain_each(listed.errors)
    output.document({"searched": len(rows), "matches": search.matches})
    if search.foreign:
        say(
            "Not UTF-8, and read as Windows-1252: the log of"
            f" {some_of(sorted(search.foreign))}. If letters beyond ASCII are not found there, that"
            " is why: LOG_ENCODING says how it was written."
        )
    if not search.found and len(listed.errors) < listed.asked:
        return NothingMatched.exit_code
    return listed.exit_code


@dataclass(kw_only=True)
class _Search:
    """A search of several logs by several threads at once."""

    regex: re.Pattern[str]
    around: int  #: lines that are shown before and after a match
    most: int  #: matches of each log
    level: int  #: least, by its place in LEVELS
    raw: bool  #: whether lines are shown byte for byte
    as_json: bool  #: whether matches are collected, and not shown
    matches: list[dict[str, Any]] = field(default_factory=list)  #: rows of `--json`
    found: bool = False  #: whether any line matched
    foreign: set[str] = field(default_factory=set)  #: jobs whose logs are not in UTF-8
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, row: Listed, lines: Iterable[LogLine]) -> None:
        """Search a job's log, and show or collect what matches."""
        checked = noting_foreign(lines, row.job, self.foreign)
        for group in groups(checked, self._fits, self.around, self.most):
            with self._lock:
                self.found = True
                for line, is_match in group:
                    if not self.as_json:
                        mark = "|" if is_match else "-"
                        head = f"{row.node.name} {one_line(row.job)} {mark} "
                        put_line(head, line, raw=self.raw)
                    elif is_match:
                        self.matches.append(_match_row(row, line))

    def _fits(self, line: LogLine) -> bool:
        return reaches(line, self.level) and self.regex.search(line.text) is not None


def _match_row(row: Listed, line: LogLine) -> dict[str, Any]:
    return {
        "node": row.node.name,
        "job": row.job,
        "at": line.at.isoformat(sep=" ") if line.at else None,
        "level": line.level,
        "text": line.text,
    }


def noting_foreign(lines: Iterable[LogLine], job: str, foreign: set[str]) -> Iterator[LogLine]:
    """Pass lines on, and add the job to `foreign` if one of them is not UTF-8."""
    for line in lines:
        if job not in foreign:
            try:
                line.raw.decode("utf-8")
            except UnicodeDecodeError:
                foreign.add(job)
        yield line


def groups(
    lines: Iterable[LogLine], wanted: Callable[[LogLine], object], around: int, most: int
) -> Iterator[list[tuple[LogLine, bool]]]:
    """Generate matches with the lines around them: (line, whether it matches).

    No line comes twice. around: lines before and after a match; most: matches.
    """
    before: deque[LogLine] = deque(maxlen=around)
    group: list[tuple[LogLine, bool]] = []
    found = 0
    after = 0  # lines that are still to come after a match
    for line in lines:
        if found < most and wanted(line):
            group += [(earlier, False) for earlier in before]
            group.append((line, True))
            before.clear()
            found += 1
            after = around
        elif after:
            group.append((line, False))
            after -= 1
        else:
            before.append(line)
        if group and not after:
            yield group
            group = []
            if found >= most:
                return
    if group:
        yield group
