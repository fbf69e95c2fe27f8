"""What is wrong now, in sentences: nodes, jobs and crawls; of each spider the last crawl tells of its items."""

from typing import Any

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.fleet.present_troubles import find_failed_spiders, find_present_troubles
from scrapyd_dist.job_record import JobRecord, Outcome


def node(name: str, running: int | None, state: str = "up", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "running": running,
        "state": state,
        "reason": "why",
        "draining": None,
        "jobs": [],
        **more,
    }


def crawl(name: str, items: str = "", **fields: Any) -> Crawl:
    summary = {"warnings": [items] if items else []}
    given = {"state": CrawlState.FINISHED, "created": 1.0, **fields}
    return Crawl(id=name, project="shop", spider="easy", summary=summary, **given)


def test_all_that_is_wrong_is_a_sentence_and_what_is_well_is_none() -> None:
    stalled = {"job": "j1", "state": "stalled", "silent_s": 1200}
    fine = {"job": "j2", "state": "running", "silent_s": 3}
    fleet = {
        "nodes": [
            node("up", 2, jobs=[stalled, fine]),
            node("down", None, "down"),
            node("rests", None, "down", draining="2026-01-01T00:00:00+00:00"),
            node("stuck", 0, "wedged"),
        ]
    }
    few = "3 items are unusually few"
    crawls = [
        crawl("gone", state=CrawlState.FINDING, host="elsewhere"),
        crawl("last", few),
        crawl("before", few),
    ]
    assert find_present_troubles(fleet, crawls) == [
        "The job j1 on up makes no progress for 20:00 min.",
        "The node down does not work: why",
        "The node stuck: why",
        "The process of the crawl gone is gone. Go on with: sdist resume gone",
        f"The crawl last: {few}",
    ]
    assert find_present_troubles({"nodes": [node("up", 1)]}, [crawl("last")]) == []


def job(spider: str, state: Outcome, ended: float | None, reason: str = "") -> JobRecord:
    return JobRecord(
        id=f"{spider}-{ended}", spider=spider, project="shop", version="7", created=1.0, node="web1",
        state=state, ended=ended, reason=reason,
    )  # fmt: skip


def test_a_spider_is_in_trouble_by_its_last_job_that_tells_of_it() -> None:
    jobs = [
        job("well", Outcome.FINISHED, 9.0),
        job("well", Outcome.FAILED, 2.0),
        job("ill", Outcome.FINISHED, 1.0),
        job("ill", Outcome.DIED, 2.0, "no close"),
        job("ill", Outcome.CANCELLED, 3.0),
        job("ill", Outcome.RUNNING, None),
        job("new", Outcome.FAILED, 4.0),
    ]
    assert find_failed_spiders(jobs) == [
        "The job ill-2.0 of ill on web1 died: no close.",
        "The job new-4.0 of new on web1 failed.",
    ]
