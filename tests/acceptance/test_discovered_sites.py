"""`Discovery` over real nodes: robots.txt and sitemaps are read by workers, and no site gets more than it should."""

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rig.fixtures import RunCommand, StartFleet
from rig.web_server import REDIRECTS, RETRIES, WebProcess, judge_web, web_project

#: pages that each site may get, and a depth that no link of them has
PAGES, DEEP = 20, 60
WORKERS = 2


@pytest.mark.black_box
def test_sites_are_found_by_robots_txt_and_sitemaps_and_no_closed_page_is_requested(
    module_fleet: StartFleet, run_cli: RunCommand, tmp_path: Path
) -> None:
    """F18: closed paths have no hits, each site its number of pages at most, and what only a sitemap has is found."""
    it = web_project(tmp_path / "project")
    it.targets(module_fleet(2, max_proc=4, poll_interval=0.2))
    with closing(WebProcess(tmp_path / "web", sites=6, scale=0.5)) as process:
        web = process.web
        it.write("seeds.txt", "\n".join(web.seeds) + "\n")
        run_cli(
            it, "strategy", "run", "scrapyd_dist.strategy.site_discovery:Discovery", "--spider", "page", "--seeds",
            "seeds.txt", "--name", "found", "--workers", WORKERS, "-a", f"max_pages={PAGES}", "-o", "items.jl",
        )  # fmt: skip
        hits = process.hits()
    verdict = judge_web(
        hits, web.allowed(max_depth=DEEP, retries=RETRIES, redirects=REDIRECTS, sitemaps=True)
    )
    assert (verdict.unexpected, verdict.repeated) == ([], {})
    asked = Counter(hit.target for hit in hits if not hit.is_page)
    hosts = {hit.host for hit in hits}
    # Once for the strategy, and once by each worker's Scrapy, which obeys it.
    assert asked["/robots.txt"] <= (1 + WORKERS) * len(hosts)
    said = [
        line
        for line in run_cli(it, "strategy", "events", "found", code=0).out.splitlines()
        if line[:1] == "{"
    ]
    changes = [json.loads(line) for line in said]
    ended = [one for one in changes if one["after"] in {"CRAWLED", "ERROR"}]
    assert {one["after"] for one in changes if one not in ended} == {"QUEUED"}
    assert max(Counter(one["url"] for one in ended).values()) == 1
    pages = [
        one for one in ended if urlsplit(one["url"]).path not in {"/robots.txt", "/sitemap.xml"}
    ]
    assert max(Counter(urlsplit(one["url"]).hostname for one in pages).values()) == PAGES
    listed = {
        web.url(site.host, target)
        for site in web.sites.values()
        for target in site.sitemap
        if site.allows(target)
    }
    assert listed
    assert listed <= {hit.url for hit in hits}
    crawled = sum(one["after"] == "CRAWLED" for one in pages)
    assert len(list(it.items("items.jl"))) == crawled, "an item for each page that came"
