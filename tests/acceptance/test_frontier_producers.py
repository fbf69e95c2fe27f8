"""What goes into a frontier by `scrapy crawl` and settings alone, without a node; what comes out, by the site's log."""

import json
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.commands import Result
from rig.consumers import requests_counted
from rig.crawls import ADDON, QUICK, assert_one_paragraph
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode, free_port
from rig.projects import Project
from rig.redis import RedisServer
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.config import state_dir
from scrapyd_dist.keys import state_key
from scrapyd_dist.payload import RequestValue, decode
from scrapyd_dist.store import Store, open_store

FILL = ("-s", "DISTRIBUTED_FRONTIER=shop")
TARGET = ("-s", "DISTRIBUTED_TARGET_CALLBACKS=parse_article")
BOTH = ["parse_article", "other"]  # the callbacks of all links


def store_of(project: Project, where: str | None = None) -> Store:
    return open_store(where or project.path / ".sdist" / "store.db")


def stored(
    project: Project, where: str | None = None, slot: str | None = None
) -> list[RequestValue]:
    """The requests in the frontier, or in one slot of it."""
    key = state_key(state_dir(project.path))
    with closing(store_of(project, where)) as store:
        batches = [batch for batch in store.batches("shop") if slot in {None, batch.slot}]
        return [
            value
            for batch in batches
            for value in decode(store.payload("shop", batch.number).get, key=key)
        ]


def addresses(project: Project, where: str | None = None) -> Counter[str]:
    return Counter(value["url"] for value in stored(project, where))


def details(site: SiteProcess, count: int) -> Counter[str]:
    return Counter(site.detail(number) for number in range(count))


def test_a_spider_as_it_is_fills_a_frontier_and_makes_no_target_request(
    project: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    the_site = site(90)
    it = project(settings={"ADDONS": ADDON, "START_URL": the_site.start_url})
    slots = ("DISTRIBUTED_SLOT_PREFIX=p", "DISTRIBUTED_SLOTS=2", "DISTRIBUTED_SLOT=3")
    done = run_scrapy(
        it, "crawl", "easy", *FILL, *(word for one in slots for word in ("-s", one)), code=0
    )
    assert "Did you mean DISTRIBUTED_SLOTS?" in done.err
    assert the_site.item_hits() == {}
    assert addresses(it) == details(the_site, 90)
    with closing(store_of(it)) as store:
        (row,) = store.crawls()
        assert (row.kind, row.project, row.state) == ("frontier", "properties", CrawlState.FINDING)
        assert sorted(slot.slot for slot in store.backlog("shop").slots) == ["p0", "p1"]
        assert store.backlog("shop").producers == ()
    told = requests_counted(done)
    assert told["added"] == 90
    assert "(rule 1 of easy" in done.err
    assert told["found"] == sum(number for name, number in told.items() if name != "found")


LINKS = """
import scrapy


class Links(scrapy.Spider):
    name = "links"

    async def start(self):
        for page in range(int(getattr(self, "pages", 3))):
            yield scrapy.Request(f"{self.settings['SITE']}/properties/index_{page:05d}.html", cb_kwargs={"page": page})

    def parse(self, response, page):
        yield {"page": page}
        links = response.css('a[itemprop="url"]::attr(href)').getall()
        for number, link in enumerate(links):
            meta = {"distribute": True} if number % 3 == 0 else {}
            yield response.follow(link, self.other if number % 3 == 0 else self.parse_article, meta=meta)
        yield scrapy.Request("http://elsewhere.test/", self.parse_article)

    def parse_article(self, response):
        yield {"article": response.url}

    def other(self, response):
        yield {"other": response.url}
"""


def links(project: MakeProject, site: SiteProcess, **settings: Any) -> Project:
    return project(
        spiders={"links": LINKS}, settings={"ADDONS": ADDON, "SITE": site.url, **settings}
    )


@pytest.mark.black_box
def test_only_what_is_listed_or_marked_is_diverted_and_own_items_go_to_own_feeds(
    project: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    the_site = site(90)
    it = links(project, the_site)
    run_scrapy(
        it, "crawl", "links", *FILL, "-s", "DISTRIBUTED_TARGET_BY_META=1", "-o", "own.jl", code=0
    )
    marked = {the_site.detail(number) for number in range(90) if number % 30 % 3 == 0}
    assert set(addresses(it)) == marked
    own = list(it.items("own.jl"))
    assert sorted(item["page"] for item in own if "page" in item) == [0, 1, 2]
    assert {item["article"] for item in own if "article" in item} == set(
        details(the_site, 90)
    ) - marked
    assert stored(it)[0]["meta"] == {"depth": 1}, "the mark travels no further"


@pytest.mark.black_box
def test_start_requests_can_be_seeds(
    project: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    the_site = site(150)
    it = links(project, the_site)
    run_scrapy(it, "crawl", "links", *FILL, "-s", "DISTRIBUTED_SEEDS=1", "-a", "pages=5", code=0)
    assert the_site.hits() == {}
    assert [value["cb_kwargs"] for value in sorted(stored(it), key=lambda value: value["url"])] == [
        {"page": page} for page in range(5)
    ]


@pytest.mark.black_box
def test_the_nearest_setting_acts(
    project: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    """Project, then spider, then command line."""
    the_site = site(30)
    it = links(
        project, the_site, DISTRIBUTED_SLOT_PREFIX="project", DISTRIBUTED_TARGET_CALLBACKS=["other"]
    )
    own = "{'DISTRIBUTED_SLOT_PREFIX': 'spider', 'DISTRIBUTED_FRONTIER': 'shop'}"
    it.spider(
        "near",
        f"from .links import Links\nclass Near(Links):\n    name = 'near'\n    custom_settings = {own}\n",
    )
    assert run_scrapy(it, "crawl", "links", *FILL, "-a", "pages=1").code == 0
    assert run_scrapy(it, "crawl", "near", *TARGET, "-a", "pages=1").code == 0
    line = ["-s", "DISTRIBUTED_SLOT_PREFIX=line", "-s", "DISTRIBUTED_SEEDS=1"]
    assert run_scrapy(it, "crawl", "near", *line, "-a", "pages=1").code == 0
    with closing(store_of(it)) as store:
        sizes = {slot.slot: slot.waiting for slot in store.backlog("shop").slots}
    assert sizes == {"project0": 10, "spider0": 21, "line0": 1}


#: seconds after which a batch is written that is too old; and for which the page before the last one keeps the producer
OLD, LATER = 1, 4.0


@pytest.mark.black_box
@pytest.mark.parametrize(("max_age", "most_lost"), [(600, 4 * (50 - 1)), (OLD, 0)])
def test_a_killed_producer_has_lost_only_what_was_not_flushed_and_goes_on(
    max_age: int, most_lost: int, project: MakeProject, start_scrapy: StartCommand,
    run_scrapy: RunCommand, site: StartSite
) -> None:  # fmt: skip
    """H13: less than a batch for each of its slots, and nothing of what was found seconds ago and is too old."""
    the_site = site(630)
    found, slow, last = (
        571,
        *(the_site.site.index_path(page) for page in (19, 20)),
    )  # found: on the 19 pages before
    the_site.behave({slow: f"slow:{LATER}", last: "hang"})
    slots = {
        "DISTRIBUTED_SLOTS": 4,
        "DISTRIBUTED_BATCH_SIZE": 50,
        "DISTRIBUTED_BATCH_MAX_AGE": max_age,
    }
    targets = {"DISTRIBUTED_TARGET_CALLBACKS": BOTH}
    it = links(project, the_site, **targets, **slots, CONCURRENT_REQUESTS=1)
    command = start_scrapy(it, "crawl", "links", *FILL, "-a", "pages=21")
    wait_for(lambda: last in the_site.hits(), 60, "the last page")
    command.signal(signal.SIGKILL)
    command.wait()
    there = addresses(it)
    assert there <= details(the_site, 600) + Counter({"http://elsewhere.test/": 1})
    assert there.total() >= found - most_lost
    with closing(store_of(it)) as store:
        sizes = {batch.size for batch in store.batches("shop")}
        assert len(store.backlog("shop").producers) == 1, "it was signed off"
    assert sizes == {50} or not most_lost, "a batch was written before it was full or old"
    the_site.behave({})
    assert run_scrapy(it, "crawl", "links", *FILL, "-a", "pages=21").code == 0
    assert addresses(it) == details(the_site, 630) + Counter({"http://elsewhere.test/": 1})
    with closing(store_of(it)) as store:
        backlog = store.backlog("shop")
        assert (backlog.producers, backlog.lost) == ((), ()), (
            "the one that did its work signed for it, too"
        )


@pytest.mark.black_box
def test_a_store_that_is_away_for_a_while_loses_nothing(
    project: MakeProject, start_scrapy: StartCommand, site: StartSite, tmp_path: Path
) -> None:
    the_site = site(600, "--latency=0.1")
    with closing(RedisServer(tmp_path / "redis")) as server:
        many = {
            "CONCURRENT_REQUESTS": 2,
            "DISTRIBUTED_BATCH_MAX_AGE": 1,
            "DISTRIBUTED_STORE": "$SDIST_STORE",
        }
        it = links(project, the_site, DISTRIBUTED_TARGET_CALLBACKS=BOTH, **many)
        env = {"SDIST_STORE": server.url}
        command = start_scrapy(it, "crawl", "links", *FILL, "-a", "pages=20", env=env)

        def has_a_batch() -> bool:
            with closing(open_store(server.url)) as store:
                return any(
                    row.id == "shop" and store.backlog("shop").slots for row in store.crawls()
                )

        wait_for(has_a_batch, 60, "the first batch")
        server.kill()
        wait_for(lambda: len(the_site.hits()) == 20, 60, "all pages")
        server.start()
        command.wait(code=0)
        assert addresses(it, server.url) == details(the_site, 600) + Counter(
            {"http://elsewhere.test/": 1}
        )


BAD: list[tuple[list[str], str]] = [
    (["DISTRIBUTED_FRONTIER=a/b"], "cannot name a frontier"),
    (["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_SLOTS=many"], "DISTRIBUTED_SLOTS"),
    (["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_SLOT_BY=size"], "fingerprint or domain or site"),
    (["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_TARGET_CALLBACKS=nope"], "no method 'nope'"),
    (
        ["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_INDEX=http://web/%d", "DISTRIBUTED_PAGES=3"],
        "are for crawls",
    ),
    (["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_STORE=ftp://web/"], "kind ftp://"),
]


@pytest.mark.black_box
def test_what_makes_no_sense_is_refused_before_the_first_request(
    project: MakeProject, run_scrapy: RunCommand, run_cli: RunCommand, site: StartSite
) -> None:
    the_site = site(30)
    it = links(project, the_site, DISTRIBUTED_TARGET_CALLBACKS=["other"])
    for settings, words in BAD:
        options = [word for setting in settings for word in ("-s", setting)]
        assert "Traceback" not in run_scrapy(it, "crawl", "links", *options).expect(2, words).err
    assert (
        "scrapy crawl" in run_cli(it, "crawl", "links", *FILL, "--json", code=2).json()["message"]
    )
    assert the_site.hits() == {}


def refusal(done: Result) -> str:
    """The one paragraph of a Scrapy process that refuses to begin."""
    told = "\n".join(line for line in done.err.splitlines() if " ERROR: " in line)
    assert_one_paragraph(told)
    return told


@pytest.mark.black_box
def test_a_producer_that_the_store_does_not_let_in_fails_before_its_first_request(
    project: MakeProject, site: StartSite, run_scrapy: RunCommand, tmp_path: Path
) -> None:
    pages = site(30)
    it = links(project, pages, DISTRIBUTED_STORE="$STORE")
    with closing(RedisServer(tmp_path / "redis")) as server:
        without = f"redis://127.0.0.1:{server.port}/0"  # by both protocols of its clients
        wrong = server.url.replace("p%3Ass", "wrong")
        for address, why in (
            (without, "wants a password"),
            (f"{without}?protocol=2", "wants a password"),
            (wrong, "invalid username-password pair"),
        ):
            done = run_scrapy(it, "crawl", "links", *FILL, *TARGET, env={"STORE": address}, code=6)
            assert why in refusal(done)
            assert "wrong" not in done.err
    assert pages.hits() == {}


@pytest.mark.black_box
def test_links_that_are_for_others_are_never_left_out_where_nothing_says_where_they_go(
    project: MakeProject, site: StartSite, run_scrapy: RunCommand
) -> None:
    pages = site(30)
    nowhere = {"DISTRIBUTED_TARGET_HOSTS": [f"127.0.0.1:{free_port()}"]}
    it = links(project, pages, **QUICK, **nowhere)
    by_callback = run_scrapy(it, "crawl", "links", *TARGET, code=5)
    assert "connection refused" in refusal(by_callback)
    assert pages.hits() == {}
    without_a_target = run_scrapy(it, "crawl", "links", "-a", "pages=1", "-o", "own.jl", code=0)
    assert "Nothing says which requests of the spider links go to the nodes" in without_a_target.err
    assert set(pages.item_hits().values()) == {1}
    assert len(list(it.items("own.jl"))) == 1 + 30


LEADING = """
import scrapy


class Leading(scrapy.Spider):
    name = "leading"
    allowed_domains = ["127.0.0.1"]

    async def start(self):
        site = self.settings["SITE"]
        yield scrapy.Request(site + "/properties/index_00000.html")
        yield scrapy.Request(site + "/properties/property_000000.html?start", self.parse_article)

    def parse(self, response):
        if "index_00001" not in response.url:
            yield response.follow("index_00001.html", self.parse)
        near, far = ("?near", "?far") if "index_00000" in response.url else ("?deep", "?deeper")
        yield response.follow("property_000001.html" + near, self.parse_article)
        yield response.follow("property_000002.html" + "x" * 90 + near, self.parse_article)
        yield scrapy.Request(f"http://elsewhere.test/{far}", self.parse_article)
        yield scrapy.Request(f"http://elsewhere.test/{far}", self.parse_article, meta={"allow_offsite": True})
        yield response.follow("property_000003.html" + near, self.parse_other)

    def parse_article(self, response):
        raise AssertionError("this is for the workers")

    def parse_other(self, response):
        yield {"other": response.url}
"""


@pytest.mark.black_box
def test_what_a_middleware_of_the_spider_takes_out_is_not_stored_and_a_start_request_is_taken_by_its_callback(
    project: MakeProject, run_scrapy: RunCommand, run_cli: RunCommand, site: StartSite
) -> None:
    """H21, H30: nothing of another site, nothing too deep or too long; by its callback, wherever it comes from."""
    pages = site(60)
    limits: dict[str, Any] = {"DEPTH_LIMIT": 1, "URLLENGTH_LIMIT": 100}
    it = project(
        spiders={"leading": LEADING}, settings={"ADDONS": ADDON, "SITE": pages.url, **limits}
    )
    run_scrapy(it, "crawl", "leading", *FILL, *TARGET, "-o", "own.jl", code=0)
    dumped = run_cli(it, "frontier", "dump", "shop", "0", "--json").json()
    stored = sorted(one["url"] for batch in dumped["batches"] for one in batch["requests"])
    assert stored == sorted(
        ["http://elsewhere.test/?far", pages.detail(0) + "?start", pages.detail(1) + "?near"]
    ), "what is marked so may lead away"
    assert sorted(item["other"] for item in it.items("own.jl")) == [pages.detail(3) + "?near"]
    assert sorted(pages.hits()) == [
        pages.site.index_path(0), pages.site.index_path(1), pages.site.detail_path(3) + "?near",
    ]  # fmt: skip


# what comes out, to the unit what was counted


@pytest.mark.black_box
def test_a_page_is_fetched_once_though_it_is_added_again_and_again_when_its_slot_was_deleted(
    project: MakeProject, consumer_nodes: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    pages = site(5)
    it = project(nodes=consumer_nodes[:1], settings={**QUICK, "START_URL": pages.start_url})
    slots = [{"frontier_slot_prefix": "p" if number < 3 else "q"} for number in range(5)]
    rows = [{"url": pages.detail(number), "meta": meta} for number, meta in enumerate(slots)]
    it.write("rows.jl", "\n".join(map(json.dumps, rows)))
    add = ("frontier", "add", "again", "rows.jl", "--spider-callback", "parse_article", "--json")

    def consumed() -> Counter[int]:
        """The hits of all pages when nothing waits any more."""
        run_cli(it, "frontier", "consume", "plain", "again", code=0)
        return pages.item_hits()

    assert run_cli(it, *add).json()["added"] == 5
    assert consumed() == Counter(range(5))
    again = run_cli(it, *add).json()
    assert (again["added"], again["duplicate"]) == (0, 5)
    run_cli(it, "frontier", "delete", "again", "--prefix", "q", "--yes", code=0)
    again = run_cli(it, *add).json()
    assert (again["added"], again["duplicate"]) == (2, 3)
    assert consumed() == Counter([*range(5), 3, 4])


@pytest.mark.black_box
def test_each_night_fetches_the_new_pages_alone_and_the_file_has_those_of_all_nights(
    project: MakeProject, consumer_nodes: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    """The way of the how-to "Fetch only new pages"."""
    pages = site(6)
    it = project(nodes=consumer_nodes[:1], settings={**QUICK, "START_URL": pages.start_url})

    def crawl_night(count: int) -> list[str]:
        """Fill the frontier with so many links, crawl it, and return the URLs in the file."""
        urls = [pages.detail(number) for number in range(count)]
        it.write("found.txt", "\n".join(urls))
        run_cli(it, "frontier", "add", "nightly", "found.txt", "--spider-callback", "parse_article")
        run_cli(it, "frontier", "consume", "plain", "nightly", "-o", "all.jl", code=0)
        lines = (it.path / "all.jl").read_text().splitlines()
        return sorted(json.loads(line)["url"] for line in lines)

    assert crawl_night(3) == sorted(pages.detail(number) for number in range(3))
    assert crawl_night(5) == sorted(pages.detail(number) for number in range(5))
    assert crawl_night(5) == sorted(pages.detail(number) for number in range(5))
    assert pages.item_hits() == Counter(range(5))


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
    project: MakeProject, consumer_nodes: list[ScrapydNode], site: StartSite, run_scrapy: RunCommand,
    run_cli: RunCommand
) -> None:  # fmt: skip
    """H31: links that went into the frontier, requests that came out of it, and those that were not made."""
    pages = site(90, per_page=30, duplicates=4, offsite=3)
    pages.behave({pages.site.detail_path(8): "fail:1"})
    settings = {
        **QUICK, "ADDONS": ADDON, "SITE": pages.url, "DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"],
        "DISTRIBUTED_SLOT_PREFIX": "p", "DISTRIBUTED_SLOTS": 2, "DISTRIBUTED_REQUEST_HOOK": "choose",
        "DISTRIBUTED_BATCH_SIZE": 10,
    }  # fmt: skip
    it = project(nodes=consumer_nodes[:1], spiders={"counted": COUNTED}, settings=settings)
    filled = run_scrapy(it, "crawl", "counted", "-s", "DISTRIBUTED_FRONTIER=shop", code=0)
    assert pages.item_hits() == {}
    produced = requests_counted(filled)
    assert_all_links_are_counted(produced, pages)

    run_cli(
        it, "frontier", "consume", "counted", "shop", "-o", "items.jl", code=3
    )  # the hook has failed at nine
    consumer_nodes[0].wait_idle()
    summed = run_cli(it, "jobs", "stats", "shop", "--json").json()
    assert (summed["jobs"] >= 2, summed["silent"]) == (True, []), (
        "a worker for each slot, and each has told"
    )
    stats = {name: one["sum"] for name, one in summed["stats"].items() if "sum" in one}
    told = Counter(
        {n.removeprefix("distributed/requests_"): v for n, v in stats.items() if "/requests_" in n}
    )

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
    assert (
        told["leased"]
        == told["returned"] + told["dropped_by_hook"] + told["not_made"] + told["left"]
    )
    assert (told["dropped_by_hook"], told["not_made"], told["left"]) == (9, 9, 0)
    assert told["returned"] == len(made)
    assert (
        stats["downloader/request_count"]
        == sum(hits.values())
        == told["returned"] + len(followed) + 1
    )  # the retry
    assert stats["distributed/batches_leased"] == stats["distributed/batches_acked"]
    assert sum(1 for _ in it.items("items.jl")) == len(made) + len(followed)
