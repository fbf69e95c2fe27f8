"""Parses Scrapy logs incrementally into lines and facts about the job, and adds up jobs' stats.

No IO: the bytes are fed in pieces of any size, from any offset of the file on. Memory use is
constant.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, NamedTuple

from scrapyd_dist.escapes import harmless
from scrapyd_dist.scrapyd.reply import sensible
from scrapyd_dist.syntax_trees import parse_expression

#: the value of a stat; a time is a string in ISO format
Stat = int | float | str | bool | None
#: the largest number kept as a number; a larger one becomes text
LARGEST = float(1 << 63)
#: maximum number of distinct values counted per stat
VALUES_MAX = 20
#: maximum bytes of a line; the rest of a longer line is skipped
LINE_MAX = 64 * 1024
#: maximum characters of a stats dump
DUMP_MAX = 1024 * 1024
#: characters up to which a dump is parsed as a whole: that takes 500 times as many bytes
WHOLE_MAX = 256 * 1024
#: maximum characters of an error
ERROR_MAX = 500
#: log levels in ascending order
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

#: stats of which only the first and last value are kept
_TIMES = frozenset({"start_time", "finish_time"})
_HEAD = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? \[(?P<logger>[^\]]*)\] (?P<level>[A-Z]+): "
)
_STARTED = re.compile(r"Scrapy (\S+) started \(bot: ")
#: a LOG_FORMAT may put something behind it
_CLOSED = re.compile(r"Spider closed \((?:(.+)\)\s*\Z|([^)]+)\))")
_CRAWLED = re.compile(
    r"Crawled (\d{1,16}) pages \(at (-?\d{1,16}) pages/min\),"
    r" scraped (\d{1,16}) items(?: \(at (-?\d{1,16}) items/min\))?"
)
#: how Python begins to say where it was, when the watchdog's timer ends a process
_ENDED = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
_TRACEBACK = "Traceback (most recent call last):"
#: where a traceback passes Scrapy's code that makes and opens a spider: its error ends the job
_OPENING = re.compile(r' +File ".*scrapy[/\\]crawler\.py", line \d+, in (?:crawl|crawl_async)\Z')
#: the error of such a job
BLOCKED = "stalled: its code let nothing else of it run; the end of its log says where it was"
_SCRAPY = "scrapy"  # with LOG_SHORT_NAMES all its loggers are called so
_CRAWLER = "scrapy.crawler"
_ENGINE = "scrapy.core.engine"
_LOGSTATS = "scrapy.extensions.logstats"
#: what Scrapy logs before the spider's own settings hold
_EARLY = re.compile(r"Scrapy \S+ started|Versions:|Enabled addons:|Using ")
#: what Scrapy's engine logs, up to the closing line
_OF_ENGINE = re.compile(r"Spider opened|Crawled \(|Closing spider \(|Spider closed \(")
_LINE = re.compile(r"[{ ](?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"): (?P<value>.*?)[,}]?\Z")


def scrapy_version(head: str) -> str | None:
    """Return the version of Scrapy that wrote a log, by the log's first lines; None if unknown."""
    started = _STARTED.search(head)
    return None if started is None else started[1]


def read_dump(text: str) -> dict[str, Stat]:
    """Parse a stats dump as Scrapy prints it, from its opening brace on.

    What is unreadable or cut off is left out.
    """
    if len(text) <= WHOLE_MAX:
        whole = _parse(text.strip())
        if isinstance(whole, ast.Dict):
            return _read_dict(whole)
    # An unreadable value, a truncated end or a large dump must not lose the stats, each of which
    # has its line.
    found: dict[str, Stat] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        key = _parse(match["key"])
        value = _parse(match["value"])
        if key is not None and value is not None:
            found[str(_read_value(key))] = _read_value(value)
    return found


def _read_dict(node: ast.Dict) -> dict[str, Stat]:
    stats: dict[str, Stat] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is not None:
            stats[str(_read_value(key))] = _read_value(value)
    return stats


def _parse(text: str) -> ast.expr | None:
    try:
        return parse_expression(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _read_value(node: ast.expr) -> Stat:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return _read_time(node) or _unparse(node)
    if isinstance(value, (int, float)) and abs(value) <= LARGEST:  # neither infinity nor NaN
        return value
    if value is None or isinstance(value, str):
        return value
    return _unparse(node)


def _unparse(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError, MemoryError):
        # A number may have more digits than Python converts.
        return "…"


def _read_time(node: ast.expr) -> str:
    """Convert `datetime.datetime(2026, 11, 20, 23, 5, 1, 44, tzinfo=…)` to ISO format.

    Anything else gives "".
    """
    if not isinstance(node, ast.Call) or _unparse(node.func) != "datetime.datetime":
        return ""
    numbers: list[Any] = [part.value for part in node.args if isinstance(part, ast.Constant)]
    zone = timezone.utc if _has_utc(node) else None
    try:
        moment = datetime(*numbers)  # noqa: DTZ001 - naive, as it was
        return moment.replace(tzinfo=zone).isoformat()
    except (TypeError, ValueError, OverflowError):
        return ""


def _has_utc(call: ast.Call) -> bool:
    for keyword in call.keywords:
        if keyword.arg == "tzinfo" and "utc" in _unparse(keyword.value):
            return True
    return False


@dataclass(kw_only=True)
class StatTotal:
    """Adds up one stat over many jobs."""

    jobs: int = 0  #: number of jobs with this stat
    sum: float = 0
    min: float | None = None  #: None while no value was a number; so is `max`
    max: float | None = None
    values: Counter[str] = field(default_factory=Counter)  #: counts of values that are not numbers

    def add(self, value: object) -> None:
        """Add the value of one job: a number to the sum, anything else to the counted values."""
        self.jobs += 1
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self.sum += value
            if self.min is None or value < self.min:
                self.min = value
            if self.max is None or value > self.max:
                self.max = value
        elif str(value) in self.values or len(self.values) < VALUES_MAX:
            self.values[str(value)] += 1

    def add_time(self, value: object) -> None:
        """Add a time; only the first and the last are kept."""
        self.jobs += 1
        seen = sorted({*self.values, str(value)})
        self.values = Counter({seen[0]: 1, seen[-1]: 1})

    def document(self) -> dict[str, Any]:
        """Return the JSON document that `--json` prints."""
        document: dict[str, Any] = {"jobs": self.jobs}
        if self.min is not None:
            document |= {"sum": self.sum, "min": self.min, "max": self.max}
        if self.values:
            document["values"] = dict(self.values)
        return document


def add_up(stats: Iterable[Mapping[str, Any]]) -> dict[str, StatTotal]:
    """Add up each stat over all jobs, whose `stats` Scrapy has collected; sorted by name."""
    totals: dict[str, StatTotal] = {}
    for stats_of_job in stats:
        for name, value in stats_of_job.items():
            total = totals.setdefault(name, StatTotal())
            if name in _TIMES:
                total.add_time(value)
            else:
                total.add(value)
    return dict(sorted(totals.items()))


def decoded(raw: bytes) -> str:
    """Decode a line of a log as UTF-8.

    If it has no character of UTF-8 beyond ASCII, it is decoded as Windows-1252.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
    # Scrapy writes LOG_ENCODING, which a project may have changed; a single broken character is
    # another thing.
    has_utf8 = any(c > "\x7f" and c != "\ufffd" for c in text)
    return text if has_utf8 else raw.decode("cp1252", "replace")


# There are millions, and creating a frozen dataclass takes three times as long.
class LogLine(NamedTuple):
    """Holds a line of a log.

    A continuation line, as of a traceback, has time and level of the entry it belongs to.
    """

    offset: int  #: offset of its first byte in the file
    text: str
    head: bool  #: whether it begins an entry
    at: datetime | None = None  #: by the node's local clock, whole seconds
    level: str = ""
    logger: str = ""
    begins: int = 0  #: index of the message in the text
    raw: bytes = b""  #: the bytes in the file, without the line feed

    @property
    def message(self) -> str:
        """Return the text after time, logger and level; empty for a continuation line."""
        return self.text[self.begins :] if self.head else ""


@dataclass(kw_only=True)
class LogFacts:
    """Holds the facts about a job in its log, or in the part of it that was read."""

    whole: bool  #: whether the log was read from its first byte, or from the start of the last run
    size: int = 0  #: bytes read
    levels: dict[str, int] = field(default_factory=dict)  #: number of entries per level
    last_error: str = ""  #: the last error; of a traceback, its first and last line
    exception: str = ""  #: of the last error's traceback the line with the exception
    not_opened: bool = False  #: whether the last error has kept Scrapy from opening the spider
    opened: bool = False  #: whether the spider was opened
    #: whether there is an entry below WARNING of Scrapy's engine, which logs the end as well
    engine_told: bool = False
    #: whether there is one of other parts of Scrapy, from when the spider's settings held
    others_told: bool = False
    closed: str = ""  #: the reason in "Spider closed (…)", or empty
    signalled: bool = False  #: whether a signal told the job to end
    forced: bool = False  #: whether a second signal ended the job at once
    stats: Mapping[str, Stat] | None = None  #: the stats dump, if found
    pages: int | None = None  #: None while no count was logged; so are `items`
    items: int | None = None
    #: of the last interval in which Scrapy has counted; None while there was none
    pages_per_min: int | None = None
    items_per_min: int | None = None
    #: whether there is more than the count with which each spider begins, which is of nothing
    counted: bool = False
    #: when pages and items last changed, by the node's local clock
    idle_since: datetime | None = None
    first: datetime | None = None  #: time of the first entry, by the same clock
    last: datetime | None = None  #: time of the last entry, likewise

    @property
    def has_counts(self) -> bool:
        """Tell whether pages and items are those of the job, and not of its first moment.

        Scrapy counts again after LOGSTATS_INTERVAL only, a minute, and at the end.
        """
        return self.counted or self.stats is not None

    @property
    def was_told_to_end(self) -> bool:
        """Tell whether a signal told the job to end, and no second one ended it at once."""
        return self.signalled and not self.forced

    @property
    def would_tell_end(self) -> bool:
        """Tell whether the closing line would be in the log.

        LOG_LEVEL, or the level of one logger, may hide it.
        """
        has_begun = self.pages is not None  # which is logged behind the engine's first entry
        return self.engine_told or (self.others_told and not has_begun)


class LogLines:
    """Splits a log into lines, from the offset `start` on.

    If that is `torn`, inside of a line, the rest of this line is skipped. `entry` is the line that
    began the entry to which the first line belongs; None if it is not known.
    """

    def __init__(self, start: int = 0, *, torn: bool = False, entry: LogLine | None = None) -> None:
        self.position = start  #: offset of the first byte after the last returned line
        self._rest = bytearray()
        self._passed = 0  #: dropped bytes of a line that is too long
        self._torn = torn
        self._entry = entry  #: the line that began the current entry

    def feed(self, piece: bytes) -> Iterator[LogLine]:
        """Yield the lines that these bytes complete."""
        raw_lines = (bytes(self._rest) + piece).split(b"\n")
        self._rest = bytearray(raw_lines.pop())
        for raw in raw_lines:
            line = self._make_line(raw, 1)
            if line is not None:
                yield line
        if len(self._rest) > LINE_MAX:
            self._passed += len(self._rest) - LINE_MAX
            del self._rest[LINE_MAX:]

    def end(self) -> Iterator[LogLine]:
        """Yield the last line if it has no line feed."""
        if not self._rest:
            return
        raw = bytes(self._rest)
        self._rest = bytearray()
        line = self._make_line(raw, 0)
        if line is not None:
            yield line

    def _make_line(self, raw: bytes, ending: int) -> LogLine | None:
        """Make a line of its bytes, which `ending` bytes of a line feed follow.

        None for the rest of a line in whose middle the reading began.
        """
        offset = self.position
        self.position += len(raw) + ending + self._passed
        self._passed = 0
        if self._torn:
            self._torn = False
            return None
        raw = raw[:LINE_MAX]
        text = decoded(raw.rstrip(b"\r"))
        match = _HEAD.match(text)
        at = _parse_second(match["at"]) if match else None
        if match is None or at is None:
            entry = self._entry
            if entry is None:
                return LogLine(offset, text, head=False, raw=raw)
            return LogLine(offset, text, head=False, at=entry.at, level=entry.level, raw=raw)
        self._entry = LogLine(
            offset,
            text,
            head=True,
            at=at,
            level=match[3],
            logger=match[2],
            begins=match.end(),
            raw=raw,
        )
        return self._entry


@lru_cache(maxsize=1)  # most lines have the same second as the line before
def _parse_second(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if sensible(time) else None


class ExceptionFinder:
    """Finds the exception of an error in the lines that follow its first one.

    Of several, as where one was raised while another was handled, it is the last.
    """

    def __init__(self) -> None:
        self.exception = ""  #: the last line of the traceback; empty if there is none
        self._in_traceback = False

    def read(self, text: str) -> None:
        """Read the next line."""
        if text.startswith(_TRACEBACK):
            self._in_traceback = True
        elif self._in_traceback and text.strip() and not text.startswith(" "):
            self._in_traceback = False
            self.exception = text.strip()[:ERROR_MAX]


class LogReader:
    """Collects facts about a job while its log is read.

    A job id that was used twice has one log, of which only the last run counts.
    """

    def __init__(self, start: int = 0) -> None:
        self._lines = LogLines(start, torn=start > 0)
        self._size = 0  #: bytes that were fed
        self._begin_run(whole=start == 0)

    def _begin_run(self, *, whole: bool) -> None:
        self._facts = LogFacts(whole=whole)
        self._in_error = False
        self._exception = ExceptionFinder()  #: of the last error
        self._error_end = ""  #: the last line of the last error's traceback
        self._just_opened = False  #: no count was logged since
        self._in_dump = False
        self._dump: list[str] = []  #: the lines of the last stats dump
        self._dumped = 0  #: their characters

    def feed(self, piece: bytes) -> None:
        """Read the next bytes of the log."""
        self._size += len(piece)
        for line in self._lines.feed(piece):
            self._read_line(line)

    def facts(self) -> LogFacts:
        """Return the facts; must be called once, after the last `feed`."""
        for line in self._lines.end():
            self._read_line(line)
        facts = self._facts
        facts.size = self._size
        facts.exception = harmless(facts.exception)
        facts.last_error = harmless(" … ".join(filter(None, (facts.last_error, self._error_end))))
        if self._dump:
            stats = read_dump("\n".join(self._dump))
            facts.pages = _read_count(stats, "response_received_count", facts.pages)
            facts.items = _read_count(stats, "item_scraped_count", facts.items)
            facts.stats = stats or None
        return facts

    def _read_line(self, line: LogLine) -> None:
        if not line.head:
            self._read_continuation(line)
            return
        if _STARTED.match(line.message):
            self._begin_run(whole=True)
        facts = self._facts
        self._in_dump = False
        self._in_error = False
        facts.first = facts.first or line.at
        facts.last = line.at
        if line.level in facts.levels or len(facts.levels) < VALUES_MAX:
            facts.levels[line.level] = facts.levels.get(line.level, 0) + 1
        if line.level in {"ERROR", "CRITICAL"}:
            self._in_error = True
            self._begin_error(line.message)
        elif line.level in {"DEBUG", "INFO"}:
            self._note_source(line)
            if line.level == "INFO":
                self._read_info(line)

    def _begin_error(self, message: str) -> None:
        self._exception = ExceptionFinder()
        self._error_end = ""
        self._facts.last_error = message[:ERROR_MAX]
        self._facts.exception = ""
        self._facts.not_opened = False

    def _read_traceback(self, text: str) -> None:
        """Read a line of an error that is not its first one."""
        self._exception.read(text)
        self._facts.exception = self._exception.exception
        if _OPENING.match(text):
            self._facts.not_opened = True
        self._error_end = text.strip()[:ERROR_MAX]

    def _note_source(self, line: LogLine) -> None:
        if line.logger != _SCRAPY and not line.logger.startswith("scrapy."):
            return
        if _is_from(line, _ENGINE) and _OF_ENGINE.match(line.message):
            self._facts.engine_told = True
        elif not _EARLY.match(line.message):
            self._facts.others_told = True

    def _read_continuation(self, line: LogLine) -> None:
        if _ENDED.match(line.text):
            self._begin_error(BLOCKED)
            self._in_error = False
        elif self._in_dump and self._dumped < DUMP_MAX:
            self._dump.append(line.text)
            self._dumped += len(line.text)
        elif self._in_error and line.text.strip():
            self._read_traceback(line.text)

    def _read_info(self, line: LogLine) -> None:
        message = line.message
        if message.startswith("Dumping Scrapy stats:"):
            self._in_dump = True
            self._dump = []
            self._dumped = 0
        elif _is_from(line, _CRAWLER) and message.startswith("Received SIG"):
            self._facts.signalled = True
            self._facts.forced = "twice" in message
        elif _is_from(line, _ENGINE) and message.startswith("Spider "):
            self._read_engine(message)
        elif _is_from(line, _LOGSTATS):
            self._read_progress(line)

    def _read_engine(self, message: str) -> None:
        facts = self._facts
        if message.startswith("Spider opened"):
            facts.opened = True
            self._just_opened = True
            return
        closed = _CLOSED.match(message)
        if closed:
            facts.closed = harmless((closed[1] or closed[2])[:ERROR_MAX])

    def _read_progress(self, line: LogLine) -> None:
        crawled = _CRAWLED.match(line.message)
        if crawled is None:
            return
        facts = self._facts
        facts.counted = not self._just_opened
        self._just_opened = False
        pages = int(crawled[1])
        items = int(crawled[3])
        if (pages, items) != (facts.pages, facts.items):
            facts.idle_since = line.at
        facts.pages = pages
        facts.items = items
        if facts.counted:
            facts.pages_per_min = max(0, int(crawled[2]))
            facts.items_per_min = max(0, int(crawled[4] or 0))


def _is_from(line: LogLine, logger: str) -> bool:
    return line.logger in {logger, _SCRAPY}


def _read_count(stats: Mapping[str, Stat], name: str, seen: int | None) -> int | None:
    """Read a count in the stats dump, where a missing one is zero.

    If it is no number, the last logged count `seen` is given.
    """
    value = stats.get(name, 0)
    return value if isinstance(value, int) else seen
