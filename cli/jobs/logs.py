"""`sdist logs` and `sdist jobs grep`: show and search the logs of many jobs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.escapes import colourless
from scrapyd_dist.joblogs.joblog import LEVELS, LogLine
from scrapyd_dist.jobs.job_list import JobList, ListedJob
from scrapyd_dist.jobs.log_search import LogSearch, match_row
from scrapyd_dist.jobs.log_streams import LogFilter, LogSource, LogStream, Moment, merge_moments
from scrapyd_dist.plurals import some_of

from ..context import Context
from ..crawls.producer_process import crawl_or_latest
from ..options import argument, crawls, one_of, option, span
from ..output import Output, complain_each, one_line, put, put_raw, say
from .job_query import JobQuery

#: lines of each log that are shown when nothing else is said
LINES = 20
Names = Annotated[list[str] | None, argument("JOB|CRAWL", "Ids of jobs, and crawls.", crawls)]


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
Since = Annotated[float | None, span("--since", "Only lines of the last 90 (seconds), 30m, 2h.")]
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
    whole: Annotated[bool, option("Each log from its first line on.")] = False,
    level: Level = None,
    since: Since = None,
    query: JobQuery,
    raw: Raw = False,
) -> int:
    """Show the logs of jobs on all nodes as one.

    Lines are ordered by time, each with its node and job. Without a name these
    are the jobs that run now, else those of the newest crawl. Logs are read from
    their end by Range, whatever their size. Colours are left out, and what else
    would steer a terminal is shown by its code.

    Example: sdist logs -f easy-20260102T030405Z --level WARNING
    Example: sdist logs 0123456789abcdef0123456789abcdef --whole
    """
    count = _count_lines(lines, since, whole=whole)
    keep = _wanted_lines(level, since)
    wanted = query.job_filter(context)
    source = LogSource(site=context.job_site, wanted=wanted, names=name or (), keep=keep)
    listed, rows = source.rows()
    if not rows and not follow:
        listed.must_answer()
        source = _of_newest_crawl(source, listed)
        listed, rows = source.rows()
        say(f"No job is running; the newest crawl is {source.names[0]}.")
    if not rows:
        say("No job is running. The logs of those that start come here; Ctrl-C ends it.")
    streams = source.open(rows, count)
    _put(merge_moments(streams), raw=raw)
    complain_each(listed.errors)
    if not follow:
        _say_where_no_log_is(streams)
        return listed.exit_code
    for moments in source.follow(streams):
        _put(moments, raw=raw)
    return listed.exit_code


def _wanted_lines(level: int | None, since: float | None) -> LogFilter:
    """Return which lines are wanted; since: of the last so many seconds."""
    begin = None
    if since is not None:
        begin = datetime.now(timezone.utc) - timedelta(seconds=since)
    return LogFilter(level=level or 0, since=begin)


def _count_lines(lines: int | None, since: float | None, *, whole: bool) -> int | None:
    """Return how many lines of each log's end are shown; None: all of them.

    Raises ConfigError where --whole and an option that shows less are both given.
    """
    if whole:
        if lines is not None or since is not None:
            raise ConfigError(
                "--whole shows each log from its first line on: leave --lines and --since out."
            )
        return None
    if lines is None and since is None:
        return LINES
    return lines


def _of_newest_crawl(source: LogSource, listed: JobList) -> LogSource:
    """Return the logs of the newest crawl; NothingMatched if jobs were named, or there is none."""
    store = source.site.store
    if source.names or store is None:
        complain_each(listed.errors)
        raise NothingMatched(
            "No job is running. Name one, or a crawl: `sdist jobs` and `sdist crawls` list them."
        )
    try:
        newest = crawl_or_latest(store, None)
    except NothingMatched as error:
        raise NothingMatched(
            "No job is running, and there are no crawls yet. Name a job, as in `sdist logs JOB`:"
            " `sdist jobs` lists them."
        ) from error
    return replace(source, names=[newest.id])


def _say_where_no_log_is(streams: Iterable[LogStream]) -> None:
    rows = [stream.row for stream in streams if not stream.has_log]
    if rows:
        jobs = [f"{row.job} ({row.node.name})" for row in rows]
        say(f"There is no log of {some_of(jobs)}: not yet, or not any more.")


def _put(moments: Iterable[Moment], *, raw: bool) -> None:
    for _, row, line in moments:
        put_line(f"{row.node.name} {one_line(row.job)} | ", line, raw=raw)


def put_line(head: str, line: LogLine, *, raw: bool) -> None:
    """Print a line of a log behind its head; raw: byte for byte."""
    if raw:
        put_raw(head, line.raw)
    else:
        put(head + colourless(line.text))


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
    since: Since = None,
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
    matches = _Matches(raw=raw, as_json=output.as_json)
    wanted = query.job_filter(context)
    site = context.job_site
    listed, rows = wanted.named(site, name or ())
    keep = _wanted_lines(level, since)
    search = LogSearch(regex=regex, around=around, most=most, keep=keep, show=matches.show)
    search.read_all(site, rows, query.timeout)
    complain_each(listed.errors)
    output.document({"searched": len(rows), "matches": matches.rows})
    if search.foreign:
        say(
            "Not UTF-8, and read as Windows-1252: the log of"
            f" {some_of(sorted(search.foreign))}. If letters beyond ASCII are not found there, that"
            " is why: LOG_ENCODING says how it was written."
        )
    if not search.found and len(listed.errors) < listed.asked:
        return NothingMatched.exit_code
    return listed.exit_code


@dataclass(frozen=True, kw_only=True)
class _Matches:
    """The lines that match, which are printed or collected."""

    raw: bool  #: whether lines are printed byte for byte
    as_json: bool  #: whether matches are collected, and not printed
    rows: list[dict[str, Any]] = field(default_factory=list)  #: of `--json`

    def show(self, row: ListedJob, line: LogLine, is_match: bool) -> None:
        """Print a line of a job's log, or collect it if it is a match."""
        if not self.as_json:
            mark = "|" if is_match else "-"
            put_line(f"{row.node.name} {one_line(row.job)} {mark} ", line, raw=self.raw)
        elif is_match:
            self.rows.append(match_row(row, line))
