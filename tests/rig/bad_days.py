"""What tests of bad days share: settings that notice trouble within seconds, and looks into a crawl under way."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

from scrapyd_dist.batches import Attempt, AttemptState, Batch, Crawl, CrawlState
from scrapyd_dist.store import open_store

from .commands import Command, Result
from .crawls import ADDON, QUICK, crawls, last_crawl
from .nodes import ScrapydNode
from .projects import Project
from .sites import SiteProcess
from .waiting import wait_for

#: a node is lost after seconds, and a job takes long enough to be hurt
IMPATIENT: Mapping[str, Any] = {
    **QUICK,
    "DISTRIBUTED_BATCH_SIZE": 50,
    "DISTRIBUTED_NODE_TIMEOUT": 4,
    "DISTRIBUTED_FLEET_TIMEOUT": 5,
    "DISTRIBUTED_REQUEST_TIMEOUT": 4,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
    "ADDONS": ADDON,
}
#: the merged file of every crawl here
ITEMS = "items.jl"


def arguments(way: str, site: SiteProcess, shards: int = 4) -> list[str]:
    """The command line of a crawl: by settings only, or by the command of ours."""
    if way == "scrapy":
        return ["crawl", "easy", "-o", ITEMS]
    pages = site.site.pages
    index = ["--index", site.template, "--pages", str(pages), "--shards", str(min(shards, pages))]
    return ["crawl", "easy", *index, "-o", ITEMS, "--json"]


def begin(
    way: str,
    project: Project,
    site: SiteProcess,
    *,
    scrapy: Callable[..., Command],
    cli: Callable[..., Command],
) -> Command:
    """Start a crawl of the site, either way, and wait until it has a row in the store."""
    command = (scrapy if way == "scrapy" else cli)(project, *arguments(way, site))
    wait_for(lambda: crawls(project), 60, "the crawl in the store")
    return command


class Scene:
    """The demo project on some nodes, the site that it crawls, and both programs in its folder."""

    def __init__(
        self, it: Project, nodes: list[ScrapydNode], pages: SiteProcess, scrapy: Callable[..., Command],
        cli: Callable[..., Command], run: Callable[..., Result],
    ) -> None:  # fmt: skip
        self.it, self.nodes, self.pages = it, nodes, pages
        self._scrapy, self._cli, self._run = scrapy, cli, run

    def start(self, *more: object, way: str = "sdist", **options: Any) -> Command:
        """A crawl of the site, either way, in the background."""
        return (self._scrapy if way == "scrapy" else self._cli)(
            self.it, *arguments(way, self.pages), *more, **options
        )

    def crawl(self, *more: object, way: str = "sdist", code: int = 0, **options: Any) -> Result:
        """The same to its end."""
        return self.start(*more, way=way, **options).wait(code=code)

    def run(self, *words: object, **options: Any) -> Result:
        """`sdist` to its end; options as of `run_cli`."""
        return self._run(self.it, *words, **options)

    def resume(self, crawl: str, **options: Any) -> None:
        """`sdist resume`, after which all is as if the crawl had never been interrupted."""
        assert_resumed(
            self.run("resume", crawl, "--json", timeout=180, **options), self.it, self.pages
        )


MakeScene = Callable[..., Scene]


def attempts(project: Project, *states: AttemptState, node: str = "") -> list[Attempt]:
    """The attempts of the newest crawl, in any state when none is named, of a node or of all."""
    row = _row(project)
    with closing(open_store(project.path / ".sdist" / "store.db")) as store:
        return [attempt for attempt in store.attempts(row.id, states) if node in {"", attempt.node}]


def batches(project: Project) -> list[Batch]:
    """The batches of the newest crawl."""
    row = _row(project)
    with closing(open_store(project.path / ".sdist" / "store.db")) as store:
        return store.batches(row.id)


def _row(project: Project) -> Crawl:
    found = crawls(project)
    assert found, "no crawl yet"
    return found[0]


def accepted_on(project: Project, node: str = "") -> list[Attempt]:
    """The accepted attempts of a node, or of all."""
    return attempts(project, AttemptState.ACCEPTED, node=node)


def wait_accepted(project: Project, count: int = 1, node: str = "") -> list[Attempt]:
    """Wait until this many attempts of a node, or of all, were accepted."""

    def enough() -> list[Attempt]:
        found = accepted_on(project, node)
        return found if len(found) >= count else []

    return wait_for(enough, 180, f"{count} accepted attempts on {node or 'any node'}")


def wait_state(project: Project, state: CrawlState) -> None:
    """Wait until the newest crawl is in this state."""
    wait_for(lambda: _row(project).state is state, 90, f"a crawl that is {state.value}")


def report_of(node: ScrapydNode, job: str) -> dict[str, Any]:
    """The report of a job, as its worker last wrote it."""
    found = list(node.logs_dir.glob(f"_sdist/*/{job}.json"))
    report: dict[str, Any] = (
        json.loads(found[0].read_text(encoding="utf-8")) if found else {"done": 0}
    )
    return report


def busy_workers(node: ScrapydNode) -> dict[int, str]:
    """Pid -> job id of its workers that have begun, and have a good part of their batch to go."""

    def has_long_to_go(job: str) -> bool:
        report = report_of(node, job)
        return bool(0 < report["done"] < report["requests"] * 0.6)

    return {pid: job for pid, job in node.job_pids().items() if has_long_to_go(job)}


def assert_exact(project: Project, site: SiteProcess, *, without: Iterable[int] = ()) -> None:
    """The merged file holds the site's items but `without`, each once; each batch has one accepted attempt."""
    assert site.differences(project.items(ITEMS), without=without) == {}
    counted = [attempt.batch for attempt in accepted_on(project)]
    assert sorted(counted) == sorted(batch.number for batch in batches(project))


def assert_resumed(done: Result, project: Project, site: SiteProcess) -> None:
    """`sdist resume … --json` ended well; items and account are those of a crawl that was never interrupted."""
    assert done.code == 0, done.err
    assert_exact(project, site)
    summary = last_crawl(project).summary
    assert done.json()["crawl"] == summary["crawl"]
    assert summary["state"] == "finished"
    assert summary["urls_found"] == summary["urls_distinct"] == summary["sealed"] == site.site.items
    assert summary["items"] == summary["requests"]["done"] == site.site.items
    assert (summary["failed_urls"], summary["dead_urls"], summary["index_failed"]) == (0, 0, 0)
