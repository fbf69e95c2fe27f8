"""The ways to crawl the same site that are compared; each run proves that it brought every item home exactly once."""

import json
import os
import sys
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bound
import redis
import rival
from kinds import Way
from measure import RunError, Took, cpu_of, run_all
from rig.commands import SCRAPY, SDIST
from rig.nodes import Nodes, ScrapydNode
from rig.projects import Project
from rig.redis import RedisServer
from rig.sites import SiteProcess
from scrapyd_dist.examples.pages import Site, UrlStyle
from scrapyd_dist.middlewares.addon import PROFILE_SETTINGS


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is the same for all runs of a benchmark."""

    items: int
    per_page: int
    url_style: UrlStyle
    shards: int
    #: URLs in a batch; None: what `sdist crawl` makes of them
    batch_size: int | None
    #: jobs at the same time on one node
    max_proc: int
    #: seconds between two looks of a node into its queue
    poll_interval: float
    #: detail pages that an index page counts for when the bound's shares are cut
    index_weight: float
    #: seconds until a run is given up
    timeout: float
    #: seconds before each answer of the site
    latency: float = 0.0
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
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


class Bench:
    """One site, the projects, and the nodes of each way, all made before the first clock starts."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.options = options
        self._folder = folder
        self._stack = ExitStack()
        self._fleets: dict[str, list[ScrapydNode]] = {}
        self._redis: RedisServer | None = None
        self._projects: dict[str, Project] = {}
        self._runs = 0
        site = Site(items=options.items, per_page=options.per_page, url_style=options.url_style)
        self.site = self._stack.enter_context(
            closing(SiteProcess(folder / "site", site, f"--latency={options.latency}"))
        )

    def close(self) -> None:
        """Stop the site and all nodes."""
        self._stack.close()

    def prepare(self, name: str) -> None:
        """Make what a way needs."""
        way, project = Way.named(name), Project.demo(self._folder / name)
        self._projects[name] = project
        if way.kind == "bound":
            project.spider("bound", bound.SPIDERS)
        if way.kind == "scrapy-redis":
            project.spider("rival", rival.SPIDERS)
        if way.needs_redis and self._redis is None:
            # One that may lose a second with the power: both sides are usually run so.
            server = RedisServer(self._folder / "redis", password=None, appendfsync="everysec")
            self._redis = self._stack.enter_context(closing(server))
        if way.ours:
            self._raise_fleet(name, way, project)

    def _raise_fleet(self, name: str, way: Way, project: Project) -> None:
        nodes = Nodes(Path(sys.executable), self._folder / f"{name}-nodes", fork=False)
        self._stack.enter_context(closing(nodes))
        options = self.options
        self._fleets[name] = nodes.fleet(
            way.count, max_proc=options.max_proc, poll_interval=options.poll_interval
        )
        project.targets(self._fleets[name])
        if way.kind == "settings":
            project.settings(ADDONS={"scrapyd_dist.Addon": 500})
        if way.redis:
            project.settings(DISTRIBUTED_STORE=self._redis_url)
        run_all(
            [[*SDIST, "deploy", "--all"]],
            cwd=project.path,
            output=self._output(),
            timeout=options.timeout,
        )

    @property
    def _redis_url(self) -> str:
        assert self._redis
        return self._redis.url

    def _output(self) -> Path:
        self._runs += 1
        output = self._folder / f"run{self._runs}"
        output.mkdir()
        return output

    def run(self, name: str, pair: int) -> Run:
        """Crawl the site once, that way, and check what came home.

        Raises:
            RunError: when items are missing, repeated or wrong.
        """
        way = Way.named(name)
        self.site.reset()
        if way.kind == "scrapy-redis":
            redis.Redis.from_url(self._redis_url).flushdb()
        output, nodes = self._output(), self._fleets.get(name, [])
        feeds, commands = self._commands(way, output)
        servers = [node.pid for node in nodes] + (
            [self._redis.pid] if self._redis and way.needs_redis else []
        )
        site_before, servers_before = cpu_of(self.site.pid), sum(map(cpu_of, servers))
        took = run_all(
            commands, cwd=self._projects[name].path, output=output, timeout=self.options.timeout
        )
        for node in nodes:
            node.wait_idle()
        servers_cpu = sum(map(cpu_of, servers)) - servers_before
        self._check(name, feeds)
        return self._summed_up(name, pair, took, servers_cpu, cpu_of(self.site.pid) - site_before)

    def _commands(self, way: Way, output: Path) -> tuple[list[Path], list[list[str]]]:
        """The feeds that a run will write, and its commands."""
        start = ["-a", f"start={self.site.start_url}"]
        if way.ours:
            feed, command = (
                output / "items.jl",
                self._by_settings if way.kind == "settings" else self._sdist,
            )
            return [feed], [[*command(way, feed), *start]]
        crawls = [["easy", *start]]
        if way.kind == "bound":
            processes = os.cpu_count() or 1
            shares = bound.write_shares(
                output / "shares",
                self.site,
                self.options.shards,
                processes,
                self.options.index_weight,
            )
            crawls = [[*share, *start] for share in shares]
        if way.kind == "scrapy-redis":
            crawls = rival.commands(
                output / "shares", self.site, self.options.shards, way.count, self._redis_url
            )
        feeds = [output / f"items{at}.jl" for at in range(len(crawls))]
        same = [
            word
            for name, value in PROFILE_SETTINGS.get(way.profile, {}).items()
            for word in ("-s", f"{name}={value}")
        ]
        return feeds, [
            [*SCRAPY, "crawl", *crawl, *same, "-O", str(feed)]
            for crawl, feed in zip(crawls, feeds, strict=True)
        ]

    def _sdist(self, way: Way, feed: Path) -> list[str]:
        return [
            *SDIST, "crawl", "easy", "--shards", str(self.options.shards), "--index", self.site.template,
            "--pages", str(self.site.site.pages), "-o", str(feed), *self._batches(),
            *(["--push"] if way.kind == "push" else []), *(["-s", f"DISTRIBUTED_PROFILE={way.profile}"] if way.profile else []),
            *self.options.extra,
        ]  # fmt: skip

    def _by_settings(self, way: Way, feed: Path) -> list[str]:
        about = {
            "INDEX": self.site.template,
            "PAGES": self.site.site.pages,
            "SHARDS": self.options.shards,
        }
        about |= {"PROFILE": way.profile} if way.profile else {}
        return [
            *SCRAPY, "crawl", "easy", "-o", str(feed),
            *(word for name, value in about.items() for word in ("-s", f"DISTRIBUTED_{name}={value}")),
        ]  # fmt: skip

    def _batches(self) -> list[str]:
        return ["--batch-size", str(self.options.batch_size)] if self.options.batch_size else []

    def _check(self, way: str, feeds: list[Path]) -> None:
        items = [
            json.loads(line)
            for feed in feeds
            for line in feed.read_text(encoding="utf-8").splitlines()
        ]
        differences = {name: numbers[:10] for name, numbers in self.site.differences(items).items()}
        if differences:
            raise RunError(
                f"{way} brought {len(items)} items home, and they are not the site's: {differences}"
            )

    def _summed_up(
        self, way: str, pair: int, took: Took, servers_cpu: float, site_cpu: float
    ) -> Run:
        indexes = {self.site.site.index_path(page) for page in range(self.site.site.pages)}
        return Run(
            way=way,
            pair=pair,
            wall_s=took.wall,
            cpu_s=took.cpu + servers_cpu,
            site_cpu_s=site_cpu,
            refetched=sum(count > 1 for count in self.site.item_hits().values()),
            index_fetched=sum(count for path, count in self.site.hits().items() if path in indexes),
        )
