"""Which components of a project are on in a process, why others are off, and what is told of those that jobs lack."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Spider, signals
from scrapy.core.downloader.middleware import DownloaderMiddlewareManager
from scrapy.core.spidermw import SpiderMiddlewareManager
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.pipelines import ItemPipelineManager
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.producer.crawl_findings import (
    components_off,
    describe_disabled,
    partly_off,
)
from scrapyd_dist.middlewares.used_components import find_used_components, keep_reasons

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.joblogs.worker_report import read_report, to_kept

HERE = __name__


class Listens:
    """An add-on that hears the reasons, as that of this program does."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "Listens":
        keep_reasons(crawler)
        return cls()


class Steady:
    """A component that is always on."""


class Other(Steady):
    """What `Opener` and `make_other` make."""


class Opener:
    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Other:
        return Other()


def make_other() -> Other:
    return Other()


class Maker:
    """An object that makes one."""

    def __call__(self) -> Other:
        return Other()


class Lines:
    def __init__(self) -> None:
        raise NotConfigured("no file rates.csv\nsee the manual")


class Silent:
    def __init__(self) -> None:
        raise NotConfigured


def refuse() -> Steady:
    raise NotConfigured("no key")


class Cache(HttpCacheMiddleware):
    """A cache of the project: what becomes of it is told before the crawl."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    for name in ("scrapy.middleware", "scrapy.addons"):
        logging.getLogger(name).handlers.clear()


def crawler_with(settings: Mapping[str, Any], *, listens: bool = True) -> Crawler:
    addons = {**({Listens: 0} if listens else {}), **settings.get("ADDONS", {})}
    crawler = get_crawler(Spider, {**settings, "ADDONS": addons})
    if crawler.spider is None:
        crawler.spider = Spider("shop")
    engine: Any = SimpleNamespace(
        downloader=SimpleNamespace(middleware=DownloaderMiddlewareManager.from_crawler(crawler)),
        scraper=SimpleNamespace(
            spidermw=SpiderMiddlewareManager.from_crawler(crawler),
            itemproc=ItemPipelineManager.from_crawler(crawler),
        ),
    )
    crawler.engine = engine
    return crawler


def path(name: str) -> str:
    return f"{HERE}.{name}"


def test_scrapys_own_components_are_none_of_the_projects() -> None:
    found = find_used_components(crawler_with({}, listens=False))
    assert found == ([], [])


@pytest.mark.parametrize(
    "setting", ["ITEM_PIPELINES", "SPIDER_MIDDLEWARES", "DOWNLOADER_MIDDLEWARES", "EXTENSIONS"]
)
def test_each_that_is_off_is_found_with_its_reason(setting: str) -> None:
    components = {path("Steady"): 1, Opener: 2, path("Lines"): 3, Silent: 4, Other: None}
    found = find_used_components(crawler_with({setting: components}))
    assert found.enabled == [path("Listens"), path("Steady"), path("Opener")]
    assert found.disabled == [f"{path('Lines')}: no file rates.csv", path("Silent")]


def test_one_that_is_given_as_a_path_and_as_itself_is_one() -> None:
    found = find_used_components(crawler_with({"EXTENSIONS": {path("Steady"): 1, Steady: 2}}))
    assert found == ([path("Listens"), path("Steady")], [])


def test_an_addon_that_is_off_is_found() -> None:
    found = find_used_components(crawler_with({"ADDONS": {path("Lines"): 1, Steady: 2}}))
    assert found.enabled == [path("Listens"), path("Steady")]
    assert found.disabled == [f"{path('Lines')}: no file rates.csv"]


def test_what_functions_and_objects_make_is_on() -> None:
    components = {path("make_other"): 1, Opener: 2, refuse: 3}
    crawler = crawler_with({"ITEM_PIPELINES": components, "ADDONS": {Maker(): 1}})
    found = find_used_components(crawler)
    assert found.enabled[1:] == [path("Maker"), path("make_other"), path("Opener")]
    assert found.disabled == [f"{path('refuse')}: no key"]


def test_without_reasons_any_that_may_have_made_nothing_is_off() -> None:
    components = {make_other: 1, refuse: 2, Steady: 3}
    found = find_used_components(crawler_with({"ITEM_PIPELINES": components}, listens=False))
    assert found == ([path("Steady")], [path("make_other"), path("refuse")])


def test_a_cache_is_told_elsewhere() -> None:
    found = find_used_components(crawler_with({"DOWNLOADER_MIDDLEWARES": {Cache: 900}}))
    assert found.disabled == []


def test_a_part_of_scrapy_that_has_no_components_is_left_out() -> None:
    crawler = crawler_with({"ITEM_PIPELINES": {Silent: 1}, "EXTENSIONS": {Silent: 1}})
    crawler.engine.scraper.itemproc = SimpleNamespace()  # type: ignore[assignment]
    assert find_used_components(crawler).disabled == [path("Silent")]


def test_reasons_are_heard_until_the_spider_is_open() -> None:
    log = logging.getLogger("scrapy.middleware")
    crawler = crawler_with({})
    assert len(log.handlers) == 1
    crawler.signals.send_catch_log(signals.spider_opened)
    assert log.handlers == []


def test_reasons_of_another_crawler_are_not_kept() -> None:
    first = crawler_with({})
    crawler_with({"ITEM_PIPELINES": {refuse: 1}})
    assert find_used_components(first).disabled == []
    crawler = crawler_with({"ITEM_PIPELINES": {refuse: 1}}, listens=False)
    assert find_used_components(crawler).disabled == [path("refuse")]


# what is told of jobs


def attempt(node: str = "a", **report: Any) -> Attempt:
    return Attempt(
        batch=1, number=1, job="", node=node, url="", state=AttemptState.ACCEPTED, report=report
    )


def off(attempts: Sequence[Attempt], *at_home: str, earlier: Sequence[str] = ()) -> list[str]:
    return [name for row in components_off(attempts, at_home, earlier) for name in row.found]


def test_a_component_is_told_that_is_on_at_home_and_off_in_jobs() -> None:
    attempts = [
        attempt(components=["p.Names"], disabled=["p.Rates: no file: rates.csv", "p.Never: no"]),
        attempt(components=["p.Names"], disabled=["p.Rates"]),
    ]
    assert off(attempts, "p.Names", "p.Rates") == ["p.Rates: no file: rates.csv"]
    assert off(attempts, "p.Names") == []


def test_one_that_the_settings_of_jobs_lack_is_told_without_a_reason() -> None:
    assert off([attempt(components=[])], "p.Rates", "p.Names") == ["p.Names", "p.Rates"]


def test_the_nodes_are_named_if_others_have_it_on() -> None:
    on = attempt("a", components=["p.Rates"])
    attempts = [
        on,
        attempt("c", components=[]),
        attempt("b", components=[], disabled=["p.Rates: x"]),
    ]
    assert off(attempts, "p.Rates") == ["p.Rates on b, c: x"]
    assert off([on, attempt("a", components=[])], "p.Rates") == ["p.Rates"]


def test_jobs_that_say_nothing_or_had_earlier_code_are_left_out() -> None:
    earlier = attempt(components=[], code={"egg": "v1"})
    assert off([attempt(), earlier], "p.Rates", earlier=["v1"]) == []
    assert off([attempt(), earlier], "p.Rates", earlier=["v0"]) == ["p.Rates"]


def test_without_a_process_at_home_those_with_a_reason_or_on_elsewhere_are_told() -> None:
    by_settings = attempt(components=[], disabled=["p.Monitor"])
    assert describe_disabled([by_settings]) == []
    refused = attempt(components=[], disabled=["p.Rates: no file", "p.Monitor"])
    (warning,) = describe_disabled([refused])
    assert "were off (p.Rates in all jobs: no file): " in warning
    assert partly_off([refused]) == set()
    attempts = [by_settings, attempt(components=["p.Monitor"])]
    (warning,) = describe_disabled(attempts)
    assert "were off (p.Monitor in some jobs): " in warning
    assert partly_off(attempts) == {"p.Monitor"}


@pytest.mark.parametrize(
    "fields", [{}, {"components": []}, {"components": ["p.Names"], "disabled": ["p.Rates: no"]}]
)
def test_the_store_keeps_what_a_report_says_of_components(fields: dict[str, Any]) -> None:
    document = {
        **dict.fromkeys(("requests", "done", "pages", "items"), 1),
        "schema": 1,
        "state": "ended",
        "updated": 1.0,
        "missed": 0,
    }
    report = read_report(json.dumps({**document, **fields}).encode())
    kept = to_kept(report)
    assert {name: kept[name] for name in ("components", "disabled") if name in kept} == fields
