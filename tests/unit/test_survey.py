"""What is in use on a node, what may go, and where nodes differ; all without a node."""

from typing import Any

import pytest
from scrapyd_dist.deploy.node_versions import NodeVersions, differences, in_use, only_crawls, plan
from scrapyd_dist.deploy.rollout import common_name

from scrapyd_dist.errors import ConnectionRefused
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Job, JobState

OLD, MID, NEW = (f"2026112{day}T120000Z-{'0123456789ab'}" for day in (0, 1, 2))
OTHER = "20261123T120000Z-ffffffffffff"


def seen(*versions: str, name: str = "a", jobs: tuple[Job, ...] = (), **more: Any) -> NodeVersions:
    node = Node.parse(f"{name}:6800", name=name)
    return NodeVersions(node=node, project="p", versions=versions, jobs=jobs, **more)


def job(id_: str, state: JobState = JobState.RUNNING, version: str | None = None) -> Job:
    return Job(id=id_, project="p", spider="s", state=state, version=version)


def nobody(_job: str) -> None:
    return None


class TestInUse:
    def test_a_waiting_job_tells_its_version_or_gets_the_default(self) -> None:
        jobs = (job("x", JobState.PENDING, "1.9"), job("y", JobState.PENDING))
        assert in_use(seen("1_9", "2_0", jobs=jobs), nobody).jobs == {"1_9": ("x",), "2_0": ("y",)}

    def test_a_running_job_is_known_by_its_crawl_or_not_at_all(self) -> None:
        use = in_use(seen(OLD, jobs=(job("c.b1.a1"), job("z"))), {"c.b1.a1": OLD}.get)
        assert (use.jobs, use.unknown) == ({OLD: ("c.b1.a1",)}, ("z",))


class TestPlan:
    @pytest.mark.parametrize(("keep", "gone"), [(1, (OLD, MID)), (2, (OLD,)), (3, ()), (9, ())])
    def test_the_last_ones_stay(self, keep: int, gone: tuple[str, ...]) -> None:
        assert plan(seen(OLD, MID, NEW), keep, nobody).versions == gone

    def test_the_newest_stays_though_it_sorts_first(self) -> None:
        assert plan(seen(OLD, NEW, "r9", "v1"), 1, nobody).versions == (OLD, "r9")

    def test_what_is_in_use_stays_and_is_named(self) -> None:
        found = plan(seen(OLD, MID, NEW, jobs=(job("x", JobState.PENDING, OLD),)), 1, nobody)
        assert (found.versions, found.use.jobs) == ((MID,), {OLD: ("x",)})

    def test_a_job_of_unknown_version_holds_everything_and_is_named_where_something_is_old(self) -> None:
        found = plan(seen(OLD, MID, NEW, jobs=(job("x"),)), 1, nobody)
        assert (found.versions, found.use.unknown) == ((), ("x",))
        assert plan(seen(NEW, jobs=(job("x"),)), 1, nobody).use.unknown == ()

    def test_a_node_that_did_not_answer(self) -> None:
        assert plan(seen(error=DOWN), 1, nobody).error is DOWN


DOWN = ConnectionRefused.at("b")


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([seen(OLD, NEW), seen(NEW, name="b")], []),
        # The same content under another name is the same, and a node that did not answer is no difference.
        ([seen(OLD), seen(NEW, name="b"), seen(name="c", error=DOWN)], []),
        ([seen(NEW), seen(NEW, name="b"), seen(OTHER, name="c")], [f"c would run {OTHER}, most nodes {NEW}."]),
        ([seen(NEW), seen(NEW, name="b"), seen(name="c")], [f"c would run no version at all, most nodes {NEW}."]),
        ([seen(NEW, "r9-master")],
         [f"a would run r9-master, which Scrapyd sorts behind {NEW}, the newest one whose time is known."]),
    ],
)  # fmt: skip
def test_nodes_that_would_run_other_code_are_named(entries: list[NodeVersions], told: list[str]) -> None:
    assert differences(entries) == told


class TestCrawlsVersions:
    CRAWL = "0-a1795176000-001250999896491"

    def test_where_only_crawls_have_been_it_is_said(self) -> None:
        entries = [seen(self.CRAWL), seen(self.CRAWL, name="b"), seen(self.CRAWL, NEW, name="c")]
        (text,) = only_crawls(entries)
        assert text.startswith(f"a, b would run {self.CRAWL}, which a crawl brought")
        assert differences(entries[:2]) == []

    def test_they_go_by_time_as_deployments_do(self) -> None:
        later = "0-a1799999999-001250999896491"
        assert plan(seen(self.CRAWL, later, OLD, MID, NEW), 2, nobody).versions == (self.CRAWL, OLD, MID)


class TestOneName:
    """Which name a content gets on all nodes."""

    HASH = "0123456789ab"
    CRAWL, DEPLOYED = "0-a1795176000-001250999896491", "1795176001-001250999896491"

    def test_a_crawl_uses_a_deployment_that_all_have_and_deploys_none(self) -> None:
        assert common_name([[self.DEPLOYED], [self.DEPLOYED]], self.HASH, for_crawl=True) == self.DEPLOYED
        assert common_name([[self.DEPLOYED], []], self.HASH, for_crawl=True) is None
        assert common_name([[self.CRAWL, self.DEPLOYED], []], self.HASH, for_crawl=True) == self.CRAWL

    def test_a_deployment_is_made_anew_unless_it_is_the_newest(self) -> None:
        assert common_name([[self.CRAWL]], self.HASH) is None
        assert common_name([[self.CRAWL, self.DEPLOYED], []], self.HASH) == self.DEPLOYED
        assert common_name([[self.DEPLOYED, "1795176009-000000000000000"]], self.HASH) is None
        assert common_name([[]], self.HASH, kept=self.DEPLOYED) == self.DEPLOYED
