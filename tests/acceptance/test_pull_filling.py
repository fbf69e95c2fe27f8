"""What the producer of a crawl with --pull puts into the crawl's own frontier: seeds, slots, priorities."""

from contextlib import closing

import pytest
from rig.crawls import ADDON, QUICK, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite

from scrapyd_dist.store import open_store

INDEX = """
import scrapy


class Index(scrapy.Spider):
    name = "index"

    async def start(self):
        for page in range(3):
            yield scrapy.Request(f"{self.settings['SITE']}/properties/index_{page:05d}.html")

    def parse(self, response):
        yield {"page": response.url, "agent": response.request.headers[b"User-Agent"].decode()}
        for number, link in enumerate(response.css('a[itemprop="url"]::attr(href)').getall()):
            callback = self.parse_odd if number % 2 else self.parse_even
            yield response.follow(link, callback, priority=number % 2)

    def parse_odd(self, response):
        yield {"odd": response.url}

    def parse_even(self, response):
        yield {"even": response.url}
"""


@pytest.mark.black_box
def test_start_requests_as_seeds_leave_nothing_for_the_producer_to_request(
    project: MakeProject, run_cli: RunCommand, fleet: StartFleet,
    site: StartSite
) -> None:  # fmt: skip
    the_site = site(90)
    own = {
        "DISTRIBUTED_TARGET_CALLBACKS": ["parse_odd", "parse_even"], "DISTRIBUTED_SEEDS": True,
        "DISTRIBUTED_CALLBACK_SLOTS": {"parse_odd": "odd/2", "parse_even": "even/3"}, "DISTRIBUTED_SLOT_PREFIX": "p",
    }  # fmt: skip
    settings = {**QUICK, "ADDONS": ADDON, "SITE": the_site.url, **own}
    it = project(nodes=fleet(2), spiders={"index": INDEX}, settings=settings)
    run_cli(it, "crawl", "index", "--pull", "-o", "items.jl", code=0)
    items = list(it.items("items.jl"))
    assert len([item for item in items if "page" in item]) == 3
    assert sorted([item.get("odd") or item["even"] for item in items if "page" not in item]) == [
        the_site.detail(number) for number in range(90)
    ]
    row = last_crawl(it)
    assert row.summary["index"]["pages"] == 0, "the producer itself made no request"
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        sizes = {slot.slot: sum(slot.requests.values()) for slot in store.slots(row.id)}
        priorities = {(batch.slot[:-1], batch.priority) for batch in store.batches(row.id)}
    families = {"p": ["p0"], "odd": ["odd0", "odd1"], "even": ["even0", "even1", "even2"]}
    assert set(sizes) == {slot for slots in families.values() for slot in slots}
    totals = {name: sum(sizes[slot] for slot in slots) for name, slots in families.items()}
    assert totals == {"p": 3, "odd": 45, "even": 45}
    assert priorities == {("p", 0), ("odd", 1), ("even", 0)}
