"""Crawls that are to end early: by `CLOSESPIDER_…` in each job, and by `--limit` as a whole."""

import pytest
from rig.bad_days import ITEMS, MakeScene, wait_accepted
from rig.crawls import assert_balanced, crawls, last_crawl, misses

from scrapyd_dist.batches import CrawlState

pytestmark = pytest.mark.black_box


@pytest.mark.parametrize("way", ["--push", "--pull"])
def test_a_job_that_its_settings_end_has_done_what_was_asked(way: str, scene: MakeScene) -> None:
    """No blame, no halves, no next attempt, no workers without end; what was not made is listed."""
    at = scene(60, CONCURRENT_REQUESTS=1)
    words = ["--batch-size", "15", "--max-jobs", "2", "-s", "CLOSESPIDER_ITEMCOUNT=4", "-s", "DISTRIBUTED_LIMITT=4"]
    at.crawl(way, *words)
    row = last_crawl(at.it)
    assert row.state is CrawlState.FINISHED
    summary = row.summary
    batches = summary["batches"]
    assert (batches["done"], batches["failed"], batches["dead"], summary["dead_urls"]) == (4, 0, 0, 0)
    left = [miss for miss in misses(at.it) if miss["reason"].startswith("not made: CLOSESPIDER_")]
    assert {miss["kind"] for miss in left} == {"gone"}
    assert 30 <= len(left) < 56
    assert len(list(at.it.items(ITEMS))) + len(left) == 60
    for said in ("CLOSESPIDER_", "Did you mean DISTRIBUTED_LIMIT?"):
        assert any(said in text for text in summary["warnings"]), said
    if way == "--pull":
        ended = {job["id"] for node in at.nodes for job in node.jobs("finished")}
        assert len({job for job in ended if job.startswith(f"{row.id}.w")}) == 2


def test_a_walk_that_the_settings_end_is_finished_with_what_it_found(scene: MakeScene) -> None:
    at = scene(200, per_page=20, DISTRIBUTED_BATCH_ADAPT=False)
    at.crawl("-s", "CLOSESPIDER_PAGECOUNT=3", "-s", "DISTRIBUTED_BATCH_SIZE=3", way="scrapy")
    summary = last_crawl(at.it).summary
    assert summary["state"] == "finished"
    assert summary["sealed"] < 200
    assert summary["sealed"] == summary["batches"]["done"] * 3 - (-summary["sealed"] % 3)
    assert any("CLOSESPIDER_PAGECOUNT" in text for text in summary["warnings"])
    assert any("DISTRIBUTED_BATCH_ADAPT is old" in text for text in summary["warnings"])


def test_a_limited_crawl_hands_out_so_many_and_keeps_to_it_when_it_goes_on(scene: MakeScene) -> None:
    at = scene(200, "--latency=0.3", per_page=20, CONCURRENT_REQUESTS=1)
    command = at.start("--pull", "--limit", "26", "--batch-size", "6", "--workers", "2")
    wait_accepted(at.it, 1)
    crawl = crawls(at.it)[0].id
    at.run("stop", crawl, "--yes", code=0)
    command.wait(60, code=130)
    summary = at.run("resume", crawl, "--json", code=0).json()
    assert_balanced(summary)
    assert (summary["sealed"], summary["items"], len(list(at.it.items(ITEMS)))) == (26, 26, 26)
    assert sum(at.pages.item_hits().values()) < 60
    assert any("limited to 26 target requests" in text for text in summary["warnings"])


def test_ten_pages_by_settings_alone_wait_for_no_batch_to_fill_up(scene: MakeScene) -> None:
    at = scene(400, per_page=20)
    plan = at.run("plan", "easy", "--limit", "10")
    assert "first 10 target requests" in plan.out, plan.err
    assert "jobs_to_keep" in plan.out + plan.err
    at.crawl("-s", "DISTRIBUTED_LIMIT=10", way="scrapy")
    summary = last_crawl(at.it).summary
    assert (summary["sealed"], summary["items"], summary["state"]) == (10, 10, "finished")
    assert summary["duration_s"] < 25
    assert sum(at.pages.hits().values()) < 60
