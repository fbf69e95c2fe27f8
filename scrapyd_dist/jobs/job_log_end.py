"""Reads the end of one job's log: its last lines, and which errors stand in it, how often."""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.joblogs.joblog import LEVELS, LogLine
from scrapyd_dist.joblogs.log_reads import BLOCK, LogTap

from .job_list import JobFilter
from .job_site import JobSite
from .log_streams import reaches

#: the place of the level from which on lines are errors
_ERROR = LEVELS.index("ERROR")
#: what differs between two errors of one kind: requests, addresses, numbers
_PARTICULARS = re.compile(r"<[A-Z]+ [^>]*>|https?://\S+|0x[0-9a-f]+|\d+")
#: characters of a message
_LONGEST = 200


@dataclass(frozen=True, kw_only=True)
class ErrorGroup:
    """Errors that are alike but for addresses and numbers."""

    message: str  #: of the last of them
    count: int


@dataclass(frozen=True, kw_only=True)
class JobLogEnd:
    """The end of a job's log, of which 256 kB are read at most."""

    lines: Sequence[LogLine]
    errors: Sequence[ErrorGroup]  #: in the part that was read, the most frequent first
    whole: bool  #: whether the log has no more than what was read


def read_job_log_end(site: JobSite, wanted: JobFilter, job: str, most: int) -> JobLogEnd:
    """Return so many lines of the end of a job's log.

    Raises:
        NothingMatched: there is no such job, or its node is no target any more.
        NodeError: its node does not answer.
    """
    _, rows = wanted.named(site, [job], gone_too=True)
    if not rows:
        raise NothingMatched(f"There is no job {job}.")
    row = rows[-1]
    if not row.node.url:  # it waits in the store
        return JobLogEnd(lines=(), errors=(), whole=True)
    if row.silent:
        raise NothingMatched(f"The log of {job} cannot be read: {row.silent}.")
    tap = LogTap(site.sender, row.node, row.log, timeout=wanted.timeout)
    begin = max(0, tap.size() - BLOCK)
    tap.begin_at(begin, torn=begin > 0)
    lines = list(tap.all())
    return JobLogEnd(
        lines=list(deque(lines, maxlen=most)), errors=group_errors(lines), whole=begin == 0
    )


def group_errors(lines: Iterable[LogLine]) -> list[ErrorGroup]:
    """Return the errors of these lines, grouped by message, the most frequent first."""
    groups: dict[str, ErrorGroup] = {}
    for line in lines:
        if not line.head or not reaches(line, _ERROR):
            continue
        message = line.message[:_LONGEST]
        kind = _PARTICULARS.sub("…", message)
        count = 1
        if kind in groups:
            count += groups[kind].count
        groups[kind] = ErrorGroup(message=message, count=count)
    return sorted(groups.values(), key=lambda group: -group.count)
