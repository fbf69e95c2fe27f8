"""What a crawl is given with -a and -s reaches every job unchanged; what belongs to the producer's process does not."""

from typing import Any

from rig.crawls import QUICK
from rig.fixtures import MakeProject, RunCommand, StartSite
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


def test_arguments_and_settings(
    project: MakeProject, run_cli: RunCommand, pair: list[ScrapydNode], site: StartSite
) -> None:
    there = site(60)
    it = project(nodes=pair, settings={**QUICK, "START_URL": there.start_url})
    it.spider("telling", TELLING)
    args = [word for name, value in ARGS.items() for word in ("-a", f"{name}={value}")]
    # A repeated name counts as Scrapy counts it.
    sets = ["-s", "MY_SETTING=first", *(word for name, value in SETTINGS.items() for word in ("-s", f"{name}={value}"))]
    own = ["-s", "LOG_FILE=own.log", "-s", "JOBDIR=job"]
    run_cli(it, "crawl", "telling", *args, *sets, *own, "-o", "items.jl", code=0)
    items = list(it.items("items.jl"))
    assert sorted(int(item["number"]) for item in items) == list(range(60))
    for item in items:
        told: dict[str, Any] = {"given": ARGS, "kept": SETTINGS, "JOBDIR": None, "FEEDS": [], "outputs": None}
        assert {name: item[name] for name in told} == told
        assert "/properties/telling/" in item["LOG_FILE"] or item["LOG_FILE"].startswith("logs/")
