"""The shipped strategy for the discovery of sites, at a generated web with real workers."""

from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rig.web_crawls import WebCrawl
from rig.webs import CLOSED, FOLDER, PRIVATE

PAGES = 8


@pytest.mark.black_box
def test_discovery_heeds_robots_txt_and_reads_sitemaps_and_stops_in_time(
    tmp_path: Path, node_python: Path
) -> None:
    with closing(
        WebCrawl(
            tmp_path, node_python, sites=25, scale=0.5,
            strategy=["scrapyd_dist.strategy:Discovery", f"-amax_pages={PAGES}"],
            settings={"ROBOTSTXT_OBEY": False, "RETRY_ENABLED": False},
        )
    ) as crawl:  # fmt: skip
        crawl.begin()
        crawl.finish()
        hits, sites = crawl.web.hits(), crawl.web.web.sites
    by_host: dict[str, Counter[str]] = defaultdict(Counter)
    for hit in hits:
        by_host[hit.host][hit.target] += 1
    assert len(by_host) > 10  # links lead from site to site
    for host, targets in by_host.items():
        site = sites[host]
        assert targets.pop("/robots.txt") == 1
        assert targets.pop("/sitemap.xml", 0) == (
            1 if site.robots_txt and "Sitemap" in site.robots_txt else 0
        )
        if site.robots == CLOSED:
            assert not targets
        # A redirect leads to one more page, which no strategy sees before; Scrapy's own ROBOTSTXT_OBEY is for that.
        moved = {
            urlsplit(page.location).path
            for page in map(site.pages.get, targets)
            if page and page.location
        }
        assert len(targets) <= PAGES + len(moved)
        if site.robots == FOLDER:
            assert not [
                target for target in targets if target.startswith(PRIVATE) and target not in moved
            ]
    mapped = {(host, path) for host, site in sites.items() for path in site.sitemap}
    assert any((hit.host, hit.target) in mapped for hit in hits)  # only a sitemap has those
