"""Crawls that are to end early: by `CLOSESPIDER_…` in each job, and by `--limit` as a whole."""

import pytest
from rig.bad_days import IMPATIENT, ITEMS, arguments, wait_accepted
from rig.crawls import ADDON, assert_balanced, crawls, last_crawl, misses
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode

from scrapyd_dist.batches import CrawlState

pytestmark = pytest.mark.black_box


@pytest.mark.parametrize("way", ["--push", "--pull"])
def test_a_job_that_its_settings_end_has_done_what_was_asked(
    way: str, project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    """No blame, no halves, no next attempt, no workers without end; what was not made is listed."""
    pages = site(60, per_page=30)
    it = project(nodes=pair, settings={**IMPATIENT, "START_URL": pages.start_url, "CONCURRENT_REQUESTS": 1})
    words = ["--batch-size", "15", "--max-jobs", "2", "-s", "CLOSESPIDER_ITEMCOUNT=4", "-s", "DISTRIBUTED_LIMITT=4"]
    run_cli(it, *arguments("sdist", pages), way, *words, timeout=120, code=0)
    row = last_crawl(it)
    assert row.state is CrawlState.FINISHED
    summary = row.summary
    assert_balanced(summary)
    batches = summary["batches"]
    assert (batches["done"], batches["failed"], batches["dead"], summary["dead_urls"]) == (4, 0, 0, 0)
    left = [miss for miss in misses(it) if miss["reason"].startswith("not made: CLOSESPIDER_")]
    assert {miss["kind"] for miss in left} == {"gone"}
    assert 30 <= len(left) < 56
    assert len(list(it.items(ITEMS))) + len(left) == 60
    for said in ("CLOSESPIDER_", "Did you mean DISTRIBUTED_LIMIT?"):
        assert any(said in text for text in summary["warnings"]), said
    if way == "--pull":
        workers = {job["id"] for node in pair for job in node.jobs("finished") if job["id"].startswith(f"{row.id}.w")}
        assert len(workers) == 2


def test_a_walk_that_the_settings_end_is_finished_with_what_it_found(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_scrapy: RunCommand
) -> None:
    pages = site(200, per_page=20)
    it = project(
        nodes=pair,
        settings={**IMPATIENT, "START_URL": pages.start_url, "ADDONS": ADDON, "DISTRIBUTED_BATCH_ADAPT": False},
    )
    words = arguments("scrapy", pages)
    run_scrapy(it, *words, "-s", "CLOSESPIDER_PAGECOUNT=3", "-s", "DISTRIBUTED_BATCH_SIZE=3", timeout=120, code=0)
    summary = last_crawl(it).summary
    assert summary["state"] == "finished"
    assert summary["sealed"] < 200
    assert summary["sealed"] == summary["batches"]["done"] * 3 - (-summary["sealed"] % 3)
    assert any("CLOSESPIDER_PAGECOUNT" in text for text in summary["warnings"])
    assert any("DISTRIBUTED_BATCH_ADAPT is old" in text for text in summary["warnings"])


def test_a_limited_crawl_hands_out_so_many_and_keeps_to_it_when_it_goes_on(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, start_cli: StartCommand, run_cli: RunCommand
) -> None:
    pages = site(200, "--latency=0.3", per_page=20)
    it = project(nodes=pair, settings={**IMPATIENT, "START_URL": pages.start_url, "CONCURRENT_REQUESTS": 1})
    words = ["--pull", "--limit", "26", "--batch-size", "6", "--workers", "2"]
    command = start_cli(it, *arguments("sdist", pages), *words)
    wait_accepted(it, 1)
    crawl = crawls(it)[0].id
    run_cli(it, "stop", crawl, "--yes", code=0)
    assert command.wait(60).code == 130
    done = run_cli(it, "resume", crawl, "--json", timeout=120, code=0)
    summary = done.json()
    assert_balanced(summary)
    assert (summary["sealed"], summary["items"], len(list(it.items(ITEMS)))) == (26, 26, 26)
    assert sum(pages.item_hits().values()) < 60
    assert any("limited to 26 target requests" in text for text in summary["warnings"])


def test_ten_pages_by_settings_alone_wait_for_no_batch_to_fill_up(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_scrapy: RunCommand, run_cli: RunCommand
) -> None:
    pages = site(400, per_page=20)
    it = project(nodes=pair, settings={**IMPATIENT, "START_URL": pages.start_url, "ADDONS": ADDON})
    plan = run_cli(it, "plan", "easy", "--limit", "10")
    assert "first 10 target requests" in plan.out, plan.err
    assert "jobs_to_keep" in plan.out + plan.err
    run_scrapy(it, *arguments("scrapy", pages), "-s", "DISTRIBUTED_LIMIT=10", timeout=120, code=0)
    summary = last_crawl(it).summary
    assert (summary["sealed"], summary["items"], summary["state"]) == (10, 10, "finished")
    assert summary["duration_s"] < 25
    assert sum(pages.hits().values()) < 60
