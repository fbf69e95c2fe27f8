"""What the throttle costs a broad crawl: one process, ten thousand domains with one page each, with it and without.

    python benchmarks/throttle_cost.py   # about twenty minutes; writes its table into docs/explanation/throttle.md
    python benchmarks/throttle_cost.py --short    # a first look, in seconds; writes nothing

Every way is run in turn, several times. Seconds are those from the spider's opening to its end, of the crawling process
alone: neither its start nor the site and the store count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

# The server and the projects are those of the tests.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

import redis
from broad_project import RESOLVER
from measure import RunError
from numbers_section import put_section
from report import machine
from rig.commands import SCRAPY, Command
from rig.projects import Project
from rig.redis import RedisServer

from scrapyd_dist.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOCS = Path(__file__).resolve().parent.parent / "docs"
_SITE = Path(__file__).with_name("broad_site.py")
#: seconds for one crawl
PATIENCE = 300.0
SPIDERS = '''
"""One page of each domain; tells what the crawl of them cost."""

import json
import resource
import time
from pathlib import Path

import scrapy
from scrapy import signals


class OnceSpider(scrapy.Spider):
    name = "once"

    @classmethod
    def from_crawler(cls, crawler, **kwargs):
        spider = super().from_crawler(crawler, **kwargs)
        crawler.signals.connect(spider.begins, signals.spider_opened)
        crawler.signals.connect(spider.ends, signals.spider_closed)
        return spider

    async def start(self):
        yield scrapy.Request(f"http://host0000.test:{self.port}/first", callback=self.find)

    def find(self, response):
        hosts = int(self.hosts)
        for number in range(hosts * int(self.each)):
            yield scrapy.Request(f"http://host{number % hosts:04d}.test:{self.port}/?{number // hosts}")

    def parse(self, response):
        yield {"url": response.url}

    def begins(self):
        self.wall, self.cpu = time.monotonic(), time.process_time()

    def ends(self, reason):
        stats = self.crawler.stats.get_value
        told = {
            "wall": time.monotonic() - self.wall,
            "cpu": time.process_time() - self.cpu,
            "pages": stats("item_scraped_count", 0),
            "asks": stats("distributed/throttle/asks", 0),
            "steps": stats("distributed/throttle/steps", 0),
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        Path(self.out).write_text(json.dumps(told), encoding="utf-8")
'''


@dataclass(frozen=True, kw_only=True)
class Way:
    """One manner of crawling the same pages."""

    says: str
    settings: Mapping[str, Any]
    engine: str = "sqlite"


LIMITED = {"DISTRIBUTED_THROTTLE_HITS": 60, "DISTRIBUTED_THROTTLE_WINDOW": 60}
WAYS = {
    "unset": Way(says="nothing said of the throttle, a store without rules", settings={}),
    "off": Way(says="without the throttle", settings={"DISTRIBUTED_THROTTLE": False}),
    "free": Way(says="no limit, SQLite", settings={"DISTRIBUTED_THROTTLE": True}),
    "sqlite": Way(says="60 hits per 60 s, SQLite", settings=LIMITED),
    "redis": Way(says="60 hits per 60 s, Redis", settings=LIMITED, engine="redis"),
    "pages": Way(
        says="the same with a budget of pages, Redis", settings={**LIMITED, "DISTRIBUTED_THROTTLE_MAX_PAGES": 5},
        engine="redis",
    ),
}  # fmt: skip


class Track:
    """The site, a Redis server and the project."""

    def __init__(self, folder: Path, hosts: int, each: int) -> None:
        self._folder, self._hosts, self._each, self._stack, self._runs = (
            folder,
            hosts,
            each,
            ExitStack(),
            0,
        )
        self._site = subprocess.Popen(
            [sys.executable, str(_SITE), "--law=at-once", f"--hosts={hosts}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._stack.callback(self._end_site)
        assert self._site.stdout
        self._port = json.loads(self._site.stdout.readline())["port"]
        self._redis = self._stack.enter_context(
            closing(RedisServer(folder / "redis", password=None, appendfsync="everysec"))
        )
        self._client = self._stack.enter_context(closing(redis.Redis.from_url(self._redis.url)))
        self._project = Project.small(
            folder / "project",
            "once",
            {"spiders": SPIDERS},
            {
                "ADDONS": {"scrapyd_dist.Addon": 100},
                "DISTRIBUTED_ENABLED": False,
                "CONCURRENT_REQUESTS": 100,
                "CONCURRENT_ITEMS": 16,
                "RETRY_ENABLED": False,
                "COOKIES_ENABLED": False,
                "DNS_RESOLVER": "once.resolver.Loopback",
                "LOG_LEVEL": "INFO",
                "TELNETCONSOLE_ENABLED": False,
            },
        )
        self._project.write("once/resolver.py", RESOLVER)

    def close(self) -> None:
        """End all that runs."""
        self._stack.close()

    def _end_site(self) -> None:
        assert self._site.stdin
        self._site.stdin.close()
        self._site.wait(20)

    def crawl(self, way: Way) -> dict[str, float]:
        """All pages once, on a new store: seconds, pages, asks, steps of the store, most memory.

        Raises:
            RunError: pages are missing, so that the time means nothing.
        """
        self._runs += 1
        out = self._folder / f"run{self._runs}"
        out.mkdir()
        store = (
            f"{self._redis.url}?prefix=run{self._runs}:"
            if way.engine == "redis"
            else str(out / "store.db")
        )
        open_store(store).close()
        settings = {"DISTRIBUTED_STORE": store, **way.settings}
        line = [*SCRAPY, "crawl", "once", "-a", f"port={self._port}", "-a", f"hosts={self._hosts}",
                "-a", f"each={self._each}", "-a", f"out={out / 'told.json'}"]  # fmt: skip
        line += [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
        command = Command(line, cwd=self._project.path, folder=out, home=self._project.home)
        with closing(command):
            done = command.wait(PATIENCE)
        if done.code or not (out / "told.json").exists():
            raise RunError(f"a crawl ended with {done.code}:\n{done.err[-3000:]}")
        told: dict[str, float] = json.loads((out / "told.json").read_text(encoding="utf-8"))
        if told["pages"] != self._hosts * self._each:
            raise RunError(
                f"{told['pages']} of {self._hosts * self._each} pages came:\n{done.err[-3000:]}"
            )
        return told


Found = dict[str, list[dict[str, float]]]


def measure(ways: Sequence[str], hosts: int, rounds: int, each: int = 1) -> Found:
    """Each way in turn, so many times; the one that begins changes."""
    found: Found = {name: [] for name in ways}
    with (
        TemporaryDirectory(prefix="sdist-bench-") as folder,
        closing(Track(Path(folder), hosts, each)) as track,
    ):
        for number in range(rounds):
            turn = number % len(ways)
            for name in [*ways[turn:], *ways[:turn]]:
                told = track.crawl(WAYS[name])
                found[name].append(told)
                print(
                    f"{name:8} {told['cpu']:6.2f} s CPU {told['wall']:6.2f} s {told}",
                    file=sys.stderr,
                    flush=True,
                )
    return found


def table(found: Found, hosts: int) -> str:
    """The medians, and how they compare with the first way."""
    lines = [
        "| crawl | CPU ms per page | CPU / without | wall / without | questions per page |",
        "|---|---|---|---|---|",
    ]
    base = {
        name: median(run[name] for run in next(iter(found.values()))) for name in ("cpu", "wall")
    }
    for name, runs in found.items():
        of = {figure: median(run[figure] for run in runs) for figure in ("cpu", "wall", "steps")}
        cells = [
            WAYS[name].says,
            f"{of['cpu'] / hosts * 1000:.2f}",
            f"{of['cpu'] / base['cpu']:.2f}",
        ]
        cells += [f"{of['wall'] / base['wall']:.2f}", f"{of['steps'] / hosts:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def section(found: Found, hosts: int) -> str:
    """What the documents say of it."""
    about = machine()
    asks = max(median(run["asks"] for run in runs) / hosts for runs in found.values())
    rounds = len(next(iter(found.values())))
    return f"""\
{hosts:,} domains with one page each, all of them found at once, crawled by one process from a server that answers at
once, with `CONCURRENT_REQUESTS = 100`; the median of {rounds} runs of each way, in turn. Seconds are those of the
crawling process alone, between its spider's opening and its end. A domain was asked for {asks:.2f} times at most, on
average; many of them are one question.

{table(found, hosts)}

Where it is quicker than without, that is Scrapy's own queue, which looks at all of its domains for each request. When
the crawl is over, nothing of the throttle's is left in the process; its memory then holds a connection to each site,
which Scrapy keeps open for some minutes.

Measured on {about["date"]} on {about["cores"]} cores ({about["processor"]}), with other programs
running, so that ratios say more than seconds; Python {about["python"]}, Scrapy {about["scrapy"]}.

    python benchmarks/throttle_cost.py --hosts {hosts} --rounds {rounds}
"""


def main() -> int:
    """Run the program; 0 when all crawls could be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--short", action="store_true", help="few domains, once: to see that everything works"
    )
    usual = ",".join(name for name in WAYS if name != "unset")
    parser.add_argument(
        "--ways", default=usual, help="with commas; the first one is what others compare with"
    )
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--docs", type=Path, default=DOCS, help="folder whose explanation/throttle.md is written"
    )
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    parser.add_argument(
        "--each",
        type=int,
        default=1,
        help="pages of each domain; with more than one, nothing is written",
    )
    given = parser.parse_args()
    hosts, rounds = (300, 1) if given.short else (given.hosts, given.rounds)
    try:
        found = measure(given.ways.split(","), hosts, rounds, given.each)
    except (RunError, AssertionError) as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    print(table(found, hosts * given.each))
    if given.json:
        given.json.write_text(
            json.dumps({"machine": machine(), "hosts": hosts, "ways": found}, indent=1), "utf-8"
        )
    if not given.short and given.each == 1:
        put_section(
            given.docs / "explanation" / "throttle.md",
            "What a broad crawl pays",
            section(found, hosts),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
