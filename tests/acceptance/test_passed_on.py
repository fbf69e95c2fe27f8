"""What a crawl is given with -a and -s reaches every job unchanged; what belongs to the producer's process does not."""

import pytest
from rig.crawls import ADDON, QUICK, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode

TELLING = """
    from properties.spiders.easy import EasySpider

    class Telling(EasySpider):
        name = "telling"

        def __init__(self, *args, category="", text="", table="", empty="unset", **kwargs):
            super().__init__(*args, **kwargs)
            self.given = {"category": category, "text": text, "table": table, "empty": empty}

        def parse_item(self, response):
            settings = self.crawler.settings
            yield {
                "number": response.css("span.number::text").get(), "given": self.given,
                "kept": {name: settings.get(name) for name in ("MY_SETTING", "DOWNLOAD_DELAY", "USER_AGENT")},
                "LOG_FILE": settings.get("LOG_FILE"), "JOBDIR": settings.get("JOBDIR"),
                "FEEDS": list(settings.getdict("FEEDS")), "poll": settings.get("DISTRIBUTED_POLL_INTERVAL"),
                "outputs": settings.get("DISTRIBUTED_OUTPUTS"),
            }
"""
ARGS = {"category": "books", "text": "ünï code = 'x' \"y\"", "table": '{"a": [1, 2]}', "empty": ""}
SETTINGS = {"MY_SETTING": "a=b,c é", "DOWNLOAD_DELAY": "0.01", "USER_AGENT": "me/1.0 (+http://example.com)"}


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


@pytest.mark.parametrize("program", ["sdist", pytest.param("scrapy", marks=pytest.mark.black_box)])
def test_arguments_and_settings(
    program: str,
    project: MakeProject,
    run_scrapy: RunCommand,
    run_cli: RunCommand,
    nodes_up: list[ScrapydNode],
    site: StartSite,
) -> None:
    there = site(60)
    it = project(nodes=nodes_up, settings={**QUICK, "START_URL": there.start_url})
    it.spider("telling", TELLING)
    args = [word for name, value in ARGS.items() for word in ("-a", f"{name}={value}")]
    sets = [word for name, value in SETTINGS.items() for word in ("-s", f"{name}={value}")]
    # The long form and the one without a space mean the same, and a repeated name counts as Scrapy counts it.
    sets = ["-s", "MY_SETTING=first", *sets]
    own = ["-s", "LOG_FILE=own.log", "-s", "JOBDIR=job"]
    if program == "scrapy":
        it.settings(ADDONS=ADDON)
        sets[-2:] = ["--set", f"USER_AGENT={SETTINGS['USER_AGENT']}"]
        done = run_scrapy(it, "crawl", "telling", *args, *sets, *own, "-o", "items.jl")
    else:
        done = run_cli(it, "crawl", "telling", *args, *sets, *own, "-o", "items.jl")
    assert done.code == 0, said(done)
    items = list(it.items("items.jl"))
    assert sorted(int(item["number"]) for item in items) == list(range(60))
    for item in items:
        assert item["given"] == ARGS
        assert item["kept"] == SETTINGS
        assert item["JOBDIR"] is None
        assert item["LOG_FILE"] != "own.log"
        assert "/properties/telling/" in item["LOG_FILE"] or item["LOG_FILE"].startswith("logs/")
        assert item["FEEDS"] == []
        assert item["outputs"] is None
