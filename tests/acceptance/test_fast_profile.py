"""The profiles on real nodes: the same items and the same account as without one, and every job has it."""

import json
from typing import Any

import pytest
from rig.crawls import QUICK
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite

pytestmark = pytest.mark.black_box

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
    "urls_found",
    "urls_distinct",
    "pages",
    "items",
    "gone_urls",
    "failed_urls",
    "dead_urls",
    "exit_code",
    "state",
)


def test_the_profile_changes_no_result(
    project: MakeProject, run_cli: RunCommand, fleet: StartFleet, site: StartSite
) -> None:
    it = project(nodes=fleet(2), settings={**QUICK, "START_URL": site(48).start_url, "LOG_LEVEL": "INFO"})
    it.spider("varied", VARIED)

    def crawled(*options: str) -> tuple[list[str], dict[str, Any], set[tuple[Any, ...]]]:
        """The items without what they say of their process, the account, and what they say."""
        done = run_cli(it, "crawl", "varied", "--max-failed", "100", "--json", "-O", "items.jl", *options, code=0)
        items = list(it.items("items.jl"))
        processes = {tuple(item[name] for name in PROCESS) for item in items if "items" in item}
        plain = ({name: value for name, value in item.items() if name not in PROCESS} for item in items)
        return sorted(map(json.dumps, plain)), {name: done.json()[name] for name in ACCOUNT}, processes

    items, account, process = crawled("--profile", "none")
    assert (account["failed_urls"], process) == (7, {(100, True, False)})
    assert crawled() == (items, account, {(16, True, True)})
    assert crawled("--profile", "fast") == (items, account, {(4, False, True)})
