"""What tests of strategy crawls share: a project with strategies, nodes that live as long as the module, and sites."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from textwrap import dedent
from typing import Any
from urllib.parse import urlsplit

import pytest

from scrapyd_dist.config import state_dir
from scrapyd_dist.keys import state_key
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.strategy.links import States, StrategyBacklog

from .commands import Command, Result
from .crawls import QUICK
from .fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from .nodes import ScrapydNode
from .projects import Project
from .redis import PASSWORD, RedisServer
from .sites import SiteProcess

_numbers = itertools.count(1)
#: a site for each address of loopback, on one server
HOST = "--host=0.0.0.0"
#: an item for each page, and all its links; it says nothing of strategies
SPIDER = """
    import os

    import scrapy


    class Pages(scrapy.Spider):
        name = "pages"

        def parse(self, response):
            yield {"url": response.url, "meta": response.meta.get("told")}
            if "raises" in response.url:
                raise ZeroDivisionError("of this page")
            if "dies" in response.url:
                os._exit(1)
            for link in response.css('a[itemprop="url"]::attr(href), a.next::attr(href)').getall():
                yield response.follow(link)
"""
STRATEGIES = '''
    from scrapyd_dist.strategy import BasicStrategy, Revisit, States


    class Each(BasicStrategy):
        """Every page once."""
'''


class StrategyBench:
    """A project, its nodes, and a server with a site for each address 127.0.0.2, 127.0.0.3, …"""

    def __init__(
        self, it: Project, nodes: Sequence[ScrapydNode], web: SiteProcess, run: RunCommand, start: StartCommand,
        *, hosts: int, name: str, store: str,
    ) -> None:  # fmt: skip
        self.it, self.nodes, self.web, self.name = it, nodes, web, name
        self.command, self._start, self._store = run, start, store
        port = urlsplit(web.url).port
        self.hosts = [f"http://127.0.0.{number}:{port}" for number in range(2, hosts + 2)]
        self.seeds([f"{host}{web.site.index_path(0)}" for host in self.hosts])
        self.strategy("")

    def strategy(self, source: str) -> None:
        """Give the project these classes besides `Each`."""
        self.it.write(f"{self.it.name}/strategies.py", dedent(STRATEGIES) + dedent(source))

    def seeds(self, urls: Sequence[str]) -> None:
        self.it.write("seeds.txt", "\n".join(urls) + "\n")

    def sdist(self, *words: object, **options: Any) -> Result:
        """`sdist strategy …` to its end."""
        return self.command(self.it, "strategy", *words, **options)

    def _words(self, kind: str, words: Sequence[object]) -> tuple[object, ...]:
        own = (
            "--name",
            self.name,
            "--spider",
            "pages",
            "--seeds",
            "seeds.txt",
            "--workers",
            len(self.nodes) or 1,
        )
        return ("run", f"{self.it.name}.strategies:{kind}", *own, *words)

    def run(self, kind: str = "Each", *words: object, **options: Any) -> Result:
        """`sdist strategy run` of this class, to its end."""
        return self.sdist(*self._words(kind, words), **options)

    def start(self, kind: str = "Each", *words: object) -> Command:
        """The same in the background."""
        return self._start(self.it, "strategy", *self._words(kind, words))

    def join(self) -> Command:
        return self._start(self.it, "strategy", "join", self.name)

    def open(self) -> Store:
        state = state_dir(self.it.path)
        return open_store(self._store or state / "store.db", key=state_key(state))

    def backlog(self) -> StrategyBacklog:
        with closing(self.open()) as store:
            return store.strategy_backlog(self.name)

    def leased(self) -> int:
        """Batches that workers have."""
        with closing(self.open()) as store:
            return store.backlog(self.name).leased

    def states(self) -> dict[str, int]:
        """Name of a state -> links, where there are any."""
        return {
            States(state).name: number for state, number in self.backlog().states.items() if number
        }

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = self.sdist("status", self.name, "--json", code=0).json()
        return document

    def changes(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self.sdist("events", self.name, code=0).out.splitlines()
        ]

    # the site

    def hits(self) -> Counter[str]:
        """URL -> how often it was asked for."""
        return Counter(map(url_of, self.web.log()))

    def pages(self) -> Counter[str]:
        """Every page of all sites, once."""
        site = self.web.site
        paths = [
            *map(site.index_path, range(site.pages)),
            *map(site.detail_path, range(site.items)),
        ]
        return Counter(f"{host}{path}" for host in self.hosts for path in paths)

    def assert_each_once(self) -> None:
        hits, pages = self.hits(), self.pages()
        assert (hits - pages, pages - hits) == (Counter(), Counter())
        assert self.states() == {"CRAWLED": self.pages().total()}


def url_of(hit: Mapping[str, Any]) -> str:
    return f"http://{hit['host']}{hit['target']}"


@pytest.fixture(scope="module")
def strategy_nodes(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2, max_proc=4, poll_interval=0.2, jobs_to_keep="100")


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.full)])
def engine(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[str]:
    """The address of a store; empty for the project's own file."""
    if request.param == "sqlite":
        yield ""
        return
    with closing(RedisServer(tmp_path / "redis", PASSWORD)) as server:
        yield server.url


@pytest.fixture
def strategy_bench(
    project: MakeProject, site: StartSite, strategy_nodes: list[ScrapydNode], run_cli: RunCommand,
    start_cli: StartCommand,
) -> Iterator[Callable[..., StrategyBench]]:  # fmt: skip
    """`strategy_bench(items=12, hosts=2, nodes=1, latency=0.0, store="")`."""

    def make(
        *, items: int = 12, hosts: int = 2, nodes: int = 2, latency: float = 0.0, store: str = "", per_page: int = 5,
        **settings: Any,
    ) -> StrategyBench:  # fmt: skip
        there, web = (
            strategy_nodes[:nodes],
            site(items, HOST, f"--latency={latency}", per_page=per_page),
        )
        address = {"DISTRIBUTED_STORE": store} if store else {}
        it = project(
            spiders={"pages": SPIDER},
            nodes=there,
            settings={"CONCURRENT_REQUESTS": 4, **QUICK, **address, **settings},
        )
        name = f"strategy{next(_numbers)}"
        return StrategyBench(
            it, there, web, run_cli, start_cli, hosts=hosts, name=name, store=store
        )

    yield make
    for node in strategy_nodes:
        node.kill_jobs()
        node.wait_idle()
