"""Which requests of a batch the engine gets at once, and which one by one at the spider's start."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from rig.scheduling import run
from scrapy import Request
from scrapy.settings import Settings
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware
from scrapy.spidermiddlewares.httperror import HttpErrorMiddleware
from scrapy.spidermiddlewares.start import StartSpiderMiddleware
from scrapy.spidermiddlewares.urllength import UrlLengthMiddleware
from scrapyd_dist.middlewares.worker.hand_over import GROUP, find_known_beyond, hand_over
from scrapyd_dist.middlewares.worker.shortcuts import HAND_OVER, WITHOUT

OWN = object()


@pytest.fixture(autouse=True)
def part_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part is tried here also where all other rows run without it."""
    monkeypatch.delenv(WITHOUT, raising=False)


class Engine:
    """Notes what it is given, and closes after so many."""

    def __init__(self, *middlewares: object, closes_after: int = 10**6) -> None:
        self.given: list[Request] = []
        self.spider: Any = object()
        self.scraper = SimpleNamespace(spidermw=SimpleNamespace(middlewares=middlewares))
        self._closes_after = closes_after

    def crawl(self, request: Request) -> None:
        assert self.spider is not None
        self.given.append(request)
        if len(self.given) == self._closes_after:
            self.spider = None


class Projects(BaseSpiderMiddleware):
    """A middleware of a project."""


class AtStart:
    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for output in start:
            yield output


def start() -> StartSpiderMiddleware:
    return StartSpiderMiddleware(SimpleNamespace())  # type: ignore[arg-type]  # it needs none


def length() -> UrlLengthMiddleware:
    crawler: Any = SimpleNamespace(
        settings=Settings({"URLLENGTH_LIMIT": 20}),
        stats=SimpleNamespace(inc_value=lambda *_, **__: None),
        spider=None,
    )
    middleware = UrlLengthMiddleware(20)
    middleware.crawler = crawler
    return middleware


def handed(engine: Engine, *urls: str) -> list[str]:
    """What has to go through the spider's start of requests for these addresses."""

    async def requests() -> AsyncIterator[Request]:
        for url in urls:
            yield Request(url)

    async def play() -> list[str]:
        crawler: Any = SimpleNamespace(engine=engine)
        beyond = find_known_beyond(crawler, OWN)
        if beyond is None:
            return [request.url async for request in requests()]
        await hand_over(engine, beyond, requests())
        return []

    found: list[str] = run(play())
    return found


def test_the_engine_gets_them_all_as_scrapys_middlewares_leave_them() -> None:
    engine = Engine(start(), HttpErrorMiddleware(Settings()), OWN, AtStart())
    assert handed(engine, "http://a/1", "http://a/2") == []
    assert [request.url for request in engine.given] == ["http://a/1", "http://a/2"]
    assert all(request.meta["is_start_request"] for request in engine.given)


@pytest.mark.parametrize("kind", [Projects, AtStart], ids=["by Scrapy's base", "by itself"])
def test_a_projects_middleware_sees_each_at_the_start(kind: Any) -> None:
    middleware = Projects(SimpleNamespace()) if kind is Projects else AtStart()  # type: ignore[arg-type]
    engine = Engine(start(), middleware, OWN)
    assert handed(engine, "http://a/1", "http://a/2") == ["http://a/1", "http://a/2"]
    assert engine.given == []


def test_so_it_is_where_the_part_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WITHOUT, f"another,{HAND_OVER}")
    assert handed(Engine(start(), OWN), "http://a/1") == ["http://a/1"]


def test_what_one_of_scrapys_middlewares_drops_is_dropped() -> None:
    engine = Engine(start(), length(), OWN)
    assert handed(engine, "http://a/1", "http://a/" + 20 * "1") == []
    assert [request.url for request in engine.given] == ["http://a/1"]


def test_an_engine_that_is_closed_meanwhile_gets_no_more() -> None:
    engine = Engine(start(), OWN, closes_after=GROUP)
    assert handed(engine, *(f"http://a/{number}" for number in range(2 * GROUP))) == []
    assert len(engine.given) == GROUP
