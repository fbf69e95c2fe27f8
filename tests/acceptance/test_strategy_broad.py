"""A strategy crawls a generated web: all allowed pages and no others, in order, whatever is killed meanwhile."""

from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from rig.web_crawls import STORE_SERVER, STRATEGY_PROCESS, WORKER, WebCrawl
from rig.web_server import judge_web

#: small enough for a crawl of half a minute
SITES, SCALE = 30, 0.5


@pytest.mark.black_box
@pytest.mark.parametrize("redis", [False, True], ids=["sqlite", "redis"])
def test_every_allowed_page_is_crawled_once_and_in_order(redis: bool, tmp_path: Path, node_python: Path) -> None:
    with closing(WebCrawl(tmp_path, node_python, sites=SITES, scale=SCALE, redis=redis, ahead=8)) as crawl:
        crawl.begin()
        crawl.finish()
        verdict, order = judge_web(crawl.web.hits(), crawl.allowed), crawl.order()
        assert verdict.exact, verdict
        assert crawl.wrong_items() == {}
        assert order.pairs > len(crawl.allowed) / 2
        assert order.overtaken <= crawl.in_flight, order


@pytest.mark.black_box
@pytest.mark.parametrize("redis", [False, True], ids=["sqlite", "redis"])
def test_the_set_is_the_same_whatever_is_killed(redis: bool, tmp_path: Path, node_python: Path) -> None:
    kills = [STRATEGY_PROCESS, WORKER, *([STORE_SERVER] if redis else [])]
    with closing(WebCrawl(tmp_path, node_python, sites=SITES, redis=redis, latency=0.1)) as crawl:
        crawl.begin()
        for number, what in enumerate(kills, 1):
            crawl.kill_at(number * 0.2, what, Random(number))
        crawl.finish()
        verdict = judge_web(crawl.web.hits(), crawl.allowed)
        assert verdict.same_set, verdict
        assert sum(verdict.repeated.values()) <= crawl.in_flight * SITES, "more than what was under way"
        assert crawl.wrong_items() == {}
