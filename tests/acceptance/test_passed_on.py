"""What each job of a crawl is given: all of -a and -s, nothing of the producer's process; the profile."""

import json
from typing import Any

import pytest
from rig.crawls import QUICK
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
SETTINGS = {
    "MY_SETTING": "a=b,c é",
    "DOWNLOAD_DELAY": "0.01",
    "USER_AGENT": "me/1.0 (+http://example.com)",
}


def test_arguments_and_settings(
    project: MakeProject, run_cli: RunCommand, pair: list[ScrapydNode], site: StartSite
) -> None:
    there = site(60)
    it = project(nodes=pair, settings={**QUICK, "START_URL": there.start_url})
    it.spider("telling", TELLING)
    args = [word for name, value in ARGS.items() for word in ("-a", f"{name}={value}")]
    # A repeated name counts as Scrapy counts it.
    sets = [
        "-s",
        "MY_SETTING=first",
        *(word for name, value in SETTINGS.items() for word in ("-s", f"{name}={value}")),
    ]
    own = ["-s", "LOG_FILE=own.log", "-s", "JOBDIR=job"]
    run_cli(it, "crawl", "telling", *args, *sets, *own, "-o", "items.jl", code=0)
    items = list(it.items("items.jl"))
    assert sorted(int(item["number"]) for item in items) == list(range(60))
    for item in items:
        told: dict[str, Any] = {
            "given": ARGS,
            "kept": SETTINGS,
            "JOBDIR": None,
            "FEEDS": [],
            "outputs": None,
        }
        assert {name: item[name] for name in told} == told
        assert "/properties/telling/" in item["LOG_FILE"] or item["LOG_FILE"].startswith("logs/")


#: a page gives items, a further request, an error, and a debug line; the item says what its process is like
VARIED = """
    import gc, logging

    from properties.spiders.easy import EasySpider

    class Varied(EasySpider):
        name = "varied"

        def parse_item(self, response):
            settings = self.crawler.settings
            number = int(response.css("span.number::text").get())
            if number % 7 == 3:
                raise ValueError(number)
            self.logger.debug("a page")
            for part in range(number % 5):
                yield {"number": number, "part": part}
            yield {
                "number": number, "items": settings.getint("CONCURRENT_ITEMS"),
                "debug": self.logger.isEnabledFor(logging.DEBUG), "frozen": gc.get_freeze_count() > 0,
            }
            yield response.follow("?again=1", self.parse_again, cb_kwargs={"number": number})

        def parse_again(self, response, number):
            yield {"number": number, "again": True}
"""
PROCESS = ("items", "debug", "frozen")
ACCOUNT = (
    "urls_found", "urls_distinct", "pages", "items", "gone_urls", "failed_urls", "dead_urls", "exit_code", "state",
)  # fmt: skip


@pytest.mark.black_box
@pytest.mark.real_start
def test_the_profile_changes_no_result(
    project: MakeProject, run_cli: RunCommand, fleet: StartFleet, site: StartSite
) -> None:
    it = project(
        nodes=fleet(2), settings={**QUICK, "START_URL": site(48).start_url, "LOG_LEVEL": "INFO"}
    )
    it.spider("varied", VARIED)

    def crawled(*options: str) -> tuple[list[str], dict[str, Any], set[tuple[Any, ...]]]:
        """The items without what they say of their process, the account, and what they say."""
        done = run_cli(
            it,
            "crawl",
            "varied",
            "--max-failed",
            "100",
            "--json",
            "-O",
            "items.jl",
            *options,
            code=0,
        )
        items = list(it.items("items.jl"))
        processes = {tuple(item[name] for name in PROCESS) for item in items if "items" in item}
        plain = (
            {name: value for name, value in item.items() if name not in PROCESS} for item in items
        )
        return (
            sorted(map(json.dumps, plain)),
            {name: done.json()[name] for name in ACCOUNT},
            processes,
        )

    items, account, process = crawled("-s", "DISTRIBUTED_PROFILE=none")
    assert (account["failed_urls"], process) == (7, {(100, True, False)})
    assert crawled() == (items, account, {(16, True, True)})
    assert crawled("-s", "DISTRIBUTED_PROFILE=fast") == (items, account, {(4, False, True)})
