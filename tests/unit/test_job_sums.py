"""What Scrapy counted, added up: over named jobs, and over all that ended in a time."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from rig.documents import document_misfits
from rig.stores import CRAWL, bring_to
from scrapyd_dist.cli.jobs.job_stats import _show_window
from scrapyd_dist.cli.output import Output

from scrapyd_dist.batches import BatchState
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.jobs.job_list import JobFilter
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.jobs.job_sums import sum_ended_jobs, sum_named_jobs
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, Chunk, Job, Jobs, JobState
from scrapyd_dist.store import Store, open_store

NODE = Node.parse("http://web1:6800", name="web1")
NOW = time.time()
ENDED = JobRecord(
    id="easy-1",
    spider="easy",
    project="shop",
    version="1",
    created=NOW - 100,
    url=NODE.url,
    node="web1",
    labels=("night=1",),
    state=Outcome.FINISHED,
    ended=NOW - 50,
    pages=100,
    items=90,
)
LOGS = {
    "easy-8": b"""\
2026-11-20 12:00:10 [scrapy.statscollectors] INFO: Dumping Scrapy stats:
{'item_scraped_count': 98, 'finish_reason': 'finished'}
2026-11-20 12:00:10 [scrapy.core.engine] INFO: Spider closed (finished)
""",
    "easy-9": b"2026-11-20 12:00:10 [scrapy.core.scraper] ERROR: it gave no answer\n",
}


class Shelf:
    """A node with three jobs that are over, of which two have left logs."""

    def send(self, node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        if call.path == "listjobs.json":
            names = [*LOGS, "easy-7"]
            rows = [
                Job(id=name, project="shop", spider="easy", state=JobState.FINISHED)
                for name in names
            ]
            return Jobs(pending=(), running=(), finished=tuple(rows))
        log = LOGS.get(call.path.rpartition("/")[2].removesuffix(".log"))
        if log is None:
            return None
        date = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
        start = call.start or 0
        if call.sink is not None:
            call.sink(log)
        return Chunk(body=log[start:], start=start, total=len(log), date=date, modified=date)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / "store.db")) as made:
        failed = replace(ENDED, id="hard-1", spider="hard", state=Outcome.FAILED, labels=())
        old = replace(ENDED, id="easy-0", ended=NOW - 5000)
        made.keep_jobs([ENDED, failed, old])
        yield made


@pytest.fixture
def site(tmp_path: Path, store: Store) -> JobSite:
    return JobSite(root=tmp_path, sender=Shelf(), find_store=lambda: store)


def test_named_jobs_are_added_up_by_their_logs(site: JobSite) -> None:
    found = sum_named_jobs(site, JobFilter(nodes=[NODE]), ["easy-7", "easy-8", "easy-9"])
    document = found.document()
    assert (document["jobs"], document["silent"], document["partial"]) == (2, ["easy-7"], ["easy-9"])  # fmt: skip
    assert list(document) == ["jobs", "partial", "home", "silent", "stats"]
    assert found.sums["item_scraped_count"].sum == 98
    assert found.sums["log_count/ERROR"].sum == 1


def test_jobs_that_left_nothing_are_an_error(site: JobSite) -> None:
    with pytest.raises(NothingMatched, match="left stats, nor a log"):
        sum_named_jobs(site, JobFilter(nodes=[NODE]), ["easy-7"])
    with pytest.raises(NothingMatched, match="nosuch"):
        sum_named_jobs(site, JobFilter(nodes=[NODE]), ["nosuch"])


@pytest.mark.parametrize(
    ("spider", "labels", "states"),
    [
        (None, None, {"failed": 1, "finished": 1}),
        ("ea*", None, {"finished": 1}),
        (None, ["night"], {"finished": 1}),
        (None, ["night=2"], {}),
    ],
)
def test_a_window_has_the_jobs_that_ended_in_it(
    site: JobSite, spider: str | None, labels: list[str] | None, states: dict[str, int]
) -> None:
    wanted = JobFilter(nodes=[NODE], spider=spider)
    found = sum_ended_jobs(site, wanted, NOW - 1000, labels)
    assert (found.states, found.jobs) == (states, sum(states.values()))
    if states:
        assert found.sums["item_scraped_count"].sum == 90 * found.jobs
    names = ["jobs", "batches", "since", "states", "spiders", "silent", "stats"]
    assert list(found.document()) == names


def test_a_window_is_split_by_spider(site: JobSite, store: Store) -> None:
    died = replace(ENDED, id="easy-2", state=Outcome.DIED, pages=None, items=None, errors=4)
    stopped = replace(ENDED, id="easy-3", state=Outcome.CANCELLED)
    store.keep_jobs([died, stopped])
    found = sum_ended_jobs(site, JobFilter(nodes=[NODE]), NOW - 1000, None)
    easy = {"spider": "easy", "jobs": 3, "failed": 1, "pages": 200, "items": 180, "errors": 4}
    hard = {"spider": "hard", "jobs": 1, "failed": 1, "pages": 100, "items": 90, "errors": 0}
    document = found.document()
    assert document["spiders"] == [easy, hard]
    assert document_misfits("jobs stats", {"schema": 1, **document}) == []


def test_each_batch_of_a_crawl_counts_as_a_job_of_its_spider(site: JobSite, store: Store) -> None:
    store.add_crawl(CRAWL)
    bring_to(store, BatchState.DONE)
    bring_to(store, BatchState.FAILED)
    found = sum_ended_jobs(site, JobFilter(nodes=[NODE], spider=CRAWL.spider), 10.0, None)
    of_crawl = {"spider": "s", "jobs": 2, "failed": 1, "pages": 0, "items": 2, "errors": 0}
    assert (found.jobs, found.batches, found.document()["spiders"]) == (2, 2, [of_crawl])
    every = sum_ended_jobs(site, JobFilter(nodes=[NODE]), 10.0, None)
    assert (every.jobs, every.batches) == (5, 2)


def test_a_window_shows_its_spiders_before_its_stats(
    site: JobSite, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add_crawl(CRAWL)
    bring_to(store, BatchState.DONE)
    found = sum_ended_jobs(site, JobFilter(nodes=[NODE]), 10.0, None)
    _show_window(found, 60.0, Output())
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["SPIDER", "JOBS", "FAILED", "PAGES", "ITEMS", "ERRORS"]
    assert lines[1:5] == [
        ["easy", "2", "0", "200", "180", "0"],
        ["hard", "1", "1", "100", "90", "0"],
        ["s", "1", "0", "0", "2", "0"],
        [],
    ]
    assert lines[5][0] == "STAT"
    assert "Jobs: 1 failed, 3 finished. Of them, 1 is a batch of a crawl" in shown.err
    assert "JOBS says how many of the 4 jobs left a stat" in shown.err


def test_a_window_in_which_nothing_ended_says_so(
    site: JobSite, capsys: pytest.CaptureFixture[str]
) -> None:
    found = sum_ended_jobs(site, JobFilter(nodes=[NODE]), NOW - 24, None)
    _show_window(found, 24.0, Output())
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "No such job ended in the last 24 s.\n")


def test_of_named_nodes_only_their_jobs_are_in_a_window(site: JobSite) -> None:
    other = Node.parse("http://web2:6800", name="web2")
    assert sum_ended_jobs(site, JobFilter(nodes=[other]), NOW - 1000, None).jobs == 2
    narrowed = JobFilter(nodes=[other], narrowed=True)
    assert sum_ended_jobs(site, narrowed, NOW - 1000, None).jobs == 0
