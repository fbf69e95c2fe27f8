"""Producers by settings alone: `scrapy crawl` with DISTRIBUTED_FRONTIER fills a frontier, and needs no node."""

import json
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.commands import Result
from rig.crawls import ADDON, QUICK, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
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


def store_of(project: Project, where: str | None = None) -> Store:
    return open_store(where or project.path / ".sdist" / "store.db")


def stored(project: Project, where: str | None = None, slot: str | None = None) -> list[RequestValue]:
    """The requests in the frontier, or in one slot of it."""
    key = state_key(state_dir(project.path))
    with closing(store_of(project, where)) as store:
        batches = [batch for batch in store.batches("shop") if slot in {None, batch.slot}]
        return [value for batch in batches for value in decode(store.payload("shop", batch.number).get, key=key)]


def addresses(project: Project, where: str | None = None) -> Counter[str]:
    return Counter(value["url"] for value in stored(project, where))


def stats(done: Result) -> Counter[str]:
    """What Scrapy's last words count of ours."""
    lines = [line.strip(" {},") for line in done.err.splitlines() if "'distributed/requests_" in line]
    pairs = (line.split(": ") for line in lines)
    return Counter({name.strip("'").removeprefix("distributed/requests_"): int(number) for name, number in pairs})


def details(site: SiteProcess, count: int) -> Counter[str]:
    return Counter(site.detail(number) for number in range(count))


def test_a_spider_as_it_is_fills_a_frontier_and_makes_no_target_request(
    project: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    the_site = site(90)
    it = project(settings={"ADDONS": ADDON, "START_URL": the_site.start_url})
    done = run_scrapy(
        it,
        "crawl",
        "easy",
        *FILL,
        "-s",
        "DISTRIBUTED_SLOT_PREFIX=p",
        "-s",
        "DISTRIBUTED_SLOTS=2",
        "-s",
        "DISTRIBUTED_SLOT=3",
    )
    assert done.code == 0, said(done)
    assert "Did you mean DISTRIBUTED_SLOTS?" in done.err
    assert the_site.item_hits() == {}
    assert addresses(it) == details(the_site, 90)
    with closing(store_of(it)) as store:
        (row,) = store.crawls()
        assert (row.kind, row.project, row.state) == ("frontier", "properties", CrawlState.FINDING)
        assert sorted(slot.slot for slot in store.slots("shop")) == ["p0", "p1"]
        assert store.backlog("shop").producers == ()
    told = stats(done)
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
    return project(spiders={"links": LINKS}, settings={"ADDONS": ADDON, "SITE": site.url, **settings})


def like_links(project: Project, name: str, own: str) -> None:
    """One more spider, which differs by a line."""
    project.spider(name, f"from .links import Links\n\nclass Own(Links):\n    name = {name!r}\n    {own}\n")


@pytest.mark.black_box
def test_only_what_is_listed_or_marked_is_diverted_and_own_items_go_to_own_feeds(
    project: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    the_site = site(90)
    it = links(project, the_site)
    done = run_scrapy(it, "crawl", "links", *FILL, "-s", "DISTRIBUTED_TARGET_BY_META=1", "-o", "own.jl")
    assert done.code == 0, said(done)
    marked = {the_site.detail(number) for number in range(90) if number % 30 % 3 == 0}
    assert set(addresses(it)) == marked
    own = list(it.items("own.jl"))
    assert sorted(item["page"] for item in own if "page" in item) == [0, 1, 2]
    assert {item["article"] for item in own if "article" in item} == set(details(the_site, 90)) - marked
    assert "meta" not in stored(it)[0], "the mark travels no further"


@pytest.mark.black_box
def test_offsite_links_are_not_stored(project: MakeProject, run_scrapy: RunCommand, site: StartSite) -> None:
    the_site = site(30)
    it = links(project, the_site, DISTRIBUTED_TARGET_CALLBACKS=["parse_article", "other"])
    like_links(it, "strict", "allowed_domains = ['127.0.0.1']")
    done = run_scrapy(it, "crawl", "strict", *FILL, "-a", "pages=1")
    assert done.code == 0, said(done)
    assert addresses(it) == details(the_site, 30)
    assert stats(done)["offsite"] == 1


@pytest.mark.black_box
def test_start_requests_can_be_seeds(project: MakeProject, run_scrapy: RunCommand, site: StartSite) -> None:
    the_site = site(150)
    it = links(project, the_site)
    done = run_scrapy(it, "crawl", "links", *FILL, "-s", "DISTRIBUTED_SEEDS=1", "-a", "pages=5")
    assert done.code == 0, said(done)
    assert the_site.hits() == {}
    assert [value["cb_kwargs"] for value in sorted(stored(it), key=lambda value: value["url"])] == [
        {"page": page} for page in range(5)
    ]


@pytest.mark.black_box
def test_the_nearest_setting_acts(project: MakeProject, run_scrapy: RunCommand, site: StartSite) -> None:
    """Project, then spider, then command line."""
    the_site = site(30)
    it = links(project, the_site, DISTRIBUTED_SLOT_PREFIX="project", DISTRIBUTED_TARGET_CALLBACKS=["other"])
    like_links(it, "near", "custom_settings = {'DISTRIBUTED_SLOT_PREFIX': 'spider', 'DISTRIBUTED_FRONTIER': 'shop'}")
    assert run_scrapy(it, "crawl", "links", *FILL, "-a", "pages=1").code == 0
    line = ["-s", "DISTRIBUTED_TARGET_CALLBACKS=parse_article"]
    assert run_scrapy(it, "crawl", "near", *line, "-a", "pages=1").code == 0
    line = ["-s", "DISTRIBUTED_SLOT_PREFIX=line", "-s", "DISTRIBUTED_SEEDS=1"]
    assert run_scrapy(it, "crawl", "near", *line, "-a", "pages=1").code == 0
    with closing(store_of(it)) as store:
        sizes = {slot.slot: slot.waiting for slot in store.slots("shop")}
    assert sizes == {"project0": 10, "spider0": 21, "line0": 1}


@pytest.mark.black_box
def test_the_middleware_alone_is_enough(project: MakeProject, run_scrapy: RunCommand, site: StartSite) -> None:
    the_site = site(30)
    named = {"SPIDER_MIDDLEWARES": {"scrapyd_dist.Distributed": 100}}
    it = project(spiders={"links": LINKS}, settings={"SITE": the_site.url, **named})
    options = ["-s", "DISTRIBUTED_TARGET_CALLBACKS=parse_article,other", "-a", "pages=1", "-o", "own.jl"]
    done = run_scrapy(it, "crawl", "links", *FILL, *options)
    assert done.code == 0, said(done)
    assert set(addresses(it)) == {*details(the_site, 30), "http://elsewhere.test/"}
    assert list(it.items("own.jl")) == [{"page": 0}]


@pytest.mark.black_box
def test_two_producers_at_once_lose_nothing_and_double_nothing(
    project: MakeProject, start_scrapy: StartCommand, site: StartSite
) -> None:
    the_site = site(600)
    it = links(project, the_site, DISTRIBUTED_TARGET_CALLBACKS=["parse_article", "other"])
    both = [start_scrapy(it, "crawl", "links", *FILL, "-a", f"pages={pages}") for pages in (20, 15)]
    done = [one.wait() for one in both]
    assert [one.code for one in done] == [0, 0], [said(one) for one in done]
    assert addresses(it) == details(the_site, 600) + Counter({"http://elsewhere.test/": 1})
    told = [stats(one) for one in done]
    assert sum(one["added"] for one in told) == 601
    assert sum(one["found"] for one in told) == (20 + 15) * 31


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
    found, slow, last = 571, *(the_site.site.index_path(page) for page in (19, 20))  # found: on the 19 pages before
    the_site.behave({slow: f"slow:{LATER}", last: "hang"})
    slots = {"DISTRIBUTED_SLOTS": 4, "DISTRIBUTED_BATCH_SIZE": 50, "DISTRIBUTED_BATCH_MAX_AGE": max_age}
    targets = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse_article", "other"]}
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
        assert len(store.backlog("shop").producers) == 1, "nobody signed it off"
    assert sizes == {50} or not most_lost, "a batch was written before it was full or old"
    the_site.behave({})
    assert run_scrapy(it, "crawl", "links", *FILL, "-a", "pages=21").code == 0
    assert addresses(it) == details(the_site, 630) + Counter({"http://elsewhere.test/": 1})
    with closing(store_of(it)) as store:
        backlog = store.backlog("shop")
        assert (backlog.producers, backlog.lost) == ((), ()), "the one that did its work signed for it, too"


@pytest.mark.black_box
def test_one_that_is_interrupted_flushes_and_says_that_it_is_not_through(
    project: MakeProject, start_scrapy: StartCommand, site: StartSite
) -> None:
    the_site = site(600, "--latency=0.2")
    one_by_one = {"CONCURRENT_REQUESTS": 1, "DISTRIBUTED_BATCH_MAX_AGE": 60}
    it = links(project, the_site, DISTRIBUTED_TARGET_CALLBACKS=["parse_article", "other"], **one_by_one)
    command = start_scrapy(it, "crawl", "links", *FILL, "-a", "pages=20")
    wait_for(lambda: len(the_site.log()) > 4, 60, "a few pages")
    command.interrupt()
    done = command.wait()
    told = stats(done)
    assert told["added"] == len(addresses(it)) > 90
    with closing(store_of(it)) as store:
        assert len(store.backlog("shop").producers) == 1


@pytest.mark.black_box
def test_a_store_that_is_away_for_a_while_loses_nothing(
    project: MakeProject, start_scrapy: StartCommand, site: StartSite,
    tmp_path: Path
) -> None:  # fmt: skip
    the_site = site(600, "--latency=0.1")
    with closing(RedisServer(tmp_path / "redis")) as server:
        many = {"CONCURRENT_REQUESTS": 2, "DISTRIBUTED_BATCH_MAX_AGE": 1, "DISTRIBUTED_STORE": "$SDIST_STORE"}
        it = links(project, the_site, DISTRIBUTED_TARGET_CALLBACKS=["parse_article", "other"], **many)
        env = {"SDIST_STORE": server.url}
        command = start_scrapy(it, "crawl", "links", *FILL, "-a", "pages=20", env=env)
        wait_for(lambda: server_has(server.url), 60, "the first batch")
        server.kill()
        wait_for(lambda: len(the_site.hits()) == 20, 60, "all pages")
        server.start()
        done = command.wait()
        assert done.code == 0, said(done)
        assert addresses(it, server.url) == details(the_site, 600) + Counter({"http://elsewhere.test/": 1})


def server_has(url: str) -> bool:
    with closing(open_store(url)) as store:
        return any(row.id == "shop" and store.slots("shop") for row in store.crawls())


@pytest.mark.black_box
def test_work_for_another_spider_waits_in_its_slot_and_for_nobody_is_listed(
    project: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    the_site = site(30)
    others = {"other": "login", "parse_article": "nobody"}
    it = links(project, the_site, DISTRIBUTED_SPIDER_CALLBACKS=others)
    it.spider("login", "import scrapy\n\nclass Login(scrapy.Spider):\n    name = 'login'\n")
    done = run_scrapy(it, "crawl", "links", *FILL, "-a", "pages=1")
    assert done.code == 0, said(done)
    assert {value["callback"] for value in stored(it, slot="@login")} == {"other"}
    assert len(stored(it)) == len(stored(it, slot="@login")) == 10
    with closing(store_of(it)) as store:
        lost = store.misses("shop")
    assert len(lost) == 21
    assert {miss.kind for miss in lost} == {"dead"}
    assert "there is no spider 'nobody' in this project; there are: links, login" in done.err


BAD: list[tuple[list[str], str]] = [
    (["DISTRIBUTED_FRONTIER=a/b"], "cannot name a frontier"),
    (["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_SLOTS=many"], "DISTRIBUTED_SLOTS"),
    (["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_SLOT_BY=size"], "only by fingerprint or domain"),
    (["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_TARGET_CALLBACKS=nope"], "no method 'nope'"),
    (["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_INDEX=http://web/%d", "DISTRIBUTED_PAGES=3"], "are for crawls"),
    (["DISTRIBUTED_FRONTIER=shop", "DISTRIBUTED_STORE=ftp://web/"], "kind ftp://"),
]


@pytest.mark.black_box
def test_what_makes_no_sense_is_refused_before_the_first_request(
    project: MakeProject, start_scrapy: StartCommand, site: StartSite
) -> None:
    the_site = site(30)
    it = links(project, the_site, DISTRIBUTED_TARGET_CALLBACKS=["other"])
    for settings, words in BAD:
        options = [word for setting in settings for word in ("-s", setting)]
        done = start_scrapy(it, "crawl", "links", *options).wait()
        assert (done.code, words in done.err, "Traceback" in done.err) == (2, True, False), (settings, said(done))
    assert the_site.hits() == {}


@pytest.mark.black_box
def test_a_command_that_crawls_does_not_only_fill(project: MakeProject, run_cli: RunCommand, site: StartSite) -> None:
    the_site = site(30)
    it = links(project, the_site, DISTRIBUTED_TARGET_CALLBACKS=["other"])
    done = run_cli(it, "crawl", "links", *FILL, "--json")
    assert done.code == 2, done
    assert "scrapy crawl" in json.loads(done.out)["message"]


TRAVELLER = """
import scrapy


class Traveller(scrapy.Spider):
    name = "traveller"
    token = None

    async def start(self):
        self.token = "secret of the producer"
        fields = dict(
            method="POST", body=b"\\x00x", headers={"X-One": ["1", "2"]}, cookies={"c": "d"}, priority=3, flags=["f"],
            meta={"m": (1, b"2")}, cb_kwargs={"k": [True]}, callback=self.parse_article, errback=self.gone,
        )
        site = self.settings["SITE"]
        yield scrapy.Request(site + "/properties/property_000000.html", **fields, dont_filter=True)
        yield scrapy.Request(site + "/properties/property_000000.html", **fields, dont_filter=True)
        yield scrapy.Request(site + "/missing", callback=self.parse, errback=self.gone)

    def parse_article(self, response, k):
        made = response.request
        meta = {name: item for name, item in made.meta.items() if name == "m"}
        yield {
            "url": made.url, "method": made.method, "body": repr(made.body), "meta": repr(meta), "k": repr(k),
            "header": made.headers.getlist("X-One")[1].decode(), "cookies": made.cookies, "flags": made.flags,
            "priority": made.priority, "dont_filter": made.dont_filter, "errback": made.errback is not None,
            "token": self.token,
        }

    def gone(self, failure):
        yield {"gone": failure.value.response.status, "token": self.token}
"""


@pytest.mark.black_box
def test_what_one_spider_stored_by_settings_alone_comes_back_equal_to_its_workers(
    project: MakeProject, run_scrapy: RunCommand, run_cli: RunCommand,
    fleet: StartFleet, site: StartSite
) -> None:  # fmt: skip
    the_site = site(30)
    it = project(
        nodes=fleet(1), spiders={"traveller": TRAVELLER},
        settings={"ADDONS": ADDON, "SITE": the_site.url, "DISTRIBUTED_SPIDER_ATTRIBUTES": ["token"], **QUICK},
    )  # fmt: skip
    done = run_scrapy(it, "crawl", "traveller", *FILL, "-s", "DISTRIBUTED_SEEDS=1")
    assert done.code == 0, said(done)
    assert the_site.hits() == {}
    consumed = run_cli(it, "consume", "traveller", "shop", "-o", "items.jl")
    items = list(it.items("items.jl"))
    assert [item for item in items if "url" in item] == [
        {
            "url": the_site.detail(0), "method": "POST", "body": r"b'\x00x'", "header": "2", "cookies": {"c": "d"},
            "priority": 3, "flags": ["f"], "meta": "{'m': (1, b'2')}", "k": "[True]", "dont_filter": True,
            "token": "secret of the producer", "errback": True,
        }
    ] * 2, said(consumed)  # fmt: skip
    assert [item for item in items if "gone" in item] == [{"gone": 404, "token": "secret of the producer"}]
