"""`sdist crawl --pull`: the same result as without, by workers that lease their batches from the store, and leases."""

import os
import signal
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from rig.bad_days import (
    ITEMS,
    MakeScene,
    arguments,
    assert_exact,
    attempts,
    busy_workers,
    report_of,
    wait_accepted,
)
from rig.crawls import ADDON, QUICK, assert_each_page_once, crawls, last_crawl
from rig.deliveries import FolderReader, delivered, files_of, manifest_in
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode, at_rest
from rig.redis import PASSWORD, RedisServer
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState, CrawlState, home_of
from scrapyd_dist.store import open_store

#: batches small enough that each worker has several
PULL = {"DISTRIBUTED_BATCH_SIZE": 20, "DISTRIBUTED_MODE": "pull", "DISTRIBUTED_MAX_JOBS": 3}


def workers_on(*nodes: ScrapydNode) -> dict[int, str]:
    """Pid -> job id of their workers that lease."""
    return {pid: job for node in nodes for pid, job in node.job_pids().items() if ".w" in job}


def test_a_pulled_crawl_has_every_item_once_and_leaves_nothing_running(scene: MakeScene) -> None:
    at = scene(90)
    at.crawl("--pull", "--max-jobs", "2", "--batch-size", "20")
    assert_each_page_once(at.pages, at.it.items(ITEMS))
    assert last_crawl(at.it).summary["batches"] == {
        "total": 5, "sent": 5, "out": 0, "waiting": 0, "done": 5, "failed": 0, "dead": 0,
    }  # fmt: skip
    for node in at.nodes:  # the process of a job ends soon after its report
        node.wait_idle()
    # As `jobs_to_keep` does; a worker told to end before it opened has left nothing but its log.
    for node in at.nodes:
        for report in node.logs_dir.glob("_sdist/*/*.json"):
            next(node.logs_dir.glob(f"*/*/{report.stem}.log")).unlink()
    jobs = at.run("jobs", "--json").json()["jobs"]
    # A worker that has not seen the crawl's end by itself is cancelled then.
    assert {job["state"] for job in jobs if ".w" in job["job"]} <= {"finished", "cancelled"}, jobs
    answered = at.run("report", "--json").json()["statuses"]
    assert sum(one["codes"].get("200", 0) for one in answered) == 90


@pytest.mark.promise("The workers of the next crawl remove the items of the last one")
@pytest.mark.black_box
def test_by_settings_alone_and_item_for_item_what_push_brings(
    scene: MakeScene, run_scrapy: RunCommand
) -> None:
    at = scene(100, per_page=20, **PULL)
    it, pages = at.it, at.pages
    pages.behave({pages.site.detail_path(7): "fail", pages.site.detail_path(9): "gone"})
    at.run(*arguments("sdist", pages)[:-3], "-O", "pushed.jl", "--push", "--json", code=3)
    run_scrapy(it, "crawl", "easy", "-O", "pulled.jl", code=3)
    there = [
        {str(item["url"]): item for item in it.items(name)} for name in ("pushed.jl", "pulled.jl")
    ]
    assert there[0].keys() == there[1].keys()
    ignored = {"date", "server", "project", "spider"}
    for url, item in there[0].items():
        same = {name: value for name, value in item.items() if name not in ignored}
        assert same == {name: value for name, value in there[1][url].items() if name not in ignored}
    pushed, pulled = sorted(crawls(it), key=lambda row: row.id)
    for node in at.nodes:
        kept = {path.parent.name.partition(".")[0] for path in node.logs_dir.glob("_sdist/*/*.jl")}
        assert pushed.id not in kept or pulled.id not in kept, (
            "a worker left what was collected of the crawl before"
        )
    summaries = [pushed.summary, pulled.summary]
    for name in ("urls_found", "sealed", "items", "gone_urls", "failed_urls", "dead_urls"):
        assert summaries[0][name] == summaries[1][name], name


@pytest.mark.promise("Each item comes home once")
@pytest.mark.black_box
def test_a_killed_worker_and_a_killed_producer_cost_nothing_with_the_store_on_redis(
    scene: MakeScene, pair: list[ScrapydNode], tmp_path: Path
) -> None:
    """The nodes have no Redis; workers that live are taken up by the next process, and no password is seen."""
    at = scene(400, "--latency=0.2", per_page=20, **PULL)
    out = tmp_path / "delivered"
    with (
        closing(RedisServer(tmp_path / "redis")) as server,
        closing(open_store(server.url)) as store,
        FolderReader(out) as stream,
    ):
        env = {"SDIST_STORE": server.url}
        command = at.start("--deliver", out, env=env)
        (row,) = wait_for(store.crawls, 60, "the crawl on the server")
        wait_for(
            lambda: store.crawl(row.id).summary.get("batches", {}).get("done", 0) >= 2,
            60,
            "batches at home",
        )
        busy = {attempt.worker for attempt in store.attempts(row.id, {AttemptState.RUNNING})}
        victim = next(pid for pid, job in workers_on(*pair).items() if job in busy)
        os.kill(victim, signal.SIGKILL)
        wait_for(
            lambda: store.crawl(row.id).summary["batches"]["failed"], 60, "its batch, given up"
        )
        wait_for(lambda: stream.items, 60, "what is delivered while it runs")
        producer = store.crawl(row.id).pid
        assert producer
        os.kill(producer, signal.SIGKILL)
        command.wait(60)
        assert not manifest_in(files_of(out))["complete"]
        before = set(workers_on(*pair).values())
        at.run("resume", row.id, "--json", env=env, timeout=180, code=0)
        assert store.crawl(row.id).state is CrawlState.FINISHED
    assert at.pages.differences(at.it.items(ITEMS)) == {}
    assert at.pages.differences(delivered(files_of(out))) == {}, "for a reader of the manifest"
    assert manifest_in(files_of(out))["complete"]
    assert stream.wrong == []
    assert at.pages.differences(stream.items) == {}, "for a reader of the folder"
    begins = f"{home_of(row.id, row.created)}.w"
    jobs = {
        job["id"] for node in pair for job in node.jobs("finished") if job["id"].startswith(begins)
    }
    assert before <= jobs
    assert len(jobs) <= 4, "a second worker was started beside one that lived"
    told = [path for node in pair for path in node.work.rglob("*.log")]
    texts = [*(node.log for node in pair), *(path.read_text("utf-8", "replace") for path in told)]
    assert not any(PASSWORD in text or "p%3Ass" in text for text in texts)


@pytest.mark.black_box
@pytest.mark.timeout(600)  # on a busy machine its jobs take long to start
@pytest.mark.parametrize("mode", [pytest.param("push", marks=pytest.mark.full), "pull"])
def test_it_rests_goes_on_is_cancelled_and_taken_up_again(mode: str, scene: MakeScene) -> None:
    # A batch takes longer than workers need to notice.
    at = scene(
        450,
        "--latency=1.2",
        per_page=20,
        **{**PULL, "DISTRIBUTED_MODE": mode, "DISTRIBUTED_BATCH_SIZE": 50},
    )
    it, pages, command = at.it, at.pages, at.start()
    wait_accepted(it, 2)
    crawl = crawls(it)[0].id
    at.run("pause", crawl).expect(0, f"sdist resume {crawl}")
    wait_for(lambda: at_rest(at.nodes), 60, "each worker has seen it")
    hits, quiet = sum(pages.hits().values()), time.monotonic()

    def is_quiet() -> bool:
        nonlocal hits, quiet
        if (now := sum(pages.hits().values())) != hits:
            hits, quiet = now, time.monotonic()
        return time.monotonic() - quiet > 3

    seen = hits
    wait_for(is_quiet, 30, "no request for three seconds")
    assert hits - seen <= 2 * 16, "more than what was on its way"
    out = crawls(it)[0].summary["batches"]["out"]
    assert out, "what was out waits"
    assert not crawls(it)[0].state.ended
    status = at.run("status", crawl, "--json").json()
    assert (status["paused"], status["outlook"]["eta_s"], status["per_s"]["requests"]) == (
        True,
        None,
        0,
    )
    assert "paused" in at.run("crawls").out
    victim = next(job["id"] for node in at.nodes for job in node.jobs("running"))
    at.run("jobs", "cancel", victim, "--yes", code=0)  # one that waits ends when it is told to
    assert sum(pages.hits().values()) == hits, "it went on though it rests"
    at.run("resume", crawl, "--max-items", "9").expect(2, f"sdist stop {crawl}")
    at.run("resume", crawl, "--detach").expect(0, f"sdist watch {crawl}")
    home = len(wait_accepted(it))
    wait_accepted(it, home + 2)
    at.run("stop", crawl, "--yes", "--json", code=0)
    command.wait(60, code=130)
    for node in at.nodes:  # the process of a job ends soon after its report
        node.wait_idle()
    assert not (it.path / ITEMS).exists()
    at.resume(crawl)
    at.run("pause", crawl, code=2)


@pytest.mark.black_box
def test_the_work_of_a_node_that_dies_goes_elsewhere(scene: MakeScene, fleet: StartFleet) -> None:
    nodes = fleet(2)
    at = scene(
        300, "--latency=0.2", per_page=20, nodes=nodes, **{**PULL, "DISTRIBUTED_MAX_JOBS": 4}
    )
    command = at.start()
    wait_accepted(at.it, 2)
    wait_for(lambda: workers_on(nodes[0]), 60, "a worker on the first node")
    nodes[0].kill_jobs()
    nodes[0].kill()
    command.wait(180, code=0)
    assert_exact(at.it, at.pages)
    states = {node["name"]: node["state"] for node in last_crawl(at.it).summary["nodes"]}
    assert states == {nodes[0].name: "down", nodes[1].name: "up"}


@pytest.mark.black_box
@pytest.mark.real_start
def test_a_machine_that_is_named_while_a_crawl_runs_works_beside_the_first(
    scene: MakeScene, fleet: StartFleet
) -> None:
    """N17: as many workers as there are slots."""
    one, two = fleet(2, max_proc=1, poll_interval=0.2)
    slow = {"CONCURRENT_REQUESTS": 2, "DISTRIBUTED_BATCH_SIZE": 2}
    at = scene(400, "--latency=1", per_page=100, nodes=[one], **slow)
    command = at.start("--pull", "--name", "grows")
    wait_accepted(at.it, node=one.name)
    at.it.targets([one, two])
    wait_accepted(at.it, node=two.name)
    assert [len(workers_on(node)) for node in (one, two)] == [1, 1]
    assert command.running()
    at.run("jobs", "cancel", "--crawl", "grows", "--yes", code=0)


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
    project: MakeProject, run_cli: RunCommand, fleet: StartFleet, site: StartSite
) -> None:
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
        sizes = {slot.slot: sum(slot.requests.values()) for slot in store.backlog(row.id).slots}
        priorities = {(batch.slot[:-1], batch.priority) for batch in store.batches(row.id)}
    families = {"p": ["p0"], "odd": ["odd0", "odd1"], "even": ["even0", "even1", "even2"]}
    assert set(sizes) == {slot for slots in families.values() for slot in slots}
    totals = {name: sum(sizes[slot] for slot in slots) for name, slots in families.items()}
    assert totals == {"p": 3, "odd": 45, "even": 45}
    assert priorities == {("p", 0), ("odd", 1), ("even", 0)}


# leases: what stands still is replaced, and never makes another request


@pytest.mark.black_box
def test_workers_hold_leases_where_they_reach_the_store_and_work_as_well_where_they_do_not(
    scene: MakeScene, fleet: StartFleet, tmp_path: Path
) -> None:
    near, far = *fleet(1), *fleet(1, env={"SDIST_STORE": str(tmp_path / "another-machine.db")})
    at = scene(80, per_page=40, nodes=[near, far], DISTRIBUTED_BATCH_SIZE=20)
    at.crawl(way="scrapy")
    assert at.pages.differences(at.it.items(ITEMS)) == {}
    accepted = attempts(at.it, AttemptState.ACCEPTED)
    jobs = {
        node: [a.job for a in accepted if a.url == node.url.rstrip("/")] for node in (near, far)
    }
    assert {report_of(near, job)["no_lease"] for job in jobs[near]} == {""}
    (reason,) = {report_of(far, job)["no_lease"] for job in jobs[far]}
    assert "there is no file" in reason
    assert not (tmp_path / "another-machine.db").exists()


def busy(nodes: list[ScrapydNode]) -> tuple[ScrapydNode, int, str] | None:
    """A worker with a good part of its batch to go: its node, its process, its job."""
    return next(((node, *found) for node in nodes for found in busy_workers(node).items()), None)


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("redis", "orphan"),
    [
        (True, True),
        pytest.param(False, True, marks=pytest.mark.full),
        pytest.param(False, False, marks=pytest.mark.full),
    ],
)
def test_a_worker_that_is_stopped_until_its_batch_is_done_elsewhere_makes_no_more_requests(
    redis: bool, orphan: bool, scene: MakeScene, fleet: StartFleet, tmp_path: Path
) -> None:
    """By SIGSTOP; as an orphan it hears of nothing but its lease. Then it goes on."""
    nodes = fleet(2)
    at = scene(
        200, "--latency=0.1", per_page=50, nodes=nodes, DISTRIBUTED_LEASE=3, CONCURRENT_REQUESTS=1
    )
    with ExitStack() as stack:
        env = (
            {"SDIST_STORE": stack.enter_context(closing(RedisServer(tmp_path / "redis"))).url}
            if redis
            else None
        )
        command = at.start(way="scrapy", env=env)
        node, pid, job = wait_for(lambda: busy(nodes), 90, "a worker at work")
        os.kill(pid, signal.SIGSTOP)
        if orphan:
            node.kill()
            for other in set(node.job_pids()) - {pid}:
                os.kill(other, signal.SIGKILL)
        done = command.wait(120, code=0)
        assert orphan or "stands still" in done.err
        assert at.pages.differences(at.it.items(ITEMS)) == {}

        before = sum(at.pages.hits().values())
        with suppress(
            ProcessLookupError
        ):  # the command has killed it, where it could still ask its node
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: pid not in node.job_pids(), 30, "the end of the worker that was stopped")
        assert sum(at.pages.hits().values()) - before <= 1, (
            "more than the request that was under way"
        )
        report = report_of(node, job)
        assert report["requests"] - report["done"] > 10, "it had little to go"
        if orphan:
            assert (report["state"], report["finish_reason"], report["lease"]) == (
                "ended",
                "superseded",
                True,
            )


@pytest.mark.black_box
def test_where_no_worker_finds_the_store_the_crawl_says_so_and_can_begin_when_that_is_mended(
    scene: MakeScene, fleet: StartFleet, tmp_path: Path
) -> None:
    """A container with its own disk: its address is this machine's, and only a worker there finds out."""
    elsewhere = fleet(1, poll_interval=0.2, env={"SDIST_STORE": str(tmp_path / "not-here.db")})
    at = scene(20, per_page=20, nodes=elsewhere)
    done = at.run("crawl", "easy", "--pull", "--max-jobs", 2, "-o", ITEMS, code=2)
    assert "there is no file" in done.out + done.err
    assert at.pages.item_hits() == {}
    row = last_crawl(at.it)
    assert (row.state.value, row.exit_code) == ("stopped", 2)
    at.it.targets(fleet(1, poll_interval=0.2))
    at.run("resume", row.id, code=0)
    assert at.pages.differences(at.it.items(ITEMS)) == {}
