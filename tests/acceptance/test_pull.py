"""`sdist crawl --pull`: the same command and the same result, by workers that lease their batches from the store."""

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.bad_days import IMPATIENT, ITEMS, arguments, assert_exact, assert_resumed, wait_accepted
from rig.crawls import ADDON, assert_each_page_once, assert_one_paragraph, crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.redis import PASSWORD, RedisServer
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState, CrawlState
from scrapyd_dist.store import open_store

#: batches small enough that each worker has several
PULL = {**IMPATIENT, "DISTRIBUTED_BATCH_SIZE": 20, "DISTRIBUTED_MODE": "pull", "DISTRIBUTED_MAX_JOBS": 3}


def workers_on(*nodes: ScrapydNode) -> dict[int, str]:
    """Pid -> job id of their workers that lease."""
    return {pid: job for node in nodes for pid, job in node.job_pids().items() if ".w" in job}


def test_a_pulled_crawl_has_every_item_once_and_leaves_nothing_running(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    pages = site(90, per_page=30)
    it = project(nodes=pair, settings={**IMPATIENT, "START_URL": pages.start_url})
    words = [*arguments("sdist", pages), "--pull", "--workers", "2", "--batch-size", "20"]
    run_cli(it, *words, code=0)
    assert pages.differences(it.items(ITEMS)) == {}
    assert_each_page_once(pages)
    row = last_crawl(it)
    assert row.summary["batches"] == {
        "total": 5, "sent": 5, "out": 0, "waiting": 0, "done": 5, "failed": 0, "dead": 0,
    }  # fmt: skip
    assert all(node.jobs("running") == [] and node.jobs("pending") == [] for node in pair)
    for node in pair:  # as `jobs_to_keep` does
        for log in node.logs_dir.glob("*/*/*.log"):
            log.unlink()
    jobs = run_cli(it, "jobs", "--json").json()["jobs"]
    # A worker that has not seen the crawl's end by itself is cancelled then.
    assert {job["state"] for job in jobs if ".w" in job["job"]} <= {"finished", "cancelled"}, jobs
    answered = run_cli(it, "report", "--json").json()["statuses"]
    assert sum(one["codes"].get("200", 0) for one in answered) == 90


@pytest.mark.black_box
def test_by_settings_alone_and_item_for_item_what_push_brings(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand, run_scrapy: RunCommand
) -> None:
    pages = site(100, per_page=20)
    pages.behave({pages.site.detail_path(7): "fail", pages.site.detail_path(9): "gone"})
    it = project(nodes=pair, settings={**PULL, "START_URL": pages.start_url})
    pushed = run_cli(it, *arguments("sdist", pages)[:-3], "-O", "pushed.jl", "--push", "--json")
    pulled = run_scrapy(it, "crawl", "easy", "-O", "pulled.jl")
    assert (pushed.code, pulled.code) == (3, 3), pulled.err
    there = [{str(item["url"]): item for item in it.items(name)} for name in ("pushed.jl", "pulled.jl")]
    assert there[0].keys() == there[1].keys()
    ignored = {"date", "server", "project", "spider"}
    for url, item in there[0].items():
        same = {name: value for name, value in item.items() if name not in ignored}
        assert same == {name: value for name, value in there[1][url].items() if name not in ignored}
    summaries = [row.summary for row in crawls(it)]
    for name in ("urls_found", "sealed", "items", "gone_urls", "failed_urls", "dead_urls"):
        assert summaries[0][name] == summaries[1][name], name


@pytest.mark.black_box
def test_a_killed_worker_and_a_killed_producer_cost_nothing_with_the_store_on_redis(
    project: MakeProject,
    pair: list[ScrapydNode],
    site: StartSite,
    start_cli: StartCommand,
    run_cli: RunCommand,
    tmp_path: Path,
) -> None:
    """The nodes have no Redis; workers that live are taken up by the next process, and no password is seen."""
    pages = site(400, "--latency=0.2", per_page=20)
    it = project(nodes=pair, settings={**PULL, "START_URL": pages.start_url})
    with closing(RedisServer(tmp_path / "redis")) as server, closing(open_store(server.url)) as store:
        env = {"SDIST_STORE": server.url}
        command = start_cli(it, *arguments("sdist", pages), env=env)
        (row,) = wait_for(store.crawls, 60, "the crawl on the server")
        wait_for(lambda: store.crawl(row.id).summary.get("batches", {}).get("done", 0) >= 2, 60, "batches at home")
        busy = {attempt.worker for attempt in store.attempts(row.id, {AttemptState.RUNNING})}
        victim = next(pid for pid, job in workers_on(*pair).items() if job in busy)
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: store.crawl(row.id).summary["batches"]["failed"], 60, "its batch, given up")
        producer = store.crawl(row.id).pid
        assert producer
        os.kill(producer, signal.SIGKILL)
        command.wait(60)
        before = set(workers_on(*pair).values())
        run_cli(it, "resume", row.id, "--json", env=env, timeout=180, code=0)
        assert store.crawl(row.id).state is CrawlState.FINISHED
    assert pages.differences(it.items(ITEMS)) == {}
    jobs = {job["id"] for node in pair for job in node.jobs("finished") if job["id"].startswith(f"{row.id}.w")}
    assert before <= jobs
    assert len(jobs) <= 4, "a second worker was started beside one that lived"
    told = [path for node in pair for path in node.work.rglob("*.log")]
    texts = [*(node.log for node in pair), *(path.read_text("utf-8", "replace") for path in told)]
    assert not any(PASSWORD in text or "p%3Ass" in text for text in texts)


@pytest.mark.black_box
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_it_rests_goes_on_is_cancelled_and_taken_up_again(
    mode: str,
    project: MakeProject,
    pair: list[ScrapydNode],
    site: StartSite,
    start_cli: StartCommand,
    run_cli: RunCommand,
) -> None:
    pages = site(600, "--latency=0.3", per_page=20)
    it = project(nodes=pair, settings={**PULL, "START_URL": pages.start_url, "DISTRIBUTED_MODE": mode})
    command = start_cli(it, *arguments("sdist", pages))
    wait_accepted(it, 2)
    crawl = crawls(it)[0].id
    rests = run_cli(it, "pause", crawl)
    assert (rests.code, f"sdist resume {crawl}" in rests.err) == (0, True), rests.err
    wait_for(lambda: crawls(it)[0].summary["batches"]["out"] == 0, 60, "what was out comes home")
    asked = sum(pages.hits().values())
    assert not crawls(it)[0].state.ended
    status = run_cli(it, "status", crawl, "--json").json()
    assert (status["paused"], status["outlook"]["eta_s"], status["per_s"]["requests"]) == (True, None, 0)
    assert "paused" in run_cli(it, "crawls").out
    assert sum(pages.hits().values()) == asked, "it went on though it rests"
    run_cli(it, "resume", crawl, "--detach", code=0)
    home = len(wait_accepted(it))
    wait_accepted(it, home + 2)
    run_cli(it, "stop", crawl, "--yes", "--json", code=0)
    assert command.wait(60).code == 130
    assert all(node.jobs("running") == [] and node.jobs("pending") == [] for node in pair)
    assert not (it.path / ITEMS).exists()
    again = run_cli(it, "resume", crawl, "--json", timeout=180)
    assert_resumed(again, it, pages)
    run_cli(it, "pause", crawl, code=2)


@pytest.mark.black_box
def test_the_work_of_a_node_that_dies_goes_elsewhere(
    project: MakeProject, fleet: StartFleet, site: StartSite, start_cli: StartCommand
) -> None:
    nodes = fleet(2)
    pages = site(300, "--latency=0.2", per_page=20)
    it = project(nodes=nodes, settings={**PULL, "START_URL": pages.start_url, "DISTRIBUTED_MAX_JOBS": 4})
    command = start_cli(it, *arguments("sdist", pages))
    wait_accepted(it, 2)
    wait_for(lambda: workers_on(nodes[0]), 60, "a worker on the first node")
    nodes[0].kill_jobs()
    nodes[0].kill()
    command.wait(180, code=0)
    assert_exact(it, pages)
    states = {node["name"]: node["state"] for node in last_crawl(it).summary["nodes"]}
    assert states == {nodes[0].name: "down", nodes[1].name: "up"}


@pytest.mark.black_box
def test_a_machine_that_is_named_while_a_crawl_runs_works_beside_the_first(
    project: MakeProject, fleet: StartFleet, site: StartSite, start_cli: StartCommand, run_cli: RunCommand
) -> None:
    """N17: as many workers as there are slots."""
    one, two = fleet(2, max_proc=1, poll_interval=0.2)
    pages = site(400, "--latency=0.5", per_page=100)
    it = project(nodes=[one], settings={**PULL, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 2})
    command = start_cli(it, *arguments("sdist", pages), "--name", "grows")
    wait_accepted(it, node=one.name)
    it.targets([one, two])
    wait_accepted(it, node=two.name)
    assert [len(workers_on(node)) for node in (one, two)] == [1, 1]
    assert command.running()
    run_cli(it, "cancel", "--crawl", "grows", "--yes", code=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"FEEDS": {"ftp://me:secret@files.example/%(name)s.jl": {"format": "jsonlines"}}}, "ftp://files.example"),
        ({"DISTRIBUTED_TARGET_FEED_URL": "ftp://files.example/items.jl"}, "DISTRIBUTED_TARGET_FEED_URL"),
        ({"DISTRIBUTED_MODE": "pulll"}, "push or pull"),
    ],
)
@pytest.mark.black_box
def test_what_does_not_go_with_workers_that_lease_is_refused_by_name(
    settings: dict[str, Any], words: str, project: MakeProject, run_cli: RunCommand
) -> None:
    it = project(settings={"ADDONS": ADDON, "DISTRIBUTED_MODE": "pull", **settings})
    done = run_cli(it, "crawl", "easy", "--quiet", code=2)
    assert words in done.err
    assert "secret" not in done.err
    assert_one_paragraph(done.err)
    assert crawls(it) == []
