"""`sdist jobs` and its verbs, `logs`, `nodes api`, `watch --quiet` on two real nodes, one with a password."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.badpeer import BadPeer
from rig.commands import SCRAPY
from rig.crawls import ADDON, QUICK, crawls, last_crawl, store_of
from rig.documents import document_misfits
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.shops import SPIDERS, Shop
from rig.waiting import wait_for

from scrapyd_dist.batches import CrawlState

#: one waits for ever, and one finds its own pages, which the producer sends away
MORE = """
import asyncio

from scrapyd_dist.middlewares import watchdog

watchdog.GRACE, watchdog.AFTER = 5, 0.5


class Waits(Good):
    name = "waits"

    async def parse(self, response):
        await asyncio.sleep(3600)
        yield {}


class Shop(Good):
    name = "shop"
    page = "data:,x"

    async def start(self):
        yield scrapy.Request("data:,index", self.parse_index)

    def parse_index(self, response):
        for number in range(int(self.pages)):
            yield scrapy.Request(f"{self.page}{number}", self.parse)
"""
CRAWL = ("crawl", "shop", "--callback", "parse", "--batch-size", "2")
Jobs = list[dict[str, Any]]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, module_fleet: StartFleet) -> Iterator[Shop]:
    """node1 is open, node2 has a password; both keep every log."""
    more = {"max_proc": 2, "jobs_to_keep": "100"}
    nodes = [*module_fleet(1, **more), *module_fleet(1, username="me", password="hush", **more)]
    settings = {**QUICK, "ADDONS": ADDON, "LOG_LEVEL": "DEBUG"}
    with closing(Shop(tmp_path_factory.mktemp("shop"), nodes, SPIDERS + MORE, **settings)) as made:
        yield made


@pytest.fixture(scope="module")
def spread(shop: Shop) -> Jobs:
    """A good job and a broken one, which are over."""
    rows = shop.scheduled("good", "broken", "-a", "category=books")
    shop.wait_idle()
    return rows


@pytest.fixture(scope="module")
def everywhere(shop: Shop) -> list[str]:
    """A good job on each node, both over."""
    rows = shop.scheduled("good", "--all-nodes", "-a", "category=hats", "-a", "pages=5")
    shop.wait_idle()
    return [row["job"] for row in rows]


def test_jobs_are_started_by_load_and_told_apart_by_what_they_did(shop: Shop, spread: Jobs) -> None:
    good, broken = spread
    assert {good["node"], broken["node"]} == {"node1", "node2"}
    assert good["version"] in shop.nodes[0].api("listversions.json", project="shop")["versions"]
    done = shop.start("jobs", "--json").wait(code=0)
    assert "hush" not in done.out + done.err
    rows = {row["job"]: row for row in done.json()["jobs"]}
    told = rows[good["job"]]
    assert (told["state"], told["pages"], told["items"], told["errors"]) == ("finished", 3, 3, 0), (
        told
    )
    assert told["ended"] >= told["started"]
    told = rows[broken["job"]]
    assert (told["state"], told["errors"]) == ("failed", 3)
    assert "3 exceptions in the spider" in told["reason"]
    assert "ZeroDivisionError: a needle in the log" in told["reason"]
    failed = shop.run("jobs", "--state", "failed", "--since", "1h").out
    assert (broken["job"] in failed, good["job"] in failed) == (True, False)


def test_logs_of_two_nodes_are_one_and_can_be_searched(shop: Shop, everywhere: list[str]) -> None:
    assert len(everywhere) == 2
    done = shop.start("logs", *everywhere, "-n", 5).wait()
    lines = done.out.splitlines()
    assert (done.code, len(lines)) == (0, 10), done.err
    assert {line.split()[0] for line in lines} == {"node1", "node2"}
    assert sum("Spider closed (finished)" in line for line in lines) == 2
    heads = [
        line.partition(" | ")[2][:19] for line in lines if line.partition(" | ")[2][:2] == "20"
    ]
    assert heads == sorted(heads)
    assert (
        "DEBUG: "
        not in shop.run("logs", *everywhere, "-n", 500, "--level", "info", "--since", "10m").out
    )
    whole = shop.run("logs", everywhere[0], "--whole", code=0).out.splitlines()
    assert "Scrapy" in whole[0]
    assert whole[-5:] == [line for line in lines if everywhere[0] in line]
    found = shop.start("jobs", "grep", "category is h.ts", *everywhere, "-C", 1).wait()
    assert (found.code, found.out.count(" | "), found.out.count(" - 20")) == (0, 2, 4)
    assert shop.run("jobs", "grep", "no such text anywhere", "--json").code == 4
    matches = shop.run("jobs", "grep", "CATEGORY IS", "-i", *everywhere, "--json").json()["matches"]
    assert [match["level"] for match in matches] == ["INFO", "INFO"]
    recent = shop.run("jobs", "grep", "category is h.ts", *everywhere, "--since", "10m")
    assert (recent.code, recent.out.count(" | ")) == (0, 2)


def test_stats_of_jobs_add_up(shop: Shop, everywhere: list[str]) -> None:
    stats = shop.start("jobs", "stats", *everywhere, "--json").wait(code=0).json()["stats"]
    assert stats["item_scraped_count"] == {"jobs": 2, "sum": 10, "min": 5, "max": 5}
    assert stats["finish_reason"] == {"jobs": 2, "values": {"finished": 2}}
    table = [line.split()[:4] for line in shop.run("jobs", "stats", *everywhere).out.splitlines()]
    assert ["item_scraped_count", "10", "5", "5"] in table


def test_a_job_is_cancelled_and_waited_for(shop: Shop) -> None:
    (row,) = shop.scheduled("slow", "--on", "node2")
    job = row["job"]
    shop.wait_pid(job)
    assert shop.scheduled("slow", "--unless-running")[0]["state"] == "skipped"
    assert shop.job(job)["state"] == "running"
    shop.run("jobs", "cancel", job).expect(2, "--yes")
    assert (
        shop.run("jobs", "cancel", job, "--yes", "--json", code=0).json()["jobs"][0]["state"]
        == "gone"
    )
    assert job not in [row["id"] for row in shop.nodes[1].jobs("running")]
    assert shop.job(job)["state"] == "cancelled"
    shop.run("jobs", "cancel", job, "--yes").expect(4, "over already")


@pytest.mark.black_box
def test_killed_is_what_we_killed_and_died_is_what_died(shop: Shop) -> None:
    ours, other = (shop.scheduled("slow", "--on", "node1")[0]["job"] for _ in range(2))
    shop.wait_pid(ours)
    os.kill(shop.wait_pid(other), signal.SIGKILL)
    assert shop.run("jobs", "cancel", ours, "--kill", "-y").code == 0
    shop.wait_idle()
    assert (shop.job(ours)["state"], shop.job(other)["state"]) == ("killed", "died")
    counted = shop.run("jobs", "stats", other, "--json").json()[
        "stats"
    ]  # without a dump, from the log as a whole
    assert counted["log_count/INFO"]["sum"] > 5


@pytest.mark.black_box
def test_a_job_ends_by_itself_when_it_takes_too_long_or_stands_still(shop: Shop) -> None:
    jobs = shop.scheduled("slow", "--job-timeout", "3s") + shop.scheduled(
        "waits", "--stall-timeout", "1s"
    )
    file = shop.project.path / "scrapy.cfg"
    before = file.read_text()
    try:
        file.write_text(f"{before}\n[sdist]\nstall_timeout = 1\n")
        jobs += shop.scheduled("waits")
        wrong = "is '5x', and must be a number of seconds, or a time such as 30m, 2h or 7d."
        shop.run("jobs", "schedule", "waits", "-s", "DISTRIBUTED_STALL_TIMEOUT=5x").expect(
            2, f"DISTRIBUTED_STALL_TIMEOUT {wrong}"
        )
        file.write_text(f"{before}\n[sdist]\nstall_timeout = 5x\n")
        shop.run("jobs", "schedule", "waits").expect(
            2, f"stall_timeout in [sdist] of scrapy.cfg {wrong}"
        )
    finally:
        file.write_text(before)
    shop.wait_idle()
    long, *both = (shop.job(job["job"]) for job in jobs)
    assert (long["state"], long["reason"].partition(";")[0]) == ("failed", "timeout")
    words = "stalled: no page and no item for more than 1 s; it has not ended, and gets SIGINT"
    assert [(still["state"], still["reason"]) for still in both] == [("died", words)] * 2


def test_a_raw_call(shop: Shop) -> None:
    done = shop.start("nodes", "api", "node2", "listprojects").wait()
    assert (done.code, done.json()["projects"], done.json()["node_name"]) == (0, ["shop"], "node2")
    listed = shop.run("nodes", "api", shop.nodes[1].url, "listspiders.json", "project=shop").json()
    assert listed["spiders"] == ["broken", "good", "shop", "slow", "waits"]
    refused = shop.run("nodes", "api", "node1", "listspiders", "project=nosuch").expect(1, "nosuch")
    assert (refused.out, refused.err.count("\n")) == ("", 1)


@pytest.mark.black_box
def test_without_a_running_job_logs_say_so_and_wait(shop: Shop) -> None:
    shop.wait_idle()
    command = shop.start("logs", "-f")
    wait_for(lambda: "No job is running" in command.err, 30, "a word")
    command.signal()
    command.wait(30, code=130)


@pytest.mark.black_box
def test_jobs_are_listed_and_only_the_newest(shop: Shop) -> None:
    shop.scheduled("good")
    shop.wait_idle()  # those of two nodes may begin in any order
    (row,) = shop.scheduled("good")
    shop.wait_idle()
    (listed,) = shop.run("jobs", "-n", 1, "--json", code=0).json()["jobs"]
    assert listed["job"] == row["job"]
    heading, line = shop.run("jobs", "-n", 1, code=0).out.splitlines()
    assert "project" not in heading.lower()  # there is one
    assert row["job"] in line


@pytest.mark.black_box
def test_logs_are_followed_until_the_job_is_over(shop: Shop) -> None:
    (row,) = shop.scheduled("slow", "-a", "pages=8")
    done = shop.start("logs", "-f", row["job"], "-n", 3).wait(90, code=0)
    assert done.out.count("Spider closed (finished)") == 1
    assert done.out.rstrip().endswith("Spider closed (finished)")


@pytest.mark.black_box
def test_all_is_all_and_a_second_signal_forces(shop: Shop) -> None:
    jobs = [row["job"] for row in shop.scheduled("slow", "--all-nodes", "-s", "DOWNLOAD_DELAY=40")]
    for job in jobs:
        shop.wait_pid(job)
    shop.run("jobs", "cancel", "--all", "--yes", "--wait", "1").expect(124, "--force")
    shop.run("jobs", "cancel", "--all", "--yes", "--force", code=0)
    assert {shop.job(job)["state"] for job in jobs} <= {"killed", "cancelled"}


@pytest.mark.black_box
def test_a_job_that_is_cancelled_twice_ends_in_good_order(shop: Shop) -> None:
    (row,) = shop.scheduled("slow", "--on", "node1", "-s", "DOWNLOAD_DELAY=9")
    job = row["job"]
    shop.wait_pid(job)
    log = shop.nodes[0].logs_dir / "shop" / "slow" / f"{job}.log"
    wait_for(lambda: log.exists() and "Spider opened" in log.read_text(), 30, "the spider is open")
    shop.run("jobs", "cancel", job, "--yes", "--wait", "0.1").expect(124, "INT was sent")
    again = shop.run("jobs", "cancel", job, "--yes", code=0)
    assert (
        f"no second INT is sent, which would end it at once (--force does that): {job}" in again.err
    )
    assert "twice" not in log.read_text()
    assert shop.job(job)["state"] == "cancelled"
    shop.run("jobs", "cancel", job, "--yes").expect(4, "over already")


@pytest.mark.full
@pytest.mark.black_box
def test_jobs_that_scrapyd_would_not_cancel_are_named_with_what_to_do(shop: Shop) -> None:
    (gone, orphan) = (shop.scheduled("slow", "--on", node)[0]["job"] for node in ("node1", "node2"))
    for job in (gone, orphan):
        shop.wait_pid(job)
    shop.run("nodes", "api", "node1", "delproject", "project=shop", code=0)
    shop.nodes[1].kill()
    shop.nodes[1].restart()
    try:
        assert shop.job(orphan)["state"] == "running"
        remedy = f"kill -INT $(pgrep -f {orphan})"
        shop.run("jobs", "cancel", orphan, "--yes").expect(124, remedy)
        told = shop.run("jobs", "cancel", "--all", "--yes", "--wait", "2", code=124).err
        assert ("node1 has the project shop no more" in " ".join(told.split()), remedy in told) == (
            True,
            True,
        )
        shop.run("deploy", "node1", code=0)
        shop.run("jobs", "cancel", gone, "--yes", code=0)
        assert shop.job(gone)["state"] == "cancelled"
    finally:
        shop.nodes[1].kill_jobs()


@pytest.mark.black_box
def test_jobs_of_a_file(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(
        'spider,node,priority,category,s:CLOSESPIDER_ITEMCOUNT\ngood,node1,2,"a, b",\ngood,,,,1\n',
        "utf-8",
    )
    first, second = shop.scheduled("--from", file)
    assert first["node"] == "node1"
    shop.wait_idle()
    assert "category is a, b" in shop.run("jobs", "grep", "category is", first["job"]).out
    told = shop.job(second["job"])
    assert (told["state"], told["reason"]) == ("finished", "closespider_itemcount")


@pytest.mark.black_box
def test_a_dead_node_is_named_and_keeps_no_other_from_answering(shop: Shop) -> None:
    shop.nodes[0].pause()
    try:
        listed = shop.run("jobs", "--timeout", "1", "--json")
        (row,) = shop.scheduled("good", "--timeout", "3")
        everywhere = shop.run("jobs", "schedule", "good", "--all-nodes", "--timeout", "3")
        careful = shop.run("jobs", "schedule", "good", "--unless-running", "--timeout", "3")
    finally:
        shop.nodes[0].go_on()
    rows = listed.expect(3, "node1").json()["jobs"]
    assert {row["node"] for row in rows if not row["remembered"]} <= {"node2"}
    assert all(row["remembered"] for row in rows if row["node"] == "node1"), (
        "what the store knows of its jobs"
    )
    assert row["node"] == "node2"
    assert everywhere.code == 3
    assert careful.code != 0
    shop.wait_idle()


@pytest.mark.full
@pytest.mark.black_box
def test_a_dead_node_that_is_drained_counts_for_nothing(shop: Shop) -> None:
    dead = shop.nodes[0]
    (row,) = shop.scheduled("slow", "--on", "node2")
    shop.wait_pid(row["job"])
    dead.kill()
    try:
        refused = shop.run("jobs", "schedule", "good", "--unless-running", "--timeout", "3", code=1)
        assert "sdist nodes drain node1 --no-wait" in refused.err
        # What was asked for is there: what another node has does not matter.
        shop.run("logs", row["job"], "-n", "1", "--timeout", "3", code=0)
        assert shop.run("jobs", "cancel", row["job"], "-y", "--timeout", "3", code=0).err == ""
        shop.run("jobs", "--timeout", "3", code=3)
        shop.run("nodes", "drain", "node1", "--no-wait", code=0)
        words = (
            "Passed over, since drained and without an answer: node1. What is there is not known."
        )
        for command in (
            "jobs",
            "jobs stats --since 1h",
            "nodes",
            "code versions",
            "code versions --projects",
            "status --fleet",
        ):
            said = shop.run(*command.split(), code=0).err
            assert ("connection refused" in said) == (command == "nodes"), (
                "the list of nodes says how each is"
            )
            assert said.count(words) <= 1, command
        assert words in shop.run("jobs").err
        (started,) = shop.scheduled("good", "--unless-running", "--timeout", "3")
        assert (started["node"], started["state"]) == ("node2", "scheduled")
        shop.run("jobs", "--node", "node1").expect(5, "connection refused")
        shop.run("jobs", "schedule", "good", "--on", "node1").expect(2, "sdist nodes resume node1")
    finally:
        dead.restart()
        shop.run("nodes", "resume", "node1", code=0)
    assert shop.node_states()["node1"] == "up"
    shop.wait_idle()


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("cancel", 2, "--all"),
        ("cancel --node node1 -y", 2, "--all"),
        ("cancel x --all -y", 2, "One of the three"),
        ("cancel nosuchjob -y", 4, "nosuchjob"),
        ("cancel --crawl nosuchcrawl -y", 4, "nosuchcrawl"),
        ("schedule", 2, "Name the spiders"),
        ("schedule god", 4, "Did you mean good?"),
        ("schedule z*", 4, "There are: broken, good, shop, slow"),
        ("schedule good --on nosuch", 4, "node1, node2"),
        ("schedule good --on node1 --all-nodes", 2, "one of the two has to go"),
        ("schedule good --version 1.9", 4, "1.9"),
        ("schedule good -p nosuch", 4, "deploy --all"),
        ("schedule good -a x", 2, "NAME=VALUE"),
        ("schedule good -a jobid=1", 2, "jobid"),
        ("schedule --from nosuch.csv", 2, "nosuch.csv"),
        ("jobs --node eu-*", 4, "node1, node2"),
        ("jobs --state sleepy", 2, "sleepy"),
        ("jobs --since soon", 2, "soon"),
        ("logs nosuchjob", 4, "nosuchjob"),
        ("logs --level LOUD", 2, "LOUD"),
        ("jobs grep (", 2, "regular expression"),
        ("jobs stats nosuchjob", 4, "nosuchjob"),
        ("api nosuch listjobs", 4, "node1, node2"),
        ("api node1 nosuch", 1, "nosuch.json"),
        ("api node1 status job", 2, "NAME=VALUE"),
    ],
)
def test_bad_input_is_one_paragraph(
    shop: Shop, run_sdist_here: RunCommand, line: str, code: int, said: str
) -> None:
    done = run_sdist_here(shop.project, *line.split()).expect(code, said)
    assert (done.out, done.err.startswith("sdist: "), done.err.count("\n")) == ("", True, 1)


@pytest.mark.black_box
def test_jobs_of_a_crawl_are_known_by_its_name(
    run_cli: RunCommand, project: MakeProject, site: StartSite, shop: Shop
) -> None:
    pages = site(60)
    made = project(nodes=shop.nodes, settings={"START_URL": pages.start_url})
    options = ("--index", pages.template, "--pages", 2, "--shards", 2, "--batch-size", 30)
    done = run_cli(made, "crawl", "easy", *options, "-o", "items.jl", "--json", code=0)
    crawl = done.json()["crawl"]
    rows = [row for row in run_cli(made, "jobs", "--json").json()["jobs"] if row["crawl"] == crawl]
    assert len(rows) == done.json()["batches"]["total"]
    assert {row["state"] for row in rows} == {"finished"}
    assert sum(row["items"] for row in rows) == 60
    stats = run_cli(made, "jobs", "stats", crawl, "--json").json()
    assert (stats["jobs"], stats["stats"]["item_scraped_count"]["sum"]) == (len(rows), 60)
    for named in ([crawl], []):
        assert run_cli(made, "logs", *named, "-n", 1).out.count("Spider closed") == len(rows)
    run_cli(made, "jobs", "cancel", "--crawl", crawl, "-y").expect(4, "over already")


@pytest.mark.full
@pytest.mark.black_box
def test_later_crawls_change_no_word_on_the_jobs_of_earlier_ones(
    run_cli: RunCommand, project: MakeProject, site: StartSite, shop: Shop
) -> None:
    pages = site(60)
    made = project(nodes=shop.nodes, settings={"START_URL": pages.start_url})
    options = (
        "--index",
        pages.template,
        "--pages",
        2,
        "--batch-size",
        10,
        "--pull",
        "-o",
        "items.jl",
        "--json",
    )

    def crawl(name: str) -> dict[str, Any]:
        summary: dict[str, Any] = run_cli(
            made, "crawl", "easy", *options, "--name", name, code=0
        ).json()
        return summary

    def listed_jobs() -> dict[tuple[str, ...], dict[str, Any]]:
        rows = run_cli(made, "jobs", "--json").json()["jobs"]
        return {(row["node"], row["job"], row["started"]): row for row in rows}

    def jobs_of_six() -> dict[tuple[str, ...], dict[str, Any]]:
        return {key: row for key, row in listed_jobs().items() if row["crawl"] == "six"}

    done = crawl("six")
    crawl("seven")
    for node in shop.nodes:  # as the workers of a later crawl do
        for folder in node.logs_dir.glob("_sdist/six.*"):
            shutil.rmtree(folder)
    before = jobs_of_six()
    # A worker that has begun when all is done is told to end.
    assert {row["state"] for row in before.values() if row["items"]} == {"finished"}
    assert {row["state"] for row in before.values()} <= {"finished", "cancelled", "unknown"}
    assert sum(row["items"] or 0 for row in before.values()) == done["items"] == 60
    run_cli(made, "crawls", "clean", "six", "-y", code=0)
    crawl("six")
    after = listed_jobs()
    # Their crawl is gone, and the new one of that name is another.
    assert {job: after[job] for job in before} == {
        job: {**row, "crawl": None} for job, row in before.items()
    }
    assert sum(row["items"] or 0 for row in jobs_of_six().values()) == 60


# what is waited for: crawls and jobs; and what is told of a crawl's end


def test_a_detached_crawl_is_waited_for_and_its_end_is_told(shop: Shop) -> None:
    told = shop.project.path / "told.json"
    hook = f'cat > {told}.new && mv {told}.new {told}; echo "$SDIST_CRAWL $SDIST_STATE $SDIST_ITEMS" > who.txt; exit 4'
    more = ("--min-items", "4", "--on-finish", hook, "--label", "night=1", "--label", "big")
    begun = shop.run(*CRAWL, "--detach", "--name", "one", *more, code=0)
    assert begun.out == "one\n"
    fleet = shop.run("status", "--fleet", "--json", code=0)
    assert [node["state"] for node in fleet.json()["nodes"]] == ["up", "up"]
    assert "hush" not in fleet.out
    done = shop.run("watch", "--quiet", "one", "--json")
    assert (done.code, done.err) == (1, f"sdist: {done.json()['message']}\n")
    assert done.json()["message"].startswith("The crawl has 3 items, and at least 4 were asked for")
    wait_for(
        lambda: "ended with code 4" in str(last_crawl(shop.project).summary["warnings"]),
        30,
        "the warning",
    )
    document = json.loads(told.read_text())
    assert (document["crawl"], document["state"], document["exit_code"], document["items"]) == (
        "one",
        "finished",
        1,
        3,
    )
    assert (shop.project.path / "who.txt").read_text() == "one finished 3\n"
    summed = shop.run("status", "one").out
    assert "The command of --on-finish (DISTRIBUTED_ON_FINISH) ended with code 4." in summed
    assert shop.run("watch", "--quiet", "one").code == 1
    (row,) = shop.run("crawls", "--label", "night=1", "--label", "big", "--json").json()["crawls"]
    assert (row["crawl"], row["labels"], document["labels"]) == (
        "one",
        ["night=1", "big"],
        ["night=1", "big"],
    )
    assert "no crawl with that label" in shop.run("crawls", "--label", "night=2", code=0).err
    assert row["started"] <= row["ended"] == document["ended"]
    assert (
        shop.run("crawls", "--spider", f"{row['spider'][0]}*", "-n", 1, "-o", "names").out
        == "one\n"
    )
    assert "no such crawl" in shop.run("crawls", "--spider", "hard", code=0).err
    jobs = shop.run("jobs", "--label", "night", "--json").json()["jobs"]
    assert {(job["crawl"], *job["labels"]) for job in jobs} == {("one", "night=1", "big")}
    summed = shop.run(
        "jobs", "stats", "--since", "1h", "--label", "night", "--json", code=0
    ).json()["stats"]
    assert (summed["item_scraped_count"]["sum"], summed["response_received_count"]["sum"]) == (3, 3)
    shop.run(*CRAWL, "--label", "a,b").expect(2, "has a comma")


@pytest.mark.black_box
def test_jobs_are_waited_for_and_judged(shop: Shop, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    hook = f"cat > {told}; echo $SDIST_EXIT_CODE $SDIST_ITEMS >> {told}"
    shop.run("jobs", "schedule", "good", "broken", "--on-finish", hook).expect(3, "The job broken")
    document, _, variables = told.read_text().rpartition("}")
    ends = {
        row["spider"]: (row["state"], row["items"]) for row in json.loads(document + "}")["jobs"]
    }
    assert ends == {"good": ("finished", 3), "broken": ("failed", 0)}
    assert variables.strip() == "3 3"
    good = [row["job"] for row in shop.scheduled("good", "--all-nodes")]
    done = shop.run(
        "watch", "--quiet", *(word for job in good for word in ("--job", job)), "--json", code=0
    )
    assert done.err == ""
    assert [(row["state"], row["items"]) for row in done.json()["jobs"]] == [("finished", 3)] * 2
    slow = shop.scheduled("slow", "--on", "node2")[0]["job"]
    assert (
        shop.run("watch", "--quiet", "--job", slow, "--timeout", "0.1").expect(124, slow).out == ""
    )

    def fleet_with_its_log() -> dict[str, Any]:
        document: dict[str, Any] = shop.run("status", "--fleet", "--json", code=0).json()
        assert document_misfits("status --fleet", document) == []
        jobs = [row for node in document["nodes"] for row in node["jobs"]]
        return (
            document
            if any(row["job"] == slow and row["silent_s"] is not None for row in jobs)
            else {}
        )

    fleet = wait_for(fleet_with_its_log, 60, f"{slow} in the fleet, with a log")
    assert {node["name"]: node["running"] for node in fleet["nodes"]} == {"node1": 0, "node2": 1}
    (job,) = fleet["nodes"][1]["jobs"]
    assert (job["spider"], job["state"]) == ("slow", "running")
    assert job["per_min"] == {"pages": None, "items": None, "errors": None}, (
        "only our workers report it"
    )
    assert job["silent_s"] is not None
    assert "hush" not in json.dumps(fleet)
    waiting = shop.start("watch", "--quiet", "--job", slow, "--job", good[0])
    os.kill(shop.wait_pid(slow), signal.SIGKILL)
    assert waiting.wait().expect(3, f"The job {slow} on node2 died: ").out == ""


@pytest.mark.black_box
def test_a_watch_tells_of_a_job_that_failed_once_and_of_the_next_one_that_is_well(
    shop: Shop,
) -> None:
    told = shop.project.path / "troubles.jl"
    hook = f"cat >> {told}; echo >> {told}"

    def events() -> list[tuple[str, str, str]]:
        rows = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
        return [(row["event"], row["kind"], row["subject"]) for row in rows]

    spiders = SPIDERS.replace(
        'raise ZeroDivisionError("a needle in the log")', "self.settings['WELL'] or 1 / 0"
    )
    shop.project.spider("all", spiders + MORE)
    shop.run("deploy", "--all", "--json", code=0)
    command = shop.start("watch", "--fleet", "--quiet", "--on-trouble", hook)
    wait_for((shop.project.path / ".sdist" / "troubles.json").exists, 60, "its first look")
    shop.scheduled("broken", "broken")
    wait_for(events, 60, "the trouble")
    command.signal(signal.SIGINT)
    command.wait(code=130)
    shop.scheduled("broken", "-s", "WELL=1")
    shop.wait_idle()
    command = shop.start("watch", "--fleet", "--quiet", "--on-trouble", hook)
    wait_for(lambda: len(events()) > 1, 60, "all is well")
    command.signal(signal.SIGINT)
    command.wait(code=130)
    assert events() == [
        ("trouble", "job-failed", "shop/broken"),
        ("well", "job-failed", "shop/broken"),
    ]
    shop.project.spider("all", SPIDERS + MORE)
    shop.run("deploy", "--all", "--json", code=0)
    shop.run("watch", "--on-trouble", "true").expect(2, "add --fleet")
    shop.run("watch", "--fleet", "--on-trouble", "ftp://host/x").expect(2, "http://")


@pytest.mark.black_box
def test_the_settings_alone_tell_an_address_and_its_secrets_stay_out_of_all_logs(
    shop: Shop,
) -> None:
    with closing(BadPeer(lambda connection, _: connection.answer(500, b""))) as peer:
        hook = f"http://me:hush@127.0.0.1:{peer.port}/SECRET?token=SECRET"
        line = ("crawl", "shop", "-a", "pages=4", "-s", "DISTRIBUTED_TARGET_CALLBACKS=parse")
        done = shop.start(*line, "-s", f"DISTRIBUTED_ON_FINISH={hook}", program=SCRAPY).wait(code=0)
    head, _, body = peer.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /SECRET?token=SECRET ")
    assert (json.loads(body)["state"], json.loads(body)["items"]) == ("finished", 4)
    row = last_crawl(shop.project)
    (said,) = row.summary["warnings"]
    assert said.startswith(
        f"http://127.0.0.1:{peer.port}/… could not be told of the end of the crawl (--on-finish"
    )
    assert said.endswith("it answered 500.")
    assert row.exit_code == 0
    shown = (
        done.out
        + done.err
        + json.dumps(dict(row.summary))
        + shop.run("status", row.id, "--json").out
    )
    assert "SECRET" not in shown
    assert "hush" not in shown


@pytest.mark.black_box
def test_a_crawl_with_unusually_few_items_is_warned_about(shop: Shop) -> None:
    line = (*CRAWL, "-a", "pages=9", "-a", "kind=same")
    shop.run(*line, "--name", "usual0", "-q", code=0)
    with closing(store_of(shop.project)) as store:
        for name in ("usual1", "usual2"):
            store.add_crawl(replace(store.crawl("usual0"), id=name))
    # The same arguments, and a site that has less to give.
    shop.project.spider("all", (SPIDERS + MORE).replace("int(self.pages)", "int(self.pages) // 3"))
    try:
        done = shop.run(*line, "--name", "few", "--json", code=0)
    finally:
        shop.project.spider("all", SPIDERS + MORE)
    few = "3 items are unusually few: the median of the last 3 crawls of this spider is 9."
    assert done.json()["warnings"] == [few]


@pytest.mark.black_box
def test_a_refused_crawl_is_told_of_as_well(shop: Shop) -> None:
    for line in (
        ("crawl", "nosuch"),
        (*CRAWL, "-s", "DISTRIBUTED_SHARDS=x"),
        (*CRAWL, "--shards", "3"),
    ):
        told = shop.project.path / "refused.json"
        done = shop.run(*line, "--on-finish", f"cat > {told}")
        assert done.code in {2, 4}, done
        document = json.loads(told.read_text())
        assert (document["state"], document["exit_code"]) == ("refused", done.code)
        assert document["message"].strip() in done.err
        told.unlink()
    shop.run(*CRAWL, "--on-finish", "ftp://host/x").expect(2, "http://")


@pytest.mark.black_box
def test_several_crawls_are_waited_for_and_a_dead_one_is_named(shop: Shop, site: StartSite) -> None:
    web = site(40, "--latency=1")
    slow = (*CRAWL, "-a", "pages=4", "-a", f"page={web.url}/x", "--detach", "--name")
    for name in ("left", "killed"):
        assert shop.run(*slow, name).code == 0
    waiting = shop.start("watch", "--quiet", "killed", "left")

    def pid_of_the_killed() -> int:
        rows = [
            row
            for row in crawls(shop.project)
            if row.id == "killed" and row.state is CrawlState.WORKING
        ]
        return rows[0].pid or 0 if rows else 0

    pid = wait_for(pid_of_the_killed, 60, "the producer")
    os.kill(pid, signal.SIGKILL)
    assert waiting.wait().expect(3, "sdist resume killed").out == ""
    assert shop.run("resume", "killed", "-q").code == 0


@pytest.mark.black_box
def test_the_fleet_is_watched_until_ctrl_c(shop: Shop) -> None:
    slow = shop.scheduled("slow", "--on", "node1")[0]["job"]
    watching = shop.start("watch", "--fleet", "--json")
    watching.wait_text("nodes 2/2 · 1 running")
    shop.nodes[1].kill()
    try:
        watching.wait_text("node2: down: ")
        watching.interrupt()
        done = watching.wait(code=130)
    finally:
        shop.nodes[1].restart()
        shop.nodes[0].api("cancel.json", project="shop", job=slow)
        shop.nodes[0].wait_idle()
    assert [node["state"] for node in done.json()["nodes"]] == ["up", "down"]
