"""Reading a log takes the same memory for any size, in each way in which commands read one."""

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from scrapyd_dist.cli.jobs.logs import Search

from scrapyd_dist.joblogs.log_reads import BLOCK, LogTap, look, survey
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.reply import Reply

NODE = Node.parse("one:6800")
LINE = b"2026-11-20 12:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET http://web/properties/000000.html> ()\n"
NEEDLE = b"2026-11-20 12:00:00 [shop] ERROR: the needle\n"


class Endless:
    """A sender that serves one log of that many bytes, made while it is read: an error first, then page after page."""

    def __init__(self, size: int) -> None:
        self.size = len(NEEDLE) + (size - len(NEEDLE)) // len(LINE) * len(LINE)

    def _bytes(self, start: int, count: int) -> bytes:
        count = min(count, self.size - start)
        if start < len(NEEDLE):
            return (NEEDLE + LINE * (count // len(LINE) + 1))[start : start + count]
        skip = (start - len(NEEDLE)) % len(LINE)
        return (LINE * ((count + skip) // len(LINE) + 1))[skip : skip + count]

    def send(self, _node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        first, last = (int(text) for text in call.headers["Range"].removeprefix("bytes=").split("-"))
        if first >= self.size:
            head = {"content-range": f"bytes */{self.size}"}
            return call.read(Reply(where="one", path=call.path, status=416, headers=head))
        body = self._bytes(first, last - first + 1)
        head = {"content-range": f"bytes {first}-{first + len(body) - 1}/{self.size}"}
        return call.read(Reply(where="one", path=call.path, status=206, headers=head, body=body))

    def download(self, _node: Node, call: Call[Any], sink: Callable[[bytes], object], *, silence: float = 0) -> Any:
        for start in range(0, self.size, 65536):
            sink(self._bytes(start, 65536))
        return call.read(Reply(where="one", path=call.path, status=200, headers={"content-length": str(self.size)}))

    def close(self) -> None: ...


def the_last_errors(sender: Endless) -> None:
    tap = LogTap(sender, NODE, "logs/x", timeout=1)
    tap.seek_last(100, lambda line: line.level == "ERROR")
    first = tap.more()
    assert first is not None
    assert first[0].text.endswith("the needle")


def a_search(sender: Endless) -> None:
    search = Search(pattern=re.compile("needle"), level=0, context=2, most=5)
    (group,) = search.groups(LogTap(sender, NODE, "logs/x", timeout=1).all())
    assert [hit for _, hit in group] == [True, False, False]


def the_newest(sender: Endless) -> None:
    excerpt = look(sender, NODE, "logs/x", timeout=1)
    assert excerpt is not None
    assert excerpt.facts.levels["DEBUG"] > 0


def the_whole(sender: Endless) -> None:
    facts = survey(sender, NODE, "logs/x")
    assert facts is not None
    assert facts.levels["DEBUG"] == (sender.size - len(NEEDLE)) // len(LINE)


@pytest.mark.parametrize("read", [the_last_errors, a_search, the_newest, the_whole])
def test_a_log_six_times_as_long_takes_no_more(read: Callable[[Endless], None]) -> None:
    peaks = []
    for size in (2 * BLOCK, 12 * BLOCK):
        tracemalloc.start()
        read(Endless(size))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + BLOCK // 2, peaks
