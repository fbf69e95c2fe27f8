"""Searches the logs of many jobs, side by side."""

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from scrapyd_dist.joblogs.joblog import LogLine
from scrapyd_dist.joblogs.log_reads import LogTap, read_log_end
from scrapyd_dist.transports import sweep

from .job_list import ListedJob
from .job_site import JobSite
from .log_streams import LogFilter, offset_in

#: gets whose log it is, a line to show, and whether that is a match or a line around one
ShowLine = Callable[[ListedJob, LogLine, bool], object]


@dataclass(kw_only=True)
class LogSearch:
    """A search of several logs by several threads at once."""

    regex: re.Pattern[str]
    around: int  #: lines that are shown before and after a match
    most: int  #: matches of each log
    keep: LogFilter  #: which lines may match
    show: ShowLine  #: called by one thread at a time
    found: bool = False  #: whether any line matched
    foreign: set[str] = field(default_factory=set)  #: jobs whose logs are not in UTF-8
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read_all(self, site: JobSite, rows: Sequence[ListedJob], timeout: float) -> None:
        """Search the logs of these jobs; a node that does not answer is complained of.

        timeout: seconds that a node gets for each answer.
        """

        def read(row: ListedJob) -> None:
            tap = LogTap(site.sender, row.node, row.log, timeout=timeout)
            offset = timedelta()
            if self.keep.since is not None:
                seen = read_log_end(site.sender, row.node, row.log, timeout=timeout)
                offset = offset_in(seen)
                tap.seek_time((self.keep.since + offset).replace(tzinfo=None))
            self._search(row, tap.all(), offset)

        for answer in sweep(rows, read):
            site.messenger.complain_each([answer.error])

    def _search(self, row: ListedJob, lines: Iterable[LogLine], offset: timedelta) -> None:
        """Search a job's log, and show what matches; offset: the node's local time minus UTC."""

        def fits(line: LogLine) -> bool:
            return self.keep.wants(line, offset) and self.regex.search(line.text) is not None

        checked = noting_foreign(lines, row.job, self.foreign)
        for group in groups(checked, fits, self.around, self.most):
            with self._lock:
                self.found = True
                for line, is_match in group:
                    self.show(row, line, is_match)


def match_row(row: ListedJob, line: LogLine) -> dict[str, Any]:
    """Return a line that matches, for JSON."""
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
