"""What comes out of a frontier, by the site's own log: once, again, each time, and to the unit what was counted."""

import json
from collections import Counter
from typing import Any

import pytest
from rig.consumers import requests_counted
from rig.crawls import ADDON, QUICK, said
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess


@pytest.mark.black_box
def test_a_page_is_fetched_once_though_it_is_added_again_and_again_when_its_slot_was_deleted(
    project: MakeProject, consumer_nodes: list[ScrapydNode], site: StartSite,
    run_cli: RunCommand
) -> None:  # fmt: skip
    pages = site(5)
    it = project(nodes=consumer_nodes[:1], settings={**QUICK, "START_URL": pages.start_url})
    slots = [{"frontier_slot_prefix": "p" if number < 3 else "q"} for number in range(5)]
    rows = [{"url": pages.detail(number), "meta": meta} for number, meta in enumerate(slots)]
    it.write("rows.jl", "\n".join(map(json.dumps, rows)))
    add = ("frontier", "add", "again", "rows.jl", "--spider-callback", "parse_article", "--json")

    def consumed() -> Counter[int]:
        """The hits of all pages when nothing waits any more."""
        run_cli(it, "consume", "plain", "again", code=0)
        return pages.item_hits()

    assert run_cli(it, *add).json()["added"] == 5
    assert consumed() == Counter(range(5))
    again = run_cli(it, *add).json()
    assert (again["added"], again["duplicate"]) == (0, 5)
    assert run_cli(it, "frontier", "delete", "again", "--prefix", "q", "--yes").code == 0
    again = run_cli(it, *add).json()
    assert (again["added"], again["duplicate"]) == (2, 3)
    assert consumed() == Counter([*range(5), 3, 4])


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


def counted(project: MakeProject, node: ScrapydNode, site: SiteProcess, **settings: Any) -> Project:
    own = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"], "DISTRIBUTED_SLOT_PREFIX": "p", "DISTRIBUTED_SLOTS": 2}
    return project(
        nodes=[node],
        spiders={"counted": COUNTED},
        settings={**QUICK, "ADDONS": ADDON, "SITE": site.url, **own, **settings},
    )


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
    project: MakeProject, consumer_nodes: list[ScrapydNode], site: StartSite,
    run_scrapy: RunCommand, run_cli: RunCommand
) -> None:  # fmt: skip
    """H31: links that went into the frontier, requests that came out of it, and those that nobody made."""
    pages = site(90, per_page=30, duplicates=4, offsite=3)
    pages.behave({pages.site.detail_path(8): "fail:1"})
    it = counted(project, consumer_nodes[0], pages, DISTRIBUTED_REQUEST_HOOK="choose", DISTRIBUTED_BATCH_SIZE=10)
    filled = run_scrapy(it, "crawl", "counted", "-s", "DISTRIBUTED_FRONTIER=shop", code=0)
    assert pages.item_hits() == {}
    produced = requests_counted(filled)
    assert_all_links_are_counted(produced, pages)

    done = run_cli(it, "consume", "counted", "shop", "-o", "items.jl")
    assert done.code == 3, said(done)  # the hook has failed at nine
    consumer_nodes[0].wait_idle()
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
