"""The id of a plain job tells which code it runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from scrapyd_dist.deploy.survey import Seen, in_use

from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Job, JobState
from scrapyd_dist.scrapyd.jobids import content_of, job_id

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
    use = in_use(Seen(node=node, project="p", versions=(NAME, again, "other"), jobs=jobs), lambda _: None)
    assert use.jobs == {NAME: (made,), again: (made,)}
    assert use.unknown == ("stranger", lost)
