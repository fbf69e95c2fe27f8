"""Which lines of the logs of jobs are wanted."""

from datetime import datetime, timedelta, timezone

from scrapyd_dist.joblogs.joblog import LogLine, LogLines
from scrapyd_dist.jobs.log_streams import LogFilter, reaches


def lines(text: str) -> list[LogLine]:
    reader = LogLines()
    return [*reader.feed(text.encode()), *reader.end()]


def test_a_level_leaves_what_is_below_and_a_traceback_belongs_to_its_error() -> None:
    text = "2026-11-20 23:05:01 [a] {}: x\n  x below\n"
    rows = lines("x above\n" + text.format("INFO") + text.format("ERROR"))
    assert [line.level for line in rows if reaches(line, 3)] == ["ERROR", "ERROR"]


def test_which_lines_are_kept() -> None:
    above, info, error = lines(
        "above\n2026-11-20 23:05:01 [a] INFO: x\n2026-11-20 23:06:01 [a] ERROR: x\n"
    )
    hour = timedelta(hours=1)  # the node is an hour before UTC
    since = datetime(2026, 11, 20, 22, 6, tzinfo=timezone.utc)
    assert [LogFilter().wants(line, hour) for line in (above, info, error)] == [True, True, True]
    assert [LogFilter(level=3).wants(line, hour) for line in (above, info, error)] == [
        False,
        False,
        True,
    ]
    assert [LogFilter(since=since).wants(line, hour) for line in (above, info, error)] == [
        False,
        False,
        True,
    ]
    assert LogFilter(since=since).wants(info, timedelta())
