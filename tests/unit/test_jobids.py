"""The id of a plain job tells which code it runs."""

from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone

import pytest
from scrapyd_dist.cli.context import versions_by_job
from scrapyd_dist.deploy.node_versions import NodeVersions, in_use, plan

from scrapyd_dist.batches import Crawl, WorkerEntry, worker_id
from scrapyd_dist.batches import job_id as attempt_id
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Job, JobState
from scrapyd_dist.scrapyd.jobs import content_of, crawl_in, job_id

NOW = datetime(2026, 1, 2, 4, 4, 5, tzinfo=timezone(timedelta(hours=1)))
HASH = "0123456789ab"
NAME = f"20251231T000000Z-{HASH}"


@pytest.mark.parametrize("version", [NAME, f"{NAME}-dirty", f"{NAME}-git-v1-2-main-dirty"])
def test_it_tells_the_content(version: str) -> None:
    made = job_id("shop", version, NOW)
    assert made.startswith(f"shop-20260102T030405Z-{HASH}-")
    assert content_of(made) == HASH
    assert job_id("shop", version, NOW) != made


@pytest.mark.parametrize("version", [None, "1_10", "git-v1", "20251231T000000Z-short"])
def test_where_the_version_does_not_tell_neither_does_it(version: str | None) -> None:
    made = job_id("shop", version, NOW)
    assert made.startswith("shop-20260102T030405Z-")
    assert content_of(made) is None


@pytest.mark.parametrize(("spider", "begins"), [("a b/c.d", "a-b-c-d-2026"), ("--x", "x-2026"), ("ü", "job-2026")])
def test_it_is_a_good_file_name(spider: str, begins: str) -> None:
    assert job_id(spider, None, NOW).startswith(begins)


@pytest.mark.parametrize("job", ["", "x", "6487ec79947edab326d6db28a2d86511e8247444", "easy-20260102T030405Z.b1.a1"])
def test_other_ids_tell_nothing(job: str) -> None:
    assert content_of(job) is None


def test_what_holds_a_version_on_a_node() -> None:
    node, made = Node.parse("a:6800"), job_id("shop", NAME, NOW)
    lost = job_id("shop", "20250101T000000Z-ffffffffffff", NOW)
    jobs = tuple(Job(id=name, project="p", spider="shop", state=JobState.RUNNING) for name in (made, "stranger", lost))
    # The same content under two names: it may run either, so it holds both.
    again = f"20260101T000000Z-{HASH}"
    use = in_use(NodeVersions(node=node, project="p", versions=(NAME, again, "other"), jobs=jobs), lambda _: None)
    assert use.jobs == {NAME: (made,), again: (made,)}
    assert use.unknown == ("stranger", lost)


@pytest.mark.parametrize(
    ("job", "ours"),
    [
        (attempt_id("easy-1", 12, 3), "easy-1"),
        (worker_id("easy-1", 4), "easy-1"),
        ("easy.b1.w2.a1", None),
        ("easy-1.b1", None),
        *((job, None) for job in ("", "easy-1", "easy-1.b1.ax", "a.b.b1.a1")),
        (f"easy.b{'9' * 5000}.a1", None),
    ],
)
def test_an_id_of_ours_is_read_in_one_place(job: str, ours: str | None) -> None:
    assert crawl_in(job) == ours


@pytest.mark.parametrize("listed_in_options", [True, False])
def test_beside_workers_of_ours_only_what_they_run_stays(*, listed_in_options: bool) -> None:
    old, mid, new = (f"2026112{day}T120000Z-{HASH}" for day in (0, 1, 2))
    theirs = WorkerEntry(
        job="far.w2.a1", number=2, url="http://a:6800", pool="", since=1.0, version=mid, introduces=True
    )
    ours = replace(theirs, job="shop.w1.a1", version="")
    # An older version has listed them in the options.
    lists = [{"workers": {"hired": [asdict(one)]}} if listed_in_options else {} for one in (ours, theirs)]
    crawls = [
        Crawl(id="shop", project="p", spider="s", created=0.0, version=new, options=lists[0]),
        Crawl(id="far", project="q", spider="s", created=0.0, version="z", options=lists[1]),
    ]
    version_of = versions_by_job(crawls, [] if listed_in_options else [ours, theirs])
    jobs = tuple(
        Job(id=name, project="p", spider="s", state=JobState.RUNNING)
        for name in ("shop.w1.a1", "shop.b3.a2", "far.w2.a1")
    )
    found = plan(
        NodeVersions(node=Node.parse("a:6800"), project="p", versions=(old, mid, new), jobs=jobs), 1, version_of
    )
    assert (found.versions, found.use.unknown) == ((old,), ())
    assert found.use.jobs == {mid: ("far.w2.a1",)}
