"""Every command on a fleet of three kinds of nodes, and the document that it gives with `--json`.

One node is open, one has a password, and one stands behind TLS and a base path.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rig.commands import Result
from rig.documents import DOCUMENTS, document_misfits
from rig.fixtures import StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from rig.stores import lease_next
from rig.tls import Authority, Front
from rig.waiting import wait_for
from scrapyd_dist.cli.commands import walk

from scrapyd_dist.errors import TIME_UP
from scrapyd_dist.frontier.backlog import Lessee
from scrapyd_dist.store import open_store
from scrapyd_dist.throttle.permits import PermitRequest

NAMES = ["node1", "node2", "behind tls"]
SLOW = """\
from properties.spiders.easy import EasySpider


class Slow(EasySpider):
    name = "slow"
    custom_settings = {"DOWNLOAD_DELAY": 0.5, "CONCURRENT_REQUESTS": 1}
"""


def test_every_document_has_a_shape() -> None:
    reporting = {
        path for path, command in walk() if any("--json" in param.opts for param in command.params)
    }
    assert sorted(reporting - DOCUMENTS.keys()) == [], "give it one in tests/rig/documents.py"
    known = {
        " ".join(word for word in name.split() if word.islower() and not word.startswith("-"))
        for name in DOCUMENTS
    }
    assert sorted(known - reporting) == []


class Shop(NamedTuple):
    """A project, its site, and its nodes; the third is reached through its front only."""

    project: Project
    site: SiteProcess
    nodes: list[ScrapydNode]

    def wait_idle(self) -> None:
        for node in self.nodes:
            node.wait_idle()

    def options(self, *more: object) -> tuple[object, ...]:
        """The options of a crawl of the site, in small batches."""
        return (
            "--index",
            self.site.template,
            "--pages",
            2,
            "--shards",
            2,
            "--batch-size",
            10,
            *more,
        )


@pytest.fixture(scope="module")
def shop(
    module_fleet: StartFleet, module_site: StartSite, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    kept = {"jobs_to_keep": "100"}
    nodes = [
        *module_fleet(1, **kept),
        *module_fleet(2, username="me", password="hush:hush", **kept),
    ]
    authority = Authority(tmp_path_factory.mktemp("tls"))
    site, project = module_site(60), Project.demo(tmp_path_factory.mktemp("mixed") / "project")
    project.settings(START_URL=site.start_url, RETRY_TIMES=0, DISTRIBUTED_MIN_FREE=1)
    project.spider("slow", SLOW)
    with closing(
        Front(nodes[2], authority.context(), base="/crawlers/one", certificates=authority.file)
    ) as front:
        project.targets(nodes[:2], front.section("properties", NAMES[2]))
        yield Shop(project, site, nodes)


class Sdist:
    """Runs `sdist` and sees that no secret is in its output."""

    def __init__(self, start: StartCommand, project: Project) -> None:
        self._start, self._project = start, project
        self.seen: set[str] = set()  #: the commands whose documents were checked

    def run(self, *arguments: object, code: int = 0) -> Result:
        done: Result = self._start(self._project, *arguments).wait(200)
        assert done.code == code, f"{arguments} ended with {done.code}:\n{done.out}\n{done.err}"
        assert "hush" not in done.out + done.err
        return done

    def __call__(self, name: str, *arguments: object, code: int = 0) -> Any:
        """The document that the command gives, which has the shape that it should have."""
        done = self.run(*name.split(), *arguments, "--json", code=code)
        return self.checked(name, done.json())

    def checked(self, name: str, document: Any) -> Any:
        """The document of this command, which has the shape that it should have."""
        assert document_misfits(name, document) == [], name
        assert document["schema"] == 1
        self.seen.add(name)
        return document


@pytest.fixture
def sdist(shop: Shop, start_cli: StartCommand) -> Sdist:
    return Sdist(start_cli, shop.project)


def states(document: Any) -> dict[str, str]:
    return {row["name"]: row["state"] for row in document["nodes"]}


@pytest.mark.black_box
def test_a_crawl_over_all_three(sdist: Sdist, shop: Shop) -> None:
    crawl = sdist("crawl", "easy", *shop.options("-o", "first.jl"))["crawl"]
    assert shop.site.differences(shop.project.items("first.jl")) == {}
    # A worker that begins when all is done is told to end, and then listed only if asked for; the
    # process may end before it has a log.
    listed = sdist("jobs list")["jobs"] + sdist("jobs list", "--state", "cancelled")["jobs"]
    rows = [row for row in listed if row["crawl"] == crawl]
    assert {row["node"] for row in rows} == set(NAMES)
    assert {row["state"] for row in rows if row["items"]} == {"finished"}
    assert {row["state"] for row in rows} <= {"finished", "cancelled", "unknown"}
    assert sdist("jobs stats", crawl)["stats"]["item_scraped_count"]["sum"] == 60


@pytest.mark.black_box
@pytest.mark.timeout(500)
def test_every_document(sdist: Sdist, shop: Shop, start_cli: StartCommand, tmp_path: Path) -> None:
    _check_code(sdist, shop)
    _check_crawl(sdist, shop)
    _check_jobs(sdist, shop)
    _check_frontier(sdist, shop)
    _check_stopped_crawl(sdist, shop)
    _check_strategy(sdist, shop)
    _check_throttle(sdist, shop)
    _check_nodes(sdist)
    other = Project.demo(tmp_path / "other")
    elsewhere = Sdist(start_cli, other)
    elsewhere("init", "--node", shop.nodes[0].url, "--name", "web")
    other.targets([])
    try:
        elsewhere("nodes up", 1)
    finally:
        elsewhere.run("nodes", "down")
    assert sorted(DOCUMENTS.keys() - sdist.seen - elsewhere.seen) == [], "not tried"


def _check_code(sdist: Sdist, shop: Shop) -> None:
    old = sdist("deploy", "--all")["version"]
    shop.project.write("properties/new.py", "NEW = True\n")
    assert states(sdist("deploy", NAMES[2])) == {NAMES[2]: "uploaded"}
    sdist("code versions", code=10)
    sdist("deploy", "--all", "--dry-run", code=10)
    sdist("deploy", "--all", "--atomic")
    sdist("code versions")
    missing = {row["spider"]: row["missing"] for row in sdist("code versions --spiders")["spiders"]}
    assert missing == {"easy": [], "plain": [], "slow": []}
    assert [row["missing"] for row in sdist("code versions --projects")["projects"]] == [[]]
    back = sdist("code rollback")["version"]
    assert back.split("-")[1] == old.split("-")[1]
    assert {row["default"] for row in sdist("code versions")["nodes"]} == {back}
    sdist("code rollback", "--dry-run", code=10)
    sdist("code prune", "--keep", 1, "--dry-run", code=10)
    assert all(row["deleted"] for row in sdist("code prune", "--keep", 1, "--yes")["nodes"])


def _check_crawl(sdist: Sdist, shop: Shop) -> None:
    site, project = shop.site, shop.project
    site.behave({site.site.detail_path(7): "fail"})
    assert states(sdist("plan", "easy", *shop.options())) == dict.fromkeys(NAMES, "up")
    crawl = sdist("crawl", "easy", *shop.options("-o", "items.jl"), code=3)["crawl"]
    assert states(sdist("watch", crawl, code=3)) == dict.fromkeys(NAMES, "up")
    assert sdist.run("watch", crawl, "--quiet", code=3).out == ""
    assert sdist("status", crawl)["items"] == sdist("crawls show", crawl)["items"] == 59
    assert {row["state"] for row in sdist("crawls show --batches", crawl)["batches"]} == {"done"}
    assert [row["url"] for row in sdist("crawls show --misses", crawl)["misses"]] == [
        site.detail(7)
    ]
    assert crawl in [row["crawl"] for row in sdist("crawls list")["crawls"]]
    sdist("report", crawl, "-o", "report.html", "--ask-nodes")
    page = (project.path / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in NAMES)
    assert "hush" not in page
    assert sdist("items pull", crawl)["items"] == 59
    assert len(sdist.run("items", "tail", crawl, "-n", 5).out.splitlines()) == 5
    site.behave({})
    sdist("retry", crawl, "--failed-urls")
    sdist("items merge", crawl, "-o", "merged.jl")
    for name in ("items.jl", "merged.jl"):
        assert site.differences(project.items(name)) == {}
    assert "nothing to try again" in sdist.run("retry", crawl, code=4).err
    sdist.run("pause", crawl, code=2)
    sdist("crawls clean", crawl, "--yes")


def _check_jobs(sdist: Sdist, shop: Shop) -> None:
    scheduled = sdist("jobs schedule", "easy", "--all-nodes", "-s", "CLOSESPIDER_ITEMCOUNT=3")[
        "jobs"
    ]
    jobs = [row["job"] for row in scheduled]
    assert sorted(row["node"] for row in scheduled) == sorted(NAMES)
    shop.wait_idle()
    rows = {row["job"]: row for row in sdist("jobs list")["jobs"]}
    assert {rows[job]["reason"] for job in jobs} == {"closespider_itemcount"}
    lines = sdist.run("logs", *jobs, "-n", 3).out.splitlines()
    assert {line.split(" | ")[0].rsplit(maxsplit=1)[0].strip() for line in lines} == set(NAMES)
    assert {
        match["node"] for match in sdist("jobs grep", "Spider closed", *jobs)["matches"]
    } == set(NAMES)
    assert sdist("jobs stats", *jobs)["stats"]["finish_reason"]["jobs"] == 3
    assert {row["state"] for row in sdist("watch --job", jobs[0], "--quiet")["jobs"]} == {
        "finished"
    }

    slow = [row["job"] for row in sdist("jobs schedule", "slow", "--all-nodes")["jobs"]]

    def has_begun(job: str) -> bool:
        return any("Spider opened" in node.job_log(job) for node in shop.nodes)

    wait_for(lambda: all(map(has_begun, slow)), 60, "the start of all three")
    assert {row["state"] for row in sdist("jobs cancel", *slow, "--yes")["jobs"]} == {"gone"}
    shop.wait_idle()
    rows = {row["job"]: row for row in sdist("jobs list")["jobs"]}
    assert {rows[job]["state"] for job in slow} == {"cancelled"}


def _check_stopped_crawl(sdist: Sdist, shop: Shop) -> None:
    crawl = sdist("crawl --detach", "slow", *shop.options("-o", "slow.jl"))["crawl"]
    sdist("stop", crawl, "--yes")
    shop.project.settings(DOWNLOAD_DELAY=0)
    sdist("resume", crawl)
    both = sdist.run("watch", crawl, "shop", "--quiet", "--json").json()
    assert [row["crawl"] for row in sdist.checked("watch A B", both)["crawls"]] == [crawl, "shop"]


def _check_frontier(sdist: Sdist, shop: Shop) -> None:
    shop.project.write("urls.txt", "\n".join(map(shop.site.detail, range(30))))
    sdist("frontier add", "shop", "urls.txt", "--prefix", "p", "--spider-callback", "parse_item")
    sdist("frontier list")
    sdist("frontier count", "shop")
    sdist("frontier dump", "shop", "p0")
    sdist("frontier move", "shop", "p", "q", 1)
    dead = sdist("frontier move --batch", 2, "shop", "alone")["batch"]
    with closing(open_store(shop.project.path / ".sdist" / "store.db")) as store:
        lessee = Lessee(job="shop.w1.a1", node="node1", url="http://127.0.0.1:9")
        lease_next(store, "shop", lessee, slots=("alone",))
        store.fail("shop", dead, 1, reason="for this test", now=2.0, max_attempts=1)
    sdist("frontier prioritise", "shop", "--to", 1)
    sdist("frontier requeue", "shop")
    sdist("frontier consume", "easy", "shop", "-o", "shop.jl")
    sdist("frontier delete", "shop", "--prefix", "alone", "--yes")


CARELESS = """
    import os

    from scrapyd_dist.strategy import BasicStrategy


    class Careless(BasicStrategy):
        def page_crawled(self, response):
            assert os.path.exists("corrected")
"""


def _check_strategy(sdist: Sdist, shop: Shop) -> None:
    shop.project.write("properties/strategies.py", CARELESS)
    shop.project.write("seeds.txt", f"{shop.site.detail(0)}\n")
    run = (
        "strategy run",
        "properties.strategies:Careless",
        "--spider",
        "easy",
        "--seeds",
        "seeds.txt",
    )
    sdist(*run)
    sdist("strategy list")
    assert len(sdist("strategy status", "careless")["letters"]) == 1
    shop.project.write("corrected", "")
    assert sdist("strategy add", "careless", "seeds.txt")["seeds"] == 0
    sdist("strategy replay", "careless")
    assert sdist(*run)["strategy"]["dead_letters"] == 0
    sdist("strategy reset", "careless", "--yes")


def _check_throttle(sdist: Sdist, shop: Shop) -> None:
    shop.project.write(
        "limits.yml", "domains:\n  127.0.0.1: {hits: 5, window: 1}\nblacklist: [example.com]\n"
    )
    sdist("throttle apply", "limits.yml", "--dry-run", code=10)
    sdist("throttle apply", "limits.yml")
    sdist("throttle set", "127.0.0.1", "--scale", 0.5)
    sdist("throttle set", "example.org", "--block")
    sdist("throttle pause", "example.org")
    with closing(open_store(shop.project.path / ".sdist" / "store.db")) as store:
        store.take_permits(
            [PermitRequest(key="easy|127.0.0.1", domain="127.0.0.1", pages=9, budget="one")]
        )
    sdist("throttle show")
    sdist("throttle resume", "example.org")
    for change in ("--unblock", "--unset"):
        sdist("throttle set", "example.org", change)


def _check_nodes(sdist: Sdist) -> None:
    sdist("config", "--all")
    assert states(sdist("nodes list")) == dict.fromkeys(NAMES, "up")
    sdist("nodes add", "127.0.0.1:1", "--name", "spare", code=5)
    listed = sdist("nodes list --offline")["nodes"]
    assert {row["name"] for row in listed} == {*NAMES, "spare"}
    sdist("nodes remove", "spare")
    sdist("nodes drain", NAMES[2])
    assert states(sdist("nodes list"))[NAMES[2]] == "drained"
    assert {row["node"] for row in sdist("jobs schedule", "easy", "--all-nodes")["jobs"]} == set(
        NAMES[:2]
    )
    sdist("nodes resume", NAMES[2])
    assert states(sdist("status --fleet")) == dict.fromkeys(NAMES, "up")
    watched = sdist("watch --fleet", "--timeout", 1, code=TIME_UP)
    assert states(watched) == dict.fromkeys(NAMES, "up")
    assert sdist.run("nodes", "metrics").out.count("sdist_node_up{") == len(NAMES)
    findings = sdist("doctor", code=1)["findings"]
    dangers = [
        (finding["node"], finding["topic"])
        for finding in findings
        if finding["severity"] == "danger"
    ]
    assert dangers == [(NAMES[2], "tls")], (
        "the certificate of this test ends tomorrow, and that is all"
    )
