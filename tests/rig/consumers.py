"""What tests of `sdist frontier consume` share: a site, nodes that live as long as the module, a frontier."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from .commands import Command, Result
from .crawls import QUICK
from .fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from .frontiers import Frontier
from .nodes import ScrapydNode
from .projects import Project
from .sites import SiteProcess

_numbers = itertools.count(1)


class ConsumerBench:
    """A project, its nodes, a site, and a frontier whose name (and so its job ids) no other row has."""

    def __init__(
        self, it: Project, nodes: list[ScrapydNode], site: SiteProcess, frontier: Frontier,
        run: RunCommand, start: StartCommand,
    ) -> None:  # fmt: skip
        self.it, self.nodes, self.site, self.frontier = it, nodes, site, frontier
        self.name = frontier.name
        self._run, self._start = run, start

    def run(self, *words: object, **options: Any) -> Result:
        """`sdist` in the project, to its end."""
        return self._run(self.it, *words, **options)

    def consume(
        self, *words: object, spider: str = "plain", name: str = "", **options: Any
    ) -> Result:
        """`sdist frontier consume SPIDER FRONTIER …`, to its end."""
        return self.run("frontier", "consume", spider, name or self.name, *words, **options)

    def start(self, *words: object) -> Command:
        """The same in the background."""
        return self._start(self.it, "frontier", "consume", "plain", self.name, *words)

    def pages(self, numbers: Iterable[int]) -> list[str]:
        return [self.site.detail(number) for number in numbers]

    def done(self) -> int:
        return self.frontier.counts().get("done", 0)

    def assert_all_home(self, name: str = "items.jl", *, without: Iterable[int] = ()) -> None:
        """The file has every page of the site once, and no worker runs."""
        assert self.site.differences(self.it.items(name), without=without) == {}
        for node in self.nodes:
            node.wait_idle()

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that run or wait on the nodes."""
        return [
            job
            for node in self.nodes
            for state in ("running", "pending")
            for job in node.jobs(state)
        ]

    def workers_of(self) -> dict[str, set[str]]:
        """Slot -> the workers that had a batch of it."""
        slots = {batch.number: batch.slot for batch in self.frontier.batches()}
        found: dict[str, set[str]] = {}
        for attempt in self.frontier.attempts():
            found.setdefault(slots[attempt.batch], set()).add(attempt.worker)
        return found


def requests_counted(done: Result) -> Counter[str]:
    """What became of the requests that a process has found, by the statistics at the end of its log."""
    lines = [
        line.strip(" {},").split(": ")
        for line in done.err.splitlines()
        if "'distributed/requests_" in line
    ]
    return Counter(
        {
            name.strip("'").removeprefix("distributed/requests_"): int(number)
            for name, number in lines
        }
    )


@pytest.fixture(scope="module")
def consumer_nodes(module_fleet: StartFleet) -> list[ScrapydNode]:
    """Two nodes with room for four jobs each."""
    return module_fleet(2, max_proc=4, poll_interval=0.2, jobs_to_keep="100")


@pytest.fixture
def bench(
    project: MakeProject, site: StartSite, consumer_nodes: list[ScrapydNode], run_cli: RunCommand,
    start_cli: StartCommand,
) -> Iterator[Callable[..., ConsumerBench]]:  # fmt: skip
    """`bench(items=60, nodes=1, slots=2, latency=0.0)`: its frontier has all pages of the site, for parse_article."""

    def make(
        *, items: int = 60, nodes: int = 1, slots: int = 2, size: int = 20, latency: float = 0.0,
        standing: bool = False, store: str = "", fill: bool = True, **settings: Any,
    ) -> ConsumerBench:  # fmt: skip
        there, pages = consumer_nodes[:nodes], site(items, f"--latency={latency}")
        it = project(nodes=there, settings={"START_URL": pages.start_url, **QUICK, **settings})
        queue = Frontier(it, f"shop{next(_numbers)}", standing=standing, store=store)
        made = ConsumerBench(it, there, pages, queue, run_cli, start_cli)
        if fill:
            made.frontier.fill(
                made.pages(range(items)), slots=slots, size=size, callback="parse_article"
            )
        return made

    yield make
    for node in consumer_nodes:
        node.kill_jobs()
        node.wait_idle()
