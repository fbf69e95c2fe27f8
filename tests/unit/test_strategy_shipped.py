"""The strategies that are shipped: in which order they request pages, and which they leave out."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from rig.strategy_memory import Page, StrategyRig

import scrapyd_dist.strategy
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.strategy import (
    BasicStrategy,
    BestFirst,
    BreadthFirst,
    CrawlingStrategy,
    DepthFirst,
    Discovery,
    Request,
    Response,
    Revisit,
    States,
)

SITE = "http://a.example"


def tree(depth: int, name: str = f"{SITE}/r") -> dict[str, Page]:
    """A page with two links, each to a page with two, and so on."""
    links = [f"{name}{side}" for side in "lr"] if depth else []
    below = {url: page for link in links for url, page in tree(depth - 1, link).items()}
    return {name: Page(links=links), **below}


def crawled(
    strategy: CrawlingStrategy, pages: dict[str, Page], *seeds: str, **options: Any
) -> StrategyRig:
    """One request at a time, so that the order is that of the scores alone."""
    rig = StrategyRig(strategy, pages, ahead=1, size=1, **options)
    rig.seed(*seeds)
    rig.crawl(rounds=1_000)
    assert rig.manager.over
    assert rig.store.dead == {}
    return rig


def depths(rig: StrategyRig) -> list[int]:
    return [value["meta"]["distributed_link"]["depth"] for value in rig.worker.values]


def test_breadth_first_requests_by_levels() -> None:
    rig = crawled(BreadthFirst(), tree(4), f"{SITE}/r")
    assert depths(rig) == [0, *[1] * 2, *[2] * 4, *[3] * 8, *[4] * 16]
    scores = {value["meta"]["distributed_link"]["score"] for value in rig.worker.values}
    assert scores == {1 / (depth + 1) for depth in range(5)}


def test_depth_first_goes_down_before_it_goes_on() -> None:
    rig = crawled(DepthFirst(), tree(3), f"{SITE}/r")
    assert depths(rig)[:5] == [0, 1, 2, 3, 3]
    assert sorted(depths(rig)) == [0, *[1] * 2, *[2] * 4, *[3] * 8]
    scores = {value["meta"]["distributed_link"]["score"] for value in rig.worker.values}
    assert scores == {depth / (depth + 1) for depth in range(4)}


def test_the_basic_strategy_requests_all_with_one_score() -> None:
    rig = crawled(BasicStrategy(), tree(3), f"{SITE}/r")
    assert len(rig.worker.made) == len(set(rig.worker.made)) == 15
    assert {value["priority"] for value in rig.worker.values} == {1_000_000}


def by_number(link: Request) -> float:
    """The number in the address, hundredths; the odd ones are not wanted."""
    number = int(link.url.rpartition("/")[2])
    return -1.0 if number % 2 else number / 50


def test_best_first_asks_a_function() -> None:
    pages = {f"{SITE}/2": Page(links=[f"{SITE}/{number}" for number in range(3, 100)])}
    rig = crawled(BestFirst(function=f"{__name__}:by_number"), pages, f"{SITE}/2")
    numbers = [int(url.rpartition("/")[2]) for url in rig.worker.made]
    assert sorted(numbers) == list(range(2, 100, 2))
    assert numbers[1:].index(48) > 20  # all from 50 on have a score of 1.0
    assert numbers[-23:] == list(range(48, 2, -2))


@pytest.mark.parametrize("name", ["", "no.such:thing", "os:no_such", "os", "os:sep"])
def test_best_first_needs_a_function(name: str) -> None:
    with pytest.raises(ConfigError, match="names no function"):
        BestFirst(function=name)


# traps


def test_a_calendar_without_end_is_left_at_the_number_of_its_variants() -> None:
    class Calendar(dict[str, Page]):
        def get(self, url: str, default: Any = None) -> Any:
            month = int(url.rpartition("=")[2])
            return Page(links=[f"{SITE}/calendar?month={month + 1}"])

    rig = crawled(BasicStrategy(max_variants="5"), Calendar(), f"{SITE}/calendar?month=0")
    assert len(rig.worker.made) == 6  # the seed does not count


def test_a_path_that_repeats_itself_is_left() -> None:
    class Endless(dict[str, Page]):
        def get(self, url: str, default: Any = None) -> Any:
            return Page(links=[f"{url}/a", f"{url}/b"] if len(url) < 40 else [])

    rig = crawled(BasicStrategy(max_repeats=2), Endless(), f"{SITE}/x")
    assert max(url.count("/a") for url in rig.worker.made) == 3  # the host is one
    assert len(rig.worker.made) == 19


def test_pages_of_a_domain_and_depth_are_limited() -> None:
    assert len(crawled(BasicStrategy(max_pages="10"), tree(6), f"{SITE}/r").worker.made) == 11
    assert max(depths(crawled(DepthFirst(max_depth="2"), tree(6), f"{SITE}/r"))) == 2


def test_paths_whose_variants_are_counted_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapyd_dist.strategy.traps.PATHS", 3)
    pages = {f"{SITE}/": Page(links=[f"{SITE}/{number}?q=1" for number in range(9)])}
    rig = crawled(BasicStrategy(max_variants=1), pages, f"{SITE}/")
    assert len(rig.worker.made) == 10
    assert len(rig.store.metadata["a.example"]["traps"]["variants"]) == 3


@pytest.mark.parametrize("value", ["many", "-1", "1.5", ""])
def test_a_limit_is_a_whole_number(value: str) -> None:
    with pytest.raises(ConfigError, match="max_pages"):
        BasicStrategy(max_pages=value)


# revisit


def test_pages_that_change_are_requested_more_often() -> None:
    pages = {f"{SITE}/quiet": Page(body="the same"), f"{SITE}/busy": Page(body="0")}
    strategy = Revisit(interval="1000", shortest="100", longest="3000")
    rig = StrategyRig(strategy, pages)
    rig.seed(*pages)
    for number in range(1_000):
        pages[f"{SITE}/busy"] = Page(body=str(number))
        rig.clock.time += 10
        rig.manager.work()
        rig.worker.work()
    assert 70 < rig.worker.made.count(f"{SITE}/busy") < 90  # every 100 s, and a round
    assert rig.worker.made.count(f"{SITE}/quiet") == 5  # after 1000, 1500, 2250, 3000 s
    assert not rig.manager.over


def test_pages_that_fail_are_given_up() -> None:
    pages = {f"{SITE}/": Page(error="TimeoutError")}
    rig = StrategyRig(Revisit(interval=10, shortest=10, longest=100), pages)
    rig.seed(*pages)
    rig.crawl(rounds=1_000)
    assert len(rig.worker.made) == 5
    assert rig.store.states() == {f"{SITE}/": States.ERROR}
    assert rig.manager.over


# discovery

ROBOTS = f"User-agent: *\nDisallow: /closed\nSitemap: {SITE}/map.xml\n"
SHOP = {
    f"{SITE}/robots.txt": Page(body=ROBOTS),
    f"{SITE}/map.xml": Page(links=[f"{SITE}/map1.xml"], sitemap=True),
    f"{SITE}/map1.xml": Page(links=[f"{SITE}/mapped", f"{SITE}/closed/mapped"]),
    f"{SITE}/": Page(
        links=[f"{SITE}/about", f"{SITE}/closed/a", f"{SITE}/other", "http://b.example/far"]
    ),
}


def test_discovery_begins_with_robots_txt_and_heeds_it() -> None:
    rig = crawled(Discovery(), SHOP, f"{SITE}/deep/seed", f"{SITE}/")
    ours = [url.removeprefix(SITE) for url in rig.worker.made if url.startswith(SITE)]
    assert ours[:3] == ["/robots.txt", "/map.xml", "/map1.xml"]
    assert ours[3:5] == ["/", "/about"]
    assert sorted(ours[5:]) == ["/deep/seed", "/mapped", "/other"]
    assert [url for url in rig.worker.made if not url.startswith(SITE)] == [
        "http://b.example/robots.txt", "http://b.example/", "http://b.example/far",
    ]  # fmt: skip
    reads = {value["url"]: value["meta"]["distributed_link"]["read"] for value in rig.worker.values}
    assert (reads[f"{SITE}/robots.txt"], reads[f"{SITE}/map1.xml"], reads[f"{SITE}/"]) == (
        "body",
        "sitemap",
        "page",
    )


def test_discovery_obeys_the_rules_for_its_user_agent() -> None:
    settings = {"USER_AGENT": "shopbot (+http://us.example)"}
    strategy = Discovery.from_crawler(SimpleNamespace(settings=settings), max_pages="7")
    pages = {
        **SHOP,
        f"{SITE}/robots.txt": Page(
            body="User-agent: shopbot\nDisallow: /\n\nUser-agent: *\nAllow: /\n"
        ),
    }
    assert crawled(strategy, pages, f"{SITE}/").worker.made == [f"{SITE}/robots.txt"]
    assert strategy.max_pages == 7


def test_discovery_requests_so_many_pages_of_a_domain() -> None:
    many = [f"{SITE}/{number}" for number in range(150)]
    maps = [f"{SITE}/sub{number}.xml" for number in range(150)]
    pages = {
        f"{SITE}/robots.txt": Page(body=f"Sitemap: {SITE}/map.xml"),
        f"{SITE}/map.xml": Page(links=maps, sitemap=True),
        **{url: Page(links=many) for url in maps},
    }
    rig = crawled(Discovery(), pages, f"{SITE}/")
    assert sum(url.endswith(".xml") for url in rig.worker.made) == 100
    assert sum(not url.endswith((".xml", ".txt")) for url in rig.worker.made) == 100
    assert len(rig.worker.made) == len(set(rig.worker.made)) == 201


def test_discovery_gives_a_domain_up_that_has_no_address() -> None:
    pages = {**SHOP, "http://b-shop.com/robots.txt": Page(error="DNSLookupError")}
    pages[f"{SITE}/"] = Page(links=["http://b-shop.com/1"])
    pages[f"{SITE}/mapped"] = Page(links=[f"{SITE}/later"])
    pages[f"{SITE}/later"] = Page(links=["http://b-shop.com/2", "http://www.b-shop.com/"])
    rig = crawled(Discovery(), pages, f"{SITE}/")
    assert [url for url in rig.worker.made if "b-shop" in url] == ["http://b-shop.com/robots.txt"]


def test_without_robots_txt_all_is_open() -> None:
    pages = {
        f"{SITE}/robots.txt": Page(error="HttpError"),
        f"{SITE}/": Page(links=[f"{SITE}/closed"]),
    }
    assert len(crawled(Discovery(), pages, f"{SITE}/").worker.made) == 3


# the house


# as in Frontera: what is below was written against its interface, and only the imports are ours


class ByDomainSize(scrapyd_dist.strategy.CrawlingStrategy):
    """Prefers small domains, and tries a page that was not there once more."""

    def read_seeds(self, stream: Iterable[Any] | None) -> None:
        for line in stream or ():
            self.schedule(self.create_request(line.strip(), method=b"GET", meta={b"tries": 0}))  # type: ignore[arg-type, dict-item]

    def page_crawled(self, response: Response) -> None:
        response.meta[b"state"] = States.CRAWLED

    def filter_extracted_links(self, request: Request, links: list[Request]) -> list[Request]:
        return [link for link in links if link.url.startswith("http")]

    def links_extracted(self, request: Request, links: list[Request]) -> None:
        fresh = [link for link in links if link.meta[b"state"] == States.NOT_CRAWLED]
        for link in fresh:
            self.schedule(link, score=1.0 / (1 + len(fresh)))
            link.meta[b"state"] = States.QUEUED

    def request_error(self, request: Request, error: str) -> None:
        request.meta[b"state"] = States.ERROR
        if error == "TimeoutError" and not request.meta.get(b"tries"):
            request.meta[b"tries"] = 1
            self.schedule(request, score=0.1)
        else:
            self.schedule(request, score=0.0, dont_queue=True)


def test_a_strategy_written_for_frontera_works_by_its_imports() -> None:
    pages = {
        **tree(2),
        f"{SITE}/rl": Page(error="TimeoutError"),
        f"{SITE}/rr": Page(links=["ftp://x", f"{SITE}/late"]),
    }
    rig = crawled(ByDomainSize(), pages, f"{SITE}/r")
    assert rig.worker.made.count(f"{SITE}/rl") == 2
    assert len(rig.worker.made) == 5
    assert rig.store.states()[f"{SITE}/rl"] is States.ERROR
    scores = [value["meta"]["distributed_link"]["score"] for value in rig.worker.values]
    assert [round(score, 2) for score in scores] == [1.0, 0.33, 0.33, 0.5, 0.1]
