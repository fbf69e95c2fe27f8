"""Nothing fails silently: what became of every URL, in the summary, the list of misses and the exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rig.bad_days import IMPATIENT, batches
from rig.commands import Result
from rig.crawls import ADDON, QUICK, assert_each_page_once, last_crawl, misses
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

from scrapyd_dist.batches import BatchState

PLAIN = {**QUICK, "ADDONS": ADDON, "RETRY_TIMES": 1, "DOWNLOAD_TIMEOUT": 2}


@pytest.fixture
def crawl(
    project: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode]
) -> Callable[..., Project]:
    """`crawl(site, "easy", source="", code=0, DISTRIBUTED_BATCH_SIZE=8)`: the project after it."""

    def run(
        the_site: SiteProcess,
        spider: str = "easy",
        source: str = "",
        code: int = 0,
        **settings: Any,
    ) -> Project:
        it = project(nodes=pair, settings={**PLAIN, "START_URL": the_site.start_url, **settings})
        if source:
            it.spider(spider, source)
        run_scrapy(it, "crawl", spider, "-o", "items.jl", code=code)
        return it

    return run


@pytest.mark.promise("The counts add up")
def test_offsite_and_duplicates_are_filtered_once_and_counted(
    crawl: Callable[..., Project], site: StartSite
) -> None:
    there = site(90, offsite=2, duplicates=3)  # on each of three index pages
    it = crawl(there)
    assert_each_page_once(there, it.items("items.jl"))
    summary = last_crawl(it).summary
    account = {
        name: summary[name] for name in ("offsite", "duplicate", "refused", "local", "sealed")
    }
    assert account == {"offsite": 6, "duplicate": 9, "refused": 0, "local": 0, "sealed": 90}
    assert (summary["urls_found"], summary["urls_distinct"]) == (105, 90)
    assert summary["requests"] == {"total": 90, "sent": 90, "done": 90, "succeeded": 90}


@pytest.mark.black_box
def test_where_a_login_is_missing_the_crawl_says_how_workers_log_in(
    crawl: Callable[..., Project], site: StartSite
) -> None:
    there = site(10)
    there.behave({there.site.detail_path(number): "status:403" for number in range(10)})
    summary = last_crawl(crawl(there, code=3)).summary
    assert summary["gone_urls"] == 10
    assert any(
        "10 pages were denied" in text and "DISTRIBUTED_LOGIN" in text
        for text in summary["warnings"]
    )


WITH_AGENT = """
    import os

    from properties.items import property_from
    from properties.spiders.easy import EasySpider

    class WithAgentSpider(EasySpider):
        name = "agents"
        rules = EasySpider.rules

        def parse_item(self, response):
            item = property_from(response)
            yield item
            yield response.follow(
                response.css("a.agent")[0], self.parse_agent, dont_filter=True, cb_kwargs={{"number": item["number"]}}
            )

        def parse_agent(self, response, number):
            if number == "7" and not os.path.exists({mended!r}):
                raise ValueError("who is that")
            yield {{"agent_of": number}}
"""


@pytest.mark.black_box
@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_page_that_fails_behind_a_target_page_is_told_and_both_are_made_again(
    mode: str, crawl: Callable[..., Project], site: StartSite, run_cli: RunCommand, tmp_path: Path
) -> None:
    there = site(20)
    mended = tmp_path / "mended"
    it = crawl(
        there, "agents", WITH_AGENT.format(mended=str(mended)), code=3, DISTRIBUTED_MODE=mode
    )
    (miss,) = misses(it)
    assert (miss["kind"], miss["url"]) == ("failed", there.detail(7))
    assert "to which it led, failed: ValueError in the callback: who is that" in miss["reason"]
    assert len(list(it.items("items.jl"))) == 39
    mended.touch()
    name = last_crawl(it).id
    again = run_cli(it, "retry", name, "--failed-urls", code=0)
    assert "Scrapy crawls each page once" not in again.out + again.err, (
        "what was replaced is no repeat"
    )
    items = list(it.items("items.jl"))
    assert there.differences(item for item in items if "number" in item) == {}
    assert sorted(int(item["agent_of"]) for item in items if "agent_of" in item) == list(range(20))


CARELESS = """
    from properties.items import property_from
    from properties.spiders.easy import EasySpider

    class Careless(EasySpider):
        name = "careless"

        def parse_item(self, response):
            item = property_from(response)
            if item["number"] in {"5", "6"}:
                raise KeyError("what the page lacks")
            yield item
            if item["number"] == "7":
                raise RuntimeError("after its item")
"""
#: detail page -> how the site behaves there, and what the list of misses says of it
BAD_PAGES = {
    3: ("gone", "gone", "HTTP 404"),
    4: ("status:410", "gone", "HTTP 410"),
    5: ("", "failed", "KeyError"),
    6: ("", "failed", "KeyError"),
    7: ("", "failed", "after its item"),
    10: ("fail", "failed", "HTTP 500"),
    11: ("status:429", "failed", "HTTP 429"),
    12: ("status:408", "failed", "HTTP 408"),
    13: ("hang", "failed", "TimeoutError"),
    14: ("reset", "failed", "ConnectionLost"),
    15: ("status:403", "gone", "HTTP 403"),
    # redirects: to a page of the same batch, to another host, to itself for ever
    1: ("", "gone", ""),
    20: ("", "gone", ""),
    22: ("", "gone", ""),
}


@pytest.mark.promise("Each URL without a result is listed with the reason")
@pytest.mark.black_box
def test_of_each_page_without_an_item_it_is_known_why(
    crawl: Callable[..., Project], site: StartSite
) -> None:
    there = site(60)
    path, offsite = there.site.detail_path, there.url.replace("127.0.0.1", "localhost")
    redirects = {1: path(2), 20: offsite + path(21), 22: path(22) + "?again"}
    there.behave({
        path(8): "fail:1",  # a page that recovers
        **{path(number): kind for number, (kind, _, _) in BAD_PAGES.items() if kind},
        **{path(number): f"redirect:{target}" for number, target in redirects.items()},
    })  # fmt: skip
    it = crawl(there, "careless", CARELESS, code=3)
    # What a callback gave before it failed is kept, as plain Scrapy keeps it.
    assert there.differences(it.items("items.jl"), without=BAD_PAGES.keys() - {7}) == {}
    assert there.item_hits()[8] == 2
    summary = last_crawl(it).summary
    assert (summary["gone_urls"], summary["failed_urls"], summary["batches"]["failed"]) == (6, 8, 0)
    rows = {row["url"]: row for row in misses(it)}
    assert rows.keys() == set(map(there.detail, BAD_PAGES))
    for number, (_, kind, reason) in BAD_PAGES.items():
        row = rows[there.detail(number)]
        assert row["kind"] == kind, row
        assert reason in row["reason"], row


LOCAL = """
    from properties.spiders.plain import PlainSpider

    class Local(PlainSpider):
        name = "local"

        def parse(self, response):
            for request in super().parse(response):
                yield request.replace(meta={"cannot travel": object()})
"""


@pytest.mark.black_box
def test_pages_that_the_producer_crawls_itself_are_in_the_account(
    crawl: Callable[..., Project], site: StartSite
) -> None:
    there = site(60)
    there.behave({there.site.detail_path(2): "gone", there.site.detail_path(3): "fail"})
    it = crawl(there, "local", LOCAL, DISTRIBUTED_TARGET_CALLBACKS=["parse_article"], code=3)
    assert there.differences(it.items("items.jl"), without=[2, 3]) == {}
    summary = last_crawl(it).summary
    assert (summary["local"], summary["sealed"], summary["batches"]["total"]) == (60, 0, 0)
    assert (summary["gone_urls"], summary["failed_urls"], summary["items"]) == (1, 1, 58)
    assert {row["url"]: row["kind"] for row in misses(it)} == {
        there.detail(2): "gone",
        there.detail(3): "failed",
    }


KILLER = """
    import asyncio
    import os
    import signal
    import time

    from properties.spiders.easy import EasySpider
    from scrapyd_dist.middlewares import watchdog

    watchdog.GRACE = watchdog.AFTER = 0.5

    class KillerSpider(EasySpider):
        name = "killer"
        rules = EasySpider.rules

        async def parse_item(self, response):
            if response.url.endswith({url!r}):
                {deed}
            for item in super().parse_item(response):
                yield item
"""
STALLED = "stalled: no page and no item for more than 2 s; it has not ended, and gets SIGINT"


@pytest.mark.promise("A page kills every worker that fetches it, or hangs there")
@pytest.mark.black_box
@pytest.mark.parametrize(
    ("deed", "mode", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "push", "died while it worked"),
        ("await asyncio.sleep(3600)", "push", STALLED),
        pytest.param("time.sleep(3600)", "push", "stands still", marks=pytest.mark.full),
        ("await asyncio.sleep(3600)", "pull", STALLED),
    ],
    ids=["killed", "hanging, sent", "standing, sent", "hanging, leased"],
)
def test_a_page_that_kills_its_worker(
    deed: str,
    mode: str,
    why: str,
    crawl: Callable[..., Project],
    site: StartSite,
    run_sdist_here: Callable[..., Result],
) -> None:
    pages = site(32)
    source = KILLER.format(url=pages.site.detail_path(18), deed=deed)
    settings = {
        **IMPATIENT, "DISTRIBUTED_BATCH_SIZE": 4, "DISTRIBUTED_MAX_ATTEMPTS": 2,
        "DISTRIBUTED_STALL_TIMEOUT": 2 if why == STALLED else 0,
        "DISTRIBUTED_MODE": mode, "DISTRIBUTED_LEASE": 6 if deed.startswith("time") else 60,
    }  # fmt: skip
    it = crawl(pages, "killer", source, **settings, code=3)
    (dead,) = [batch for batch in batches(it) if batch.state is BatchState.DEAD]
    assert (dead.size, why in dead.reason) == (1, True), dead
    summary = last_crawl(it).summary
    assert (summary["sealed"], summary["items"], summary["dead_urls"]) == (32, 31, 1)
    assert pages.differences(it.items("items.jl")) == {"missing": ["18"]}
    (listed,) = [row for row in misses(it) if row["kind"] == "dead"]
    assert (listed["url"], why in listed["reason"]) == (pages.detail(18), True), listed
    jobs = run_sdist_here(it, "jobs", "--json").json()["jobs"]
    # the nodes still list the jobs of the row before
    told = [str(job["reason"]) for job in jobs if job["job"].startswith(f"{last_crawl(it).id}.")]
    assert told
    assert any(STALLED in reason for reason in told) == (why == STALLED), told
