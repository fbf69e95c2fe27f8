"""A worker's crawl with its shorter ways through Scrapy, and by Scrapy's own ways: what comes of it is the same."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rig.commands import Command
from rig.crawls import ADDON
from rig.museum import PIECES, Museum
from rig.projects import Project
from scrapy.core import scraper as scraper_module
from scrapy.core.scraper import Scraper
from scrapyd_dist.middlewares.worker.shortcuts import (
    PARTS,
    WITHOUT,
    OutputWork,
    knows_outputs,
    source_hash,
)

from scrapyd_dist.payload import encode

#: pages with no outputs and with many; items that are dropped, that fail, that wait for another one; requests that follow,
#: the same ones twice, and to another site; callbacks that raise before and after an output, and one that waits
SPIDER = """
import asyncio

import scrapy


class Guide(scrapy.Spider):
    name = "guide"
    allowed_domains = ["127.0.0.1"]

    async def start(self):
        raise AssertionError("a worker does not start")
        yield

    def parse(self, response):
        number = int(response.url.rpartition("/")[2])
        parts = 40 if number == 7 else number % 5
        yield from ({"page": response.url, "part": part, "parts": parts} for part in range(parts))
        yield response.follow(f"/notes/{number % 4}", callback=self.parse_note)
        yield scrapy.Request("http://elsewhere.invalid/")
        if number % 6 == 5:
            raise ValueError("after its outputs")
        yield None

    async def parse_note(self, response):
        yield {"note": response.url}
        await asyncio.sleep(0)
        yield {"note": response.url, "late": True}
        yield response.follow("/pieces/1", callback=self.parse)

    def parse_moved(self, response):
        raise KeyError(response.url)

    def gone(self, failure):
        yield {"gone": failure.request.url}
"""
PIPELINES = """
import asyncio
from collections import defaultdict

from scrapy.exceptions import DropItem


class Judge:
    def __init__(self):
        self.later = defaultdict(asyncio.Event)

    async def process_item(self, item, spider=None):
        part, later = item.get("part"), self.later[item.get("page")]
        if part == 1:
            raise DropItem("the second one")
        if part == 2 and item["parts"] > 3:
            await later.wait()
        if part == 3:
            later.set()
            raise RuntimeError("the fourth one")
        return item
"""
#: an extension and a middleware, which write down what they see
WITNESSES = """
import scrapy
from scrapy import signals


class Signals:
    def __init__(self, crawler):
        self.file = open(crawler.settings["SEEN"], "a")
        for name in ("request_scheduled", "request_dropped", "request_reached_downloader", "response_received",
                     "item_scraped", "item_dropped", "item_error", "spider_error", "spider_idle"):
            crawler.signals.connect(self.writer(name), getattr(signals, name), weak=False)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def writer(self, name):
        def write(request=None, response=None, item=None):
            about = getattr(request, "url", None) or getattr(response, "url", "")
            print(name, about, item or "", file=self.file, flush=True)
        return write


class Outputs:
    def __init__(self, path):
        self.file = open(path, "a")

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings["SEEN"])

    async def process_spider_output(self, response, result, spider=None):
        async for output in result:
            what = output.url if isinstance(output, scrapy.Request) else output
            print("output", response.url, what, file=self.file, flush=True)
            yield output
"""
#: a middleware that has to see each request of a batch where a start's requests come
AT_START = """
class AtStart:
    def __init__(self, path):
        self.file = open(path, "a")

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings["SEEN"])

    async def process_start(self, start):
        async for request in start:
            print("start", request.url, file=self.file, flush=True)
            yield request
"""
#: statistics of time and of what has the time in it
OF_TIME = re.compile("time|memusage|per_minute|latency|bytes")
#: the lines of a log but those of tracebacks, of statistics, and of a new Scrapy's remote control, which has a number
IN_EACH_RUN = re.compile(r"[-0-9]+ [:0-9]+ \[(?!scrapy.extensions.remote_control)")
#: what differs in a line of two logs: its date, a port, an object's address, and which of the pages that lead to a page
#: was first
OF_A_RUN = re.compile(
    r"^[-0-9]+ [:0-9]+ |0x[0-9a-f]+|:\d{4,5}\b|\(failed \d+ times\)|\(referer: [^)]*\)"
)

#: of a report
COUNTS = ("done", "missed", "errors", "pages", "items", "gone", "failed")


@dataclass(frozen=True)
class Outcome:
    """What came of a crawl."""

    starts: list[str]  #: requests of the batch, in the order in which they were scheduled
    pages: dict[str, list[str]]  #: page -> what came out of it, and what became of that, in order
    items: Counter[str]
    seen: Counter[str]
    log: Counter[str]
    stats: dict[str, Any]
    report: dict[str, Any]


def of_pages(seen: list[str]) -> dict[str, list[str]]:
    """What was seen of the outputs of each page."""
    pages: dict[str, list[str]] = {}
    for line in seen:
        if line.startswith(("output ", "item_", "spider_error ")):
            pages.setdefault(line.split()[1], []).append(line)
    return pages


def count_seen(lines: list[str]) -> Counter[str]:
    """How often each thing was seen; idleness once, since Scrapy tells it as often as it looks."""
    seen = Counter(lines)
    for line in seen:
        if line.startswith("spider_idle"):
            seen[line] = 1
    return seen


def assert_same(found: Outcome, expected: Outcome, which: str) -> None:
    """Compare two crawls, and show what was seen more often in one of them."""
    more, fewer = found.seen - expected.seen, expected.seen - found.seen
    assert not more and not fewer, (which, more, fewer)
    assert found == expected, which


class Crawl:
    """Crawls one batch of a small project as a job does that was sent it."""

    def __init__(self, folder: Path, museum: Museum, start: Callable[..., Command]) -> None:
        modules = {"spider": SPIDER}
        settings = {
            "ADDONS": ADDON, "ITEM_PIPELINES": {"guided.pipelines.Judge": 1}, "RETRY_TIMES": 1, "DUPEFILTER_DEBUG": True,
            "EXTENSIONS": {"guided.witnesses.Signals": 1}, "TELNETCONSOLE_ENABLED": False,
            "SPIDER_MIDDLEWARES": {"guided.witnesses.Outputs": 300}, "DISTRIBUTED_MIN_FREE": 1,
        }  # fmt: skip
        self.project = Project.small(folder / "project", "guided", modules, settings)
        for name, source in (("pipelines", PIPELINES), ("witnesses", WITNESSES)):
            (self.project.package / f"{name}.py").write_text(source)
        self._museum = museum
        self._start = start
        self._runs = 0

    def values(self) -> list[dict[str, Any]]:
        url = self._museum.url
        values: list[dict[str, Any]] = [
            {"url": f"{url}/pieces/{number}"} for number in range(PIECES)
        ]
        values += [
            {"url": f"{url}/pieces/3", "priority": 5},
            {"url": f"{url}/notes/9", "callback": "parse_note"},
        ]
        values += [{"url": f"{url}/lost/4", "errback": "gone"}, {"url": f"{url}/lost/8"}]
        return [*values, {"url": f"{url}/moved/2", "callback": "parse_moved"}]

    def run(self, **settings: Any) -> Outcome:
        """Crawl to the end."""
        self._runs += 1
        folder = self.project.path / f"run{self._runs}"
        log = folder / "logs" / "guided" / "guide" / "job.log"
        log.parent.mkdir(parents=True)
        job = {"crawl": "c", "batch": 1, "attempt": 1}
        given: dict[str, Any] = {
            **encode(self.values()), "DISTRIBUTED_JOB": json.dumps(job), "LOG_FILE": log,
            "SEEN": folder / "seen.txt", **settings,
        }  # fmt: skip
        words = [word for name, value in given.items() for word in ("-s", f"{name}={value}")]
        self._start(self.project, "crawl", "guide", *words).wait(60, code=0)
        home = folder / "logs" / "_sdist" / "c"
        report = json.loads((home / "c.b1.a1.json").read_text())
        stats = report.pop("stats")
        seen = (folder / "seen.txt").read_text().splitlines()
        asked = {value["url"] for value in self.values()}
        scheduled = [line.split()[1] for line in seen if line.startswith("request_scheduled ")]
        lines = log.read_text().splitlines()
        return Outcome(
            starts=list(dict.fromkeys(url for url in scheduled if url in asked)),
            pages=of_pages(seen),
            items=Counter((home / "c.b1.a1.jl").read_text().splitlines()),
            seen=count_seen(seen),
            log=Counter(OF_A_RUN.sub("", line) for line in lines if IN_EACH_RUN.match(line)),
            stats={name: value for name, value in stats.items() if not OF_TIME.search(name)},
            report={name: report[name] for name in COUNTS},
        )


@pytest.fixture(scope="module")
def museum() -> Iterator[Museum]:
    with closing(Museum()) as museum:
        yield museum


@pytest.fixture
def crawl(tmp_path: Path, museum: Museum, start_scrapy: Callable[..., Command]) -> Crawl:
    return Crawl(tmp_path, museum, start_scrapy)


@pytest.mark.parametrize(
    "settings", [{}, {"CONCURRENT_ITEMS": 2, "CONCURRENT_REQUESTS": 1}], ids=["many", "few"]
)
def test_a_crawl_is_that_of_scrapys_own_ways(
    crawl: Crawl, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WITHOUT, "all")
    plain = crawl.run(**settings)
    assert plain.report["items"] > PIECES
    for left_out in ("", *PARTS):
        monkeypatch.setenv(WITHOUT, left_out)
        assert_same(crawl.run(**settings), plain, left_out)


def test_a_middleware_of_the_project_sees_each_request_at_the_start(
    crawl: Crawl, monkeypatch: pytest.MonkeyPatch
) -> None:
    (crawl.project.package / "at_start.py").write_text(AT_START)
    middlewares = {"guided.witnesses.Outputs": 300, "guided.at_start.AtStart": 30}
    crawl.project.settings(SPIDER_MIDDLEWARES=middlewares)
    ours = crawl.run()
    assert all(ours.seen[f"start {value['url']}"] for value in crawl.values())
    monkeypatch.setenv(WITHOUT, "all")
    assert_same(crawl.run(), ours, "all")


class Pipeline:
    """Takes outputs in, and lets them go when the test says so."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.done: list[int] = []
        self._gates: dict[int, asyncio.Event] = {}

    async def __call__(self, output: int) -> None:
        self.inside.append(output)
        await self._gates.setdefault(output, asyncio.Event()).wait()
        self.inside.remove(output)
        self.done.append(output)

    async def let_go(self, output: int) -> None:
        self._gates[output].set()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_so_many_outputs_are_in_work_and_twice_as_many_are_read_ahead() -> None:
    pipeline, read = Pipeline(), []

    async def outputs() -> AsyncIterator[int]:
        for number in range(20):
            read.append(number)
            yield number

    work = asyncio.ensure_future(OutputWork(2, pipeline).do(outputs()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert pipeline.inside == [0, 1]
    assert read == list(range(6)), "two in work, four ahead"
    await pipeline.let_go(1)
    assert pipeline.inside == [0, 2], "in their order"
    assert len(read) == 7
    for number in [0, *range(2, 20)]:
        assert not work.done()
        await pipeline.let_go(number)
    await work
    assert sorted(pipeline.done) == list(range(20))


async def test_a_page_of_many_outputs_has_no_more_tasks_than_may_be_in_work() -> None:
    tasks = set()

    async def begin(output: int) -> None:
        tasks.add(asyncio.current_task())
        await asyncio.sleep(0)

    async def outputs() -> AsyncIterator[int]:
        for number in range(100):
            yield number

    await OutputWork(3, begin).do(outputs())
    assert len(tasks) == 3


async def test_an_output_is_in_work_while_its_callback_waits() -> None:
    pipeline, more = Pipeline(), asyncio.Event()

    async def outputs() -> AsyncIterator[int]:
        yield 1
        await more.wait()
        yield 2

    work = asyncio.ensure_future(OutputWork(16, pipeline).do(outputs()))
    for _ in range(5):
        await asyncio.sleep(0)
    await pipeline.let_go(1)
    assert pipeline.done == [1]
    more.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await pipeline.let_go(2)
    await work


async def test_an_output_whose_work_fails_does_not_hold_up_the_others() -> None:
    done = []

    async def begin(output: int) -> None:
        if output == 0:
            raise asyncio.CancelledError
        done.append(output)

    async def outputs() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    await OutputWork(1, begin).do(outputs())
    assert done == [1, 2, 3, 4]


class Changed(Scraper):
    """A scraper of a project's own."""


def test_what_is_not_as_it_is_known_is_left_alone() -> None:
    parallel = getattr(scraper_module, "_parallel_asyncio", None)
    usual = Scraper.__new__(Scraper)
    assert knows_outputs(usual) is (parallel is not None), "this Scrapy is known, or too old"
    assert not knows_outputs(Changed.__new__(Changed))
    usual.handle_spider_output_async = None  # type: ignore[assignment,method-assign]
    assert not knows_outputs(usual)


def test_a_function_without_a_source_is_not_known() -> None:
    names: dict[str, Any] = {}
    exec(compile("def made(): pass", "nowhere", "exec"), names)  # noqa: S102 - of this line
    assert source_hash(names["made"]) == ""
