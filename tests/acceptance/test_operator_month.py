"""A month of an operator, typed as the documentation has it, on nodes of three Scrapyd versions and some that are too old."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rig.commands import Command, Result
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import Nodes, ScrapydNode
from rig.processes import environment_of
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for

pytestmark = [pytest.mark.black_box, pytest.mark.full, pytest.mark.timeout(900)]

#: name of a node -> what is installed there
VERSIONS = {
    "new": (),
    "older": ("scrapyd==1.5.0", "scrapy==2.13.0", "twisted==24.11.0"),
    "oldest": ("scrapyd==1.4.3", "scrapy==2.13.0", "twisted==24.11.0"),
}
OLD_SCRAPY = ("scrapyd==1.5.0", "scrapy==2.11.2", "twisted==24.3.0", "w3lib==2.1.2")
TOO_OLD = ("scrapyd==1.3.0", "scrapy==2.13.0", "twisted==24.11.0")


class Office(NamedTuple):
    """What the operator has: the project, its site, the nodes by name, and a way to type."""

    project: Project
    site: SiteProcess
    nodes: dict[str, ScrapydNode]
    run: RunCommand
    start: StartCommand

    def type(self, *words: object, code: int = 0) -> Result:
        """Type a command, and see how it ends."""
        return self.run(self.project, *words, code=code)

    def read(self, *words: object, code: int = 0) -> Any:
        """Type a command with `--json`, and return its document."""
        return self.type(*words, "--json", code=code).json()

    def crawl(self, name: str, *options: object) -> Command:
        """Begin a crawl of the site under this name."""
        pages = ("--index", self.site.template, "--pages", self.site.site.pages)
        return self.start(
            self.project, "crawl", "easy", *pages, "--name", name, "-O", f"{name}.jl", *options
        )

    def states(self, code: int = 0) -> dict[str, str]:
        """The state of each node, as `sdist nodes` has it."""
        return {row["name"]: row["state"] for row in self.read("nodes", code=code)["nodes"]}


@pytest.fixture
def start_version(nodes: Nodes, pytestconfig: pytest.Config) -> Callable[..., ScrapydNode]:
    """`start_version("scrapyd==1.4.3", …)`: a node with these packages, ready."""
    cache: Path = pytestconfig.cache.mkdir("node-env")

    def start(*requirements: str) -> ScrapydNode:
        python = environment_of(cache, *requirements) if requirements else None
        return nodes.fleet(1, python=python, jobs_to_keep="100")[0]

    return start


@pytest.fixture
def office(
    start_version: Callable[..., ScrapydNode], project: MakeProject, site: StartSite,
    run_cli: RunCommand, start_cli: StartCommand,
) -> Office:  # fmt: skip
    nodes = {name: start_version(*packages) for name, packages in VERSIONS.items()}
    pages = site(300, "--latency=0.1", per_page=50)
    at = project(
        nodes=[],
        settings={
            "START_URL": pages.start_url,
            "DISTRIBUTED_BATCH_SIZE": 20,
            "CONCURRENT_REQUESTS": 4,
        },
    )
    return Office(at, pages, nodes, run_cli, start_cli)


def test_a_month_of_an_operator(office: Office, start_version: Callable[..., ScrapydNode]) -> None:
    _first_week_sets_up(office)
    _second_week_crawls_and_reads(office)
    _third_week_has_a_bad_day(office)
    _fourth_week_changes_code_and_machines(office, start_version(*TOO_OLD))


def _first_week_sets_up(office: Office) -> None:
    named = [
        word for name, node in office.nodes.items() for word in ("--node", node.url, "--name", name)
    ]
    office.type("init", *named)
    assert office.states() == dict.fromkeys(VERSIONS, "up")
    findings = office.type("doctor").out
    assert "oldest: version: it has no status.json" in findings
    deployed = office.read("deploy", "--all")
    assert {row["state"] for row in deployed["nodes"]} == {"uploaded"}
    office.type("code", "versions")


def _second_week_crawls_and_reads(office: Office) -> None:
    for mode in ("--pull", "--push"):
        name = f"easy{mode.removeprefix('-')}"
        done = _begin_together(office, name, mode).wait(180, code=0)
        assert "nodes 2/3" not in done.err, "a node that works is not down"
        assert office.site.differences(office.project.items(f"{name}.jl")) == {}
        summary = office.read("status", name)
        assert (summary["state"], summary["items"], summary["failed_urls"]) == ("finished", 300, 0)
        jobs = [row for row in office.read("jobs")["jobs"] if row["crawl"] == name]
        assert {row["node"] for row in jobs if row["items"]} == set(VERSIONS)
        assert {row["state"] for row in jobs if row["items"]} == {"finished"}
        assert office.read("jobs", "stats", name)["stats"]["item_scraped_count"]["sum"] == 300
    scheduled = office.read(
        "jobs", "schedule", "easy", "--all-nodes", "-s", "CLOSESPIDER_ITEMCOUNT=5"
    )
    jobs = [row["job"] for row in scheduled["jobs"]]
    named = [word for job in jobs for word in ("--job", job)]
    waited = office.read("watch", "--quiet", *named)["jobs"]
    assert {row["state"] for row in waited} == {"finished"}
    assert {
        row["node"] for row in office.read("jobs", "grep", "Spider closed", *jobs)["matches"]
    } == set(VERSIONS)
    office.type("report", "easy-push", "-o", "push.html")


def _begin_together(office: Office, name: str, mode: str) -> Command:
    """Begin a crawl; where workers lease, the site answers once all nodes have one at work."""
    if mode == "--push":
        return office.crawl(name, mode)
    with office.site.paused():
        crawl = office.crawl(name, mode)
        for node in office.nodes.values():
            wait_for(partial(_has_opened_spider, node), 90, f"a worker at work on {node.url}")
    return crawl


def _has_opened_spider(node: ScrapydNode) -> bool:
    return any("Spider opened" in log.read_text() for log in node.logs_dir.rglob("*.log"))


def _third_week_has_a_bad_day(office: Office) -> None:
    """A node dies while it works, another one is drained; a page fails and is tried again."""
    broken = office.site.site.detail_path(7)
    office.site.behave({broken: "fail"})
    crawl = office.crawl("bad-day", "--push")
    wait_for(office.nodes["older"].job_pids, 60, "a job of the node that dies")
    office.nodes["older"].kill()
    office.nodes["older"].kill_jobs()
    office.type("nodes", "drain", "oldest", "--no-wait")
    done = crawl.wait(300, code=3)
    assert "sdist retry bad-day --failed-urls" in done.out + done.err
    assert office.states(code=3) == {"new": "up", "older": "down", "oldest": "drained"}
    assert office.nodes["oldest"].job_pids() == {}
    # A dead node leaves open whether a spider runs there; muted by a drain, it counts for nothing.
    words = ("jobs", "schedule", "easy", "--unless-running", "-s", "CLOSESPIDER_ITEMCOUNT=1")
    refused = office.type(*words, code=1)
    assert "If it stays away: sdist nodes drain older --no-wait" in refused.err
    office.type("nodes", "drain", "older", "--no-wait")
    assert "Passed over" in office.type(*words).err
    office.nodes["older"].restart()
    office.type("nodes", "resume", "older", "oldest")
    assert office.states() == dict.fromkeys(VERSIONS, "up")
    office.site.behave({})
    office.type("retry", "bad-day", "--failed-urls")
    assert office.site.differences(office.project.items("bad-day.jl")) == {}
    assert office.read("status", "bad-day")["failed_urls"] == 0


def _fourth_week_changes_code_and_machines(office: Office, too_old: ScrapydNode) -> None:
    office.project.write("properties/new.py", "NEW = True\n")
    office.type("deploy", "--all")
    office.type("code", "rollback")
    office.type("code", "versions")
    office.type("nodes", "add", too_old.url, "--name", "ancient")
    assert "ancient: version: it is older than Scrapyd 1.4" in office.type("doctor", code=1).out
    crawl = office.crawl("last", "--push")
    wait_for(office.nodes["new"].job_pids, 60, "a job at work")
    os.kill(next(iter(office.nodes["new"].job_pids())), signal.SIGKILL)
    done = crawl.wait(300, code=0)
    assert "Scrapyd 1.3 is too old for scrapyd-dist; it needs 1.4" in done.out
    assert not too_old.jobs()
    assert office.site.differences(office.project.items("last.jl")) == {}
    office.type("nodes", "remove", "ancient")
    office.type("items", "merge", "last", "-O", "last.csv")
    office.type("crawls", "clean", "bad-day", "--yes")
    assert "bad-day" not in [row["crawl"] for row in office.read("crawls")["crawls"]]
    assert "sdist_node_up" in office.type("nodes", "metrics").out


def test_a_node_with_an_old_scrapy_is_found_by_the_doctor_and_left_out(
    start_version: Callable[..., ScrapydNode],
    project: MakeProject,
    site: StartSite,
    run_cli: RunCommand,
) -> None:
    node = start_version(*OLD_SCRAPY)
    pages = site(10)
    plain = project(nodes=[node], settings={"START_URL": pages.start_url})
    node.add_version("properties", "1", plain.plain_egg())
    run_cli(plain, "jobs", "schedule", "easy")
    node.wait_idle()
    found = run_cli(plain, "doctor", code=1).out
    assert "the log of its last job was written by Scrapy 2.11.2, which is too old" in found
    refused = run_cli(plain, "deploy", code=1)
    assert "Scrapy 2.11 is too old for scrapyd-dist; it needs 2.13" in refused.out + refused.err
