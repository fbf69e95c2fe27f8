"""Between the producer and a node something spoils the exchange: no batch runs twice by mistake, and none is lost."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest
from rig import proxy
from rig.bad_days import IMPATIENT, arguments, assert_exact, attempts, wait_accepted, wait_running
from rig.commands import Result
from rig.crawls import last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.proxy import Mishap, Proxy
from rig.sites import SiteProcess

from scrapyd_dist.batches import AttemptState

#: mishaps after which the node has the job
TAKEN = {
    "late": proxy.LATE,
    "cut": proxy.CUT,
    "reset": proxy.RESET,
    "500": proxy.FAILED_AFTER,
    "html": proxy.PAGE_AFTER,
}
#: mishaps after which the node has never heard of the job
NOT_TAKEN = {"500": proxy.FAILED_BEFORE, "html": proxy.PAGE_BEFORE, "swallowed": proxy.SWALLOWED}
SLOW_ROW = pytest.mark.black_box


@dataclass(frozen=True)
class Scene:
    """One node behind a proxy, a site, and a project that knows the node by the proxy's address."""

    node: ScrapydNode
    proxy: Proxy
    site: SiteProcess
    project: Project

    def assert_whole(self, done: Result) -> None:
        """Exit 0, exactly the site's items, and no job was started twice under one id."""
        assert done.code == 0, done.err
        assert_exact(self.project, self.site)
        ids = Counter(row["id"] for row in self.node.jobs())
        assert set(ids.values()) == {1}, ids


@pytest.fixture
def scene(
    scrapyd_node: Callable[..., ScrapydNode], site: StartSite, project: MakeProject
) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:

        def make(items: int = 150, latency: float = 0.05) -> Scene:
            pages, node = site(items, f"--latency={latency}", per_page=50), scrapyd_node()
            between = stack.enter_context(closing(Proxy(node)))
            settings = {**IMPATIENT, "START_URL": pages.start_url}
            it = project(settings=settings, extra=between.section("properties", "behind"))
            return Scene(node, between, pages, it)

        yield make


@pytest.mark.parametrize("kind", ["late", *(pytest.param(kind, marks=SLOW_ROW) for kind in TAKEN if kind != "late")])
def test_a_job_that_was_taken_is_not_sent_again(kind: str, scene: Callable[..., Scene], run_scrapy: RunCommand) -> None:
    here = scene()
    here.proxy.spoil("schedule.json", TAKEN[kind], times=2)
    done = run_scrapy(here.project, *arguments("scrapy", here.site))
    here.assert_whole(done)
    assert here.proxy.spoilt["schedule.json"] == 2
    assert "it is not known whether job" in done.err
    assert attempts(here.project, AttemptState.FAILED) == []
    assert set(here.site.item_hits().values()) == {1}


@pytest.mark.parametrize("kind", ["500", *(pytest.param(kind, marks=SLOW_ROW) for kind in NOT_TAKEN if kind != "500")])
def test_a_job_that_was_not_taken_is_sent_again(kind: str, scene: Callable[..., Scene], run_scrapy: RunCommand) -> None:
    here = scene()
    here.proxy.spoil("schedule.json", NOT_TAKEN[kind], times=2)
    done = run_scrapy(here.project, *arguments("scrapy", here.site))
    here.assert_whole(done)
    assert here.proxy.spoilt["schedule.json"] == 2
    lost = attempts(here.project, AttemptState.FAILED)
    assert len(lost) == 2
    assert all("did not take it" in attempt.reason for attempt in lost), lost
    assert set(here.site.item_hits().values()) == {1}


@SLOW_ROW
def test_a_node_that_says_no_once_is_asked_again(scene: Callable[..., Scene], run_scrapy: RunCommand) -> None:
    here = scene()
    here.proxy.spoil("schedule.json", proxy.REFUSED)
    here.assert_whole(run_scrapy(here.project, *arguments("scrapy", here.site)))
    assert here.proxy.spoilt["schedule.json"] == 1
    assert attempts(here.project, AttemptState.FAILED) == []
    assert set(here.site.item_hits().values()) == {1}


@SLOW_ROW
def test_a_job_that_arrives_after_it_was_given_up_is_not_collected(
    scene: Callable[..., Scene], run_scrapy: RunCommand
) -> None:
    here = scene(200, 0.3)
    here.proxy.spoil("schedule.json", Mishap(hold=6, share=0.0))
    here.assert_whole(run_scrapy(here.project, *arguments("scrapy", here.site)))
    lost = [attempt.job for attempt in attempts(here.project, AttemptState.FAILED)]
    assert len(lost) == 1
    assert lost[0] in {row["id"] for row in here.node.jobs()}, "it never arrived"


@SLOW_ROW
@pytest.mark.parametrize("kind", ["cut", "500", "html"])
def test_many_exchanges_of_every_kind_are_spoilt(
    kind: str, scene: Callable[..., Scene], start_scrapy: StartCommand
) -> None:
    here = scene(400, 0.15)
    command = start_scrapy(here.project, *arguments("scrapy", here.site))
    for round_ in range(3):
        wait_accepted(here.project, 2 * round_ + 1)
        here.proxy.spoil("*", TAKEN[kind], times=12)
    here.assert_whole(command.wait(180))
    assert here.proxy.spoilt["*"] > 12
    assert last_crawl(here.project).summary["dead_urls"] == 0


@SLOW_ROW
def test_parts_that_break_in_the_middle_come_home_whole(
    scene: Callable[..., Scene], start_scrapy: StartCommand
) -> None:
    here = scene()
    command = start_scrapy(here.project, *arguments("scrapy", here.site))
    first = wait_running(here.project)[0]
    home = next(here.node.logs_dir.glob("_sdist/*")).name
    part = f"logs/_sdist/{home}/{first.job}.jl"
    here.proxy.spoil(part, proxy.CUT, times=3)
    here.assert_whole(command.wait(120))
    assert here.proxy.spoilt[part] == 3
    assert attempts(here.project, AttemptState.FAILED) == []
