"""`sdist crawl --pull`: the same command and the same result, by workers that lease their batches from the store."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest
from rig.bad_days import IMPATIENT, ITEMS, arguments, assert_exact, assert_resumed, wait_accepted
from rig.crawls import ADDON, QUICK, assert_each_page_once, crawls, last_crawl
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
    pages = site(400, "--latency=1", per_page=100)
    slow = {"CONCURRENT_REQUESTS": 2, "DISTRIBUTED_BATCH_SIZE": 2}
    it = project(nodes=[one], settings={**IMPATIENT, **slow, "START_URL": pages.start_url})
    command = start_cli(it, *arguments("sdist", pages), "--pull", "--name", "grows")
    wait_accepted(it, node=one.name)
    it.targets([one, two])
    wait_accepted(it, node=two.name)
    assert [len(workers_on(node)) for node in (one, two)] == [1, 1]
    assert command.running()
    run_cli(it, "cancel", "--crawl", "grows", "--yes", code=0)


INDEX = """
import scrapy


class Index(scrapy.Spider):
    name = "index"

    async def start(self):
        for page in range(3):
            yield scrapy.Request(f"{self.settings['SITE']}/properties/index_{page:05d}.html")

    def parse(self, response):
        yield {"page": response.url, "agent": response.request.headers[b"User-Agent"].decode()}
        for number, link in enumerate(response.css('a[itemprop="url"]::attr(href)').getall()):
            callback = self.parse_odd if number % 2 else self.parse_even
            yield response.follow(link, callback, priority=number % 2)

    def parse_odd(self, response):
        yield {"odd": response.url}

    def parse_even(self, response):
        yield {"even": response.url}
"""


@pytest.mark.black_box
def test_start_requests_as_seeds_leave_nothing_for_the_producer_to_request(
    project: MakeProject, run_cli: RunCommand, fleet: StartFleet,
    site: StartSite
) -> None:  # fmt: skip
    the_site = site(90)
    own = {
        "DISTRIBUTED_TARGET_CALLBACKS": ["parse_odd", "parse_even"], "DISTRIBUTED_SEEDS": True,
        "DISTRIBUTED_CALLBACK_SLOTS": {"parse_odd": "odd/2", "parse_even": "even/3"}, "DISTRIBUTED_SLOT_PREFIX": "p",
    }  # fmt: skip
    settings = {**QUICK, "ADDONS": ADDON, "SITE": the_site.url, **own}
    it = project(nodes=fleet(2), spiders={"index": INDEX}, settings=settings)
    run_cli(it, "crawl", "index", "--pull", "-o", "items.jl", code=0)
    items = list(it.items("items.jl"))
    assert len([item for item in items if "page" in item]) == 3
    assert sorted([item.get("odd") or item["even"] for item in items if "page" not in item]) == [
        the_site.detail(number) for number in range(90)
    ]
    row = last_crawl(it)
    assert row.summary["index"]["pages"] == 0, "the producer itself made no request"
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        sizes = {slot.slot: sum(slot.requests.values()) for slot in store.slots(row.id)}
        priorities = {(batch.slot[:-1], batch.priority) for batch in store.batches(row.id)}
    families = {"p": ["p0"], "odd": ["odd0", "odd1"], "even": ["even0", "even1", "even2"]}
    assert set(sizes) == {slot for slots in families.values() for slot in slots}
    totals = {name: sum(sizes[slot] for slot in slots) for name, slots in families.items()}
    assert totals == {"p": 3, "odd": 45, "even": 45}
    assert priorities == {("p", 0), ("odd", 1), ("even", 0)}
