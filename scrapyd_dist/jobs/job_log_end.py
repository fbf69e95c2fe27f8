"""Reads the end of one job's log: its last lines, and which errors stand in it, how often."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.escapes import colourless
from scrapyd_dist.joblogs.joblog import LEVELS, ExceptionFinder, LogLine
from scrapyd_dist.joblogs.log_reads import BLOCK, LogTap

from .job_list import JobFilter
from .job_site import JobSite
from .log_streams import reaches

#: the place of the level from which on lines are errors
_ERROR = LEVELS.index("ERROR")
#: what differs between two errors of one kind: requests, addresses, numbers
_PARTICULARS = re.compile(r"<[A-Z]+ [^>]*>|https?://\S+|0x[0-9a-f]+|\d+")
#: the address of the page that an error is about
_ADDRESS = re.compile(r"<[A-Z]+ (?P<request>[^\s>]+)|(?P<other>\bhttps?://[^\s>]+)")
#: characters of a name
_LONGEST = 200
#: characters of an address
_LONGEST_ADDRESS = 2000


@dataclass(frozen=True, kw_only=True)
class ErrorGroup:
    """Errors that are alike but for addresses and numbers."""

    #: the line of their exception, or their message if they have none; where theirs differ, "…"
    #: stands for addresses and numbers
    name: str
    count: int
    example: str = ""  #: the address of the page of the last of them, unless the name has it


@dataclass(frozen=True, kw_only=True)
class JobLogEnd:
    """The end of a job's log, of which 256 kB are read at most."""

    lines: Sequence[LogLine]
    errors: Sequence[ErrorGroup]  #: in the part that was read, the most frequent first
    whole: bool  #: whether the log has no more than what was read

    def errors_document(self) -> dict[str, Any]:
        """Return the errors, for JSON."""
        return {"whole": self.whole, "groups": [asdict(group) for group in self.errors]}


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
    """Return the errors of these lines, grouped by exception, the most frequent first.

    An error without a traceback is grouped by its message.
    """
    groups: dict[str, ErrorGroup] = {}
    for message, exception in _find_errors(lines):
        name = colourless(exception or message)[:_LONGEST]
        kind = _PARTICULARS.sub("…", name)
        count = 1
        if kind in groups:
            count += groups[kind].count
            name = _common_name(groups[kind].name, name, kind)
        address = _address_in(message)
        example = "" if address in name else address
        groups[kind] = ErrorGroup(name=name, count=count, example=example)
    return sorted(groups.values(), key=lambda group: -group.count)


def _find_errors(lines: Iterable[LogLine]) -> Iterator[tuple[str, str]]:
    """Yield the message of each error, and its exception, which is empty if it has none."""
    message: str | None = None  # None while no error is read
    finder = ExceptionFinder()
    for line in lines:
        if not line.head:
            finder.read(line.text)
            continue
        if message is not None:
            yield message, finder.exception
        message = line.message if reaches(line, _ERROR) else None
        finder = ExceptionFinder()
    if message is not None:
        yield message, finder.exception


def _common_name(earlier: str, name: str, kind: str) -> str:
    """Return what names two errors of one kind: their line, or what their lines have in common."""
    return name if earlier == name else kind


def _address_in(message: str) -> str:
    """Return the first address in a message; empty if there is none."""
    found = _ADDRESS.search(colourless(message))
    if found is None:
        return ""
    address: str = found["request"] or found["other"]
    return address[:_LONGEST_ADDRESS]
