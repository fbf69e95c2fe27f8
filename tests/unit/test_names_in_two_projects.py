"""Two checkouts of a project have a crawl of one name on the same nodes: neither takes the other's jobs for its own."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scrapyd_dist.cli.context import Context
from scrapyd_dist.cli.jobs import job_list
from scrapyd_dist.cli.jobs.job_ends import SignalOptions, _Cancellation
from scrapyd_dist.cli.jobs.job_list import JobList, JobQuery, Listed

from scrapyd_dist.batches import Crawl, CrawlState, home_of, job_id, worker_id
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import JobState

NODE = Node.parse("http://web1:6800")
MINE, THEIRS = home_of("c1", 1.0), home_of("c1", 2.0)
JOBS = [
    worker_id(MINE, 1),
    job_id(MINE, 1, 1),
    worker_id(THEIRS, 1),
    job_id(THEIRS, 1, 1),
    worker_id("c1", 7),
]


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """A project with a crawl c1, and a node that lists jobs of it, of another one, and one of an earlier version."""
    (tmp_path / "scrapy.cfg").write_text(
        "[settings]\ndefault = shop.settings\n[deploy]\nurl = http://web1:6800\n"
    )
    rows = tuple(
        Listed(node=NODE, project="p", spider="s", job=job, state=JobState.RUNNING) for job in JOBS
    )

    def ask(*_: Any, **__: Any) -> JobList:
        return JobList(jobs=rows, failed={}, asked=1)

    monkeypatch.setattr(job_list, "ask_jobs", ask)
    made = Context(tmp_path)
    with closing(made):
        yield made


def cancelled(context: Context, *names: str) -> list[str]:
    return [
        row.job for row in _Cancellation(context, JobQuery(), SignalOptions(), names)._find_open()
    ]


def test_a_crawl_is_stopped_with_its_own_jobs_only(context: Context) -> None:
    crawl = Crawl(id="c1", project="p", spider="s", created=1.0, state=CrawlState.STOPPED)
    context.new_store.add_crawl(crawl)
    assert cancelled(context, "c1") == [JOBS[0], JOBS[1], JOBS[4]]
    # By its id, or with all, any job may be meant.
    assert cancelled(context, JOBS[2]) == [JOBS[2]]
    assert cancelled(context) == JOBS


def test_where_the_store_has_no_such_crawl_its_name_means_what_the_nodes_list(
    context: Context,
) -> None:
    assert cancelled(context, "c1") == JOBS


def test_commands_about_a_crawl_s_jobs_pass_the_others_over(context: Context) -> None:
    context.new_store.add_crawl(Crawl(id="c1", project="p", spider="s", created=1.0))
    listed, rows = JobQuery().named(context, ["c1"])
    assert [row.job for row in rows] == [JOBS[0], JOBS[1], JOBS[4]]
    assert [row.crawl for row in listed.jobs] == ["c1", "c1", None, None, "c1"]
    with pytest.raises(NothingMatched):
        JobQuery().named(context, ["c2"])
