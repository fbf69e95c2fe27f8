"""`sdist grep`: a pattern in the logs of many jobs. Rule: of each log no more than a block is in memory."""

from __future__ import annotations

import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.joblogs.joblog import LEVELS

from .job_list import TIMEOUT, Json, Nodes, Project, Spider, Timeout
from .logs import Level, Names, Raw, level_of, put_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapyd_dist.joblogs.joblog import LogLine
    from scrapyd_dist.transports import Sender

    from .job_list import Listed

#: matches of each job, at most, that are given
MATCHES = 1000


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("grep")(grep)


def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A regular expression of Python.")],
    name: Names = None,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Take A for a.")] = False,
    context: Annotated[
        int, typer.Option("--context", "-C", metavar="LINES", help="Lines shown around a match.", min=0, max=1000)
    ] = 0,
    most: Annotated[int, typer.Option("--max-count", "-m", help="Matches of each job, at most.", min=1)] = MATCHES,
    level: Level = None,
    node: Nodes = None,
    project: Project = None,
    spider: Spider = None,
    timeout: Timeout = TIMEOUT,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Search the logs of the jobs on all nodes, side by side; without a name, of all jobs that they list.

    Exit code 4 when nothing matches.

    Example: sdist grep 'DNS lookup failed' --spider easy -C 2
    """
    from scrapyd_dist.config import load

    from ..target_nodes import chosen_nodes
    from .job_list import ask_jobs, make_sender, named, remembered

    regex = _pattern(pattern, ignore_case=ignore_case)
    search = Search(pattern=regex, level=level_of(level), context=context, most=most)
    found = load()
    nodes, sender = chosen_nodes(found, node), make_sender()
    listed = ask_jobs(sender, nodes, project=project, spider=spider, timeout=timeout)
    rows = named(listed, name, remembered(found.root, name, nodes)) if name else listed.jobs
    matches = _search(sender, rows, search, timeout, quiet=as_json, raw=raw)
    listed.complain()
    if as_json:
        from ..output import put_json

        put_json({"searched": len(rows), "matches": matches})
    if not matches:
        raise typer.Exit(listed.exit_code if len(listed.errors) == listed.asked else 4)
    raise typer.Exit(listed.exit_code)


def _pattern(text: str, *, ignore_case: bool) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise ConfigError(f"The pattern {text!r} is no regular expression: {error}.") from error


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched for, in one log after the other."""

    pattern: re.Pattern[str]
    level: int
    context: int
    most: int

    def groups(self, lines: Iterator[LogLine]) -> Iterator[list[tuple[LogLine, bool]]]:
        """Matches with the lines around them: (line, whether it matches); no line comes twice."""
        before: deque[LogLine] = deque(maxlen=self.context)
        group: list[tuple[LogLine, bool]] = []
        found = after = 0
        for line in lines:
            if found < self.most and self._matches(line):
                group += [*((one, False) for one in before), (line, True)]
                before.clear()
                found, after = found + 1, self.context
            elif after:
                group.append((line, False))
                after -= 1
            else:
                before.append(line)
            if group and not after:
                yield group
                group = []
                if found >= self.most:
                    return
        if group:
            yield group

    def _matches(self, line: LogLine) -> bool:
        if self.level and (line.level not in LEVELS or LEVELS.index(line.level) < self.level):
            return False
        return self.pattern.search(line.text) is not None


def _search(
    sender: Sender, rows: Sequence[Listed], search: Search, timeout: float, *, quiet: bool, raw: bool
) -> list[dict[str, Any]]:
    """Search all logs side by side, and show each match as it comes; gives the rows of `--json`, or one for all."""
    from scrapyd_dist.joblogs.log_reads import LogTap
    from scrapyd_dist.scrapyd.sweep import sweep

    from ..output import complain, one_line

    matches: list[dict[str, Any]] = []
    lock = threading.Lock()

    def take(row: Listed, group: list[tuple[LogLine, bool]]) -> None:
        place = row.place
        with lock:
            for line, hit in group:
                if not quiet:
                    put_line(f"{place.node.name} {one_line(place.job)} {'|' if hit else '-'} ", line, raw=raw)
            if quiet:
                matches.extend(_match(row, line) for line, hit in group if hit)
            elif not matches:
                matches.append({})

    def read(row: Listed) -> None:
        tap = LogTap(sender, row.place.node, row.place.log, timeout=timeout)
        for group in search.groups(tap.all()):
            take(row, group)

    for answer in sweep(rows, read):
        if answer.error is not None:
            complain(str(answer.error))
    return matches


def _match(row: Listed, line: LogLine) -> dict[str, Any]:
    place = row.place
    at = line.at.isoformat(sep=" ") if line.at else None
    return {"node": place.node.name, "job": place.job, "at": at, "level": line.level, "text": line.text}
