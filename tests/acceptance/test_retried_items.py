"""Items of a request that is tried again take the place of the earlier ones: once each, in files and in manifests."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.bad_days import IMPATIENT, ITEMS, arguments
from rig.crawls import crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project

from scrapyd_dist.store import open_store

pytestmark = pytest.mark.black_box

#: seconds that the crawl is made to have run before it is retried
RAN = 100_000.0
#: fails on one page after three items, one of them from a page behind it; tells of pages that fail; and says which try
FAILING = """
    from pathlib import Path

    from properties.spiders.easy import EasySpider
    from scrapy import Request
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import Rule

    PLAN = Path({plan!r})


    class FailingSpider(EasySpider):
        name = "failing"
        rules = (
            Rule(LinkExtractor(restrict_css="a.next")),
            Rule(LinkExtractor(restrict_xpaths='//a[@itemprop="url"]'), callback="parse_item", errback="told"),
        )

        def parse_item(self, response):
            number, works = PLAN.read_text().split()
            if not response.url.endswith({url!r}):
                yield from super().parse_item(response)
                return
            yield {{"page": "callback", "try": number, "part": 1}}
            yield {{"page": "callback", "try": number, "part": 2}}
            yield Request(response.url, callback=self.behind, dont_filter=True, cb_kwargs={{"number": number}})
            if works == "no":
                raise RuntimeError("it is broken")

        def behind(self, response, number):
            yield {{"page": "callback", "try": number, "part": 3}}

        def told(self, failure):
            yield {{"page": "errback", "try": PLAN.read_text().split()[0]}}
"""


def marked(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Which page, and which try, the items are of that failed or were tried again."""
    return sorted((item["page"], item["try"]) for item in items if "try" in item)


def by_manifest(it: Project) -> list[dict[str, Any]]:
    """The items of the feeds that the manifest lists, as it says that they are to be read."""
    (path,) = it.path.rglob("manifest.json")
    manifest, found = json.loads(path.read_text()), []
    for uri in manifest["feeds"]:
        with open(uri.removeprefix("file://"), encoding="utf-8") as file:  # noqa: PTH123 - it is a plain name
            lines = file.read().splitlines()
        left = {at for first, count in manifest["replaced"].get(uri, ()) for at in range(first, first + count)}
        found += [json.loads(line) for at, line in enumerate(lines) if at not in left]
    return found


@pytest.mark.parametrize("way", ["pull", "feed"])
def test_what_is_tried_again_comes_once(
    way: str, project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand, tmp_path: Path
) -> None:
    pages, plan, feeds = site(20), tmp_path / "plan", tmp_path / "feeds"
    settings = {**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 10}
    if way == "feed":
        settings["DISTRIBUTED_TARGET_FEED_URL"] = f"file://{feeds}/%(batch)s.jl"
    it = project(nodes=pair, settings=settings)
    it.spider("failing", FAILING.format(url=pages.site.detail_path(7), plan=str(plan)))
    pages.behave({pages.site.detail_path(9): "fail"})

    def assert_comes_once(tried: str) -> None:
        items = list(it.items(ITEMS))
        assert marked(items) == [*[("callback", tried)] * 3, ("errback", tried)]
        assert len(items) == 18 + 4 == last_crawl(it).summary["items"]
        if way == "feed":
            assert marked(by_manifest(it)) == marked(items)

    plan.write_text("1 no")
    words = [text.replace("easy", "failing") for text in arguments("sdist", pages, shards=1)]
    run_cli(it, *words, *(["--pull", "--workers", "1"] if way == "pull" else []), code=3)
    assert_comes_once("1")
    row = crawls(it)[0]
    crawl, summary = row.id, {**row.summary, "duration_s": RAN}
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        store.update_crawl(crawl, summary=summary)
    plan.write_text("2 no")
    run_cli(it, "retry", crawl, "--failed-urls", "--json", code=3)
    assert_comes_once("2")
    assert RAN < crawls(it)[0].summary["duration_s"] < RAN + 3600, "a retry adds the time that it ran itself"

    plan.write_text("3 yes")
    pages.behave({})
    run_cli(it, "retry", crawl, "--failed-urls", "--json", code=0)
    items = list(it.items(ITEMS))
    assert marked(items) == [("callback", "3")] * 3
    assert pages.differences([item for item in items if "try" not in item], without=[7]) == {}
    assert len(items) == last_crawl(it).summary["items"] == 22
    merged = run_cli(it, "items", "merge", crawl, "-O", "again.jl", "--json", code=0)
    assert merged.json()["items"] == 22
    assert marked(list(it.items("again.jl"))) == marked(items)
