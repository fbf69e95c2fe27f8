"""Goals of a whole crawl: it ends as finished over all nodes, its rest waits, and `resume` goes on with it."""

import os
import signal
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from rig.bad_days import ITEMS, MakeScene, Scene, attempts
from rig.crawls import assert_balanced
from rig.redis import RedisServer
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

pytestmark = pytest.mark.black_box
#: several workers with several batches each
MANY = ("--batch-size", "7", "--max-jobs", "3")


def hits(at: Scene) -> int:
    """All that the site was asked for."""
    return sum(at.pages.hits().values())


def assert_rest_is_kept(at: Scene, summary: dict[str, Any], goal: str) -> None:
    """It is finished, and each request is done, or waits in a batch; nothing is lost or failed."""
    assert (summary["state"], summary["goal"], summary["failed_urls"], summary["dead_urls"]) == ("finished", goal, 0, 0)
    assert summary["batches"]["waiting"]
    assert any(f"--max-{goal}" in text and "sdist resume" in text for text in summary["warnings"])
    assert summary["items"] == len(list(at.it.items(ITEMS)))


def assert_goes_on(at: Scene, crawl: str, **options: Any) -> None:
    """Without a goal, the rest comes home, each item once."""
    summary = at.run("resume", crawl, "--json", timeout=180, code=0, **options).json()
    assert_balanced(summary)
    assert (summary["goal"], summary["batches"]["waiting"]) == (None, 0)
    assert at.pages.differences(at.it.items(ITEMS)) == {}


@pytest.mark.parametrize(("way", "redis"), [("--pull", False), ("--pull", True), ("--push", False)])
def test_so_many_requests_reach_the_site_and_no_more(way: str, redis: bool, scene: MakeScene, tmp_path: Path) -> None:
    at = scene(200, "--latency=0.05", per_page=20, RETRY_TIMES=1)
    at.pages.behave({at.pages.site.detail_path(3): "fail", at.pages.site.detail_path(4): "fail"})
    env = {}
    with ExitStack() as stack:
        if redis:
            env = {"SDIST_STORE": stack.enter_context(closing(RedisServer(tmp_path / "redis"))).url}
        crawl = at.crawl(way, *MANY, "--max-requests", "100", "--max-failed", "2", env=env).json()["crawl"]
        assert hits(at) == 100
        at.pages.behave({})
        at.run("resume", crawl, "--max-requests", "130", "--json", env=env, code=0)
        assert hits(at) == 130
        at.run("resume", crawl, "--json", timeout=180, env=env)
        at.run("retry", crawl, "--failed-urls", "--json", timeout=180, env=env)
        assert at.pages.differences(at.it.items(ITEMS)) == {}


@pytest.mark.parametrize("way", ["--pull", "--push"])
@pytest.mark.parametrize("goal", ["items", "pages"])
def test_at_least_so_many_come_home_and_at_most_what_was_under_way_besides(
    way: str, goal: str, scene: MakeScene
) -> None:
    at = scene(300, "--latency=0.05", per_page=20, CONCURRENT_REQUESTS=4)
    summary = at.crawl(way, *MANY, f"--max-{goal}", "100").json()
    assert_rest_is_kept(at, summary, goal)
    assert 100 <= summary[goal] <= 100 + 4 * 4  # three jobs and the producer
    assert_goes_on(at, summary["crawl"])


def test_what_a_killed_worker_had_counted_is_not_taken_for_home(scene: MakeScene) -> None:
    at = scene(300, "--latency=0.2", per_page=50, CONCURRENT_REQUESTS=4)
    command = at.start("--pull", "--batch-size", "20", "--max-jobs", "2", "--max-items", "120")
    victims = wait_for(lambda: [pid for node in at.nodes for pid in _in_a_batch(at, node)], 60, "a worker in its batch")
    os.kill(victims[0], signal.SIGKILL)
    summary = command.wait(180, code=0).json()
    assert_rest_is_kept(at, summary, "items")
    assert 120 <= summary["items"] <= 120 + 3 * 4
    assert_goes_on(at, summary["crawl"])


def _in_a_batch(at: Scene, node: Any) -> list[int]:
    out = {attempt.worker for attempt in attempts(at.it, AttemptState.RUNNING, node=node.name)}
    return [pid for pid, job in node.job_pids().items() if job in out]
