"""Scrapy logs as 2.13 to 2.19 write them: what is read from them, and how little of a node and of memory it takes."""

import re
import tracemalloc
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
from rig.nodemodel import file_reply

from scrapyd_dist.joblogs.joblog import LINE_MAX, LogFacts, LogLine, LogLines, LogReader, read_dump
from scrapyd_dist.joblogs.log_reads import (
    BLOCK,
    HEAD,
    LONG_TAIL,
    TAIL,
    LogTap,
    read_log_end,
    survey,
)
from scrapyd_dist.joblogs.verdict import by_log
from scrapyd_dist.jobs.job_list import ListedJob
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.jobs.log_search import LogSearch, groups, noting_foreign
from scrapyd_dist.jobs.log_streams import LogFilter
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, JobState

T = TypeVar("T")
NODE = Node.parse("web1:6800")
BEGINNING = datetime.fromisoformat("2026-11-20 20:00:00")
NOW = "Fri, 20 Nov 2026 22:10:00 GMT"


class File:
    """A sender of one file, which counts what is asked of it. It answers as a node's /logs/ does."""

    def __init__(self, data: bytes | None, modified: str = "Fri, 20 Nov 2026 22:09:00 GMT") -> None:
        self.data, self.sent, self.largest, self._modified = data, 0, 0, modified

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        reply = file_reply(node, call, self.data, **{"date": NOW, "last-modified": self._modified})
        self.sent += len(reply.body)
        self.largest = max(self.largest, len(reply.body))
        return call.read(reply)

    def close(self) -> None: ...


def row(number: int, level: str = "DEBUG") -> str:
    at = BEGINNING + timedelta(seconds=number)
    return f"{at:%Y-%m-%d %H:%M:%S} [shop] {level}: line {number} {'x' * (number % 90)}\n"


@cache
def make_big() -> bytes:
    """60,000 lines of a log, each thousandth of them an error."""
    lines = [row(number, "DEBUG" if number % 1000 else "ERROR") for number in range(60_000)]
    return "".join(lines).encode()


STARTED = "2026-11-20 20:00:00 [scrapy.utils.log] INFO: Scrapy 2.19.0 started (bot: shop)\n"
CLOSED = "2026-11-20 23:09:00 [scrapy.core.engine] INFO: Spider closed (finished)\n"


def dump(entries: int) -> str:
    lines = ",\n ".join(f"'custom/{number:06d}': {number}" for number in range(entries))
    return (
        f"2026-11-20 23:09:00 [scrapy.statscollectors] INFO: Dumping Scrapy stats:\n{{{lines}}}\n"
    )


def tap(data: bytes | None) -> tuple[LogTap, File]:
    file = File(data)
    return LogTap(file, NODE, "logs/p/s/j.log", timeout=1), file


def numbers(lines: list[LogLine]) -> list[int]:
    return [int(line.message.split()[1]) for line in lines]


def test_the_end_of_a_large_log_costs_one_small_reading() -> None:
    file = File(STARTED.encode() + make_big() + (dump(10) + CLOSED).encode())
    seen = read_log_end(file, NODE, "logs/p/s/j.log", timeout=1)
    assert seen is not None
    assert (seen.facts.closed, len(seen.facts.stats or {})) == ("finished", 10)
    assert (seen.total, seen.silent, seen.offset) == (
        len(file.data or b""),
        60.0,
        timedelta(hours=1),
    )
    assert file.sent <= HEAD + TAIL


def test_a_large_dump_costs_one_larger_reading() -> None:
    file = File(make_big() + (dump(9000) + CLOSED).encode())
    seen = read_log_end(file, NODE, "logs/p/s/j.log", timeout=1)
    assert seen is not None
    assert len(seen.facts.stats or {}) == 9000
    assert file.sent <= HEAD + TAIL + LONG_TAIL


@pytest.mark.parametrize(("start", "says"), [(STARTED, True), ("", False)])
def test_whether_a_log_has_lines_of_level_info_at_all(start: str, says: bool) -> None:
    file = File(start.encode() + make_big())
    seen = read_log_end(file, NODE, "logs/p/s/j.log", timeout=1)
    assert seen is not None
    assert seen.says_info is says
    assert file.sent <= TAIL + HEAD


def test_no_log() -> None:
    assert read_log_end(File(None), NODE, "logs/p/s/j.log", timeout=1) is None
    assert survey(File(None), NODE, "logs/p/s/j.log") is None
    reader, _ = tap(None)
    reader.seek_last(5, lambda _: True)
    assert list(reader.all()) == []


def test_a_survey_reads_all_of_it() -> None:
    found = survey(File(make_big()), NODE, "logs/p/s/j.log")
    assert found is not None
    assert (found.levels, found.size) == ({"ERROR": 60, "DEBUG": 59_940}, len(make_big()))


@pytest.mark.parametrize("count", [1, 20, 5000, 100_000])
def test_the_last_lines(count: int) -> None:
    reader, file = tap(make_big())
    reader.seek_last(count, lambda _: True)
    assert numbers(list(reader.all())) == list(range(60_000))[-count:]
    assert file.largest <= BLOCK
    if count == 1:
        assert file.sent <= 2 * BLOCK


def test_the_last_lines_of_a_level_wherever_they_are() -> None:
    reader, file = tap(make_big())
    reader.seek_last(3, lambda line: line.level == "ERROR")
    found = [line for line in reader.all() if line.level == "ERROR"]
    assert numbers(found) == [57_000, 58_000, 59_000]
    assert file.largest <= BLOCK


@pytest.mark.parametrize("count", [1, 20, 50])
@pytest.mark.parametrize("after", [0, BLOCK - 300])
def test_the_last_lines_of_a_level_may_begin_inside_a_traceback(count: int, after: int) -> None:
    traceback = "".join(f"  frame {number}\n" for number in range(40))
    lines = len(row(5)) - 1
    data = row(0, "ERROR") + traceback + row(5) * (after // lines)
    reader, _ = tap((row(1) * (BLOCK // lines) + data).encode())
    reader.seek_last(count, lambda line: line.level == "ERROR")
    found = [line.text for line in reader.all() if line.level == "ERROR"]
    assert found == data.splitlines()[:41][-count:]


def test_a_search_for_the_last_lines_ends_at_its_bound() -> None:
    reader, file = tap(make_big())
    left = reader.seek_last(3, lambda line: line.level == "CRITICAL", most=2 * BLOCK)
    assert len(make_big()) - 3 * BLOCK < left <= len(make_big()) - 2 * BLOCK
    assert file.sent <= 3 * BLOCK + 1
    assert reader.seek_last(3, lambda line: line.level == "ERROR", most=2 * BLOCK) == 0


def test_a_line_longer_than_a_block_loses_no_other_line() -> None:
    data = (row(1) + "y" * (2 * BLOCK + 100) + "\n" + row(2) + row(3)).encode()
    reader, _ = tap(data)
    reader.seek_last(100, lambda _: True)
    assert next(line.offset for line in reader.all() if line.head) == 0
    reader, _ = tap(data)
    reader.seek_last(2, lambda line: line.head)
    assert numbers(list(reader.all())) == [2, 3]


@pytest.mark.parametrize("second", [0, 31_234, 59_999, 70_000])
def test_from_a_moment_on(second: int) -> None:
    since = BEGINNING + timedelta(seconds=second)
    reader, file = tap(make_big())
    reader.seek_time(since)
    found = [line for line in reader.all() if line.at is not None and line.at >= since]
    assert numbers(found) == list(range(second, 60_000))
    assert file.largest <= BLOCK
    if second >= 59_999:
        assert file.sent <= 3 * BLOCK


def test_a_log_that_grows_and_one_that_begins_again() -> None:
    reader, file = tap((row(1) + "2026-11-20 20:00:02 [shop] DEB").encode())
    assert numbers(reader.more() or []) == [1]
    assert reader.more() is None
    file.data = (row(1) + row(2) + row(3)).encode()
    assert numbers(reader.more() or []) == [2, 3]
    file.data = row(7).encode()
    assert numbers(reader.more() or []) == [7]
    assert reader.more() is None


# memory, in each way in which commands read a log

LINE = b"2026-11-20 12:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET http://web/properties/000000.html> ()\n"
NEEDLE = b"2026-11-20 12:00:00 [shop] ERROR: the needle\n"


def the_last_errors(file: File) -> None:
    reader = LogTap(file, NODE, "logs/x", timeout=1)
    reader.seek_last(100, lambda line: line.level == "ERROR")
    first = reader.more()
    assert first is not None
    assert first[0].text.endswith("the needle")


def a_search(file: File) -> None:
    lines = LogTap(file, NODE, "logs/x", timeout=1).all()
    (group,) = groups(lines, lambda line: "needle" in line.text, around=2, most=5)
    assert [hit for _, hit in group] == [True, False, False]


def search(file: File, keep: LogFilter) -> list[str]:
    """The lines in which a number of five digits, or the end of a traceback, is found."""
    found: list[str] = []
    listed = ListedJob(node=NODE, project="p", spider="s", job="j", state=JobState.FINISHED)
    searched = LogSearch(
        regex=re.compile(r"line \d{5}|raised there"),
        around=0,
        most=10_000,
        keep=keep,
        show=lambda _row, line, _is_match: found.append(line.text.strip()),
    )
    searched.read_all(JobSite(root=Path(), sender=file, find_store=lambda: None), [listed], 1)
    return found


def test_a_search_of_the_last_minutes_goes_by_the_clock_of_the_node() -> None:
    """Its local time is an hour before UTC: 23:00 there, the 10,800th line, is 22:00."""
    error = "2026-11-20 {} [shop] ERROR: it failed\n  raised there\n"
    rows = [row(number) for number in range(11_000)]
    data = error.format("20:00:00") + "".join(rows) + error.format("23:08:00") + CLOSED
    file = File(data.encode())
    since = datetime(2026, 11, 20, 22, tzinfo=timezone.utc)
    assert search(file, LogFilter(since=since)) == [
        *map(str.strip, rows[10_800:]),
        "raised there",
    ]
    assert search(file, LogFilter(since=since, level=3)) == ["raised there"]
    assert len(search(file, LogFilter())) == 1_000 + 2


def the_newest(file: File) -> None:
    excerpt = read_log_end(file, NODE, "logs/x", timeout=1)
    assert excerpt is not None
    assert excerpt.facts.levels["DEBUG"] > 0


def the_whole(file: File) -> None:
    facts = survey(file, NODE, "logs/x")
    assert facts is not None
    assert facts.levels["DEBUG"] == len(file.data or b"") // len(LINE)


@pytest.mark.parametrize("read", [the_last_errors, a_search, the_newest, the_whole])
def test_a_log_six_times_as_long_takes_no_more(read: Callable[[File], None]) -> None:
    peaks = []
    for size in (2 * BLOCK, 12 * BLOCK):
        file = File(NEEDLE + LINE * (size // len(LINE)))
        tracemalloc.start()
        read(file)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + BLOCK // 2, peaks


# what is read from a log, in pieces of any size

START = """\
2026-11-20 23:05:01 [scrapy.utils.log] INFO: Scrapy 2.19.0 started (bot: shop)
2026-11-20 23:05:01 [scrapy.utils.log] INFO: Versions:
{'lxml': '6.0.2',
 'Twisted': '25.5.0'}
2026-11-20 23:05:01 [scrapy.core.engine] INFO: Spider opened
2026-11-20 23:05:01 [scrapy.extensions.logstats] INFO: Crawled 0 pages (at 0 pages/min), scraped 0 items (at 0 items/min)
"""
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
    assert (str(found.first), str(found.last)) == ("2026-11-20 23:05:01", "2026-11-20 23:05:09")
    assert found.size == len(text.encode())


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("Stra\u00dfe".encode(), "Stra\u00dfe"),
        ("Stra\u00dfe \u201ex\u201c".encode("cp1252"), "Stra\u00dfe \u201ex\u201c"),
        (
            "Stra\u00dfe".encode() + b" \xff",
            "Stra\u00dfe \ufffd",
        ),  # one broken character in a line of UTF-8
    ],
)
def test_a_line_in_another_encoding_keeps_its_letters(raw: bytes, text: str) -> None:
    (line,) = LogLines().feed(raw + b"\n")
    assert line.text == text
    foreign: set[str] = set()
    assert [one.text for one in noting_foreign([line], "job", foreign)] == [text]
    assert foreign == (set() if raw == text.encode() else {"job"})


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
    assert (found.closed, found.stats, found.last_error, found.levels) == (
        "",
        None,
        "",
        {"INFO": 4},
    )


def test_a_page_that_says_so_closes_no_spider() -> None:
    said = "2026-11-20 23:05:02 [easy] INFO: Spider closed (finished)\n"
    assert facts(START + said + "Spider closed (finished)\n").closed == ""


def test_signals() -> None:
    first, second = (
        f"2026-11-20 23:05:04 [scrapy.crawler] INFO: Received SIGINT{what}\n"
        for what in (
            ", shutting down gracefully. Send again to force ",
            " twice, forcing unclean shutdown",
        )
    )
    found = [facts(START + said) for said in ("", first, first + second)]
    assert [(one.signalled, one.forced) for one in found] == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_whether_the_spider_was_opened() -> None:
    begun, *_ = START.partition("2026-11-20 23:05:01 [scrapy.core.engine]")
    assert [facts(text).opened for text in (begun, START, START + begun)] == [False, True, False]


def crawled(minute: int, pages: int | str) -> str:
    return (
        f"2026-11-20 23:{minute:02d}:00 [scrapy.extensions.logstats] INFO: Crawled {pages} pages (at 0 pages/min), "
        "scraped 3 items (at 0 items/min)\n"
    )


def test_since_when_nothing_has_moved() -> None:
    found = facts(START + crawled(6, 4) + crawled(7, 9) + crawled(8, 9) + crawled(9, 9))
    assert (found.pages, found.items, str(found.idle_since)) == (9, 3, "2026-11-20 23:07:00")


def test_a_log_with_numbers_and_dates_that_cannot_be_is_read() -> None:
    head = "0001-01-01 00:00:00 [scrapy.core.engine] INFO: Spider opened\n"
    last = "9999-12-31 23:59:59 [scrapy.extensions.logstats] INFO: x\n"
    found = facts(head + last + crawled(0, "9" * 5000))
    assert (found.pages, found.first) == (None, found.last)
    huge = "0x" + "f" * 5000
    dump = read_dump(f"{{'a': {huge}, 'b': ({huge},), 'c': 1e999, 'd': 1}}")
    assert dump == {"a": "…", "b": "…", "c": "1e309", "d": 1}


def test_a_log_in_another_format_tells_nothing_and_breaks_nothing() -> None:
    found = facts("23:05 INFO Spider closed (finished)\n" * 3)
    assert (found.closed, found.levels, found.last) == ("", {}, None)
    assert facts("").levels == {}
    assert facts("2026-99-99 99:99:99 [a] INFO: no such day\n").levels == {}
    assert LogReader().facts().whole


@pytest.mark.parametrize("step", [1, 3, 1 << 20])
def test_lines_know_where_they_begin_and_whose_they_are(step: int) -> None:
    data = (DEBUG + ERROR).encode()
    lines = LogLines(100)
    found = [line for at in range(0, len(data), step) for line in lines.feed(data[at : at + step])]
    expected = [100]
    for raw in data.splitlines(keepends=True)[:-1]:
        expected.append(expected[-1] + len(raw))
    assert [line.offset for line in found] == expected
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
    assert read_dump("{'a': __import__('os').getpid(), 'b': 2}") == {
        "a": "__import__('os').getpid()",
        "b": 2,
    }
    assert read_dump("{'a': 1,\n 'odd': <object at 0x1>,\n 'b': 'x, }',\n 'c': 2}") == {
        "a": 1,
        "b": "x, }",
        "c": 2,
    }
    assert read_dump("{'a': 1,\n 'b': 2,\n 'cut': 'in the mi") == {"a": 1, "b": 2}
    assert read_dump("no dump") == {}
    assert read_dump("{'n': nan, 'nested': {'x': 1}, 't': datetime.datetime(1, 2)}") == {
        "n": "nan", "nested": "{'x': 1}", "t": "datetime.datetime(1, 2)",
    }  # fmt: skip


# settings of a project that change what a log tells

ENTRIES = (
    ("scrapy.utils.log", "INFO", "Scrapy 2.19.0 started (bot: shop)"),
    ("scrapy.utils.log", "INFO", "Versions:\n{'lxml': '6.0.2',\n 'Twisted': '25.5.0'}"),
    ("scrapy.crawler", "DEBUG", "Using CrawlerProcess"),
    ("scrapy.addons", "INFO", "Enabled addons:\n[]"),
    ("scrapy.middleware", "INFO", "Enabled extensions:\n['scrapy.extensions.corestats.CoreStats']"),
    ("scrapy.core.engine", "INFO", "Spider opened"),
    (
        "scrapy.extensions.logstats",
        "INFO",
        "Crawled 0 pages (at 0 pages/min), scraped 0 items (at 0 items/min)",
    ),
    ("scrapy.core.engine", "DEBUG", "Crawled (200) <GET http://web/1> (referer: None)"),
    ("easy", "INFO", "a word of the spider"),
    ("easy", "ERROR", "an error that the spider tells of"),
    ("scrapy.core.engine", "INFO", "Closing spider (finished)"),
    (
        "scrapy.statscollectors",
        "INFO",
        "Dumping Scrapy stats:\n{'item_scraped_count': 1, 'log_count/ERROR': 1}",
    ),
    ("scrapy.core.engine", "INFO", "Spider closed (finished)"),
)
LOGGED = {"DEBUG": 0, "INFO": 1, "WARNING": 2, "ERROR": 3, "CRITICAL": 4}
USUAL = "{at} [{name}] {level}: {text}"
#: entries before the settings of the spider hold
EARLY = 4


def written(
    form: str = USUAL,
    level: str = "DEBUG",
    *,
    end: int = len(ENTRIES),
    early: str = "",
    short: bool = False,
    of: tuple[str, str] = ("", ""),
) -> str:
    """A log up to this entry; `early`: the level until the spider's settings hold; `of`: a logger of its own level."""
    lines = []
    for place, (name, at_level, text) in enumerate(ENTRIES[:end]):
        least = early or level if place < EARLY else level
        if of[0] and (name == of[0] or name.startswith(f"{of[0]}.")):
            least = of[1]
        if LOGGED[at_level] >= LOGGED[least]:
            shown = "scrapy" if short and name.startswith("scrapy.") else name
            lines.append(
                form.format(at="2026-11-20 23:05:01", name=shown, level=at_level, text=text) + "\n"
            )
    return "".join(lines)


def verdict_on(log: str, state: JobState = JobState.FINISHED) -> tuple[str, int | None]:
    verdict = by_log(state, read_log_end(File(log.encode()), NODE, "logs/p/s/j.log", timeout=1))
    return verdict.outcome.value, verdict.errors


@pytest.mark.parametrize(
    "log",
    [
        written(),
        written(short=True),
        written(level="INFO"),
        written(form=USUAL + " {{in shop}}"),
        written(form=USUAL + " (in shop)"),
        written(of=("scrapy.middleware", "ERROR")),
    ],
)
def test_a_log_that_has_its_closing_line_tells_how_the_job_ended(log: str) -> None:
    assert verdict_on(log) == ("failed", 1)


@pytest.mark.parametrize(
    "log",
    [
        "",
        written(level="WARNING"),
        written(level="ERROR"),
        written(level="CRITICAL"),
        written(level="ERROR", early="DEBUG"),
        written(level="ERROR", early="DEBUG", short=True),
        written(of=("scrapy", "WARNING")),
        written(of=("scrapy", "ERROR"), level="INFO"),
        written(of=("scrapy.core.engine", "WARNING")),
        written(of=("scrapy.core", "ERROR"), level="INFO"),
        written(form="{level} {text}"),
        written(form="20.11.2026 23:05 [{name}] {level}: {text}"),
        written(form="{{'message': '{text}', 'level': '{level}'}}"),
    ],
)
def test_where_the_closing_line_could_not_be_in_a_log_it_is_not_missed(log: str) -> None:
    assert verdict_on(log) == ("unknown", None)
    assert verdict_on(log, JobState.RUNNING)[0] == "running", "nor is a minute's line of progress"


@pytest.mark.parametrize("end", range(EARLY + 1, len(ENTRIES)))
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_a_job_of_which_the_closing_line_is_missing_has_died(
    end: int, short: bool, level: str
) -> None:
    assert verdict_on(written(level=level, end=end, short=short))[0] == "died"


def test_a_job_that_died_deep_in_a_long_log_is_found_out_by_either_end_of_it() -> None:
    begun = written(level="INFO", end=7)
    assert verdict_on(begun + "".join(row(number) for number in range(2000)))[0] == "died"
    assert verdict_on(STARTED + "".join(row(number) for number in range(2000)))[0] == "unknown"
