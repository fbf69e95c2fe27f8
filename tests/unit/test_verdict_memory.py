"""How a job ended is said once: whatever is removed from its node later, and whichever job gets its name after it."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from scrapyd_dist.batches import Crawl, CrawlState, home_of
from scrapyd_dist.job_record import Outcome, key_of_attempt
from scrapyd_dist.joblogs.verdict import Place, by_report
from scrapyd_dist.joblogs.worker_report import read_report, report_path
from scrapyd_dist.jobs.job_judge import CAME_AGAIN, JobJudge
from scrapyd_dist.jobs.job_list import ListedJob
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.jobs.sent_signals import note_signal
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, Chunk, JobState
from scrapyd_dist.store import Store, open_store

NODE = Node.parse("http://web1:6800/", name="web1")
CRAWL = Crawl(
    id="six", project="shop", spider="links", created=1_795_000_000.0, state=CrawlState.FINISHED
)
BEGAN = datetime.fromtimestamp(CRAWL.created, timezone.utc).replace(tzinfo=None)
JOB = "six.w1.a1"
ROW = ListedJob(
    node=NODE, project="shop", spider="links", job=JOB, state=JobState.FINISHED, started=BEGAN + timedelta(seconds=5),
    ended=BEGAN + timedelta(seconds=90),
)  # fmt: skip
REPORT: dict[str, Any] = {
    "schema": 1, "state": "ended", "updated": 5.5, "requests": 100, "done": 98, "missed": 2, "pages": 98, "items": 98,
    "errors": 2, "finish_reason": "finished", "batches": {"acked": 5}, "stats": {"log_count/ERROR": 2},
    "failed": [{"url": "u", "reason": "503"}, {"url": "v", "reason": "503"}],
}  # fmt: skip
LOG = """\
2026-11-20 12:00:00 [scrapy.core.engine] INFO: Spider opened
2026-11-20 12:00:09 [scrapy.core.engine] ERROR: it gave no answer
2026-11-20 12:00:10 [scrapy.statscollectors] INFO: Dumping Scrapy stats:
{'item_scraped_count': 98, 'log_count/ERROR': 2, 'response_received_count': 101}
2026-11-20 12:00:10 [scrapy.core.engine] INFO: Spider closed (finished)
"""


@dataclass
class Shelf:
    """A node that has these files."""

    files: dict[str, bytes] = field(default_factory=dict)

    def send(self, node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        body = self.files.get(call.path)
        now = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
        return (
            None
            if body is None
            else Chunk(body=body, start=0, total=len(body), date=now, modified=now)
        )


@pytest.fixture
def shelf() -> Shelf:
    report = report_path(home_of(CRAWL.id, CRAWL.created), JOB)
    return Shelf({report: json.dumps(REPORT).encode(), ROW.log: LOG.encode()})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / "store.db")) as made:
        made.add_crawl(CRAWL)
        yield made


def site_of(folder: Path, shelf: Shelf, store: Store) -> JobSite:
    return JobSite(root=folder, sender=shelf, find_store=lambda: store)


def words_on(
    folder: Path, shelf: Shelf, *rows: ListedJob
) -> list[tuple[str, int | None, int | None, int | None, str]]:
    """State, pages, items, errors and reason, as a new command tells them."""
    with closing(open_store(folder / "store.db")) as store:
        judged = JobJudge(site_of(folder, shelf, store), rows).all(rows)
    verdicts = [one.verdict for one in judged]
    return [(one.outcome.value, one.pages, one.items, one.errors, one.reason) for one in verdicts]


GOOD = ("finished", 98, 98, 2, "2 of 100 URLs failed")


def test_what_was_said_of_a_worker_stays_when_its_report_is_removed(
    tmp_path: Path, store: Store, shelf: Shelf
) -> None:
    assert words_on(tmp_path, shelf, ROW) == [GOOD]
    shelf.files.clear()
    assert words_on(tmp_path, shelf, ROW) == [GOOD]


def test_what_a_crawl_has_written_down_is_told_by_commands(
    tmp_path: Path, store: Store, shelf: Shelf
) -> None:
    verdict = by_report(JobState.FINISHED, read_report(json.dumps(REPORT).encode()))
    home = home_of(CRAWL.id, CRAWL.created)
    store.keep_verdicts([verdict.kept(key_of_attempt(NODE.url, home, JOB), 1.0)])
    del shelf.files[report_path(home, JOB)]
    assert words_on(tmp_path, shelf, ROW) == [GOOD]
    store.forget(CRAWL.id)
    assert words_on(tmp_path, shelf, ROW) == [GOOD], "a crawl that is removed takes no word back"


def test_a_worker_of_whose_report_nothing_is_left_is_judged_as_a_worker(
    tmp_path: Path, store: Store, shelf: Shelf
) -> None:
    shelf.files = {ROW.log: LOG.encode()}
    assert words_on(tmp_path, shelf, ROW)[0][0] == "finished", "its misses are told by the crawl"


def test_a_job_that_is_given_an_old_id_changes_nothing_of_the_old_job(
    tmp_path: Path, store: Store, shelf: Shelf
) -> None:
    store.forget(CRAWL.id)
    later = replace(CRAWL, created=CRAWL.created + 600)
    store.add_crawl(later)
    report = {**REPORT, "pages": 7, "items": 7, "failed": [], "missed": 0, "errors": 0, "stats": {}}
    shelf.files[report_path(home_of("six", later.created), JOB)] = json.dumps(report).encode()
    again = replace(
        ROW, started=BEGAN + timedelta(seconds=605), ended=BEGAN + timedelta(seconds=630)
    )
    assert words_on(tmp_path, shelf, ROW, again) == [
        ("unknown", None, None, None, CAME_AGAIN), ("finished", 7, 7, None, ""),
    ]  # fmt: skip


def test_a_job_that_was_seen_before_its_id_came_again_keeps_its_numbers(
    tmp_path: Path, store: Store, shelf: Shelf
) -> None:
    words_on(tmp_path, shelf, ROW)
    store.forget(CRAWL.id)
    store.add_crawl(replace(CRAWL, created=CRAWL.created + 600, state=CrawlState.WORKING))
    again = replace(ROW, state=JobState.RUNNING, started=BEGAN + timedelta(seconds=605), ended=None)
    assert words_on(tmp_path, shelf, ROW, again)[0] == GOOD


@pytest.mark.parametrize("after", [timedelta(days=1), timedelta(days=30)])
def test_a_crawl_that_is_called_like_an_old_one_gives_it_nothing(
    tmp_path: Path, store: Store, shelf: Shelf, after: timedelta
) -> None:
    store.forget(CRAWL.id)
    later = replace(CRAWL, created=CRAWL.created + after.total_seconds(), options={"settings": {}})
    store.add_crawl(later)
    shelf.files[report_path(home_of("six", later.created), JOB)] = json.dumps(
        {**REPORT, "pages": 7}
    ).encode()
    assert words_on(tmp_path, shelf, ROW)[0][1] != 7
    site = site_of(tmp_path, shelf, store)
    assert JobJudge(site, [ROW]).crawl_job_of(ROW) is None
    place = Place(node=NODE, project="shop", spider="links", job=JOB)
    assert JobJudge(site, [place]).crawl_job_of(place) is not None


def test_the_word_on_a_plain_job_of_others_stays_when_its_log_is_removed(
    tmp_path: Path, store: Store, shelf: Shelf
) -> None:
    row = replace(ROW, job="nightly-1")
    shelf.files[row.log] = LOG.encode()
    told = words_on(tmp_path, shelf, row)
    assert told[0][:4] == ("failed", 101, 98, 2)
    shelf.files.clear()
    assert words_on(tmp_path, shelf, row) == told


def test_what_is_not_known_is_not_written_down(tmp_path: Path, store: Store, shelf: Shelf) -> None:
    row = replace(ROW, job="nightly-1")
    assert words_on(tmp_path, shelf, row)[0][0] == "unknown"
    shelf.files[row.log] = LOG.encode()
    assert words_on(tmp_path, shelf, row)[0][0] == "failed"


def test_while_a_crawl_runs_no_word_on_a_worker_that_has_ended_is_the_last(
    tmp_path: Path, store: Store, shelf: Shelf
) -> None:
    begun = {"schema": 1, "state": "running", "updated": 5.5} | dict.fromkeys(
        ("requests", "done", "missed"), 0
    )
    report = report_path(home_of(CRAWL.id, CRAWL.created), JOB)
    shelf.files = {report: json.dumps({**begun, "pages": 0, "items": 0, "stats": {}}).encode()}
    store.update_crawl("six", state=CrawlState.WORKING)
    assert words_on(tmp_path, shelf, ROW)[0][0] == "died"
    store.update_crawl("six", state=CrawlState.FINISHED)
    assert words_on(tmp_path, shelf, ROW)[0][0] == "cancelled", "its crawl had no need of it"


def test_a_job_that_was_killed_by_a_command_did_not_die(
    tmp_path: Path, store: Store, shelf: Shelf
) -> None:
    died = by_report(
        JobState.FINISHED, read_report(json.dumps({**REPORT, "state": "running"}).encode())
    )
    store.keep_verdicts(
        [died.kept(key_of_attempt(NODE.url, home_of(CRAWL.id, CRAWL.created), JOB), 1.0)]
    )
    note_signal(tmp_path, ROW, "KILL")
    assert (died.outcome, words_on(tmp_path, shelf, ROW)[0][0]) == (Outcome.DIED, "killed")
