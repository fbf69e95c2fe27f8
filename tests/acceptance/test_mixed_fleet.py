"""Every command on a fleet of three kinds: an open node, one with a password, one behind TLS and a base path."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from rig.commands import SDIST, Command, Result
from rig.fixtures import RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from rig.tls import Authority, Front
from rig.waiting import wait_for

NAMES = ["node1", "node2", "behind tls"]
SLOW = """\
from properties.spiders.easy import EasySpider


class Slow(EasySpider):
    name = "slow"
    custom_settings = {"DOWNLOAD_DELAY": 0.5, "CONCURRENT_REQUESTS": 1}
"""


@pytest.fixture(scope="module")
def real(module_fleet: StartFleet) -> list[ScrapydNode]:
    """The nodes themselves; the third is reached through its front only."""
    more = {"max_proc": 2, "jobs_to_keep": "100"}
    return [*module_fleet(1, **more), *module_fleet(2, username="me", password="hush:hush", **more)]


@pytest.fixture(scope="module")
def front(real: list[ScrapydNode], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    with closing(Front(real[2], authority.context(), base="/crawlers/one", certificates=authority.file)) as made:
        yield made


@pytest.fixture(scope="module")
def shop(
    real: list[ScrapydNode], front: Front, module_site: StartSite,
    tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, SiteProcess]:  # fmt: skip
    site, project = module_site(60), Project.demo(tmp_path_factory.mktemp("mixed") / "project")
    project.settings(START_URL=site.start_url)
    project.spider("slow", SLOW)
    project.targets(real[:2], front.section("properties", NAMES[2]))
    return project, site


@pytest.fixture(scope="module")
def run(shop: tuple[Project, SiteProcess]) -> Iterator[RunCommand]:
    """`run("jobs", "--json")`: `sdist` to its end; no secret is ever in what it says."""
    project, _ = shop
    with ExitStack() as stack:

        def go(*arguments: object, code: int = 0) -> Result:
            line = [*SDIST, *map(str, arguments)]
            command = Command(line, cwd=project.path, folder=project.output, home=project.home)
            done = stack.enter_context(closing(command)).wait()
            assert done.code == code, f"{arguments} ended with {done.code}:\n{done.out}\n{done.err}"
            assert "hush" not in done.out + done.err
            return done

        go("deploy-all")
        yield go


def states(done: Result) -> dict[str, str]:
    return {row["name"]: row["state"] for row in done.json()["nodes"]}


def scheduled(run: RunCommand, *arguments: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run("schedule", *arguments, "--json").json()["jobs"]
    return rows


def begun(real: list[ScrapydNode], job: str) -> bool:
    return any("Spider opened" in node.job_log(job) for node in real)


def idle(real: list[ScrapydNode]) -> None:
    for node in real:
        node.wait_idle()


def test_a_crawl_over_all_three(run: RunCommand, shop: tuple[Project, SiteProcess], real: list[ScrapydNode]) -> None:
    project, site = shop
    pinned = run("versions", "--check", "--json").json()
    assert [row["name"] for row in pinned["nodes"]] == NAMES
    options = ("--index", site.template, "--pages", 2, "--shards", 2, "--batch-size", 10)
    done = run("crawl", "easy", *options, "-o", "items.jl", "--json").json()
    assert site.differences(project.items("items.jl")) == {}
    assert all(node.jobs("finished") for node in real), "a node got nothing to do"
    crawl = done["crawl"]
    rows = [row for row in run("jobs", "--json").json()["jobs"] if row["crawl"] == crawl]
    assert {row["node"] for row in rows} == set(NAMES)
    # A worker that begins when all is done is told to end; the process may end before it has a log.
    assert {row["state"] for row in rows if row["items"]} == {"finished"}
    assert {row["state"] for row in rows} <= {"finished", "cancelled", "unknown"}
    assert run("stats", crawl, "--json").json()["stats"]["item_scraped_count"]["sum"] == 60


def test_what_is_said_of_a_crawl_and_what_comes_of_it(
    run: RunCommand, shop: tuple[Project, SiteProcess], tmp_path: Path
) -> None:
    _, site = shop
    options = ("--index", site.template, "--pages", 2, "--shards", 2, "--batch-size", 10, "--detach", "--json")
    crawl = run("crawl", "easy", *options).json()["crawl"]
    assert run("wait", crawl, "--json").json()["crawls"][0]["items"] == 60
    assert run("watch", crawl, "--json").json()["items"] == run("status", crawl, "--json").json()["items"] == 60
    assert {row["state"] for row in run("batches", crawl, "--json").json()["batches"]} == {"done"}
    assert crawl in [row["crawl"] for row in run("crawls", "--json").json()["crawls"]]
    run("items", "pull", crawl, "-d", tmp_path / "parts")
    assert sum(len(file.read_text().splitlines()) for file in tmp_path.glob("parts/**/*.jl")) == 60
    run("items", "merge", crawl, "-o", tmp_path / "merged.jl")
    assert site.differences(map(json.loads, (tmp_path / "merged.jl").read_text().splitlines())) == {}
    assert len(run("items", "tail", crawl, "-n", 5).out.splitlines()) == 5
    page = tmp_path / "report.html"
    run("report", crawl, "-o", page, "--ask-nodes")
    assert all(name in page.read_text() for name in NAMES)
    assert "hush" not in page.read_text()
    assert "nothing to try again" in run("retry", crawl, code=4).err
    run("pause", crawl, code=2)
    run("clean", crawl, "--yes")


def test_the_fleet_is_looked_at_drained_and_counted(run: RunCommand) -> None:
    found = run("doctor", "--json", code=1).json()["findings"]
    dangers = [(finding["node"], finding["topic"]) for finding in found if finding["severity"] == "danger"]
    assert dangers == [(NAMES[2], "tls")], "the certificate of this test ends tomorrow, and that is all"
    assert states(run("status", "--fleet", "--json")) == dict.fromkeys(NAMES, "up")
    assert run("metrics").out.count("sdist_node_up{") == len(NAMES)
    run("nodes", "drain", NAMES[2])
    assert states(run("nodes", "--json"))[NAMES[2]] == "draining"
    assert {row["node"] for row in scheduled(run, "easy", "--all-nodes")} == set(NAMES[:2])
    run("nodes", "resume", NAMES[2])
    assert states(run("nodes", "--json")) == dict.fromkeys(NAMES, "up")


def test_the_address_below_the_base_path_needs_its_password_and_its_authority(
    run: RunCommand, shop: tuple[Project, SiteProcess], front: Front
) -> None:
    project, _ = shop
    assert run("api", NAMES[2], "daemonstatus").json()["status"] == "ok"
    stranger = front.url.replace("crawlers/one", "crawlers/two")
    assert "certificate verify failed" in run("api", stranger, "daemonstatus", code=6).err
    kept = (project.path / "scrapy.cfg").read_text(encoding="utf-8")
    try:
        # Whoever says so is not asked for certificates.
        (project.path / "scrapy.cfg").write_text(kept.replace("ca =", "verify = no\n#"), encoding="utf-8")
        assert run("api", NAMES[2], "daemonstatus").json()["status"] == "ok"
        (project.path / "scrapy.cfg").write_text(kept.replace("hush:hush", "no"), encoding="utf-8")
        assert "user name or password refused" in run("api", NAMES[2], "daemonstatus", code=6).err
    finally:
        (project.path / "scrapy.cfg").write_text(kept, encoding="utf-8")


@pytest.mark.black_box
def test_roll_out_and_back(run: RunCommand, shop: tuple[Project, SiteProcess]) -> None:
    project, _ = shop
    old = run("deploy-all", "--json").json()["version"]
    project.write("properties/new.py", "NEW = True\n")
    assert states(run("deploy", NAMES[2], "--json")) == {NAMES[2]: "uploaded"}
    assert run("versions", "--check", code=10).err.count("would run") == 1
    new = run("deploy-all", "--atomic", "--json").json()["version"]
    assert run("versions", "--check").code == 0
    assert {row["spider"]: row["missing"] for row in run("spiders", "--json").json()["spiders"]} == {
        "easy": [], "plain": [], "slow": [],
    }  # fmt: skip
    back = run("rollback", "--json").json()["version"]
    assert back.split("-")[1] == old.split("-")[1]
    assert {row["default"] for row in run("versions", "--json").json()["nodes"]} == {back}
    run("rollback", new)
    deleted = {row["name"]: len(row["deleted"]) for row in run("prune", "--keep", 1, "-y", "--json").json()["nodes"]}
    assert deleted == dict.fromkeys(NAMES, 3)


@pytest.mark.black_box
def test_jobs_and_their_logs(run: RunCommand, real: list[ScrapydNode]) -> None:
    jobs = {row["node"]: row["job"] for row in scheduled(run, "easy", "--all-nodes", "-s", "CLOSESPIDER_ITEMCOUNT=5")}
    assert sorted(jobs) == sorted(NAMES)
    idle(real)
    rows = {row["job"]: row for row in run("jobs", "--json").json()["jobs"]}
    assert {rows[job]["node"] for job in jobs.values()} == set(NAMES)
    assert {rows[job]["reason"] for job in jobs.values()} == {"closespider_itemcount"}
    lines = run("logs", *jobs.values(), "-n", 3).out.splitlines()
    assert {line.split(" | ")[0].rsplit(maxsplit=1)[0].strip() for line in lines} == set(NAMES)
    found = run("grep", "Spider closed", *jobs.values(), "--json").json()["matches"]
    assert {match["node"] for match in found} == set(NAMES)
    assert run("stats", *jobs.values(), "--json").json()["stats"]["finish_reason"]["jobs"] == 3


@pytest.mark.black_box
def test_jobs_are_cancelled_everywhere(run: RunCommand, real: list[ScrapydNode]) -> None:
    jobs = [row["job"] for row in scheduled(run, "slow", "--all-nodes")]
    wait_for(lambda: all(begun(real, job) for job in jobs), 60, "the start of all three")
    done = run("cancel", *jobs, "--yes", "--json").json()
    assert {row["state"] for row in done["jobs"]} == {"gone"}
    idle(real)
    rows = {row["job"]: row for row in run("jobs", "--json").json()["jobs"]}
    assert {rows[job]["state"] for job in jobs} == {"cancelled"}


@pytest.mark.black_box
def test_nodes_are_listed(run: RunCommand) -> None:
    document = run("nodes", "--json").json()
    assert [row["name"] for row in document["nodes"]] == NAMES
    assert "hush" not in json.dumps(document)
