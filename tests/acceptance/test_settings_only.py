"""The way in by settings only: one line in settings.py, then `scrapy` as ever; no command of ours, no server."""

import csv
import json
from decimal import Decimal

import pytest
from rig.crawls import ADDON, NEWS, QUICK, assert_each_page_once, crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode, free_port
from rig.sites import SiteProcess
from rig.waiting import wait_for
from scrapy.settings import default_settings

from scrapyd_dist.batches import home_of


@pytest.mark.promise("Only its owner can read the state folder")
@pytest.mark.real_start
def test_one_line_and_targets_in_scrapy_cfg(
    project: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode], site_now: SiteProcess
) -> None:
    it = project(nodes=pair, settings={"ADDONS": ADDON, "START_URL": site_now.start_url, **QUICK})
    run_scrapy(it, "crawl", "easy", "-o", "items.jl", code=0)
    assert_each_page_once(site_now, it.items("items.jl"))
    summary = last_crawl(it).summary
    assert summary["state"] == "finished"
    assert summary["items"] == summary["sealed"] == 90
    assert all(node["jobs"] for node in summary["nodes"]), "the work was not spread"
    assert (it.path / ".sdist").stat().st_mode & 0o077 == 0


@pytest.mark.black_box
def test_hosts_in_settings_go_before_scrapy_cfg(
    project: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode], site_now: SiteProcess
) -> None:
    hosts = [f"127.0.0.1:{pair[1].port}"]  # the book's form: HOST:PORT
    settings = {
        "ADDONS": ADDON,
        "START_URL": site_now.start_url,
        "DISTRIBUTED_TARGET_HOSTS": hosts,
        **QUICK,
    }
    it = project(nodes=pair[:1], settings=settings)
    run_scrapy(it, "crawl", "easy", code=0)
    assert site_now.differences(it.items(f"{last_crawl(it).id}.jl")) == {}, (
        "without -o, the file has the crawl's name"
    )
    rows = last_crawl(it).summary["nodes"]
    assert [row["url"].rstrip("/") + "/" for row in rows] == [pair[1].url]


@pytest.mark.black_box
def test_feeds_of_the_settings_become_the_merged_output(
    project: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode], site_now: SiteProcess
) -> None:
    settings = {"ADDONS": ADDON, "START_URL": site_now.start_url, **QUICK}
    it = project(
        nodes=pair,
        settings={**settings, "FEEDS": {"all %(name)s.csv": {"format": "csv", "overwrite": True}}},
    )
    run_scrapy(it, "crawl", "easy", code=0)
    with (it.path / "all easy.csv").open(newline="") as file:
        assert site_now.differences(csv.DictReader(file)) == {}


KINDS = """
    from dataclasses import dataclass
    from decimal import Decimal

    import scrapy


    class Product(scrapy.Item):
        number, price = scrapy.Field(), scrapy.Field()


    @dataclass
    class Review:
        number: int
        price: Decimal


    class Lines:
        def __init__(self, file, **options):
            self.file = file

        def start_exporting(self): ...

        def finish_exporting(self): ...

        def export_item(self, item):
            self.file.write(f"{type(item).__name__} {item['number']} {item['price']!r}\\n".encode())


    class Kinds(scrapy.Spider):
        name = "kinds"

        async def start(self):
            yield scrapy.Request(self.settings["START_URL"])

        def parse(self, response):
            for number, link in enumerate(response.xpath("//*[contains(@itemprop, 'url')]/@href").getall()):
                yield response.follow(link, self.parse_item, cb_kwargs={"seen": Review(number, Decimal(number) / 4)})

        def parse_item(self, response, seen):
            yield seen
            yield Product(number=seen.number, price=seen.price)
"""


@pytest.mark.full
@pytest.mark.black_box
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_feeds_of_classes_batches_and_exporters_are_written_once_at_home(
    mode: str,
    project: MakeProject,
    run_cli: RunCommand,
    pair: list[ScrapydNode],
    site_now: SiteProcess,
) -> None:
    it = project(
        nodes=pair, spiders={"kinds": KINDS}, settings={"START_URL": site_now.start_url, **QUICK}
    )
    kinds = f"{it.name}.spiders.kinds"
    feeds = {
        "out/products.lines": {"format": "lines", "item_classes": [f"{kinds}.Product"]},
        "out/%(name)s-%(batch_id)d.jl": {
            "format": "jsonlines",
            "item_classes": [f"{kinds}.Review"],
            "batch_item_count": 20,
        },
    }
    it.settings(FEEDS=feeds, FEED_EXPORTERS={"lines": f"{kinds}.Lines"})
    run_cli(
        it,
        "crawl",
        "kinds",
        "--callback",
        "parse_item",
        f"--{mode}",
        "-O",
        "all-%(name)s.jl",
        code=0,
    )
    prices = sorted((it.path / "out" / "products.lines").read_text().splitlines())
    assert prices == sorted(f"Product {number} {Decimal(number) / 4!r}" for number in range(30))
    assert [len(list(it.items(f"out/kinds-{batch}.jl"))) for batch in (1, 2)] == [20, 10]
    assert len(list(it.items("all-kinds.jl"))) == 60
    assert not [path for node in pair for path in node.work.rglob("out")]


@pytest.mark.black_box
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_plain_spider_is_spread_by_the_name_of_its_callback_in_the_settings(
    mode: str,
    project: MakeProject,
    run_scrapy: RunCommand,
    pair: list[ScrapydNode],
    site_now: SiteProcess,
) -> None:
    """L12: `scrapy crawl` as ever; the article pages are asked for by jobs of the nodes, the index pages are not."""
    settings = {
        **QUICK, "ADDONS": ADDON, "START_URL": site_now.start_url, "DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"],
        "DISTRIBUTED_MODE": mode,
    }  # fmt: skip
    it = project(nodes=pair, spiders={"news": NEWS}, settings=settings)
    run_scrapy(it, "crawl", "news", "-o", "items.jl", code=0)
    items = list(it.items("items.jl"))
    assert sorted(item["article"] for item in items if "article" in item) == [
        site_now.detail(n) for n in range(90)
    ]
    producers = {item["pid"] for item in items if "index" in item}
    assert len(producers) == 1
    assert producers.isdisjoint({item["pid"] for item in items if "article" in item})
    assert_each_page_once(site_now)
    assert last_crawl(it).summary["sealed"] == 90


EVENS = """
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import CrawlSpider, Rule
    from properties.items import property_from
    from properties.spiders.starting import StartHere

    class Evens(StartHere, CrawlSpider):
        name = "evens"
        custom_settings = {"DISTRIBUTED_TARGET_RULE": 0}
        rules = (
            Rule(LinkExtractor(restrict_xpaths='//a[@itemprop="url"]', allow=r"[02468]\\.html$"), callback="even"),
            Rule(LinkExtractor(restrict_css="a.next")),
            Rule(LinkExtractor(restrict_xpaths='//a[@itemprop="url"]', allow=r"[13579]\\.html$"), callback="odd"),
        )

        def even(self, response):
            yield property_from(response)

        odd = even
"""


@pytest.mark.black_box
def test_custom_settings_name_the_target_of_a_spider(
    project: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode], site_now: SiteProcess
) -> None:
    it = project(nodes=pair, settings={"ADDONS": ADDON, "START_URL": site_now.start_url, **QUICK})
    it.spider("evens", EVENS)
    run_scrapy(it, "crawl", "evens", "-o", "items.jl", code=0)
    assert_each_page_once(site_now, it.items("items.jl"))
    assert last_crawl(it).summary["sealed"] == 45
    (part,) = (it.path / ".sdist").rglob("own-*.jl")
    own = [json.loads(line) for line in part.read_text().splitlines()]
    assert {int(item["number"]) % 2 for item in own} == {1}, (
        "the other rule's pages are the producer's"
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [
        pytest.param(["list"], "easy", marks=pytest.mark.black_box),
        pytest.param(["fetch", "--nolog", "DETAIL"], "span class", marks=pytest.mark.black_box),
        (["parse", "--spider=easy", "-c", "parse_item", "--nolog", "DETAIL"], "'number': '7'"),
        (["shell", "--nolog", "-c", "response.css('span.number::text').get()", "DETAIL"], "7"),
        pytest.param(["check", "easy"], "OK", marks=pytest.mark.black_box),
        pytest.param(["view", "--help"], "Usage", marks=pytest.mark.black_box),
        pytest.param(["crawl", "easy", "-s", "DISTRIBUTED_ENABLED=False", "-o", "x.jsonl"], "", marks=[
            pytest.mark.black_box]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_a_look_at_a_page_stays_here(
    command: list[str],
    told: str,
    project: MakeProject,
    run_scrapy: RunCommand,
    site_now: SiteProcess,
) -> None:
    it = project(settings={"ADDONS": ADDON, "START_URL": site_now.start_url, **QUICK})
    done = run_scrapy(
        it, *(site_now.detail(7) if word == "DETAIL" else word for word in command), code=0
    )
    assert told in done.out + done.err
    assert crawls(it) == []
    assert not (it.path / ".sdist").exists()
    if command[0] == "crawl":
        assert site_now.differences(it.items("x.jsonl")) == {}


@pytest.mark.black_box
def test_a_spider_without_a_target_is_crawled_here_with_a_warning(
    project: MakeProject, run_scrapy: RunCommand, run_cli: RunCommand, site_now: SiteProcess
) -> None:
    it = project(
        spiders={"news": NEWS}, settings={"ADDONS": ADDON, "START_URL": site_now.start_url, **QUICK}
    )
    done = run_scrapy(it, "crawl", "news", "-O", "items.jl", code=0)
    assert "This crawl is not distributed" in done.err
    assert "The callbacks of News are: parse, parse_article." in done.err
    assert sorted(item["article"] for item in it.items("items.jl") if "article" in item) == [
        site_now.detail(n) for n in range(90)
    ]
    assert crawls(it) == []
    # Where a distributed crawl is asked for by its name, the only other callback is meant.
    assert (
        "no target is named, so to the nodes go callback parse_article of news"
        in run_cli(it, "plan", "news").out
    )
    misspelt = run_scrapy(
        it, "crawl", "news", "-s", "DISTRIBUTED_TARGET_CALLBACKS=parse_articel", code=2
    )
    assert "Did you mean parse_article?" in misspelt.err


NEEDS_REACTORLESS = pytest.mark.skipif(
    not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"),
    reason="this Scrapy always has a reactor",
)
#: without Twisted's reactor the same crawl, with the same guarantees
REACTORLESS = {**QUICK, "TWISTED_REACTOR_ENABLED": False}


@pytest.mark.black_box
@NEEDS_REACTORLESS
def test_without_a_reactor(
    project: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode], site: StartSite
) -> None:
    there = site(90)
    it = project(
        nodes=pair,
        settings={
            **REACTORLESS,
            "ADDONS": ADDON,
            "START_URL": there.start_url,
            "LOG_LEVEL": "DEBUG",
        },
    )
    down = f"[deploy:down]\nurl = http://127.0.0.1:{free_port()}/\nproject = properties\n"
    it.targets(pair, down)
    done = run_scrapy(it, "crawl", "easy", "-o", "items.jl", code=0)
    assert there.differences(it.items("items.jl")) == {}
    assert_each_page_once(there)
    row = last_crawl(it)
    home = home_of(row.id, row.created)
    logs = [node.job_log(f"{home}.b{number}.a1") for node in pair for number in (1, 2, 3)]
    for log in (done.err, *filter(None, logs)):
        assert "Not using a Twisted reactor" in log
    assert {node["name"]: node["jobs"] > 0 for node in row.summary["nodes"]}["down"] is False
    assert any("goes on without it" in text for text in row.summary["warnings"])


@pytest.mark.black_box
@NEEDS_REACTORLESS
def test_interrupted_and_resumed_without_a_reactor(
    project: MakeProject,
    start_scrapy: StartCommand,
    run_cli: RunCommand,
    pair: list[ScrapydNode],
    site: StartSite,
) -> None:
    there = site(120, "--latency=0.2")
    settings = {
        **REACTORLESS,
        "ADDONS": ADDON,
        "START_URL": there.start_url,
        "CONCURRENT_REQUESTS": 2,
    }
    it = project(nodes=pair, settings={**settings, "DISTRIBUTED_BATCH_SIZE": 20})
    command = start_scrapy(it, "crawl", "easy", "-o", "items.jl")
    wait_for(lambda: any(node.job_pids() for node in pair), 60, "a job that runs")
    command.signal()
    done = command.wait(60, code=130)
    row = last_crawl(it)
    assert f"sdist resume {row.id}" in done.err
    run_cli(it, "resume", row.id, code=0)
    assert there.differences(it.items("items.jl")) == {}


@pytest.mark.black_box
@NEEDS_REACTORLESS
def test_a_reactor_that_is_not_asyncio_s_is_refused(
    project: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode]
) -> None:
    reactor = "twisted.internet.selectreactor.SelectReactor"
    it = project(nodes=pair, settings={**QUICK, "ADDONS": ADDON, "TWISTED_REACTOR": reactor})
    done = run_scrapy(it, "crawl", "easy", code=2)
    assert "TWISTED_REACTOR" in done.err
    assert "Traceback" not in done.err


@pytest.mark.black_box
def test_a_plan_names_the_files_of_the_projects_feeds(
    project: MakeProject, site_now: SiteProcess, run_cli: RunCommand
) -> None:
    feeds = {"out/%(name)s.jl": {"format": "jsonlines"}, "stdout:": {"format": "jsonlines"}}
    it = project(
        nodes=[], spiders={"news": NEWS}, settings={"START_URL": site_now.start_url, "FEEDS": feeds}
    )
    usual = str(it.path / "out" / "news.jl")
    assert run_cli(it, "plan", "news", "--json", code=0).json()["output"] == [usual]
    both = run_cli(it, "plan", "news", "-O", "all.csv", "--json", code=0).json()["output"]
    assert both == [str(it.path / "all.csv"), usual]
