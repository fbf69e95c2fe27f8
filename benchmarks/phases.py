"""Measures three phases of a crawl: links that are found, the first detail page, and slots that a slow site keeps busy.

    python benchmarks/phases.py --phases links,start,slots --pairs 5

*links*: CPU seconds of the producer for each link, beside a plain spider that extracts the same links and crawls none.
*start*: seconds until the site is asked for the first detail page, beside a plain Scrapyd job of the same project, and
the whole of a small crawl beside `scrapy crawl`. *slots*: detail pages per second from a site that answers after 0.25 s,
beside the most that so many processes can ask for at once. Ways take turns, and a ratio is that of one turn.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

# The nodes, the site and the projects are those of the tests.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

from measure import RunError, adopt_orphans, run_all
from report import machine, shown, spread
from rig.commands import SCRAPY, SDIST
from rig.nodes import Nodes
from rig.processor_time import ProcessorTime
from rig.projects import Project
from rig.sites import SiteProcess
from scrapyd_dist.examples.pages import Site

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from measure import Took
    from rig.nodes import ScrapydNode

#: the same rules as the demo's spider, but no link to a detail page is followed
LINKS_SPIDER = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule

from properties.spiders.easy import EasySpider


def drop(request, response):
    return None


class LinksSpider(EasySpider):
    name = "links"
    rules = (
        Rule(LinkExtractor(restrict_css="a.next")),
        Rule(LinkExtractor(restrict_xpaths='//a[@itemprop="url"]'), process_request=drop),
    )
"""
#: how the producer's process is named by `rig.processor_time`
PRODUCER = "scrapyd_dist.middlewares.producer"
#: seconds between two samples of all processes; a producer's last moment is not seen
SAMPLE = 0.1
#: detail pages of the small crawl that `links` takes off, so that the start does not count
FEW = 1_000
#: detail pages of the crawls of `start`, and the URLs in their batches
SMALL_CRAWL = 500
SMALL_BATCH = 37
#: seconds before each answer of the slow site, and the requests that a process has under way
LATENCY = 0.25
CONCURRENCY = 8
#: slots -> nodes; each node has as many process slots as are left
NODES = {1: 1, 2: 2, 4: 2, 8: 2, 12: 2}
#: seconds that a crawl of `slots` lasts at least, and the share of its pages between which it is measured
SLOW_CRAWL = 20
STEADY = (0.2, 0.9)


class Bench:
    """A site, real nodes that have the code of the demo project, and what is run on them."""

    def __init__(
        self, folder: Path, *, items: int, nodes: int, max_proc: int, latency: float, timeout: float
    ) -> None:
        self._folder, self._timeout, self._runs = folder, timeout, 0
        folder.mkdir()
        self._stack = ExitStack()
        site = SiteProcess(folder / "site", Site(items=items), f"--latency={latency}")
        self.site = self._stack.enter_context(closing(site))
        fleet = Nodes(Path(sys.executable), folder / "nodes", fork=False)
        self._stack.enter_context(closing(fleet))
        self.nodes: list[ScrapydNode] = fleet.fleet(nodes, max_proc=max_proc, poll_interval=0.5)
        self._project = Project.demo(folder / "project")
        self._project.spider("links", LINKS_SPIDER)
        self._project.targets(self.nodes)
        self._run([*SDIST, "deploy", "--all"], self._make_output())

    def close(self) -> None:
        """Stop the site and the nodes."""
        self._stack.close()

    def _make_output(self) -> Path:
        self._runs += 1
        output = self._folder / f"run{self._runs}"
        output.mkdir()
        return output

    def _run(self, command: Sequence[str], output: Path) -> Took:
        return run_all([command], cwd=self._project.path, output=output, timeout=self._timeout)

    def run_sdist(self, *options: str) -> Took:
        """Crawl the site with `sdist crawl`.

        Raises:
            RunError: when not exactly the site's items came home.
        """
        output = self._make_output()
        took = self._run(
            [*SDIST, "crawl", "easy", "-a", f"start={self.site.start_url}", "--shards", "20",
             "--index", self.site.template, "--pages", str(self.site.site.pages),
             "-O", str(output / "items.jl"), *options],
            output,
        )  # fmt: skip
        self._check_items(output / "items.jl")
        self._wait_idle()
        return took

    def run_scrapy(self, spider: str) -> Took:
        """Crawl the site with `scrapy crawl`, with one of the project's spiders."""
        output = self._make_output()
        command = [*SCRAPY, "crawl", spider, "-a", f"start={self.site.start_url}"]
        took = self._run([*command, "-O", str(output / "items.jl")], output)
        if spider == "easy":
            self._check_items(output / "items.jl")
        return took

    def run_job(self) -> None:
        """Crawl the site with one plain job of the first node."""
        node = self.nodes[0]
        start = self.site.start_url
        answer = node.api("schedule.json", project="properties", spider="easy", start=start)
        if answer["status"] != "ok":
            raise RunError(f"the plain job was refused: {answer}")
        self._wait_idle()

    def _wait_idle(self) -> None:
        for node in self.nodes:
            node.wait_idle()

    def _check_items(self, path: Path) -> None:
        with path.open(encoding="utf-8") as file:
            differences = self.site.differences(map(json.loads, file))
        if differences:
            raise RunError(f"the items are not the site's: {differences}")

    def detail_times(self) -> list[float]:
        """When the site was asked for each detail page since it was reset, by the clock of `time.monotonic`."""
        numbers = self.site.site.numbers
        return [hit["time"] for hit in self.site.log() if hit["target"] in numbers]

    def seconds_to_first_detail(self, begun: float) -> float:
        """Seconds from a moment of `time.monotonic` until the site was asked for a detail page."""
        return min(self.detail_times()) - begun


def producer_seconds(bench: Bench) -> float:
    """CPU seconds of the producer in one `sdist crawl`.

    Raises:
        RunError: no such process was seen.
    """
    processes = ProcessorTime(interval=SAMPLE)
    bench.run_sdist()
    seconds = sum(used for kind, _, used in processes.close() if PRODUCER in kind)
    if not seconds:
        raise RunError("no process of a producer was seen")
    return seconds


def measure_links(folder: Path, pairs: int, items: int, timeout: float) -> list[str]:
    """What the producer spends on each link, as lines of a table."""
    few_items = items // 20 if items < 20 * FEW else FEW
    whole: list[float] = []
    beyond: list[float] = []
    with (
        closing(make_bench(folder / "few", few_items, timeout)) as few,
        closing(make_bench(folder / "many", items, timeout)) as many,
    ):
        for _ in range(pairs):
            produced = producer_seconds(many) - producer_seconds(few)
            extracted = many.run_scrapy("links").cpu - few.run_scrapy("links").cpu
            per_link = 1000 / (items - few_items)
            whole.append(produced * per_link)
            beyond.append((produced - extracted) * per_link)
            print(f"links: {whole[-1]:.3f} ms, beyond {beyond[-1]:.3f} ms", file=sys.stderr)
    return [
        f"| ms of the producer for a found link | {shown(spread(whole), 2)} |",
        f"| the same, beyond a plain spider that extracts it | {shown(spread(beyond), 2)} |",
    ]


def make_bench(folder: Path, items: int, timeout: float) -> Bench:
    """Two nodes with one process slot each, and a site that answers at once."""
    return Bench(folder, items=items, nodes=2, max_proc=1, latency=0, timeout=timeout)


def measure_start(folder: Path, pairs: int, timeout: float) -> list[str]:
    """When the first detail page is asked for, and how long a small crawl takes, as lines of a table."""
    first: dict[str, list[float]] = {"sdist": [], "job": []}
    walls: list[float] = []
    with closing(make_bench(folder / "start", SMALL_CRAWL, timeout)) as bench:
        for _ in range(pairs):
            bench.site.reset()
            begun = time.monotonic()
            bench.run_job()
            first["job"].append(bench.seconds_to_first_detail(begun))
            plain = bench.run_scrapy("easy").wall
            bench.site.reset()
            begun = time.monotonic()
            took = bench.run_sdist("--batch-size", str(SMALL_BATCH))
            first["sdist"].append(bench.seconds_to_first_detail(begun))
            walls.append(took.wall / plain)
            print(
                f"start: {first['sdist'][-1]:.2f} s, a job {first['job'][-1]:.2f} s; whole {walls[-1]:.2f}",
                file=sys.stderr,
            )
    ratios = [ours / job for ours, job in zip(first["sdist"], first["job"], strict=True)]
    return [
        f"| first detail page of `sdist crawl` / of a plain job | {shown(spread(ratios), 2)} |",
        f"| seconds of `sdist crawl` until then | {shown(spread(first['sdist']), 1)} |",
        f"| {SMALL_CRAWL} pages in batches of {SMALL_BATCH} / `scrapy crawl` | {shown(spread(walls), 2)} |",
    ]


def steady_pace(times: Iterable[float]) -> float:
    """Pages per second between two shares of all pages, without the start and the end of a crawl."""
    ordered = sorted(times)
    first, last = (int(share * (len(ordered) - 1)) for share in STEADY)
    return (last - first) / (ordered[last] - ordered[first])


def measure_slots(
    folder: Path, fleets: Mapping[int, int], seconds: float, timeout: float
) -> list[str]:
    """The share of what the slots can ask for, one line of a table for each number of slots."""
    lines = []
    for slots, nodes in fleets.items():
        most = slots * CONCURRENCY / LATENCY
        with closing(
            Bench(
                folder / f"slots{slots}", items=int(most * seconds), nodes=nodes, max_proc=slots // nodes,
                latency=LATENCY, timeout=timeout,
            )
        ) as bench:  # fmt: skip
            bench.run_sdist("-s", f"CONCURRENT_REQUESTS_PER_DOMAIN={CONCURRENCY}")
            pace = steady_pace(bench.detail_times())
        print(f"slots: {slots}: {pace:.1f} of {most:.0f} pages a second", file=sys.stderr)
        lines.append(
            f"| pages/s with {slots} slots, of {most:.0f} | {pace:.0f}: {pace / most:.0%} |"
        )
    return lines


def main() -> int:
    """Run the program; 0 when every crawl brought exactly the site's items home, else 1."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/phases.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--phases", default="links,start,slots", help="which of the three")
    parser.add_argument("--items", type=int, default=20_000, help="detail pages of `links`")
    parser.add_argument("--pairs", type=int, default=5, help="how often each way is run")
    parser.add_argument(
        "--timeout", type=float, default=900, help="seconds until a run is given up"
    )
    parser.add_argument(
        "--short", action="store_true", help="few pages, once: to see that everything works"
    )
    parser.add_argument("--json", type=Path, help="file that gets the lines of the table")
    given = parser.parse_args()
    items, pairs = (200, 1) if given.short else (given.items, given.pairs)
    fleets, seconds = ({1: 1}, 2.0) if given.short else (NODES, SLOW_CRAWL)
    adopt_orphans()
    lines: list[str] = []
    try:
        with TemporaryDirectory(prefix="sdist-bench-") as name:
            folder = Path(name)
            if "links" in given.phases:
                lines += measure_links(folder, pairs, items, given.timeout)
            if "start" in given.phases:
                lines += measure_start(folder, pairs, given.timeout)
            if "slots" in given.phases:
                lines += measure_slots(folder, fleets, seconds, given.timeout)
    except RunError as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    about = machine()
    print(f"{pairs} rounds, {about['cores']} cores, Scrapy {about['scrapy']}, {about['date']}")
    print("\n".join(["| what | median (least-most) |", "|---|---|", *lines]))
    if given.json:
        document: dict[str, Any] = {"schema": 1, "machine": about, "lines": lines}
        given.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
