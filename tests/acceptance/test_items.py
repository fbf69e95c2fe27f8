"""`sdist items` and `sdist nodes metrics` on two real nodes, one with a password: while a crawl runs, and later."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rig.commands import Command, Result
from rig.crawls import QUICK
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.processes import halt, let_go_on
from rig.projects import Project
from rig.prometheus import parse
from rig.sites import SiteProcess
from rig.waiting import wait_for

PASSWORD = "hush"
ITEMS = 60
#: seconds that two of the pages take, so that there is time to stop their jobs in the middle
SLOW = 5


class Place(NamedTuple):
    """A project, its nodes, a site, and the command there."""

    project: Project
    nodes: list[ScrapydNode]
    site: SiteProcess
    start_cli: StartCommand

    def start(self, *arguments: object) -> Command:
        return self.start_cli(self.project, *arguments)

    def run(self, *arguments: object, code: int | None = None) -> Result:
        done = self.start(*arguments).wait(code=code)
        assert PASSWORD not in done.out + done.err
        return done

    def json(self, *arguments: object, code: int = 0) -> Any:
        return self.run(*arguments, "--json", code=code).json()


@pytest.fixture(scope="module")
def shop(
    tmp_path_factory: pytest.TempPathFactory, module_fleet: StartFleet, module_site: StartSite
) -> tuple[Project, list[ScrapydNode], SiteProcess]:
    folder = tmp_path_factory.mktemp("items")
    site = module_site(ITEMS, per_page=30)
    nodes = [
        *module_fleet(1, jobs_to_keep="100"),
        *module_fleet(
            1, jobs_to_keep="100", username="me", password=PASSWORD, items_dir=str(folder / "kept")
        ),
    ]
    project = Project.demo(folder / "shop")
    settings = {
        **QUICK,
        "DISTRIBUTED_MODE": "push",
        "DISTRIBUTED_BATCH_SIZE": 15,
        "START_URL": site.start_url,
    }
    project.settings(**settings)
    project.targets(nodes)
    return project, nodes, site


@pytest.fixture
def place(shop: tuple[Project, list[ScrapydNode], SiteProcess], start_cli: StartCommand) -> Place:
    return Place(*shop, start_cli)


def halt_growing(nodes: list[ScrapydNode]) -> list[int]:
    """Stop all jobs if one of them writes items; their processes, or none if it ended meanwhile."""
    if not growing(nodes):
        return []
    pids = [pid for node in nodes for pid in node.job_pids()]
    halt(pids)
    if growing(nodes):
        return pids
    let_go_on(pids)
    return []


def growing(nodes: list[ScrapydNode]) -> bool:
    return any(
        path.stat().st_size for node in nodes for path in node.logs_dir.glob("_sdist/*/*.jl.part")
    )


@pytest.mark.black_box
def test_the_items_of_a_crawl_while_it_runs_and_later(place: Place) -> None:
    slow = {place.site.site.detail_path(number): f"slow:{SLOW}" for number in (3, 44)}
    place.site.behave(slow)
    line = (
        "crawl",
        "easy",
        "--index",
        place.site.template,
        "--pages",
        2,
        "-O",
        "out.jl",
        "--name",
        "c",
        "--detach",
    )
    place.run(*line, code=0)
    halted = wait_for(lambda: halt_growing(place.nodes), 60, "items of jobs that run")
    follower = place.start("items", "tail", "c", "-f", "-n", 1000, "--with-node")
    follower.wait_text('"number"')
    last = place.run("items", "tail", "-n", 4).expect(0, "==> node")
    assert len(last.out.splitlines()) == 4
    assert all(json.loads(line)["number"] for line in last.out.splitlines())
    pulled = place.json("items", "pull", "c", "-d", "early")
    states = {row["state"] for row in pulled["files"]}
    assert states <= {"growing", "whole", "waiting"}, pulled
    assert pulled["items"] > 0
    assert "growing" in states
    numbers = parse(place.run("nodes", "metrics").out)
    assert [value for _, value in numbers["sdist_node_up"].samples] == [1, 1]
    assert numbers["sdist_crawl_running"].value(crawl="c") == 1
    assert numbers["sdist_node_jobs"].value(node="node1", state="pending") >= 0

    let_go_on(halted)
    assert place.json("watch", "c")["items"] == ITEMS
    rows = [json.loads(line) for line in follower.wait(30, code=0).out.splitlines()]
    assert place.site.differences(rows) == {}
    assert {row["_node"] for row in rows} == {"node1", "node2"}
    assert {row["_job"].split(".")[0] for row in rows} == {"c"}

    again = place.json("items", "pull", "c", "-d", "early")
    assert {row["state"] for row in again["files"]} <= {"whole", "present"}
    assert (again["items"], list((place.project.path / "early").rglob("*.part"))) == (ITEMS, [])
    merged = place.json(
        "items", "merge", "c", "-o", "merged.jl", "-o", "merged.csv", "--key", "number"
    )
    assert (merged["items"], merged["duplicates"], merged["problems"]) == (ITEMS, 0, [])
    assert (place.project.path / "merged.jl").read_bytes() == (
        place.project.path / "out.jl"
    ).read_bytes()
    with (place.project.path / "merged.csv").open(newline="", encoding="utf-8") as file:
        assert sorted(int(row["number"]) for row in csv.DictReader(file)) == list(range(ITEMS))
    place.json("items", "merge", "c", "-o", "merged.jl")
    assert len((place.project.path / "merged.jl").read_bytes().splitlines()) == 2 * ITEMS, (
        "as with Scrapy, -o adds"
    )
    place.json("items", "merge", "c", "-O", "merged.jl")
    assert (place.project.path / "merged.jl").read_bytes() == (
        place.project.path / "out.jl"
    ).read_bytes()


def test_metrics_in_a_textfile_are_replaced_as_a_whole(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "sdist.prom"
    for _ in range(2):
        assert place.run("nodes", "metrics", "--textfile", target, code=0).out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["sdist.prom"]
    assert target.stat().st_mode & 0o777 == 0o644
    found = parse(target.read_text())
    assert {labels["node"] for labels, _ in found["sdist_node_up"].samples} == {"node1", "node2"}
    assert abs(found["sdist_node_clock_skew_seconds"].value(node="node2")) < 30
    refused = place.run("nodes", "metrics", "--textfile", tmp_path / "none" / "x.prom").expect(
        2, "There is no folder"
    )
    assert refused.out == ""


@pytest.mark.black_box
def test_plain_jobs_are_pulled_from_the_node_that_keeps_items(place: Place) -> None:
    place.site.behave({})
    place.run("deploy", "--all", code=0)
    jobs = [
        place.json(
            "jobs", "schedule", "easy", "-a", f"start={place.site.start_url}", "--on", node.name
        )["jobs"][0]["job"]
        for node in place.nodes
    ]
    for node in place.nodes:
        node.wait_idle()
    pulled = place.json("items", "pull", *jobs, "-d", "plain", code=3)
    kept, none = sorted(pulled["files"], key=lambda row: row["node"], reverse=True)
    assert (kept["node"], kept["state"], kept["items"], kept["reason"]) == (
        "node2",
        "whole",
        ITEMS,
        "",
    )
    assert kept["file"] == str(place.project.path / "plain" / "node2" / f"{jobs[1]}.jl")
    assert (none["node"], none["state"], none["file"]) == ("node1", "none", None)
    assert "items_dir" in none["reason"]
    assert place.site.differences(place.project.items(f"plain/node2/{jobs[1]}.jl")) == {}
    place.run("items", "pull", jobs[0], "-d", "plain", code=4)
    again = place.json("items", "pull", jobs[1], "-d", "plain")
    assert (again["files"][0]["state"], again["files"][0]["fetched_bytes"]) == ("present", 0)


@pytest.mark.black_box
def test_a_crawl_through_feeds_is_merged_by_reading_them_back(
    project: MakeProject,
    fleet: StartFleet,
    site: StartSite,
    run_cli: RunCommand,
    ftp_server: Callable[..., Any],
) -> None:
    nodes, pages, ftp = fleet(1), site(60), ftp_server("me", PASSWORD)
    feed = f"ftp://me:{PASSWORD}@127.0.0.1:{ftp.port}/%(batch)s_%(name)s.jl"
    more = {
        "DISTRIBUTED_BATCH_SIZE": 20,
        "START_URL": pages.start_url,
        "DISTRIBUTED_TARGET_FEED_URL": feed,
    }
    it = project(nodes=nodes, settings={**QUICK, **more})
    run_cli(it, "crawl", "easy", "--index", pages.template, "--pages", 2, "--name", "c", code=0)
    merged = run_cli(it, "items", "merge", "c", "-o", "all.json", "--json", code=0)
    assert merged.json()["items"] == 60
    assert pages.differences(json.loads((it.path / "all.json").read_text())) == {}
    pulled = run_cli(it, "items", "pull", "c", code=4)
    assert "`sdist items merge` reads that back" in pulled.out
    assert PASSWORD not in merged.out + merged.err + pulled.out + pulled.err
    assert run_cli(it, "items", "tail", "c", code=0).out == ""


@pytest.mark.black_box
def test_wrong_use_is_one_paragraph(place: Place) -> None:
    for arguments, code, said in (
        (("pull", "nobody"), 4, "no job or crawl 'nobody'"),
        (("pull", "nobody", "--node", "mars"), 4, "'mars'"),
        (("merge", "nobody", "-o", "x.jl"), 4, "neither a file 'nobody' nor a crawl"),
        (("merge", "nobody"), 2, "-o items.jl"),
        (("tail", "nobody"), 4, "crawl"),
    ):
        done = place.run("items", *arguments).expect(code, said)
        assert (done.out, done.err.count("\n")) == ("", 1), done.err
