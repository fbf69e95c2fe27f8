"""Scrapy logs as 2.13 to 2.19 write them: what is read from them, in pieces of any size."""

from collections.abc import Iterable
from datetime import datetime

import pytest

from scrapyd_dist.joblogs.joblog import LINE_MAX, LogFacts, LogLines, LogReader, read_dump

START = """\
2026-11-20 23:05:01 [scrapy.utils.log] INFO: Scrapy 2.19.0 started (bot: shop)
2026-11-20 23:05:01 [scrapy.utils.log] INFO: Versions:
{'lxml': '6.0.2',
 'Twisted': '25.5.0'}
2026-11-20 23:05:01 [scrapy.core.engine] INFO: Spider opened
2026-11-20 23:05:01 [scrapy.extensions.logstats] INFO: Crawled 0 pages (at 0 pages/min), scraped 0 items (at 0 items/min)
"""  # noqa: E501 - as Scrapy writes it
DEBUG = "2026-11-20 23:05:02 [scrapy.core.engine] DEBUG: Crawled (200) <GET http://web/1> (referer: None)\n"
ERROR = """\
2026-11-20 23:05:03 [scrapy.core.scraper] ERROR: Spider error processing <GET http://web/1> (referer: None)
Traceback (most recent call last):
  File "spider.py", line 9, in parse
    1 / 0
ZeroDivisionError: division by zero
"""
END = """\
2026-11-20 23:05:09 [scrapy.core.engine] INFO: Closing spider ({reason})
2026-11-20 23:05:09 [scrapy.statscollectors] INFO: Dumping Scrapy stats:
{{'downloader/response_count': 12,
 'elapsed_time_seconds': 8.25,
 'finish_reason': '{reason}',
 'finish_time': datetime.datetime(2026, 11, 20, 23, 5, 9, 123456, tzinfo=datetime.timezone.utc),
 'item_scraped_count': 10,
 'items_per_minute': None,
 'log_count/ERROR': 1,
 'response_received_count': 12,
 'start_time': datetime.datetime(2026, 11, 20, 23, 5, 1, 0, tzinfo=datetime.timezone.utc)}}
2026-11-20 23:05:09 [scrapy.core.engine] INFO: Spider closed ({reason})
"""


def moment(time: str) -> datetime:
    """Of that day, by the node's local clock."""
    return datetime.fromisoformat(f"2026-11-20 {time}")


def facts(text: str, start: int = 0, step: int = 1 << 20) -> LogFacts:
    reader, data = LogReader(start), text.encode()
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
    return reader.facts()


@pytest.mark.parametrize("step", [1, 7, 4096])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_whole_log_in_pieces_of_any_size(step: int, line_end: str) -> None:
    text = (START + DEBUG * 3 + ERROR + END.format(reason="finished")).replace("\n", line_end)
    found = facts(text, step=step)
    assert (found.closed, found.pages, found.items, found.whole) == ("finished", 12, 10, True)
    assert found.levels == {"INFO": 7, "DEBUG": 3, "ERROR": 1}
    assert found.last_error == (
        "Spider error processing <GET http://web/1> (referer: None) … ZeroDivisionError: division by zero"
    )
    assert found.stats is not None
    assert found.stats["finish_time"] == "2026-11-20T23:05:09.123456+00:00"
    assert found.stats["items_per_minute"] is None
    assert found.stats["elapsed_time_seconds"] == 8.25
    assert (found.first, found.last) == (moment("23:05:01"), moment("23:05:09"))
    assert found.size == len(text.encode())


def test_a_tail_that_begins_in_the_middle_of_a_line() -> None:
    found = facts("RROR: not a line\n" + END.format(reason="shutdown"), start=1000)
    assert (found.closed, found.whole, found.levels) == ("shutdown", False, {"INFO": 3})


def test_a_dump_that_began_before_the_tail_is_none() -> None:
    text = END.format(reason="finished")
    found = facts(text[text.index("'finish_reason'") :], start=1000)
    assert (found.closed, found.stats) == ("finished", None)


def test_a_log_that_just_ends_and_has_no_line_feed_there() -> None:
    found = facts((START + ERROR).rstrip("\n"))
    assert (found.closed, found.stats, found.levels["ERROR"]) == ("", None, 1)
    assert found.last_error.endswith("division by zero")


def test_of_a_job_id_that_was_used_twice_only_the_last_run_counts() -> None:
    found = facts(START + ERROR + END.format(reason="finished") + START)
    assert (found.closed, found.stats, found.last_error, found.levels) == ("", None, "", {"INFO": 4})


def test_a_page_that_says_so_closes_no_spider() -> None:
    said = "2026-11-20 23:05:02 [easy] INFO: Spider closed (finished)\n"
    assert facts(START + said + "Spider closed (finished)\n").closed == ""


def test_signals() -> None:
    first, second = (
        f"2026-11-20 23:05:04 [scrapy.crawler] INFO: Received SIGINT{what}\n"
        for what in (", shutting down gracefully. Send again to force ", " twice, forcing unclean shutdown")
    )
    found = [facts(START + said) for said in ("", first, first + second)]
    assert [(one.told, one.forced) for one in found] == [(False, False), (True, False), (True, True)]


def test_whether_the_spider_was_opened() -> None:
    begun, *_ = START.partition("2026-11-20 23:05:01 [scrapy.core.engine]")
    assert [facts(text).opened for text in (begun, START, START + begun)] == [False, True, False]


def crawled(minute: int, pages: int) -> str:
    return (
        f"2026-11-20 23:{minute:02d}:00 [scrapy.extensions.logstats] INFO: Crawled {pages} pages (at 0 pages/min), "
        "scraped 3 items (at 0 items/min)\n"
    )


def test_since_when_nothing_has_moved() -> None:
    found = facts(START + crawled(6, 4) + crawled(7, 9) + crawled(8, 9) + crawled(9, 9))
    assert (found.pages, found.items, found.idle_since) == (9, 3, moment("23:07:00"))


def test_a_log_in_another_format_tells_nothing_and_breaks_nothing() -> None:
    found = facts("23:05 INFO Spider closed (finished)\n" * 3)
    assert (found.closed, found.levels, found.last) == ("", {}, None)
    assert facts("").levels == {}
    assert facts("2026-99-99 99:99:99 [a] INFO: no such day\n").levels == {}
    assert LogReader().facts().whole


def offsets(lines: Iterable[object]) -> list[int]:
    return [line.offset for line in lines]  # type: ignore[attr-defined]  # lines of a log


@pytest.mark.parametrize("step", [1, 3, 1 << 20])
def test_lines_know_where_they_begin_and_whose_they_are(step: int) -> None:
    data = (DEBUG + ERROR).encode()
    lines = LogLines(100)
    found = [line for at in range(0, len(data), step) for line in lines.feed(data[at : at + step])]
    expected = [100]
    for raw in data.splitlines(keepends=True)[:-1]:
        expected.append(expected[-1] + len(raw))
    assert offsets(found) == expected
    assert [line.level for line in found] == ["DEBUG", *["ERROR"] * 5]
    assert [line.head for line in found] == [True, True, False, False, False, False]
    assert lines.position == 100 + len(data)


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    lines, piece = LogLines(), b"x" * LINE_MAX
    for _ in range(50):
        assert list(lines.feed(piece)) == []
        assert len(lines._rest) <= LINE_MAX
    (long, after) = lines.feed(b"\nnext\n")
    assert len(long.text) == LINE_MAX
    assert (after.text, after.offset) == ("next", 50 * LINE_MAX + 1)


def test_a_stats_dump_is_read_and_never_run() -> None:
    assert read_dump("{'a': __import__('os').getpid(), 'b': 2}") == {"a": "__import__('os').getpid()", "b": 2}
    assert read_dump("{'a': 1,\n 'odd': <object at 0x1>,\n 'b': 'x, }',\n 'c': 2}") == {"a": 1, "b": "x, }", "c": 2}
    assert read_dump("{'a': 1,\n 'b': 2,\n 'cut': 'in the mi") == {"a": 1, "b": 2}
    assert read_dump("no dump") == {}
    assert read_dump("{'n': nan, 'nested': {'x': 1}, 't': datetime.datetime(1, 2)}") == {
        "n": "nan", "nested": "{'x': 1}", "t": "datetime.datetime(1, 2)",
    }  # fmt: skip
