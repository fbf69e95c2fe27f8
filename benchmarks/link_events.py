"""What a leased page costs in CPU seconds, beside plain Scrapy, and what a crawling strategy adds to that.

    python benchmarks/link_events.py --pages 2000 --pairs 7

A worker leases the same batches from an SQLite store, and what it finds goes into the frontier, or to the strategy;
plain Scrapy crawls the same pages with the settings of the same profile. They take turns, and the ratios are those of
the same turn. Each run has to bring every item home, and every event.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

# The site and the frontier are those of the tests.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

from measure import RunError, run_all
from report import machine, spread
from rig.projects import Project
from rig.pullers import CRAWL, Frontier
from rig.sites import SiteProcess
from scrapyd_dist.examples.pages import Site
from scrapyd_dist.middlewares.addon import PROFILE_SETTINGS

from scrapyd_dist.strategy.links import PARTITIONS, EventKind

if TYPE_CHECKING:
    from collections.abc import Mapping

SPIDER = """
import scrapy


class Pages(scrapy.Spider):
    name = "pages"

    def parse_article(self, response):
        yield {"url": response.url, "title": response.css("h1::text").get()}
        for number in range(self.settings.getint("LINKS")):
            yield response.follow(f"?link={number}", self.parse_article)


class Plain(Pages):
    name = "plain"

    async def start(self):
        for number in range(self.settings.getint("PAGES")):
            yield scrapy.Request(self.settings["TEMPLATE"] % number, self.parse_article)
"""
PLAIN = "plain"
#: way -> settings of its worker; the first is what the other is compared with
WAYS: Mapping[str, Mapping[str, str]] = {
    "frontier": {"DISTRIBUTED_TARGET_CALLBACKS": "parse_article", "DISTRIBUTED_SLOT_BY": "site"},
    "strategy": {"DISTRIBUTED_STRATEGY": "shop.strategies:News"},
}


class Bench:
    """A site, and a frontier for each run."""

    def __init__(self, folder: Path, pages: int, timeout: float) -> None:
        self._folder, self._timeout, self._runs = folder, timeout, 0
        self.site = SiteProcess(folder / "site", Site(items=pages))

    def run_plain(self, pages: int) -> float:
        """CPU seconds of plain Scrapy that crawls so many pages without links.

        Raises:
            RunError: when not all items came.
        """
        settings = {
            "LINKS": 0, "LOG_LEVEL": "INFO", "PAGES": pages,
            "TEMPLATE": self.site.detail(0).replace(f"{0:06d}", "%06d"), **PROFILE_SETTINGS["usual"],
        }  # fmt: skip
        project = self._make_project(settings)
        command = [sys.executable, "-m", "scrapy", "crawl", "plain", "-o", "items.jl"]
        took = run_all([command], cwd=project.path, output=project.output, timeout=self._timeout)
        items = len((project.path / "items.jl").read_text().splitlines())
        if items != pages:
            raise RunError(f"{items} items of {pages} pages")
        return took.cpu

    def _make_project(self, settings: Mapping[str, Any]) -> Project:
        self._runs += 1
        return Project.small(
            self._folder / f"run{self._runs}", f"small{self._runs}", {"pages": SPIDER}, settings
        )

    def run(self, way: str, pages: int, links: int) -> float:
        """CPU seconds of a worker that crawls so many pages, each with so many links.

        Raises:
            RunError: when not all came home.
        """
        settings = {"LINKS": links, "DISTRIBUTED_PROFILE": "usual", "LOG_LEVEL": "INFO"}
        project = self._make_project(settings)
        with closing(Frontier(project, "pages", start=_never, kind="frontier")) as queue:
            link = {"depth": 0, "score": 1.0, "expires": 0.0, "read": "page"}
            for start in range(0, pages, 100):
                numbers = range(start, min(start + 100, pages))
                values = [
                    {"url": self.site.detail(number), "callback": "parse_article",
                     "meta": {"distributed_link": {**link, "fingerprint": f"{number:040x}"}}}
                    for number in numbers
                ]  # fmt: skip
                queue.add(values, size=100, slot="127.0.0.1")
            limit = -(-pages // 100)  # what a worker finds is not crawled
            words = queue.arguments(1, settings=dict(WAYS[way]), max_batches=limit)
            command = [sys.executable, "-m", "scrapy", *words]
            took = run_all(
                [command], cwd=project.path, output=project.output, timeout=self._timeout
            )
            queue.accept()
            events = (
                queue.store.events(CRAWL, range(PARTITIONS), 10 * pages)
                if way == "strategy"
                else []
            )
            crawled = [event for event in events if event.kind is EventKind.CRAWLED]
            if len(queue.items) != pages or (way == "strategy" and len(crawled) != pages):
                raise RunError(
                    f"{len(queue.items)} items and {len(crawled)} events of {pages} pages"
                )
        return took.cpu

    def close(self) -> None:
        """Stop the site."""
        self.site.close()


def _never(*_: Any) -> Any:
    raise AssertionError("a worker is measured, and started by hand")


def measure(bench: Bench, pages: int, pairs: int, links: int) -> dict[str, Any]:
    """Milliseconds of a page, either way, without the start; and the ratios of each turn."""
    cost: dict[str, list[float]] = {way: [] for way in WAYS}
    for pair in range(pairs):
        for way in list(WAYS)[:: -1 if pair % 2 else 1]:
            start = bench.run(way, 1, links)
            cost[way].append((bench.run(way, pages, links) - start) * 1000 / (pages - 1))
            print(
                f"pair {pair + 1}/{pairs}  {links} links  {way:9} {cost[way][-1]:6.3f} ms",
                file=sys.stderr,
            )
    ratios = [one / other for one, other in zip(cost["strategy"], cost["frontier"], strict=True)]
    return {
        "links": links,
        **{way: spread(figures) for way, figures in cost.items()},
        "ratio": spread(ratios),
    }


def measure_plain(bench: Bench, pages: int, pairs: int) -> dict[str, Any]:
    """Milliseconds of a page without links, leased and in plain Scrapy; and the ratios of each turn."""
    cost: dict[str, list[float]] = {"frontier": [], PLAIN: []}
    for pair in range(pairs):
        for way in list(cost)[:: -1 if pair % 2 else 1]:
            if way == PLAIN:
                took = bench.run_plain(pages) - bench.run_plain(1)
            else:
                took = bench.run(way, pages, 0) - bench.run(way, 1, 0)
            cost[way].append(took * 1000 / (pages - 1))
            print(f"pair {pair + 1}/{pairs}  {way:9} {cost[way][-1]:6.3f} ms", file=sys.stderr)
    ratios = [one / other for one, other in zip(cost["frontier"], cost[PLAIN], strict=True)]
    return {**{way: spread(figures) for way, figures in cost.items()}, "ratio": spread(ratios)}


def main() -> int:
    """Run the program; 0 when all came home in every run, else 1."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/link_events.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--pages", type=int, default=2000, help="pages of a run")
    parser.add_argument(
        "--pairs", type=int, default=7, help="how often each way is run; they take turns"
    )
    parser.add_argument("--links", default="0,20", help="how many links a page has")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds until a run is given up"
    )
    parser.add_argument(
        "--short", action="store_true", help="few pages, once: to see that everything works"
    )
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    given = parser.parse_args()
    pages, pairs = (50, 1) if given.short else (given.pages, given.pairs)
    try:
        with (
            TemporaryDirectory(prefix="sdist-bench-") as folder,
            closing(Bench(Path(folder), pages, given.timeout)) as bench,
        ):
            plain = measure_plain(bench, pages, pairs)
            rows = [measure(bench, pages, pairs, int(links)) for links in given.links.split(",")]
    except RunError as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    about = machine()
    print(
        f"{pages} pages, {pairs} pairs, {about['cores']} cores, Scrapy {about['scrapy']}, {about['date']}"
    )
    ratio = plain["ratio"]
    print(
        f"A leased page takes {plain['frontier']['median']:.2f} ms, one of plain Scrapy"
        f" {plain['plain']['median']:.2f} ms: {ratio['median']:.2f} times as much"
        f" ({ratio['min']:.2f} to {ratio['max']:.2f})"
    )
    print(
        "| links of a page | CPU ms a page, frontier | strategy | ratio, median (least to most) |\n|---|---|---|---|"
    )
    for row in rows:
        ratio = row["ratio"]
        print(
            f"| {row['links']} | {row['frontier']['median']:.2f} | {row['strategy']['median']:.2f} |"
            f" {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}) |"
        )
    if given.json:
        given.json.write_text(
            json.dumps(
                {"schema": 1, "machine": about, "pages": pages, "plain": plain, "rows": rows},
                indent=1,
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
