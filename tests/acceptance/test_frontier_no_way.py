"""A frontier that nobody can reach, and links that have none: an error each, and never an end as if all were done."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rig.commands import Result
from rig.crawls import ADDON, QUICK, assert_one_paragraph, said
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.frontiers import Frontier
from rig.nodes import ScrapydNode, free_port
from rig.redis import PASSWORD, RedisServer

LINKS = """
import scrapy


class Links(scrapy.Spider):
    name = "links"

    async def start(self):
        yield scrapy.Request(self.settings["START_URL"])

    def parse(self, response):
        for link in response.css('a[itemprop="url"]::attr(href)').getall():
            yield response.follow(link, self.parse_article, meta=self.settings.getdict("MARK"))

    def parse_article(self, response):
        yield {"url": response.url}
"""
TARGET = ("-s", "DISTRIBUTED_TARGET_CALLBACKS=parse_article")
FILL = ("-s", "DISTRIBUTED_FRONTIER=shop", *TARGET)


def refusal(done: Result) -> str:
    """The one paragraph of a Scrapy process that refuses to begin."""
    told = "\n".join(line for line in done.err.splitlines() if " ERROR: " in line)
    assert_one_paragraph(told)
    return told


# a store that does not let in who comes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with closing(RedisServer(tmp_path / "redis")) as one:
        yield one


@pytest.fixture
def strangers(server: RedisServer) -> tuple[str, ...]:
    """Addresses of the store without its password, by both protocols of its clients, and with another one."""
    without = f"redis://127.0.0.1:{server.port}/0"
    return without, f"{without}?protocol=2", server.url.replace("p%3Ass", "wrong")


@pytest.mark.black_box
def test_a_producer_that_the_store_does_not_let_in_fails_before_its_first_request(
    project: MakeProject, site: StartSite, run_scrapy: RunCommand,
    strangers: tuple[str, ...]
) -> None:  # fmt: skip
    pages = site(30)
    settings = {"ADDONS": ADDON, "START_URL": pages.start_url, "DISTRIBUTED_STORE": "$STORE"}
    it = project(spiders={"links": LINKS}, settings=settings)
    reasons = ("wants a password", "wants a password", "invalid username-password pair")
    for address, why in zip(strangers, reasons, strict=True):
        done = run_scrapy(it, "crawl", "links", *FILL, env={"STORE": address})
        assert done.code == 6, said(done)
        assert why in refusal(done)
        assert "wrong" not in done.err
    assert pages.hits() == {}


@pytest.mark.black_box
def test_a_manager_and_workers_that_the_store_does_not_let_in_fail_and_leave_the_frontier_as_it_was(
    project: MakeProject, scrapyd_node: Callable[..., ScrapydNode], site: StartSite,
    run_cli: RunCommand, server: RedisServer, strangers: tuple[str, ...]
) -> None:  # fmt: skip
    pages = site(5)
    barred = scrapyd_node(poll_interval=0.2, env={"SDIST_STORE": strangers[-1]})
    it = project(nodes=[barred], settings={**QUICK, "START_URL": pages.start_url})
    frontier = Frontier(it, store=server.url)
    frontier.fill(map(pages.detail, range(5)), callback="parse_article")
    outside = run_cli(it, "consume", "plain", "shop", env={"SDIST_STORE": strangers[0]})
    assert outside.code == 6, said(outside)
    inside = run_cli(it, "consume", "plain", "shop", env={"SDIST_STORE": server.url})
    assert inside.code == 1, said(inside)
    assert "No node takes the work" in inside.err
    assert "invalid username-password pair or user is disabled.\n" in inside.err
    assert not any(secret in inside.out + inside.err for secret in (PASSWORD, "p%3Ass", "wrong%2Fw"))
    assert frontier.counts() == {"sealed": 5}
    assert pages.hits() == {}


@pytest.mark.black_box
def test_a_node_that_does_not_let_the_manager_in_gets_no_worker(
    project: MakeProject, scrapyd_node: Callable[..., ScrapydNode], run_cli: RunCommand
) -> None:
    locked = scrapyd_node(username="me", password="right")
    wrong = f"[deploy:one]\nurl = {locked.url}\nproject = properties\nusername = me\npassword = not-this\n"
    it = project(settings=QUICK, extra=wrong)
    frontier = Frontier(it)
    frontier.fill(["http://127.0.0.1:1/"], callback="parse_article")
    done = run_cli(it, "consume", "plain", "shop")
    assert done.code == 6, said(done)
    assert "not-this" not in done.out + done.err
    assert (frontier.counts(), locked.jobs()) == ({"sealed": 1}, [])


# no frontier is named


@pytest.mark.black_box
def test_links_that_are_for_others_are_never_left_out_where_nobody_says_who_takes_them(
    project: MakeProject, site: StartSite, run_scrapy: RunCommand
) -> None:
    pages = site(30)
    nowhere = {"DISTRIBUTED_TARGET_HOSTS": [f"127.0.0.1:{free_port()}"]}
    it = project(spiders={"links": LINKS}, settings={"ADDONS": ADDON, "START_URL": pages.start_url, **QUICK, **nowhere})
    by_callback = run_scrapy(it, "crawl", "links", *TARGET)
    assert by_callback.code == 5, said(by_callback)
    assert "connection refused" in refusal(by_callback)
    marked = ("-s", 'MARK={"distribute": true}')
    by_meta = run_scrapy(it, "crawl", "links", *marked)
    assert by_meta.code == 2, said(by_meta)
    assert "Nothing says which requests of the spider links go to the nodes" in refusal(by_meta)
    assert pages.hits() == {}
    alone = run_scrapy(it, "crawl", "links", *marked, "-s", "DISTRIBUTED_ENABLED=False", "-o", "own.jl")
    assert alone.code == 0, said(alone)
    assert set(pages.item_hits().values()) == {1}
    assert len(list(it.items("own.jl"))) == 30
