"""A strategy crawls a generated web: all allowed pages and no others, in order, whatever is killed meanwhile."""

import zlib
from contextlib import closing
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest
from rig.web_crawls import STORE_SERVER, STRATEGY_PROCESS, WORKER, WebCrawl
from rig.web_server import judge_web

#: small enough for a crawl of half a minute
SITES, SCALE = 30, 0.5


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize("redis", [False, True], ids=["sqlite", "redis"])
def test_every_allowed_page_is_crawled_once_and_in_order(
    redis: bool, tmp_path: Path, node_python: Path
) -> None:
    with closing(
        WebCrawl(tmp_path, node_python, sites=SITES, scale=SCALE, redis=redis, ahead=8)
    ) as crawl:
        crawl.begin()
        crawl.finish()
        verdict, order = judge_web(crawl.web.hits(), crawl.allowed), crawl.order()
        assert verdict.exact, verdict
        assert crawl.wrong_items() == {}
        assert order.pairs > len(crawl.allowed) / 2
        assert order.overtaken <= crawl.in_flight, order


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize("redis", [False, True], ids=["sqlite", "redis"])
def test_the_set_is_the_same_whatever_is_killed(
    redis: bool, tmp_path: Path, node_python: Path
) -> None:
    kills = [STRATEGY_PROCESS, WORKER, *([STORE_SERVER] if redis else [])]
    with closing(WebCrawl(tmp_path, node_python, sites=SITES, redis=redis, latency=0.1)) as crawl:
        crawl.begin()
        for number, what in enumerate(kills, 1):
            crawl.kill_at(number * 0.2, what, Random(number))
        crawl.finish()
        verdict = judge_web(crawl.web.hits(), crawl.allowed)
        assert verdict.same_set, verdict
        assert sum(verdict.repeated.values()) <= crawl.in_flight * SITES, (
            "more than what was under way"
        )
        assert crawl.wrong_items() == {}


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize("redis", [False, True], ids=["sqlite", "redis"])
@pytest.mark.parametrize("strategy", ["DepthFirst", "Discovery"])
def test_the_order_at_a_site_is_that_of_the_shipped_strategy(
    redis: bool, strategy: str, tmp_path: Path, node_python: Path
) -> None:
    crawl = WebCrawl(
        tmp_path, node_python, sites=4, seed=8, max_depth=4, redis=redis, workers=2, ahead=2, at_once=2, per_site=1,
        strategy=[f"scrapyd_dist.strategy:{strategy}"],
    )  # fmt: skip
    with closing(crawl):
        crawl.begin()
        crawl.finish()
        order = crawl.order_as_scored()
        assert order.pairs > 100
        assert order.overtaken <= crawl.in_flight, order
        assert order.share > 0.75, order


SCORES = """
import zlib
from urllib.parse import urlsplit


def by_digest(link):
    return zlib.crc32(urlsplit(link.url).path.encode()) % 101 / 100
"""


def by_digest(url: str) -> float:
    """The same in this process: scores that have nothing to do with the order in which links are found."""
    return zlib.crc32(urlsplit(url).path.encode()) % 101 / 100


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize("redis", [False, True], ids=["sqlite", "redis"])
def test_the_order_at_a_site_is_that_of_the_scores_but_for_what_is_under_way(
    redis: bool, tmp_path: Path, node_python: Path
) -> None:
    """One of these sites has 164 pages, and a page that is worth more waits for a few others at most."""
    strategy = ["scrapyd_dist.strategy:BestFirst", "-a", "function=web.scores:by_digest"]
    crawl = WebCrawl(
        tmp_path, node_python, sites=4, seed=8, max_depth=4, redis=redis, workers=2, ahead=2, at_once=2, per_site=1,
        strategy=strategy, files={"web/scores.py": SCORES},
    )  # fmt: skip
    with closing(crawl):
        crawl.begin()
        crawl.finish()
        verdict, order = judge_web(crawl.web.hits(), crawl.allowed), crawl.order(by_digest)
        assert verdict.exact, verdict
        assert order.pairs > 150
        assert order.overtaken <= crawl.in_flight == 2 + 2 * (1 + 2 + 10), order
        assert order.share > 0.75, order
