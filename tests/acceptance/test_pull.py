"""`sdist crawl --pull`: the same command and the same result, by workers that lease their batches from the store."""

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.bad_days import IMPATIENT, ITEMS, arguments, assert_exact, assert_resumed, wait_accepted
from rig.crawls import ADDON, assert_balanced, assert_each_page_once, assert_one_paragraph, crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.redis import PASSWORD, RedisServer
from rig.waiting import wait_for

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.store import open_store

#: batches small enough that each worker has several
PULL = {**IMPATIENT, "DISTRIBUTED_BATCH_SIZE": 20, "DISTRIBUTED_MODE": "pull", "DISTRIBUTED_MAX_JOBS": 3}


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


def workers_on(node: ScrapydNode) -> dict[int, str]:
    """Pid -> job id of its workers."""
    return {pid: job for pid, job in node.job_pids().items() if ".w" in job}


def test_a_pulled_crawl_has_every_item_once_and_leaves_nothing_running(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    pages = site(90, per_page=30)
    it = project(nodes=pair, settings={**IMPATIENT, "START_URL": pages.start_url})
    words = [*arguments("sdist", pages), "--pull", "--workers", "2", "--batch-size", "20"]
    done = run_cli(it, *words)
    assert done.code == 0, done.err
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
    pages = site(200, per_page=20)
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
def test_killed_workers_cost_nothing_but_time(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, start_cli: StartCommand
) -> None:
    pages = site(500, "--latency=0.1", per_page=20)
    it = project(nodes=pair, settings={**PULL, "START_URL": pages.start_url})
    command = start_cli(it, *arguments("sdist", pages))
    for count in (2, 6, 10):
        wait_accepted(it, count)
        pids = wait_for(lambda: [pid for node in pair for pid in workers_on(node)], 60, "a worker")
        os.kill(pids[0], signal.SIGKILL)
    done = command.wait(180)
    assert done.code == 0, done.err
    assert_exact(it, pages)
    assert last_crawl(it).summary["batches"]["failed"] > 0
    assert all(node.jobs("running") == [] for node in pair)


@pytest.mark.black_box
def test_a_killed_producer_is_resumed_and_its_workers_are_taken_up(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, start_cli: StartCommand, run_cli: RunCommand
) -> None:
    pages = site(500, "--latency=0.2", per_page=20)
    it = project(nodes=pair, settings={**PULL, "START_URL": pages.start_url})
    start_cli(it, *arguments("sdist", pages))
    wait_accepted(it, 3)
    row = crawls(it)[0]
    assert row.pid
    os.kill(row.pid, signal.SIGKILL)
    before = {job for node in pair for job in workers_on(node).values()}
    assert before
    done = run_cli(it, "resume", row.id, "--json", timeout=180)
    assert_resumed(done, it, pages)
    jobs = {job["id"] for node in pair for job in node.jobs("finished") if job["id"].startswith(f"{row.id}.w")}
    assert len(jobs) <= 3, "a second worker was started beside one that lived"


@pytest.mark.black_box
def test_it_rests_goes_on_is_cancelled_and_taken_up_again(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, start_cli: StartCommand, run_cli: RunCommand
) -> None:
    pages = site(900, "--latency=0.4", per_page=20)
    it = project(nodes=pair, settings={**PULL, "START_URL": pages.start_url})
    command = start_cli(it, *arguments("sdist", pages))
    wait_accepted(it, 2)
    crawl = crawls(it)[0].id
    assert run_cli(it, "pause", crawl).code == 0
    wait_for(lambda: crawls(it)[0].summary["batches"]["out"] == 0, 60, "what was leased comes home")
    asked = sum(pages.hits().values())
    status = run_cli(it, "status", crawl, "--json")
    assert (status.code, status.json()["paused"]) == (0, True)
    assert sum(pages.hits().values()) == asked, "it went on though it rests"
    assert run_cli(it, "resume", crawl, "--detach").code == 0
    home = len(wait_accepted(it))
    wait_accepted(it, home + 2)
    cancelled = run_cli(it, "stop", crawl, "--yes", "--json")
    assert cancelled.code == 0, cancelled.err
    assert command.wait(60).code == 130
    assert all(node.jobs("running") == [] and node.jobs("pending") == [] for node in pair)
    again = run_cli(it, "resume", crawl, "--json", timeout=180)
    assert_resumed(again, it, pages)


@pytest.mark.black_box
def test_the_work_of_a_node_that_dies_goes_elsewhere(
    project: MakeProject, fleet: StartFleet, site: StartSite, start_cli: StartCommand
) -> None:
    nodes = fleet(2)
    pages = site(500, "--latency=0.2", per_page=20)
    it = project(nodes=nodes, settings={**PULL, "START_URL": pages.start_url, "DISTRIBUTED_MAX_JOBS": 4})
    command = start_cli(it, *arguments("sdist", pages))
    wait_accepted(it, 2)
    wait_for(lambda: workers_on(nodes[0]), 60, "a worker on the first node")
    nodes[0].kill_jobs()
    nodes[0].kill()
    done = command.wait(180)
    assert done.code == 0, done.err
    assert_exact(it, pages)
    states = {node["name"]: node["state"] for node in last_crawl(it).summary["nodes"]}
    assert states == {nodes[0].name: "down", nodes[1].name: "up"}


@pytest.mark.black_box
def test_a_worker_that_outlives_its_daemon_does_no_harm(
    project: MakeProject, fleet: StartFleet, site: StartSite, start_cli: StartCommand
) -> None:
    nodes = fleet(2)
    pages = site(500, "--latency=0.2", per_page=20)
    it = project(nodes=nodes, settings={**PULL, "START_URL": pages.start_url})
    command = start_cli(it, *arguments("sdist", pages))
    wait_accepted(it, 2)
    wait_for(lambda: workers_on(nodes[0]), 60, "a worker on the first node")
    nodes[0].kill()
    done = command.wait(240)
    assert done.code == 0, done.err
    assert pages.differences(it.items(ITEMS)) == {}
    assert_balanced(last_crawl(it).summary)


@pytest.mark.black_box
def test_with_its_store_on_redis_on_nodes_that_have_no_redis(
    project: MakeProject,
    pair: list[ScrapydNode],
    site: StartSite,
    start_cli: StartCommand,
    run_cli: RunCommand,
    tmp_path: Path,
) -> None:
    pages = site(300, "--latency=0.1", per_page=20)
    it = project(nodes=pair, settings={**PULL, "START_URL": pages.start_url})
    with closing(RedisServer(tmp_path / "redis")) as server, closing(open_store(server.url)) as store:
        env = {"SDIST_STORE": server.url}
        command = start_cli(it, *arguments("sdist", pages), env=env)
        wait_for(lambda: store.crawls() and store.slots(store.crawls()[0].id), 60, "batches on the server")
        wait_for(lambda: any(workers_on(node) for node in pair), 60, "a worker")
        arguments_of_workers = "".join(node.log for node in pair)
        (row,) = store.crawls()
        wait_for(lambda: store.crawl(row.id).summary["batches"]["done"] >= 2, 60, "batches at home")
        assert store.crawl(row.id).pid
        os.kill(store.crawl(row.id).pid or 0, signal.SIGKILL)
        command.wait(60)
        done = run_cli(it, "resume", row.id, "--json", env=env, timeout=180)
        assert done.code == 0, done.err
        assert store.crawl(row.id).state is CrawlState.FINISHED
    assert pages.differences(it.items(ITEMS)) == {}
    told = [path for node in pair for path in node.work.rglob("*") if path.is_file() and path.suffix == ".log"]
    texts = [arguments_of_workers, *(path.read_text("utf-8", "replace") for path in told)]
    assert not any(PASSWORD in text or "p%3Ass" in text for text in texts)


@pytest.mark.black_box
def test_workers_that_always_fail_end_the_crawl_with_their_reason(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    pages = site(60, per_page=20)
    it = project(nodes=pair, settings={**PULL, "START_URL": pages.start_url})
    it.spider(
        "broken",
        """
        import json

        from properties.spiders.easy import EasySpider


        class BrokenSpider(EasySpider):
            name = "broken"

            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.told = kwargs

            @classmethod
            def from_crawler(cls, crawler, *args, **kwargs):
                if crawler.settings.get("DISTRIBUTED_PULL"):
                    raise RuntimeError("no licence on this machine")
                return super().from_crawler(crawler, *args, **kwargs)
        """,
    )
    done = run_cli(it, *[text.replace("easy", "broken") for text in arguments("sdist", pages)])
    assert done.code == 1, done.err
    row = last_crawl(it)
    assert row.state is CrawlState.STOPPED
    assert "no licence on this machine" in row.message
    assert row.summary["batches"]["dead"] == 0


@pytest.mark.black_box
def test_one_page_that_kills_its_workers_is_found_and_all_others_come_home(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    pages = site(60, per_page=20)
    settings: dict[str, Any] = {**PULL, "START_URL": pages.start_url, "DISTRIBUTED_MAX_JOBS": 2}
    it = project(nodes=pair, settings={**settings, "DISTRIBUTED_MAX_ATTEMPTS": 2})
    it.spider(
        "fragile",
        f"""
        import os
        import signal

        from properties.spiders.easy import EasySpider


        class FragileSpider(EasySpider):
            name = "fragile"

            def parse_item(self, response):
                if response.url.endswith({pages.site.detail_path(30)!r}):
                    os.kill(os.getpid(), signal.SIGKILL)
                yield from super().parse_item(response)
        """,
    )
    done = run_cli(it, *[text.replace("easy", "fragile") for text in arguments("sdist", pages)], timeout=240)
    assert done.code == 3, done.err
    dead = run_cli(it, "batches", crawls(it)[0].id, "--state", "dead", "--urls")
    assert dead.out.split() == [pages.detail(30)]
    assert pages.differences(it.items(ITEMS), without=[30]) == {}


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
    done = run_cli(it, "crawl", "easy", "--quiet")
    assert done.code == 2, done.err
    assert words in done.err
    assert "secret" not in done.err
    assert_one_paragraph(done.err)
    assert crawls(it) == []
