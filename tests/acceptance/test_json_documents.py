"""With `--json`, every command gives one document of its shape on standard output, and nothing else there."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from rig.commands import SDIST, Command, Result
from rig.documents import DOCUMENTS
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.shapes import misfits
from rig.sites import SiteProcess
from scrapyd_dist.cli.commands import walk

from scrapyd_dist.frontier.backlog import Lessee
from scrapyd_dist.store import open_store
from scrapyd_dist.throttle.permits import PermitRequest

SLOW = """\
from properties.spiders.easy import EasySpider


class Slow(EasySpider):
    name = "slow"
    custom_settings = {"DOWNLOAD_DELAY": 0.5, "CONCURRENT_REQUESTS": 1}
"""


def reporting() -> Iterator[str]:
    """The commands that have the option."""
    return (path for path, command in walk() if any("--json" in param.opts for param in command.params))


def test_every_document_has_a_shape() -> None:
    assert sorted(set(reporting()) - DOCUMENTS.keys()) == [], "give it one in tests/rig/documents.py"
    known = {" ".join(word for word in name.split() if not word.startswith("-")) for name in DOCUMENTS}
    assert sorted(known - set(reporting())) == []


@pytest.fixture
def asked() -> set[str]:
    """The commands whose documents were looked at."""
    return set()


@pytest.fixture
def sdist(asked: set[str]) -> Iterator[RunCommand]:
    """`sdist(project, "jobs", code=0)`: its result, after its document was found to be what it should be."""
    with ExitStack() as stack:

        def run(project: Project, name: str, *arguments: object, code: int = 0) -> Result:
            line = [*SDIST, *name.split(), *map(str, arguments), "--json"]
            command = Command(line, cwd=project.path, folder=project.output, home=project.home, fork=True)
            done = stack.enter_context(closing(command)).wait(200)
            assert done.code == code, f"{name} ended with {done.code}:\n{done.out}\n{done.err}"
            document = done.json()
            assert misfits(document, {"schema": int, **DOCUMENTS[name]}) == [], name
            assert document["schema"] == 1
            assert "hush" not in done.out + done.err
            asked.add(name)
            return done

        yield run


@pytest.mark.black_box
@pytest.mark.timeout(500)
def test_every_document(
    sdist: RunCommand, fleet: StartFleet, site: StartSite,
    project: MakeProject, tmp_path: Path, asked: set[str]
) -> None:  # fmt: skip
    nodes = [*fleet(1, jobs_to_keep="100"), *fleet(1, username="me", password="hush", jobs_to_keep="100")]
    pages = site(60)
    it = project(nodes=nodes, settings={"START_URL": pages.start_url, "RETRY_TIMES": 0, "DISTRIBUTED_MIN_FREE": 1})
    it.spider("slow", SLOW)
    _of_the_code(sdist, it)
    index = ("--index", pages.template, "--pages", 2, "--shards", 2, "--batch-size", 20)
    _of_a_crawl(sdist, it, pages, index)
    _of_jobs(sdist, it, nodes)
    _of_a_crawl_that_is_stopped(sdist, it, index)
    _of_a_frontier(sdist, it, pages)
    _of_the_throttle(sdist, it)
    _of_nodes(sdist, it)
    other = Project.demo(tmp_path / "other")
    sdist(other, "init", "--node", nodes[0].url, "--name", "web")
    other.targets([])
    try:
        sdist(other, "nodes up", 1)
    finally:
        Command([*SDIST, "nodes", "down"], cwd=other.path, folder=other.output, home=other.home).wait()
    assert sorted(DOCUMENTS.keys() - asked) == [], "not tried"


def _of_the_code(sdist: RunCommand, it: Project) -> None:
    sdist(it, "deploy", "node1")
    sdist(it, "versions", "--check", code=10)
    sdist(it, "deploy-all", "--dry-run", code=10)
    sdist(it, "deploy-all")
    sdist(it, "spiders")
    it.write("properties/new.py", "NEW = True\n")
    sdist(it, "deploy-all")
    sdist(it, "rollback")
    sdist(it, "rollback", "--dry-run", code=10)
    sdist(it, "prune", "--keep", 1, "--dry-run", code=10)
    sdist(it, "prune", "--keep", 1, "--yes")
    sdist(it, "versions")


def _of_a_crawl(sdist: RunCommand, it: Project, pages: SiteProcess, index: tuple[object, ...]) -> None:
    pages.behave({pages.site.detail_path(7): "fail"})
    sdist(it, "plan", "easy", *index)
    crawl = sdist(it, "crawl", "easy", *index, "-o", "items.jl", code=3).json()["crawl"]
    sdist(it, "watch", crawl, code=3)
    sdist(it, "wait", crawl, code=3)
    for name in ("status", "batches", "misses", "stats"):
        sdist(it, name, crawl)
    sdist(it, "crawls")
    sdist(it, "report", crawl, "-o", "report.html")
    sdist(it, "items pull", crawl)
    sdist(it, "items merge", crawl, "-o", "merged.jl")
    pages.behave({})
    sdist(it, "retry", crawl, "--failed-urls")
    sdist(it, "trust", crawl, "--yes")
    sdist(it, "clean", crawl, "--yes")


def _of_jobs(sdist: RunCommand, it: Project, nodes: list[ScrapydNode]) -> None:
    sdist(it, "schedule", "easy", "--all-nodes", "-s", "CLOSESPIDER_ITEMCOUNT=3")
    for node in nodes:
        node.wait_idle()
    sdist(it, "jobs")
    sdist(it, "grep", "Spider")
    sdist(it, "schedule", "slow", "--on", "node2")
    sdist(it, "cancel", "--all", "--yes")


def _of_a_crawl_that_is_stopped(sdist: RunCommand, it: Project, index: tuple[object, ...]) -> None:
    crawl = sdist(it, "crawl --detach", "slow", *index, "-o", "slow.jl").json()["crawl"]
    sdist(it, "stop", crawl, "--yes")
    it.settings(DOWNLOAD_DELAY=0)
    sdist(it, "resume", crawl)


def _of_a_frontier(sdist: RunCommand, it: Project, pages: SiteProcess) -> None:
    it.write("urls.txt", "\n".join(map(pages.detail, range(30))))
    sdist(it, "frontier add", "shop", "urls.txt", "--prefix", "p", "--spider-callback", "parse_item")
    sdist(it, "frontier list")
    sdist(it, "frontier count", "shop")
    sdist(it, "frontier dump", "shop", "p0")
    sdist(it, "frontier move", "shop", "p", "q", 1)
    dead = sdist(it, "frontier move --batch", 2, "shop", "alone").json()["batch"]
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        who = Lessee(job="shop.w1.a1", node="node1", url="http://127.0.0.1:9")
        store.lease_next("shop", who, slots=("alone",), seconds=60, now=1.0)
        store.fail("shop", dead, 1, reason="it was told to", now=2.0, max_attempts=1)
    sdist(it, "frontier requeue", "shop")
    sdist(it, "consume", "easy", "shop", "-o", "shop.jl")
    sdist(it, "frontier delete", "shop", "--prefix", "alone", "--yes")


def _of_the_throttle(sdist: RunCommand, it: Project) -> None:
    it.write("limits.yml", "domains:\n  127.0.0.1: {hits: 5, window: 1}\nblacklist: [example.com]\n")
    sdist(it, "throttle apply", "limits.yml", "--dry-run", code=10)
    sdist(it, "throttle apply", "limits.yml")
    sdist(it, "throttle set", "127.0.0.1", "--scale", 0.5)
    for verb in ("block", "pause"):
        sdist(it, f"throttle {verb}", "example.org")
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        store.take_permits([PermitRequest(key="easy|127.0.0.1", domain="127.0.0.1", pages=9, budget="one")])
    sdist(it, "throttle show")
    for verb in ("resume", "unblock", "unset"):
        sdist(it, f"throttle {verb}", "example.org")


def _of_nodes(sdist: RunCommand, it: Project) -> None:
    sdist(it, "config", "--all")
    sdist(it, "nodes")
    sdist(it, "nodes add", "127.0.0.1:1", "--name", "spare", code=5)
    sdist(it, "nodes remove", "spare")
    sdist(it, "nodes drain", "node1")
    sdist(it, "nodes resume", "node1")
    sdist(it, "doctor")
