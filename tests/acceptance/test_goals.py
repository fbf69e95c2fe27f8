"""Goals of a whole crawl: it ends as finished over all nodes, its rest waits, and `resume` goes on with it."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import scrapy
from rig.bad_days import ITEMS, MakeScene, Scene, attempts
from rig.consumers import ConsumerBench
from rig.crawls import assert_balanced, crawls
from rig.fixtures import StartFleet
from rig.redis import RedisServer
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

pytestmark = pytest.mark.black_box
#: several workers with several batches each; and jobs, of which each takes seconds to start
MANY = {
    "--pull": ("--batch-size", "7", "--max-jobs", "3"),
    "--push": ("--batch-size", "20", "--max-jobs", "3"),
}
#: pages for each place in a downloader: while one waits for its callback, the next is fetched; before Scrapy 2.14 it waits 0.1 s
UNDER_WAY = 2 if scrapy.version_info >= (2, 14) else 3


def hits(at: Scene) -> int:
    """All that the site was asked for."""
    return sum(at.pages.hits().values())


def assert_rest_is_kept(at: Scene, summary: dict[str, Any], goal: str) -> None:
    """It is finished, and each request is done, or waits in a batch; nothing is lost or failed."""
    assert (summary["state"], summary["goal"], summary["failed_urls"], summary["dead_urls"]) == (
        "finished",
        goal,
        0,
        0,
    )
    assert summary["batches"]["waiting"]
    assert any(f"--max-{goal}" in text and "sdist resume" in text for text in summary["warnings"])
    assert summary["items"] == len(list(at.it.items(ITEMS)))


def assert_goes_on(at: Scene, crawl: str, **options: Any) -> None:
    """Without a goal, the rest comes home, each item once."""
    summary = at.run("resume", crawl, "--json", timeout=180, code=0, **options).json()
    assert_balanced(summary)
    assert (summary["goal"], summary["batches"]["waiting"]) == (None, 0)
    assert at.pages.differences(at.it.items(ITEMS)) == {}


@pytest.mark.parametrize(
    ("way", "redis"),
    [pytest.param("--pull", False, marks=pytest.mark.full), ("--pull", True), ("--push", False)],
)
def test_so_many_requests_reach_the_site_and_no_more(
    way: str, redis: bool, scene: MakeScene, tmp_path: Path
) -> None:
    at = scene(200, "--latency=0.05", per_page=20, RETRY_TIMES=1)
    at.pages.behave({at.pages.site.detail_path(3): "fail", at.pages.site.detail_path(4): "fail"})
    env = {}
    with ExitStack() as stack:
        if redis:
            env = {"SDIST_STORE": stack.enter_context(closing(RedisServer(tmp_path / "redis"))).url}
        crawl = at.crawl(
            way, *MANY[way], "--max-requests", "100", "--max-failed", "2", env=env
        ).json()["crawl"]
        assert hits(at) == 100
        at.pages.behave({})
        at.run("resume", crawl, "--max-requests", "130", "--json", env=env, code=0)
        assert hits(at) == 130
        if redis or way == "--push":
            return
        at.run("resume", crawl, "--json", timeout=180, env=env)
        at.run("retry", crawl, "--failed-urls", "--json", timeout=180, env=env)
        assert at.pages.differences(at.it.items(ITEMS)) == {}


@pytest.mark.parametrize(
    ("way", "goal"), [("--pull", "items"), pytest.param("--push", "pages", marks=pytest.mark.full)]
)
def test_at_least_so_many_come_home_and_at_most_what_was_under_way_besides(
    way: str, goal: str, scene: MakeScene
) -> None:
    at = scene(300, "--latency=0.05", per_page=20, CONCURRENT_REQUESTS=4)
    summary = at.crawl(way, *MANY[way], f"--max-{goal}", "100").json()
    assert_rest_is_kept(at, summary, goal)
    assert 100 <= summary[goal] <= 100 + UNDER_WAY * 4 * 4  # three jobs and the producer
    if way == "--push":
        assert_goes_on(at, summary["crawl"])


def test_a_killed_worker_costs_neither_items_nor_a_request_too_many(scene: MakeScene) -> None:
    """What it had counted is not taken for home, and what it was granted is not granted again."""
    at = scene(300, "--latency=0.2", per_page=50, CONCURRENT_REQUESTS=4)
    goals = ("--max-items", "120", "--max-requests", "200")
    command = at.start("--pull", "--batch-size", "20", "--max-jobs", "2", *goals)
    victims = wait_for(
        lambda: [pid for node in at.nodes for pid in _in_a_batch(at, node)],
        60,
        "a worker in its batch",
    )
    os.kill(victims[0], signal.SIGKILL)
    summary = command.wait(180, code=0).json()
    assert_rest_is_kept(at, summary, "items")
    assert 120 <= summary["items"] <= 120 + UNDER_WAY * 3 * 4
    summary = at.run("resume", summary["crawl"], "--json", timeout=180, code=0).json()
    assert summary["goal"] == "requests", "the goal that was not reached holds on"
    assert 200 - 4 <= hits(at) <= 200
    assert_goes_on(at, summary["crawl"])


def _in_a_batch(at: Scene, node: Any) -> list[int]:
    out = {attempt.worker for attempt in attempts(at.it, AttemptState.RUNNING, node=node.name)}
    return [pid for pid, job in node.job_pids().items() if job in out]


@pytest.mark.timeout(500)
def test_jobs_without_the_store_keep_to_what_is_left_once_that_is_known(
    scene: MakeScene, fleet: StartFleet, tmp_path: Path
) -> None:
    far = fleet(2, env={"SDIST_STORE": str(tmp_path / "another-machine.db")})
    at = scene(300, "--latency=0.05", per_page=30, nodes=far)
    # More than ten jobs one after the other: on a busy machine each takes many seconds to start.
    command = at.start("--batch-size", "10", "--max-jobs", "2", "--max-requests", "100")
    summary = command.wait(360, code=0).json()
    assert (summary["state"], summary["goal"]) == ("finished", "requests")
    assert hits(at) == 100, "as `docs/reference/limits.md` says"


def test_goals_of_the_project_by_settings_alone_and_a_time(scene: MakeScene) -> None:
    whole = {
        "DISTRIBUTED_CLOSESPIDER": "crawl",
        "CLOSESPIDER_ITEMCOUNT": 60,
        "DISTRIBUTED_MODE": "pull",
    }
    at = scene(
        400, "--latency=0.3", per_page=20, CONCURRENT_REQUESTS=2, DISTRIBUTED_BATCH_SIZE=10, **whole
    )
    planned = at.run("plan", "easy", "--max-time", "8", code=0).out
    assert "Ends at 60 items (--max-items) or 8 seconds (--max-time)" in planned
    at.crawl("--max-jobs", "2", "--max-time", "8").expect(0)
    at.crawl(way="scrapy", code=0)
    timed, counted = crawls(at.it)[1].summary, crawls(at.it)[0].summary
    assert (counted["state"], counted["goal"]) == ("finished", "items")
    assert 60 <= counted["items"] <= 60 + 8 * 2
    assert any(
        "CLOSESPIDER_ITEMCOUNT" in text or "--max-items" in text for text in counted["warnings"]
    )
    assert timed["goal"] in {"items", "time"}


DEEP = """\
import scrapy


class Deep(scrapy.Spider):
    name = "deep"

    async def start(self):
        yield scrapy.Request(self.settings["START_URL"] + "?n=1")

    def parse(self, response):
        yield {"depth": response.meta["depth"]}
        number = int(response.url.rpartition("=")[2])
        for following in (2 * number, 2 * number + 1):
            yield response.follow(response.url.rpartition("=")[0] + f"={following}", callback=self.parse)
"""


def test_links_are_followed_to_the_same_depth_whichever_worker_finds_them(scene: MakeScene) -> None:
    at = scene(10)
    at.it.spider("deep", DEEP)
    more = (
        "-s",
        "DISTRIBUTED_TARGET_CALLBACKS=parse",
        "-s",
        "DISTRIBUTED_SEEDS=1",
        "-o",
        "deep.jl",
        "--json",
    )
    at.run(
        "crawl",
        "deep",
        "--pull",
        "--batch-size",
        "2",
        "--max-jobs",
        "3",
        "--max-depth",
        "3",
        *more,
        code=0,
    )
    assert Counter(item["depth"] for item in at.it.items("deep.jl")) == {0: 1, 1: 2, 2: 4, 3: 8}


def test_a_consumer_leaves_the_rest_to_the_next_one(bench: Callable[..., ConsumerBench]) -> None:
    it = bench(items=60, size=5, latency=0.1, CONCURRENT_REQUESTS=2)
    words = ("--max-running", "2", "--per-slot", "1", "-O", "items.jl", "--json")
    for times in (1, 2):
        done = it.consume("--max-items", "20", *words, code=0).json()
        assert (done["goal"], done["state"]) == ("items", "stopped")
        assert "--max-items" in done["message"]
        assert 20 * times <= done["items"] <= (20 + UNDER_WAY * 2 * 2) * times
    it.consume(*words, code=0)
    it.assert_all_home()
