"""Two checkouts of a project have a crawl of one name on the same nodes: neither takes the other's jobs for its own."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scrapyd_dist.batches import Crawl, CrawlState, home_of, job_id, worker_id
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.jobs.cancellation import Cancellation, SignalTerms
from scrapyd_dist.jobs.job_list import JobFilter
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, Job, Jobs, JobState
from scrapyd_dist.store import Store, open_store

NODE = Node.parse("http://web1:6800")
MINE, THEIRS = home_of("c1", 1.0), home_of("c1", 2.0)
JOBS = [
    worker_id(MINE, 1),
    job_id(MINE, 1, 1),
    worker_id(THEIRS, 1),
    job_id(THEIRS, 1, 1),
    worker_id("c1", 7),
]


class NodeOfBoth:
    """A node that lists jobs of the crawl c1, of another one of that name, and one of an earlier version."""

    def send(self, node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        assert call.path == "listjobs.json"
        rows = tuple(Job(id=job, project="p", spider="s", state=JobState.RUNNING) for job in JOBS)
        return Jobs(pending=(), running=rows, finished=())


@dataclass(frozen=True)
class NoProducers:
    """Crawls without processes."""

    def runs(self, crawl: Crawl) -> bool:
        return False

    def stop(self, crawl: Crawl, wait: float) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / "store.db")) as made:
        yield made


@pytest.fixture
def site(tmp_path: Path, store: Store) -> JobSite:
    return JobSite(root=tmp_path, sender=NodeOfBoth(), find_store=lambda: store)


def cancelled(site: JobSite, *names: str) -> list[str]:
    wanted = JobFilter(nodes=[NODE])
    cancellation = Cancellation(site, wanted, names, SignalTerms(), NoProducers())
    return [row.job for row in cancellation.plan().jobs]


def test_a_crawl_is_stopped_with_its_own_jobs_only(site: JobSite, store: Store) -> None:
    crawl = Crawl(id="c1", project="p", spider="s", created=1.0, state=CrawlState.STOPPED)
    store.add_crawl(crawl)
    assert cancelled(site, "c1") == [JOBS[0], JOBS[1], JOBS[4]]
    # By its id, or with all, any job may be meant.
    assert cancelled(site, JOBS[2]) == [JOBS[2]]
    assert cancelled(site) == JOBS


def test_where_the_store_has_no_such_crawl_its_name_means_what_the_nodes_list(
    site: JobSite,
) -> None:
    assert cancelled(site, "c1") == JOBS


def test_commands_about_a_crawl_s_jobs_pass_the_others_over(site: JobSite, store: Store) -> None:
    store.add_crawl(Crawl(id="c1", project="p", spider="s", created=1.0))
    listed, rows = JobFilter(nodes=[NODE]).named(site, ["c1"])
    assert [row.job for row in rows] == [JOBS[0], JOBS[1], JOBS[4]]
    assert [row.crawl for row in listed.jobs] == ["c1", "c1", None, None, "c1"]
    with pytest.raises(NothingMatched):
        JobFilter(nodes=[NODE]).named(site, ["c2"])
