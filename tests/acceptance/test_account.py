"""Nothing fails silently: what became of every URL, in the summary, the list of misses and the exit code."""

from collections.abc import Callable
from typing import Any

import pytest
from rig.commands import Result
from rig.crawls import ADDON, QUICK, last_crawl, misses, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

PLAIN = {**QUICK, "ADDONS": ADDON, "RETRY_TIMES": 1, "DOWNLOAD_TIMEOUT": 2}


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


@pytest.fixture
def crawl(
    project: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode]
) -> Callable[..., tuple[Project, Result]]:
    """`crawl(site, "easy", DISTRIBUTED_MAX_FAILED=1)`: the project after it, and how it ended."""

    def run(the_site: SiteProcess, spider: str = "easy", *options: str, **settings: Any) -> tuple[Project, Result]:
        it = project(nodes=nodes_up, settings={**PLAIN, "START_URL": the_site.start_url, **settings})
        for module, source in {"careless": CARELESS, "local": LOCAL}.items():
            it.spider(module, source)
        return it, run_scrapy(it, "crawl", spider, "-o", "items.jl", *options)

    return run


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


def test_offsite_and_duplicates_are_filtered_once_and_counted(
    crawl: Callable[..., tuple[Project, Result]], site: StartSite
) -> None:
    there = site(90, offsite=2, duplicates=3)  # on each of three index pages
    it, done = crawl(there)
    assert done.code == 0, said(done)
    assert there.differences(it.items("items.jl")) == {}
    assert set(there.item_hits().values()) == {1}
    summary = last_crawl(it).summary
    account = {name: summary[name] for name in ("offsite", "duplicate", "refused", "local", "sealed")}
    assert account == {"offsite": 6, "duplicate": 9, "refused": 0, "local": 0, "sealed": 90}
    assert (summary["urls_found"], summary["urls_distinct"]) == (105, 90)
    assert summary["requests"] == {"total": 90, "sent": 90, "done": 90, "succeeded": 90}


@pytest.mark.black_box
def test_gone_pages_are_listed_and_no_failure(crawl: Callable[..., tuple[Project, Result]], site: StartSite) -> None:
    there = site(60)
    there.behave({there.site.detail_path(3): "gone", there.site.detail_path(4): "status:410"})
    it, done = crawl(there)
    assert done.code == 0, said(done)
    assert there.differences(it.items("items.jl"), without=[3, 4]) == {}
    summary = last_crawl(it).summary
    assert (summary["gone_urls"], summary["failed_urls"]) == (2, 0)
    rows = {row["url"]: (row["kind"], row["reason"]) for row in misses(it)}
    assert rows == {there.detail(3): ("gone", "HTTP 404"), there.detail(4): ("gone", "HTTP 410")}


BAD_PAGES = {
    10: ("fail", "failed", "HTTP 500"),
    11: ("status:429", "failed", "HTTP 429"),
    12: ("status:408", "failed", "HTTP 408"),
    13: ("hang", "failed", "TimeoutError"),
    14: ("reset", "failed", "ConnectionLost"),
    15: ("status:403", "gone", "HTTP 403"),
}


@pytest.mark.parametrize(("allowed", "code"), [(0, 3), pytest.param(5, 0, marks=pytest.mark.black_box)])
def test_failed_pages_make_a_partial_crawl(
    allowed: int, code: int, crawl: Callable[..., tuple[Project, Result]], site: StartSite
) -> None:
    there = site(60)
    there.behave({there.site.detail_path(number): kind for number, (kind, _, _) in BAD_PAGES.items()})
    it, done = crawl(there, DISTRIBUTED_MAX_FAILED=allowed)
    assert done.code == code, said(done)
    assert there.differences(it.items("items.jl"), without=BAD_PAGES) == {}
    summary = last_crawl(it).summary
    assert (summary["gone_urls"], summary["failed_urls"], summary["batches"]["failed"]) == (1, 5, 0)
    rows = {row["url"]: row for row in misses(it)}
    assert rows.keys() == {there.detail(number) for number in BAD_PAGES}
    for number, (_, kind, reason) in BAD_PAGES.items():
        row = rows[there.detail(number)]
        assert row["kind"] == kind, row
        assert reason in row["reason"], row


@pytest.mark.black_box
def test_a_page_that_recovers_is_no_miss(crawl: Callable[..., tuple[Project, Result]], site: StartSite) -> None:
    there = site(60)
    there.behave({there.site.detail_path(8): "fail:1"})
    it, done = crawl(there)
    assert done.code == 0, said(done)
    assert there.differences(it.items("items.jl")) == {}
    assert there.item_hits()[8] == 2
    assert misses(it) == []


@pytest.mark.black_box
def test_an_exception_in_a_callback_is_a_failure(crawl: Callable[..., tuple[Project, Result]], site: StartSite) -> None:
    there = site(60)
    it, done = crawl(there, "careless")
    assert done.code == 3, said(done)
    # What a callback gave before it failed is kept, as plain Scrapy keeps it.
    assert there.differences(it.items("items.jl"), without=[5, 6]) == {}
    summary = last_crawl(it).summary
    assert (summary["gone_urls"], summary["failed_urls"]) == (0, 3)
    rows = {row["url"]: row["reason"] for row in misses(it)}
    assert rows.keys() == {there.detail(number) for number in (5, 6, 7)}
    assert "KeyError" in rows[there.detail(5)]
    assert "after its item" in rows[there.detail(7)]


@pytest.mark.black_box
def test_redirects_that_lead_to_no_page_of_their_own(
    crawl: Callable[..., tuple[Project, Result]], site: StartSite
) -> None:
    there = site(60)
    offsite = there.url.replace("127.0.0.1", "localhost")
    there.behave({
        there.site.detail_path(1): f"redirect:{there.site.detail_path(2)}",  # a page of the same batch
        there.site.detail_path(20): f"redirect:{offsite}{there.site.detail_path(21)}",
        there.site.detail_path(22): f"redirect:{there.site.detail_path(22)}?again",  # it leads to itself for ever
    })  # fmt: skip
    it, done = crawl(there)
    assert done.code == 0, said(done)
    items = list(it.items("items.jl"))
    assert there.differences(items, without=[1, 20, 22]) == {}
    summary = last_crawl(it).summary
    assert (summary["gone_urls"], summary["failed_urls"]) == (3, 0)
    kinds = {row["url"]: row["kind"] for row in misses(it)}
    assert kinds == {there.detail(1): "gone", there.detail(20): "gone", there.detail(22): "gone"}


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
    crawl: Callable[..., tuple[Project, Result]], site: StartSite
) -> None:
    there = site(60)
    there.behave({there.site.detail_path(2): "gone", there.site.detail_path(3): "fail"})
    it, done = crawl(there, "local", DISTRIBUTED_TARGET_CALLBACKS=["parse_article"])
    assert done.code == 3, said(done)
    assert there.differences(it.items("items.jl"), without=[2, 3]) == {}
    summary = last_crawl(it).summary
    assert (summary["local"], summary["sealed"], summary["batches"]["total"]) == (60, 0, 0)
    assert (summary["gone_urls"], summary["failed_urls"], summary["items"]) == (1, 1, 58)
    assert {row["url"]: row["kind"] for row in misses(it)} == {there.detail(2): "gone", there.detail(3): "failed"}
