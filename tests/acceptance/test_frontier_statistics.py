"""What a producer and its workers count of a frontier, beside what the site itself has logged: to the unit the same."""

from collections import Counter
from typing import Any

import pytest
from rig.commands import Result
from rig.crawls import ADDON, QUICK, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

#: one spider that fills and crawls; what it does with a page goes by the page's number
COUNTED = """
import re
import scrapy


class Counted(scrapy.Spider):
    name = "counted"
    allowed_domains = ["127.0.0.1"]

    async def start(self):
        for page in range(3):
            yield scrapy.Request(f"{self.settings['SITE']}/properties/index_{page:05d}.html")

    def parse(self, response):
        for link in response.css('a[itemprop="url"]::attr(href)').getall():
            yield response.follow(link, self.parse_article)

    def number(self, page):
        return int(re.search(r"property_(\\d+)", page.url).group(1))

    def choose(self, request):
        last = self.number(request) % 10
        if last == 1:
            raise ValueError("not this one")
        return None if last == 0 else request

    def parse_article(self, response):
        number = self.number(response)
        yield {"url": response.url}
        if "?reviews" in response.url:
            return
        if number % 10 == 2:
            yield response.follow("?reviews", self.parse_article)
        if number % 10 == 4:
            yield scrapy.Request(response.url.replace("127.0.0.1", "localhost"), self.parse_article)
        if number % 10 == 5:
            yield response.follow("?more", self.parse_more)
        if number % 10 == 7:
            yield response.follow(f"property_{number - 1:06d}.html", self.parse_article)

    def parse_more(self, response):
        yield {"more": response.url}
"""
FATES = ("added", "duplicate", "offsite", "local", "refused")


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(1, max_proc=4, poll_interval=0.2, jobs_to_keep="100")


def counted(project: MakeProject, nodes: list[ScrapydNode], site: SiteProcess, **settings: Any) -> Project:
    own = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"], "DISTRIBUTED_SLOT_PREFIX": "p", "DISTRIBUTED_SLOTS": 2}
    return project(
        nodes=nodes,
        spiders={"counted": COUNTED},
        settings={**QUICK, "ADDONS": ADDON, "SITE": site.url, **own, **settings},
    )


def dumped(done: Result) -> Counter[str]:
    """Ours of the statistics at the end of a log."""
    lines = [line.strip(" {},").partition(": ") for line in done.err.splitlines() if "'distributed/requests_" in line]
    return Counter({name.strip("'").removeprefix("distributed/requests_"): int(number) for name, _, number in lines})


def assert_all_links_are_counted(told: Counter[str], site: SiteProcess) -> None:
    """A producer's account is that of the index pages which the site has delivered."""
    log = site.log()
    pages = [hit["target"] for hit in log if "/index_" in hit["target"]]
    of_a_page = site.site.per_page + site.site.duplicates + site.site.offsite
    assert (told["found"], told["duplicate"], told["offsite"]) == (
        len(pages) * of_a_page, len(pages) * site.site.duplicates, len(pages) * site.site.offsite,
    )  # fmt: skip
    assert told["found"] == sum(told[fate] for fate in FATES)
    assert told["added"] == len(pages) * site.site.per_page


@pytest.mark.black_box
def test_the_sums_of_a_producer_and_its_workers_are_those_of_the_sites_own_log(
    project: MakeProject, nodes_up: list[ScrapydNode], site: StartSite,
    run_scrapy: RunCommand, run_cli: RunCommand
) -> None:  # fmt: skip
    """H31: links that went into the frontier, requests that came out of it, and those that nobody made."""
    pages = site(90, per_page=30, duplicates=4, offsite=3)
    pages.behave({pages.site.detail_path(8): "fail:1"})
    it = counted(project, nodes_up, pages, DISTRIBUTED_REQUEST_HOOK="choose", DISTRIBUTED_BATCH_SIZE=10)
    filled = run_scrapy(it, "crawl", "counted", "-s", "DISTRIBUTED_FRONTIER=shop")
    assert filled.code == 0, said(filled)
    assert pages.item_hits() == {}
    produced = dumped(filled)
    assert_all_links_are_counted(produced, pages)

    done = run_cli(it, "consume", "counted", "shop", "-o", "items.jl")
    assert done.code == 3, said(done)  # the hook has failed at nine
    nodes_up[0].wait_idle()
    summed = run_cli(it, "stats", "shop", "--json").json()
    assert (summed["jobs"] >= 2, summed["silent"]) == (True, []), "a worker for each slot, and each has told"
    stats = {name: one["sum"] for name, one in summed["stats"].items() if "sum" in one}
    told = Counter({n.removeprefix("distributed/requests_"): v for n, v in stats.items() if "/requests_" in n})

    hits = Counter(hit["target"] for hit in pages.log() if "/property_" in hit["target"])
    followed = {target for target in hits if target.endswith("?more")}
    reviews = {target for target in hits if target.endswith("?reviews")}
    made = hits.keys() - followed
    assert (len(followed), len(reviews)) == (9, 9)
    # What the workers have found for themselves: reviews are new, one neighbour is there already, one host is another.
    assert told["found"] == sum(told[fate] for fate in FATES) == 9 + 9 + 9
    assert (told["added"], told["duplicate"], told["offsite"]) == (len(reviews), 9, 9)
    # What came out of the frontier is what went into it, and every one of it is at the site or was left out.
    assert told["leased"] == produced["added"] + told["added"]
    assert told["leased"] == told["returned"] + told["dropped_by_hook"] + told["not_made"] + told["left"]
    assert (told["dropped_by_hook"], told["not_made"], told["left"]) == (9, 9, 0)
    assert told["returned"] == len(made)
    assert stats["downloader/request_count"] == sum(hits.values()) == told["returned"] + len(followed) + 1  # the retry
    assert stats["distributed/batches_leased"] == stats["distributed/batches_acked"]
    assert sum(1 for _ in it.items("items.jl")) == len(made) + len(followed)


@pytest.mark.black_box
@pytest.mark.parametrize("way", ["--push", "--pull"])
def test_the_producer_of_a_crawl_counts_its_links_as_well(
    project: MakeProject, nodes_up: list[ScrapydNode], site: StartSite,
    run_scrapy: RunCommand, way: str
) -> None:  # fmt: skip
    pages = site(90, per_page=30, duplicates=4, offsite=3)
    it = counted(project, nodes_up, pages, DISTRIBUTED_MODE=way.strip("-"), DISTRIBUTED_MAX_JOBS=2)
    done = run_scrapy(it, "crawl", "counted", "-o", "items.jl")
    assert done.code == 0, said(done)
    told, summary = dumped(done), last_crawl(it).summary
    assert_all_links_are_counted(told, pages)
    found_by_workers = 27 if way == "--pull" else 0
    assert told["found"] + found_by_workers == summary["urls_found"]
