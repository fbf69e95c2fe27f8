"""Batches that the book's transport loses: 2,000 URLs of 150 characters, whole, on real nodes."""

import pytest
from rig.bad_days import IMPATIENT, arguments, assert_exact, attempts, batches
from rig.crawls import last_crawl
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite

from scrapyd_dist.batches import AttemptState

#: bytes that one argument of a process may have, its NUL included
ARGUMENT = 131_072


@pytest.mark.black_box
@pytest.mark.parametrize(("way", "items"), [("scrapy", 2000), ("sdist", 6000)])
def test_2000_long_urls_in_a_batch(
    way: str,
    items: int,
    project: MakeProject,
    fleet: StartFleet,
    site: StartSite,
    run_scrapy: RunCommand,
    run_cli: RunCommand,
) -> None:
    nodes, pages = fleet(2), site(items, url_style="long", per_page=500)
    assert len(pages.detail(0)) == 150
    assert len(pages.detail(0)) * 2000 > ARGUMENT * 2, "as they are they would not fit"
    settings = {**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 2000}
    it = project(nodes=nodes, settings={**settings, "CONCURRENT_REQUESTS_PER_DOMAIN": 16})
    command = run_scrapy if way == "scrapy" else run_cli
    done = command(it, *arguments(way, pages), timeout=240)
    assert done.code == 0, done.err
    assert_exact(it, pages)
    assert [batch.size for batch in batches(it)] == [2000] * (items // 2000)
    assert set(pages.item_hits().values()) == {1}
    assert attempts(it, AttemptState.FAILED) == []
    assert last_crawl(it).summary["items"] == items
    ran = [row["id"] for node in nodes for row in node.jobs("finished")]
    assert sorted(ran) == sorted(attempt.job for attempt in attempts(it))
