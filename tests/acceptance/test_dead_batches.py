"""Batches that no node can do: they die after their last attempt, with the reason, and the rest comes home."""

import pytest
from rig.bad_days import IMPATIENT, ITEMS, arguments, attempts, batches
from rig.crawls import last_crawl, misses
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode

from scrapyd_dist.batches import AttemptState, BatchState

KILLER = """
    import os
    import signal

    from properties.spiders.easy import EasySpider


    class KillerSpider(EasySpider):
        name = "killer"

        def parse_item(self, response):
            if response.url.endswith({url!r}):
                os.kill(os.getpid(), signal.SIGKILL)
            yield from super().parse_item(response)
"""


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


def test_full_disks(project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_scrapy: RunCommand) -> None:
    pages = site(60)
    settings = {**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 30}
    settings |= {"DISTRIBUTED_MIN_FREE": 1 << 60, "DISTRIBUTED_MAX_ATTEMPTS": 2}
    it = project(nodes=pair, settings=settings)
    done = run_scrapy(it, *arguments("scrapy", pages))
    assert done.code == 1, done.err
    assert [(batch.state, batch.attempts) for batch in batches(it)] == [(BatchState.DEAD, 2)] * 2
    assert all("disk-full" in batch.reason for batch in batches(it))
    row = last_crawl(it)
    assert row.exit_code == 1
    assert (row.summary["dead_urls"], row.summary["batches"]["dead"]) == (60, 2)
    for number in (1, 2):
        tried = {attempt.node for attempt in attempts(it, AttemptState.FAILED) if attempt.batch == number}
        assert tried == {"node1", "node2"}, "the second attempt did not go elsewhere"
    assert "disk-full" in done.err


@pytest.mark.black_box
def test_a_page_that_kills_its_worker(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    pages = site(32)
    settings = {**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 8}
    it = project(nodes=pair, settings={**settings, "DISTRIBUTED_MAX_ATTEMPTS": 2})
    it.spider("killer", KILLER.format(url=pages.site.detail_path(18)))
    command = [text.replace("easy", "killer") for text in arguments("sdist", pages, shards=1)]
    done = run_cli(it, *command)
    assert done.code == 3, done.err
    dead = [batch for batch in batches(it) if batch.state is BatchState.DEAD]
    assert [batch.size for batch in dead] == [1], "the page is not alone"
    assert "died while it worked" in dead[0].reason
    summary = last_crawl(it).summary
    assert (summary["sealed"], summary["items"], summary["dead_urls"]) == (32, 31, 1)
    assert pages.differences(it.items(ITEMS)) == {"missing": ["18"]}
    listed = [row for row in misses(it) if row["kind"] == "dead"]
    assert [row["url"] for row in listed] == [pages.detail(18)]
    assert "died while it worked" in listed[0]["reason"]
