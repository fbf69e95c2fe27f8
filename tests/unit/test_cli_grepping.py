"""Matches in a log and the lines around them; and which lines a level and a moment leave."""

import re
from datetime import datetime, timedelta, timezone

import pytest
from scrapyd_dist.cli.jobs.logs import LogFilter, Search

from scrapyd_dist.joblogs.joblog import LogLine, LogLines


def lines(text: str) -> list[LogLine]:
    reader = LogLines()
    return [*reader.feed(text.encode()), *reader.end()]


def found(text: str, pattern: str, **options: int) -> list[str]:
    """Each group as one text: matches in capitals."""
    search = Search(pattern=re.compile(pattern), **{"level": 0, "context": 0, "most": 99, **options})
    groups = search.groups(iter(lines("\n".join(text))))
    return ["".join(line.text.upper() if hit else line.text for line, hit in group) for group in groups]


@pytest.mark.parametrize(
    ("text", "options", "groups"),
    [
        ("abcdxefgh", {}, ["X"]),
        ("abcdxefgh", {"context": 2}, ["cdXef"]),
        ("xabc", {"context": 2}, ["Xab"]),
        ("abcx", {"context": 2}, ["bcX"]),
        ("axbxc", {"context": 1}, ["aXb", "Xc"]),
        ("axbbxc", {"context": 1}, ["aXb", "bXc"]),
        ("axbcdexf", {"context": 1}, ["aXb", "eXf"]),
        ("xaxaxa", {"most": 2}, ["X", "X"]),
        ("xaxaxa", {"most": 1, "context": 1}, ["Xa"]),
        ("xxx", {"context": 5}, ["XXX"]),
        ("abc", {"context": 5}, []),
    ],
)
def test_matches_and_the_lines_around_them(text: str, options: dict[str, int], groups: list[str]) -> None:
    assert found(text, "x", **options) == groups


def test_a_level_leaves_what_is_below_and_a_traceback_belongs_to_its_error() -> None:
    text = "2026-11-20 23:05:01 [a] {}: x\n  x below\n"
    rows = lines("x above\n" + text.format("INFO") + text.format("ERROR"))
    search = Search(pattern=re.compile("x"), level=3, context=0, most=9)
    assert [line.level for group in search.groups(iter(rows)) for line, _ in group] == ["ERROR", "ERROR"]


def test_which_lines_are_kept() -> None:
    above, info, error = lines("above\n2026-11-20 23:05:01 [a] INFO: x\n2026-11-20 23:06:01 [a] ERROR: x\n")
    hour = timedelta(hours=1)  # the node is an hour before UTC
    since = datetime(2026, 11, 20, 22, 6, tzinfo=timezone.utc)
    assert [LogFilter().wants(line, hour) for line in (above, info, error)] == [True, True, True]
    assert [LogFilter(level=3).wants(line, hour) for line in (above, info, error)] == [False, False, True]
    assert [LogFilter(since=since).wants(line, hour) for line in (above, info, error)] == [False, False, True]
    assert LogFilter(since=since).wants(info, timedelta())
