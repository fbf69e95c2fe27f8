"""Jobs that wait in the store: what is remembered of them before they have a node."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from scrapyd_dist.jobs.job_list import JobFilter
from scrapyd_dist.jobs.job_posts import JobOrder, PlacedJob
from scrapyd_dist.jobs.waiting_jobs import JobQueue, WaitingTerms
from scrapyd_dist.nodes import Node
from scrapyd_dist.store import open_store

NODE = Node.parse("http://web1:6800", name="web1")


@pytest.mark.parametrize("named", ["", "shop"])
def test_a_job_that_waits_is_one_of_its_project_whether_that_was_named_or_not(
    tmp_path: Path, named: str
) -> None:
    job = PlacedJob(order=JobOrder(spider="easy"), node=replace(NODE, project="shop"), job="easy-1")
    with closing(open_store(tmp_path / "store.db")) as store:
        JobQueue(store=store, key=bytes(32), keep_days=1.0).add(
            [job], "v1", WaitingTerms(project=named)
        )
        (record,) = store.jobs()
    assert (record.project, record.wanted_project) == ("shop", named)
    assert JobFilter(nodes=[NODE], project="shop").means(record.project, record.spider)
