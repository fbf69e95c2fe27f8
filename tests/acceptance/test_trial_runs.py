"""Crawls that are to end early: by `CLOSESPIDER_…` in each job, and by `--limit` as a whole."""

import time

import pytest
from rig.bad_days import ITEMS, MakeScene, arguments, wait_accepted
from rig.crawls import assert_balanced, assert_one_paragraph, crawls, last_crawl, misses

from scrapyd_dist.batches import CrawlState, home_of

pytestmark = pytest.mark.black_box

#: a pipeline that cannot be loaded
NO_PIPELINE = 'ITEM_PIPELINES={"no.such.Pipeline": 1}'


@pytest.mark.parametrize("way", ["--push", pytest.param("--pull", marks=pytest.mark.full)])
def test_a_job_that_its_settings_end_has_done_what_was_asked(way: str, scene: MakeScene) -> None:
    """No blame, no halves, no next attempt, no workers without end; what was not made is listed."""
    at = scene(60, CONCURRENT_REQUESTS=1)
    words = [
        "--batch-size",
        "15",
        "--max-jobs",
        "2",
        "-s",
        "CLOSESPIDER_ITEMCOUNT=4",
        "-s",
        "DISTRIBUTED_LIMITT=4",
    ]
    at.crawl(way, *words)
    row = last_crawl(at.it)
    assert row.state is CrawlState.FINISHED
    summary = row.summary
    batches = summary["batches"]
    assert (batches["done"], batches["failed"], batches["dead"], summary["dead_urls"]) == (
        4,
        0,
        0,
        0,
    )
    left = [miss for miss in misses(at.it) if miss["reason"].startswith("not made: CLOSESPIDER_")]
    assert {miss["kind"] for miss in left} == {"gone"}
    assert 30 <= len(left) < 56
    assert len(list(at.it.items(ITEMS))) + len(left) == 60
    for said in ("CLOSESPIDER_", "Did you mean DISTRIBUTED_LIMIT?"):
        assert any(said in text for text in summary["warnings"]), said
    found = {one["name"]: one["found"] for one in summary["differences"]}
    assert found["limits of one process"] == ["CLOSESPIDER_ITEMCOUNT"]
    planned = at.run("plan", "easy", way, *words, "--json", code=0).json()["differences"]
    assert planned == summary["differences"]
    if way == "--pull":
        ended = {job["id"] for node in at.nodes for job in node.jobs("finished")}
        assert (
            len({job for job in ended if job.startswith(f"{home_of(row.id, row.created)}.w")}) == 2
        )


def test_a_walk_that_the_settings_end_is_finished_with_what_it_found(scene: MakeScene) -> None:
    at = scene(200, per_page=20)
    at.crawl("-s", "CLOSESPIDER_PAGECOUNT=3", "-s", "DISTRIBUTED_BATCH_SIZE=3", way="scrapy")
    summary = last_crawl(at.it).summary
    assert summary["state"] == "finished"
    assert summary["sealed"] < 200
    assert summary["sealed"] == summary["batches"]["done"] * 3 - (-summary["sealed"] % 3)
    assert any("CLOSESPIDER_PAGECOUNT" in text for text in summary["warnings"])
    assert ["CLOSESPIDER_PAGECOUNT"] in [one["found"] for one in summary["differences"]]


@pytest.mark.full
def test_a_limited_crawl_hands_out_so_many_and_keeps_to_it_when_it_goes_on(
    scene: MakeScene,
) -> None:
    at = scene(200, "--latency=0.3", per_page=20, CONCURRENT_REQUESTS=1)
    command = at.start("--pull", "--limit", "26", "--batch-size", "6", "--max-jobs", "2")
    wait_accepted(at.it, 1)
    crawl = crawls(at.it)[0].id
    at.run("stop", crawl, "--yes", code=0)
    command.wait(60, code=130)
    summary = at.run("resume", crawl, "--json", code=0).json()
    assert_balanced(summary)
    assert (summary["sealed"], summary["items"], len(list(at.it.items(ITEMS)))) == (26, 26, 26)
    assert sum(at.pages.item_hits().values()) < 60
    assert any("limited to 26 target requests" in text for text in summary["warnings"])


@pytest.mark.full
def test_a_crawl_of_a_project_with_a_job_folder_goes_on_where_it_was(scene: MakeScene) -> None:
    """Scrapy would keep what was seen there: an index page that was under way would never be walked again."""
    at = scene(200, "--latency=0.5", per_page=10, CONCURRENT_REQUESTS=1, JOBDIR="job")
    command = at.start("--pull", "--batch-size", "6", "--max-jobs", "2")
    wait_accepted(at.it, 1)
    crawl = crawls(at.it)[0].id
    at.run("stop", crawl, "--yes", code=0)
    command.wait(60, code=130)
    summary = at.run("resume", crawl, "--json", code=0).json()
    assert (summary["items"], summary["urls_distinct"]) == (200, 200)
    assert "JOBDIR" in [one["name"] for one in summary["differences"]]
    assert not (at.it.path / "job").exists()


@pytest.mark.full
def test_ten_pages_by_settings_alone_wait_for_no_batch_to_fill_up(scene: MakeScene) -> None:
    at = scene(400, per_page=20)
    plan = at.run("plan", "easy", "--limit", "10")
    assert "first 10 target requests" in plan.out, plan.err
    at.crawl("-s", "DISTRIBUTED_LIMIT=10", way="scrapy")
    summary = last_crawl(at.it).summary
    assert (summary["sealed"], summary["items"], summary["state"]) == (10, 10, "finished")
    assert summary["duration_s"] < 25
    assert sum(at.pages.hits().values()) < 60


def test_a_probe_forecasts_the_crawl_from_a_few_pages_and_keeps_nothing(scene: MakeScene) -> None:
    at = scene(
        1200, "--latency=0.05", CONCURRENT_REQUESTS=4, FEEDS={"own.jl": {"format": "jsonlines"}}
    )
    options = [*arguments("sdist", at.pages)[1:-3], "--pull", "--max-jobs", "2"]
    told = at.run("plan", *options, "-s", NO_PIPELINE, "--probe", "20", "--json", code=0).json()[
        "forecast"
    ]
    assert (told["expected"], told["targets_per_page"], told["probed"]["detail"]["pages"]) == (
        1200,
        30,
        20,
    )
    assert len(at.pages.hits()) == 40
    assert not list(at.it.path.glob("*.jl"))
    assert "it ends at about" in at.run("plan", *options, "--probe", "5", code=0).out
    begun = time.monotonic()
    at.crawl("--pull", "--max-jobs", "2")
    assert told["seconds"] / 2.5 < time.monotonic() - begun < told["seconds"] * 2.5


@pytest.mark.parametrize(
    ("path", "behaviour", "words"),
    [
        ("/*", "reset", "No index page could be fetched"),
        ("/properties/index_*", "says:nothing", "led to no target request"),
        ("/properties/property_*", "gone", "HTTP 404"),
    ],
)
@pytest.mark.full
def test_a_probe_that_tells_nothing_says_what_to_check(
    path: str, behaviour: str, words: str, scene: MakeScene
) -> None:
    at = scene(60, RETRY_TIMES=0)
    at.pages.behave({path: behaviour})
    done = at.run("plan", *arguments("sdist", at.pages)[1:-3], "--probe", "5", code=1)
    assert_one_paragraph(done.err)
    assert words in done.err
    assert "Check" in done.err
    assert not done.out
