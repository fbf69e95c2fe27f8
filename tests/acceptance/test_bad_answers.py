"""Between the producer and a node something spoils the exchange: no batch runs twice by mistake, and none is lost."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest
from rig import proxy
from rig.bad_days import IMPATIENT, arguments, assert_exact, attempts, wait_accepted
from rig.commands import Result
from rig.crawls import last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.proxy import Proxy
from rig.sites import SiteProcess

from scrapyd_dist.batches import AttemptState

#: mishaps after which the node has the job
TAKEN = (proxy.LATE, proxy.CUT, proxy.RESET, proxy.FAILED_AFTER, proxy.PAGE_AFTER)
#: mishaps after which the node has never heard of the job
NOT_TAKEN = (proxy.FAILED_BEFORE, proxy.PAGE_BEFORE, proxy.SWALLOWED)
SIZE = 30

pytestmark = pytest.mark.black_box


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

        def make(items: int, latency: float = 0.05) -> Scene:
            pages, node = site(items, f"--latency={latency}", per_page=SIZE), scrapyd_node()
            between = stack.enter_context(closing(Proxy(node)))
            settings = {**IMPATIENT, "DISTRIBUTED_BATCH_SIZE": SIZE, "START_URL": pages.start_url}
            it = project(settings=settings, extra=between.section("properties", "behind"))
            return Scene(node, between, pages, it)

        yield make


def test_a_job_that_was_taken_is_not_sent_again(scene: Callable[..., Scene], run_scrapy: RunCommand) -> None:
    here = scene(SIZE * len(TAKEN))
    for mishap in TAKEN:
        here.proxy.spoil("schedule.json", mishap)
    done = run_scrapy(here.project, *arguments("scrapy", here.site))
    here.assert_whole(done)
    assert here.proxy.spoilt["schedule.json"] == len(TAKEN)
    assert "it is not known whether job" in done.err
    assert attempts(here.project, AttemptState.FAILED) == []
    assert set(here.site.item_hits().values()) == {1}


def test_a_job_that_was_not_taken_is_sent_again(scene: Callable[..., Scene], run_scrapy: RunCommand) -> None:
    here = scene(SIZE * 4)
    here.project.settings(DISTRIBUTED_MAX_ATTEMPTS=len(NOT_TAKEN) + 1)
    for mishap in NOT_TAKEN:
        here.proxy.spoil("schedule.json", mishap)
    done = run_scrapy(here.project, *arguments("scrapy", here.site))
    here.assert_whole(done)
    assert here.proxy.spoilt["schedule.json"] == len(NOT_TAKEN)
    lost = attempts(here.project, AttemptState.FAILED)
    assert len(lost) == len(NOT_TAKEN)
    assert all("did not take it" in attempt.reason for attempt in lost), lost
    assert set(here.site.item_hits().values()) == {1}


def test_many_exchanges_of_every_kind_are_spoilt(scene: Callable[..., Scene], start_scrapy: StartCommand) -> None:
    here = scene(400, 0.15)
    command = start_scrapy(here.project, *arguments("scrapy", here.site))
    for round_, mishap in enumerate((proxy.CUT, proxy.FAILED_AFTER, proxy.PAGE_AFTER)):
        wait_accepted(here.project, 2 * round_ + 1)
        here.proxy.spoil("*", mishap, times=12)
    here.assert_whole(command.wait(180))
    assert here.proxy.spoilt["*"] > 12
    assert last_crawl(here.project).summary["dead_urls"] == 0
