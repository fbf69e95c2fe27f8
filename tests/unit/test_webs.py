"""The generated web: the same each time, with all of its difficulties, and a depth that no order changes."""

from urllib.parse import urljoin

import pytest
from rig.web_crawls import SiteOrder, site_order
from rig.web_server import WebHit, judge_web
from rig.webs import (
    CALENDAR,
    CLOSED,
    FAIL,
    FILE,
    FOLDER,
    GONE,
    HANG,
    LONGER,
    MOVED,
    NONE,
    PAGE,
    RESET,
    GeneratedWeb,
)
from w3lib.url import canonicalize_url

WEB = GeneratedWeb(100, seed=3)
DEPTH = 6


def test_the_same_numbers_are_the_same_web() -> None:
    again = GeneratedWeb(100, seed=3)
    assert [vars(site) for site in again.sites.values()] == [
        vars(site) for site in WEB.sites.values()
    ]
    other = GeneratedWeb(100, seed=4)
    assert [vars(site) for site in other.sites.values()] != [
        vars(site) for site in WEB.sites.values()
    ]


def test_it_has_every_difficulty() -> None:
    sites = WEB.sites.values()
    assert {page.kind for site in sites for page in site.pages.values()} == {
        PAGE,
        FAIL,
        HANG,
        RESET,
        MOVED,
        FILE,
    }
    assert next(iter(sites)).page("/gone").kind == GONE
    assert {NONE, FOLDER, CLOSED} < {site.robots for site in sites}
    assert {trap for site in sites for trap in site.traps} == {CALENDAR, LONGER}
    assert any(site.sitemap for site in sites)


def test_each_link_leads_one_level_deeper_or_back() -> None:
    """Whichever page is fetched first, so a limit of depth leaves the same set."""
    allowed = WEB.allowed(max_depth=DEPTH)
    for url, visits in allowed.items():
        page = WEB.page(url)
        linked = {canonicalize_url(urljoin(url, link)) for link in page.links} if page else set()
        depths = {allowed[link].depth for link in linked if link in allowed}
        assert all(depth <= visits.depth + 1 for depth in depths), url


def test_the_order_of_a_crawl_changes_nothing() -> None:
    """The same walk with a stack in place of levels."""
    allowed = WEB.allowed(max_depth=DEPTH)
    known = {canonicalize_url(url): 0 for url in WEB.seeds}
    stack = list(known)
    while stack:
        url = stack.pop()
        page = WEB.page(url)
        if url not in allowed or page is None or page.kind != PAGE or known[url] == DEPTH:
            continue
        for link in page.links:
            found = canonicalize_url(urljoin(url, link))
            if found not in known:
                known[found] = known[url] + 1
                stack.append(found)
    fetched = {url: depth for url, depth in known.items() if url in allowed}
    expected = {url: visits.depth for url, visits in allowed.items()}
    assert {url: expected[url] for url in fetched} == fetched
    led_to = {page.kind for url in expected.keys() - fetched.keys() if (page := WEB.page(url))}
    assert led_to <= {PAGE, MOVED}, "by redirects"


def test_what_robots_txt_disallows_is_not_allowed() -> None:
    allowed = WEB.allowed(max_depth=DEPTH, sitemaps=True)
    assert WEB.forbidden
    assert not WEB.forbidden & allowed.keys()
    assert len(allowed) > len(WEB.allowed(max_depth=DEPTH))


def _hits(*urls: str) -> list[WebHit]:
    return [WebHit(time=0.0, host="h", target=url, url=url) for url in urls]


@pytest.mark.parametrize(
    ("change", "exact", "same"),
    [(0, True, True), (1, False, False), (2, False, False), (3, False, True)],
)
def test_a_verdict_is_able_to_be_bad(change: int, exact: bool, same: bool) -> None:
    allowed = WEB.allowed(max_depth=1)
    urls = list(allowed)
    fetched = {0: urls, 1: urls[1:], 2: [*urls, "http://127.1.0.1:80/x"], 3: [*urls, *urls[:1]]}[
        change
    ]
    verdict = judge_web(_hits(*fetched), allowed)
    assert (verdict.exact, verdict.same_set) == (exact, same)


@pytest.mark.parametrize(
    ("fetched", "queued_at", "expected"),
    [
        ("abc", {}, SiteOrder(pairs=2, respected=2, unknown=0, overtaken=0)),
        ("bca", {}, SiteOrder(pairs=2, respected=1, unknown=0, overtaken=2)),
        ("bca", {"a": 1.5}, SiteOrder(pairs=2, respected=1, unknown=0, overtaken=1)),
        ("bca", {"a": 2.5}, SiteOrder(pairs=2, respected=1, unknown=1, overtaken=0)),
        ("abcax", {}, SiteOrder(pairs=2, respected=2, unknown=0, overtaken=0)),
    ],
)
def test_the_order_of_a_site_is_measured(
    fetched: str, queued_at: dict[str, float], expected: SiteOrder
) -> None:
    """Pages a, b and c with scores from high to low; x was led to by a redirect, and a is fetched twice."""
    hits = [
        WebHit(time=float(at), host="h", target=url, url=url) for at, url in enumerate(fetched, 1)
    ]
    queued = {url: queued_at.get(url, 0.0) for url in "abc"}
    assert site_order(hits, {"a": 1.0, "b": 0.5, "c": 0.25, "x": 1.0}, queued) == expected


def test_sites_are_ordered_apart() -> None:
    hits = [
        WebHit(time=1.0, host="g", target="c", url="c"),
        WebHit(time=2.0, host="h", target="a", url="a"),
    ]
    order = site_order(hits, {"a": 1.0, "c": 0.25}, {"a": 0.0, "c": 0.0})
    assert (order.pairs, order.overtaken, order.share) == (0, 0, 1.0)
