"""`sdist schedule`, `jobs`, `logs`, `grep`, `stats`, `cancel`, `api` on two real nodes, one with a password."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from rig.commands import SDIST, Command, Result
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.waiting import wait_for

SPIDERS = """\
import scrapy


class Good(scrapy.Spider):
    name = "good"
    pages = "3"

    async def start(self):
        self.logger.info("category is %s", getattr(self, "category", "none"))
        for number in range(int(self.pages)):
            yield scrapy.Request(f"data:,{number}", dont_filter=True)

    def parse(self, response):
        yield {"text": response.text}


class Broken(Good):
    name = "broken"

    def parse(self, response):
        raise ZeroDivisionError("a needle in the log")


class Slow(Good):
    name = "slow"
    pages = "600"
    custom_settings = {"DOWNLOAD_DELAY": 0.5, "CONCURRENT_REQUESTS": 1}
"""


@pytest.fixture(scope="module")
def nodes_(module_fleet: StartFleet) -> list[ScrapydNode]:
    """node1 is open, node2 has a password; both keep every log."""
    more = {"max_proc": 2, "jobs_to_keep": "100"}
    return [*module_fleet(1, **more), *module_fleet(1, username="me", password="hush", **more)]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory, nodes_: list[ScrapydNode]) -> Iterator[StartCommand]:
    """Starts `sdist` in the project whose code is on both nodes."""
    made = Project.small(tmp_path_factory.mktemp("shop") / "shop", "shop", {"all": SPIDERS}, {})
    made.targets(nodes_)
    with ExitStack() as stack:

        def start(*arguments: object) -> Command:
            line = [*SDIST, *map(str, arguments)]
            return stack.enter_context(closing(Command(line, cwd=made.path, folder=made.output, home=made.home)))

        done = start("deploy-all", "--json").wait()
        assert done.code == 0, done.err
        yield start


@pytest.fixture
def run(sdist: StartCommand) -> Callable[..., Result]:
    return lambda *arguments: sdist(*arguments).wait()


def scheduled(run: RunCommand, *arguments: object) -> list[dict[str, Any]]:
    done = run("schedule", *arguments, "--json")
    assert done.code == 0, done.err
    rows: list[dict[str, Any]] = done.json()["jobs"]
    assert {row["state"] for row in rows} == {"scheduled"}
    return rows


def over(nodes_: list[ScrapydNode]) -> None:
    for node in nodes_:
        node.wait_idle()


def state_of(run: RunCommand, job: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = run("jobs", "--json").json()["jobs"]
    return next(row for row in rows if row["job"] == job)


def runs(nodes_: list[ScrapydNode], job: str) -> int:
    """The process of a job that has begun to crawl."""

    def pid() -> int:
        for node in nodes_:
            if "Spider opened" in node.job_log(job):
                return next((pid for pid, name in node.job_pids().items() if name == job), 0)
        return 0

    return wait_for(pid, 60, f"the process of {job}")


def test_jobs_are_started_by_load_and_told_apart_by_what_they_did(run: RunCommand, nodes_: list[ScrapydNode]) -> None:
    good, broken = scheduled(run, "good", "broken", "-a", "category=books")
    assert {good["node"], broken["node"]} == {"node1", "node2"}
    assert good["version"] in nodes_[0].api("listversions.json", project="shop")["versions"]
    over(nodes_)
    done = run("jobs", "--json")
    assert (done.code, "hush" in done.out + done.err) == (0, False)
    rows = {row["job"]: row for row in done.json()["jobs"]}
    told = rows[good["job"]]
    assert (told["state"], told["pages"], told["items"], told["errors"]) == ("finished", 3, 3, 0), told
    assert told["ended"] >= told["started"]
    told = rows[broken["job"]]
    assert (told["state"], told["errors"]) == ("failed", 3)
    assert "3 exceptions in callbacks" in told["reason"]
    assert "ZeroDivisionError: a needle in the log" in told["reason"]
    failed = run("jobs", "--state", "failed", "--since", "1h")
    assert broken["job"] in failed.out
    assert good["job"] not in failed.out


def test_logs_of_two_nodes_are_one_and_can_be_searched(run: RunCommand, nodes_: list[ScrapydNode]) -> None:
    jobs = [row["job"] for row in scheduled(run, "good", "--all-nodes", "-a", "category=hats")]
    assert len(jobs) == 2
    over(nodes_)
    done = run("logs", *jobs, "-n", 5)
    lines = done.out.splitlines()
    assert (done.code, len(lines)) == (0, 10), done.err
    assert {line.split()[0] for line in lines} == {"node1", "node2"}
    assert sum("Spider closed (finished)" in line for line in lines) == 2
    heads = [line.partition(" | ")[2][:19] for line in lines if line.partition(" | ")[2][:2] == "20"]
    assert heads == sorted(heads)
    assert "DEBUG: " not in run("logs", *jobs, "-n", 500, "--level", "info", "--since", "10m").out
    found = run("grep", "category is h.ts", *jobs, "-C", 1)
    assert (found.code, found.out.count(" | "), found.out.count(" - 20")) == (0, 2, 4)
    assert run("grep", "no such text anywhere", "--json").code == 4
    matches = run("grep", "CATEGORY IS", "-i", *jobs, "--json").json()["matches"]
    assert [match["level"] for match in matches] == ["INFO", "INFO"]


def test_stats_of_jobs_add_up(run: RunCommand, nodes_: list[ScrapydNode]) -> None:
    jobs = [row["job"] for row in scheduled(run, "good", "--all-nodes", "-a", "pages=5")]
    over(nodes_)
    done = run("stats", *jobs, "--json")
    assert done.code == 0, done.err
    stats = done.json()["stats"]
    assert stats["item_scraped_count"] == {"jobs": 2, "sum": 10, "min": 5, "max": 5}
    assert stats["finish_reason"] == {"jobs": 2, "values": {"finished": 2}}
    assert any(
        line.split()[:4] == ["item_scraped_count", "10", "5", "5"] for line in run("stats", *jobs).out.splitlines()
    )


def test_a_job_is_cancelled_and_waited_for(run: RunCommand, nodes_: list[ScrapydNode]) -> None:
    (row,) = scheduled(run, "slow", "--on", "node2")
    job = row["job"]
    runs(nodes_, job)
    assert run("schedule", "slow", "--unless-running", "--json").json()["jobs"][0]["state"] == "skipped"
    assert state_of(run, job)["state"] == "running"
    asked = run("cancel", job)
    assert (asked.code, "--yes" in asked.err) == (2, True)
    done = run("cancel", job, "--yes", "--json")
    assert (done.code, done.json()["jobs"][0]["state"]) == (0, "gone"), done.err
    assert job not in [row["id"] for row in nodes_[1].jobs("running")]
    assert state_of(run, job)["state"] == "cancelled"
    again = run("cancel", job, "--yes")
    assert (again.code, "over already" in again.err) == (4, True)


def test_killed_is_what_we_killed_and_died_is_what_died(run: RunCommand, nodes_: list[ScrapydNode]) -> None:
    ours, other = (scheduled(run, "slow", "--on", "node1")[0]["job"] for _ in range(2))
    runs(nodes_, ours)
    os.kill(runs(nodes_, other), signal.SIGKILL)
    assert run("cancel", ours, "--kill", "-y").code == 0
    over(nodes_)
    assert state_of(run, ours)["state"] == "killed"
    assert state_of(run, other)["state"] == "died"
    counted = run("stats", other, "--json").json()["stats"]  # without a dump, from the log as a whole
    assert counted["log_count/INFO"]["sum"] > 5


def test_a_raw_call(run: RunCommand, nodes_: list[ScrapydNode]) -> None:
    done = run("api", "node2", "listprojects")
    assert (done.code, done.json()["projects"], done.json()["node_name"]) == (0, ["shop"], "node2")
    assert run("api", nodes_[1].url, "listspiders.json", "project=shop").json()["spiders"] == ["broken", "good", "slow"]
    refused = run("api", "node1", "listspiders", "project=nosuch")
    assert (refused.code, refused.out) == (1, "")
    assert "nosuch" in refused.err
    assert refused.err.count("\n") == 1


@pytest.mark.black_box
def test_logs_are_followed_until_the_job_is_over(
    run: RunCommand, sdist: StartCommand, nodes_: list[ScrapydNode]
) -> None:
    (row,) = scheduled(run, "slow", "-a", "pages=8")
    following = sdist("logs", "-f", row["job"], "-n", 3)
    done = following.wait(90)
    assert done.code == 0, done.err
    assert done.out.count("Spider closed (finished)") == 1
    assert done.out.rstrip().endswith("Spider closed (finished)")


@pytest.mark.black_box
def test_all_is_all_and_a_second_signal_forces(run: RunCommand, nodes_: list[ScrapydNode]) -> None:
    jobs = [row["job"] for row in scheduled(run, "slow", "--all-nodes", "-s", "DOWNLOAD_DELAY=40")]
    for job in jobs:
        runs(nodes_, job)
    patient = run("cancel", "--all", "--yes", "--wait", "2")
    assert (patient.code, "--force" in patient.err) == (124, True)
    done = run("cancel", "--all", "--yes", "--force")
    assert done.code == 0, done.err
    assert {state_of(run, job)["state"] for job in jobs} <= {"killed", "cancelled"}


@pytest.mark.black_box
def test_jobs_of_a_file(run: RunCommand, nodes_: list[ScrapydNode], tmp_path: Any) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text('spider,node,priority,category,s:CLOSESPIDER_ITEMCOUNT\ngood,node1,2,"a, b",\ngood,,,,1\n', "utf-8")
    first, second = scheduled(run, "--from", file)
    assert first["node"] == "node1"
    over(nodes_)
    assert "category is a, b" in run("grep", "category is", first["job"]).out
    told = state_of(run, second["job"])
    assert (told["state"], told["reason"]) == ("finished", "closespider_itemcount")


@pytest.mark.black_box
def test_a_dead_node_is_named_and_keeps_no_other_from_answering(run: RunCommand, nodes_: list[ScrapydNode]) -> None:
    nodes_[0].pause()
    try:
        listed = run("jobs", "--timeout", "1", "--json")
        (row,) = scheduled(run, "good", "--timeout", "3")
        everywhere = run("schedule", "good", "--all-nodes", "--timeout", "3")
        careful = run("schedule", "good", "--unless-running", "--timeout", "3")
    finally:
        nodes_[0].go_on()
    assert (listed.code, {row["node"] for row in listed.json()["jobs"]}) == (3, {"node2"})
    assert "node1" in listed.err
    assert row["node"] == "node2"
    assert everywhere.code == 3
    assert careful.code != 0
    over(nodes_)


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["cancel"], 2, "--all"),
        (["cancel", "--node", "node1", "-y"], 2, "--all"),
        (["cancel", "x", "--all", "-y"], 2, "One of the three"),
        (["cancel", "nosuchjob", "-y"], 4, "nosuchjob"),
        (["cancel", "--crawl", "nosuchcrawl", "-y"], 4, "nosuchcrawl"),
        (["schedule"], 2, "Name the spiders"),
        (["schedule", "god"], 4, "Did you mean 'good'"),
        (["schedule", "z*"], 4, "There are: broken, good, slow"),
        (["schedule", "good", "--on", "nosuch"], 2, "node1, node2"),
        (["schedule", "good", "--on", "node1", "--all-nodes"], 2, "Take one"),
        (["schedule", "good", "--version", "1.9"], 4, "1.9"),
        (["schedule", "good", "-p", "nosuch"], 2, "deploy-all"),
        (["schedule", "good", "-a", "x"], 2, "NAME=VALUE"),
        (["schedule", "good", "-a", "jobid=1"], 2, "jobid"),
        (["schedule", "--from", "nosuch.csv"], 2, "nosuch.csv"),
        (["jobs", "--node", "eu-*"], 4, "node1, node2"),
        (["jobs", "--state", "sleepy"], 2, "sleepy"),
        (["jobs", "--since", "soon"], 2, "soon"),
        (["logs", "nosuchjob"], 4, "nosuchjob"),
        (["logs", "--level", "LOUD"], 2, "LOUD"),
        (["grep", "("], 2, "regular expression"),
        (["stats", "nosuchjob"], 4, "nosuchjob"),
        (["api", "nosuch", "listjobs"], 2, "node1, node2"),
        (["api", "node1", "nosuch"], 1, "nosuch.json"),
        (["api", "node1", "status", "job"], 2, "NAME=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_paragraph(run: RunCommand, arguments: list[str], code: int, said: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (code, ""), done.err
    assert said in done.err
    assert done.err.startswith("sdist: ")
    assert done.err.count("\n") == 1


def test_jobs_of_a_crawl_are_known_by_its_name(
    run_cli: RunCommand, project: MakeProject, site: StartSite, nodes_: list[ScrapydNode]
) -> None:
    pages = site(60)
    made = project(nodes=nodes_, settings={"START_URL": pages.start_url})
    options = ("--index", pages.template, "--pages", 2, "--shards", 2, "--batch-size", 30)
    done = run_cli(made, "crawl", "easy", *options, "-o", "items.jl", "--json")
    assert done.code == 0, done.err
    crawl = done.json()["crawl"]
    rows = [row for row in run_cli(made, "jobs", "--json").json()["jobs"] if row["crawl"] == crawl]
    assert len(rows) == done.json()["batches"]["total"]
    assert {row["state"] for row in rows} == {"finished"}
    assert sum(row["items"] for row in rows) == 60
    stats = run_cli(made, "stats", crawl, "--json").json()
    assert (stats["jobs"], stats["stats"]["item_scraped_count"]["sum"]) == (len(rows), 60)
    assert run_cli(made, "logs", crawl, "-n", 1).out.count("Spider closed") == len(rows)
    over_ = run_cli(made, "cancel", "--crawl", crawl, "-y")
    assert (over_.code, "over already" in over_.err) == (4, True)
