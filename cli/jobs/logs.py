"""`sdist logs` and `sdist jobs grep`: the logs of many jobs. Of each log no more than a block is in memory."""

import heapq
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from operator import itemgetter
from typing import Annotated, Any

from scrapyd_dist.errors import ConfigError, NodeError, NothingMatched
from scrapyd_dist.joblogs.joblog import LEVELS, LogLine
from scrapyd_dist.joblogs.log_reads import LogTap, look
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
#: seconds between two looks at logs that are followed, and at the list of jobs
LOOK, LIST = 1.0, 5.0
Names = Annotated[list[str] | None, argument("JOB|CRAWL", "Ids of jobs, and crawls.", crawls)]
_EARLIEST = datetime.min.replace(tzinfo=timezone.utc)


def level_of(text: str) -> int:
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
    begin = None if since is None else datetime.now(timezone.utc) - timedelta(seconds=since)
    keep = LogFilter(level=level or 0, since=begin)
    source = LogSource(context=context, query=query, names=name or (), keep=keep)
    listed, rows = source.rows()
    if not rows and not follow:
        listed.must_answer()
        store = context.store_if_any
        if name or store is None:
            complain_each(listed.errors)
            raise NothingMatched(
                "No job is running. Name one, or a crawl: `sdist jobs` and `sdist crawls` list them."
            )
        source = replace(source, names=[crawl_or_latest(store, None).id])
        listed, rows = source.rows()
        say(f"No job is running; the newest crawl is {source.names[0]}.")
    count = lines if lines is not None else None if since is not None else LINES
    if not rows:
        say("No job is running. The logs of those that start come here; Ctrl-C ends it.")
    streams = source.open(rows, count)
    for _, head, line in heapq.merge(*(stream.now() for stream in streams), key=itemgetter(0)):
        put_line(head, line, raw=raw)
    complain_each(listed.errors)
    if follow:
        _follow(source, streams, raw=raw)
    return listed.exit_code


@dataclass(frozen=True, kw_only=True)
class LogFilter:
    level: int = 0  #: least, by its place in LEVELS
    since: datetime | None = None

    def wants(self, line: LogLine, offset: timedelta) -> bool:
        """Whether it is of the level and of the time; what has neither is wanted where neither is asked for."""
        recent = self.since is None or (line.at is not None and utc(line.at, offset) >= self.since)
        return recent and reaches(line, self.level)


#: one line of one log: when it was, UTC; what is shown before it; the line
Moment = tuple[datetime, str, LogLine]


@dataclass(kw_only=True)
class LogStream:
    """The log of one job as it is read on."""

    row: Listed
    tap: LogTap
    offset: timedelta  #: the node's local time minus UTC
    keep: LogFilter
    alive: bool = True
    broken: str = ""
    _last: datetime = _EARLIEST

    def now(self) -> Iterator[Moment]:
        """All wanted lines up to the end of the log as it is now."""
        try:
            for lines in self.tap.blocks():
                yield from self.moments(lines)
        except NodeError as error:
            self._complain(error)
        if not self.alive:
            yield from self.moments(self.tap.rest())

    def news(self) -> list[Moment] | None:
        """The wanted ones of the next lines; None where nothing is new."""
        try:
            lines = self.tap.more()
        except NodeError as error:
            self._complain(error)
            return None
        return None if lines is None else self.moments(lines)

    def _complain(self, error: NodeError) -> None:
        if self.broken != error.short:
            complain(str(error))
        self.broken = error.short

    def moments(self, lines: Sequence[LogLine]) -> list[Moment]:
        """The wanted ones of these lines; the last of a log may have no line feed at its end."""
        found, head = [], f"{self.row.node.name} {one_line(self.row.job)} | "
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
    _opened: set[tuple[str, str]] = field(default_factory=set)

    def rows(self) -> tuple[JobList, tuple[Listed, ...]]:
        """What the nodes list, and of that the jobs that were named, or that run."""
        listed, rows = self.query.named(self.context, self.names)
        return listed, rows if self.names else tuple(
            row for row in rows if row.state is JobState.RUNNING
        )

    def open(self, rows: Sequence[Listed], count: int | None) -> list[LogStream]:
        """The logs of those jobs that are not open yet, each at its first line to be shown; count: None = from all."""
        fresh = [row for row in rows if row.key not in self._opened]
        self._opened.update(row.key for row in fresh)
        answers = {
            answer.asked: answer for answer in sweep(fresh, lambda row: self._open(row, count))
        }
        complain_each(answer.error for answer in answers.values())
        return [stream for row in fresh if (stream := answers[row].value) is not None]

    def _open(self, row: Listed, count: int | None) -> LogStream:
        sender, node, log, keep = self.context.sender, row.node, row.log, self.keep
        seen = look(sender, node, log, timeout=self.query.timeout)
        offset = (seen.offset if seen else None) or timedelta()
        tap = LogTap(sender, node, log, timeout=self.query.timeout)
        floor = (
            tap.seek_time((keep.since + offset).replace(tzinfo=None))
            if keep.since is not None
            else 0
        )
        if count is not None:
            tap.seek_last(count, lambda line: keep.wants(line, offset), floor)
        return LogStream(row=row, tap=tap, offset=offset, keep=keep, alive=not row.over)


def _follow(source: LogSource, streams: list[LogStream], *, raw: bool) -> None:
    listed_at, quiet = time.monotonic(), 0
    while any(stream.alive for stream in streams) or quiet < 2 or not streams:
        if time.monotonic() - listed_at >= LIST:
            listed_at = time.monotonic()
            with suppress(NothingMatched):  # a node that does not answer now may do so later
                listed, rows = source.rows()
                over = {row.key for row in listed.jobs if row.over}
                for stream in streams:
                    stream.alive &= stream.row.key not in over
                streams += source.open(rows, None)
        news = [
            moment for answer in sweep(streams, LogStream.news) for moment in answer.value or ()
        ]
        for _, head, line in sorted(news, key=itemgetter(0)):
            put_line(head, line, raw=raw)
        quiet = 0 if news else quiet + 1
        time.sleep(LOOK)
    for stream in streams:
        for _, head, line in stream.moments(stream.tap.rest()):
            put_line(head, line, raw=raw)


def put_line(head: str, line: LogLine, *, raw: bool) -> None:
    if raw:
        put_raw(head, line.raw)
    else:
        put(head + colourless(line.text))


def reaches(line: LogLine, level: int) -> bool:
    """Whether a line is of this level or above; 0 = any line."""
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
    """
    try:
        regex = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise ConfigError(f"The pattern {pattern!r} is no regular expression: {error}.") from error
    listed, rows = query.named(context, name or ())
    matches: list[dict[str, Any]] = []
    found, lock = False, threading.Lock()
    foreign: set[str] = set()  #: jobs that wrote their logs in another encoding

    def read(row: Listed) -> None:
        nonlocal found
        tap = LogTap(context.sender, row.node, row.log, timeout=query.timeout)
        lines = noting_foreign(tap.all(), row.job, foreign)
        for group in groups(
            lines, lambda line: reaches(line, level or 0) and regex.search(line.text), around, most
        ):
            with lock:
                found = True
                for line, hit in group:
                    if not output.as_json:
                        put_line(
                            f"{row.node.name} {one_line(row.job)} {'|' if hit else '-'} ",
                            line,
                            raw=raw,
                        )
                    elif hit:
                        at = line.at.isoformat(sep=" ") if line.at else None
                        match = {"node": row.node.name, "job": row.job, "at": at}
                        matches.append({**match, "level": line.level, "text": line.text})

    for answer in sweep(rows, read):
        complain_each([answer.error])
    complain_each(listed.errors)
    output.document({"searched": len(rows), "matches": matches})
    if foreign:
        say(
            f"Not UTF-8, and read as Windows-1252: the log of {some_of(sorted(foreign))}. If letters beyond ASCII are"
            " not found there, that is why: LOG_ENCODING says how it was written."
        )
    if not found and len(listed.errors) < listed.asked:
        return 4
    return listed.exit_code


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
    """So many matches with the lines around them: (line, whether it matches); no line comes twice."""
    before: deque[LogLine] = deque(maxlen=around)
    group: list[tuple[LogLine, bool]] = []
    found = after = 0
    for line in lines:
        if found < most and wanted(line):
            group += [*((one, False) for one in before), (line, True)]
            before.clear()
            found, after = found + 1, around
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
