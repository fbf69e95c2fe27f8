"""The ways to crawl the same site that are compared; each run proves that it brought every item home exactly once."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bound import SPIDERS, write_shares
from measure import RunError, Took, cpu_of, run_all
from rig.commands import SCRAPY, SDIST
from rig.nodes import Nodes, ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from scrapyd_dist.examples.pages import Site, UrlStyle


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is the same for all runs of a benchmark."""

    items: int
    per_page: int
    url_style: UrlStyle
    shards: int
    #: URLs in a batch; None divides the items by `rounds`
    batch_size: int | None
    #: batches for each process slot
    rounds: int
    #: jobs at the same time on one node
    max_proc: int
    #: seconds between two looks of a node into its queue
    poll_interval: float
    #: detail pages that an index page counts for when the bound's shares are cut
    index_weight: float
    #: seconds until a run is given up
    timeout: float
    #: more options of `sdist crawl`
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measured run."""

    way: str
    pair: int
    wall_s: float
    cpu_s: float
    #: what the site itself used meanwhile: to see that it was not what limited the crawl
    site_cpu_s: float
    #: detail pages that were fetched more than once
    refetched: int
    index_fetched: int

    def row(self) -> dict[str, Any]:
        """The run as JSON holds it."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


class Bench:
    """One site, the projects, and the nodes of each way, all made before the first clock starts."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.options = options
        self._folder = folder
        self._stack = ExitStack()
        self._fleets: dict[str, list[ScrapydNode]] = {}
        self._projects: dict[str, Project] = {}
        self._runs = 0
        site = Site(items=options.items, per_page=options.per_page, url_style=options.url_style)
        self.site = self._stack.enter_context(closing(SiteProcess(folder / "site", site)))

    def close(self) -> None:
        """Stop the site and all nodes."""
        self._stack.close()

    def prepare(self, way: str) -> None:
        """Make what a way needs: "plain", "bound", or "sdistN" for N nodes."""
        project = self._projects[way] = Project.demo(self._folder / way)
        if way == "bound":
            project.spider("bound", SPIDERS)
        if way.startswith("sdist"):
            nodes = Nodes(Path(sys.executable), self._folder / f"{way}-nodes")
            self._stack.enter_context(closing(nodes))
            self._fleets[way] = nodes.fleet(
                int(way[5:]), max_proc=self.options.max_proc, poll_interval=self.options.poll_interval
            )
            project.targets(self._fleets[way])
            run_all([[*SDIST, "deploy-all"]], cwd=project.path, output=self._output(), timeout=self.options.timeout)

    def _output(self) -> Path:
        self._runs += 1
        output = self._folder / f"run{self._runs}"
        output.mkdir()
        return output

    def run(self, way: str, pair: int) -> Run:
        """Crawl the site once, that way, and check what came home.

        Raises:
            RunError: when items are missing, repeated or wrong.
        """
        self.site.reset()
        output, nodes = self._output(), self._fleets.get(way, [])
        feeds, commands = self._commands(way, output)
        site_before, nodes_before = cpu_of(self.site.pid), sum(cpu_of(node.pid) for node in nodes)
        took = run_all(commands, cwd=self._projects[way].path, output=output, timeout=self.options.timeout)
        for node in nodes:
            node.wait_idle()
        nodes_cpu = sum(cpu_of(node.pid) for node in nodes) - nodes_before
        self._check(way, feeds)
        return self._summed_up(way, pair, took, nodes_cpu, cpu_of(self.site.pid) - site_before)

    def _commands(self, way: str, output: Path) -> tuple[list[Path], list[list[str]]]:
        """The feeds that a run will write, and its commands."""
        start = ["-a", f"start={self.site.start_url}"]
        if way.startswith("sdist"):
            return [output / "items.jl"], [[*SDIST, *self._sdist(int(way[5:]), output / "items.jl"), *start]]
        crawls = [["easy"]]
        if way == "bound":
            crawls = write_shares(
                output / "shares", self.site, self.options.shards, os.cpu_count() or 1, self.options.index_weight
            )
        feeds = [output / f"items{at}.jl" for at in range(len(crawls))]
        return feeds, [
            [*SCRAPY, "crawl", *crawl, *start, "-O", str(feed)] for crawl, feed in zip(crawls, feeds, strict=True)
        ]

    def _sdist(self, nodes: int, feed: Path) -> list[str]:
        options = self.options
        batches = nodes * options.max_proc * options.rounds
        batch_size = options.batch_size or -(-options.items // batches)
        return [
            "crawl", "easy", "--shards", str(options.shards), "--index", self.site.template,
            "--pages", str(self.site.site.pages), "--batch-size", str(batch_size), "-o", str(feed),
            *options.extra,
        ]  # fmt: skip

    def _check(self, way: str, feeds: list[Path]) -> None:
        items = [json.loads(line) for feed in feeds for line in feed.read_text(encoding="utf-8").splitlines()]
        differences = {name: numbers[:10] for name, numbers in self.site.differences(items).items()}
        if differences:
            raise RunError(f"{way} brought {len(items)} items home, and they are not the site's: {differences}")

    def _summed_up(self, way: str, pair: int, took: Took, nodes_cpu: float, site_cpu: float) -> Run:
        indexes = {self.site.site.index_path(page) for page in range(self.site.site.pages)}
        return Run(
            way=way,
            pair=pair,
            wall_s=took.wall,
            cpu_s=took.cpu + nodes_cpu,
            site_cpu_s=site_cpu,
            refetched=sum(count > 1 for count in self.site.item_hits().values()),
            index_fetched=sum(count for path, count in self.site.hits().items() if path in indexes),
        )
