"""The profiles: below everything that is set, and nothing of them is left out."""

import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from scrapy import Spider, signals
from scrapy.settings import BaseSettings, Settings
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.addon import (
    FAST,
    NONE,
    PROFILE_SETTINGS,
    USUAL,
    Addon,
    apply_profile,
    leave_what_stays,
)
from scrapyd_dist.middlewares.producer.job_settings import make_job_settings

from scrapyd_dist.garbage_collection import AT_START, collect_as_before, collect_rarely
from scrapyd_dist.payload import START_URLS

LOGGERS = ("", "scrapy", "scrapy.core.engine", "my.spider")


@pytest.fixture
def as_before() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    gc.unfreeze()  # an earlier test may have crawled
    yield
    gc.unfreeze()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def settings(priority: str = "project", **values: Any) -> Settings:
    made = Settings()
    made.setdict(values, priority=priority)
    return made


def of_the_profile(made: BaseSettings) -> dict[str, Any]:
    return {name: made.get(name) for name in PROFILE_SETTINGS[FAST]}


SCRAPYS = of_the_profile(Settings())


@pytest.mark.parametrize(
    ("asked", "gets"),
    [
        ({}, {**SCRAPYS, **PROFILE_SETTINGS[USUAL]}),
        ({"DISTRIBUTED_PROFILE": USUAL}, {**SCRAPYS, **PROFILE_SETTINGS[USUAL]}),
        ({"DISTRIBUTED_PROFILE": FAST}, PROFILE_SETTINGS[FAST]),
        ({"DISTRIBUTED_PROFILE": NONE}, SCRAPYS),
    ],
)
def test_a_profile_takes_the_place_of_scrapys_defaults_and_the_jobs_get_the_same(
    asked: dict[str, str], gets: dict[str, Any]
) -> None:
    made = settings(**asked)
    apply_profile(made, None)
    assert of_the_profile(made) == gets
    assert asked.get("DISTRIBUTED_PROFILE") == NONE or gets != SCRAPYS
    sent = make_job_settings(made, given={}, limits={}, leases=True)
    assert sent.own["DISTRIBUTED_PROFILE"] == asked.get("DISTRIBUTED_PROFILE", USUAL)


@pytest.mark.parametrize("profile", [USUAL, FAST])
@pytest.mark.parametrize("priority", ["project", "spider", "cmdline"])
def test_what_the_user_has_set_stays_and_the_usual_profile_touches_no_log(
    priority: str, profile: str
) -> None:
    own = {
        "CONCURRENT_ITEMS": 100,
        "LOG_LEVEL": "DEBUG",
    }  # even where it is what Scrapy would do anyway
    assert (set(PROFILE_SETTINGS[FAST]), set(PROFILE_SETTINGS[USUAL])) == (
        set(own),
        {"CONCURRENT_ITEMS"},
    )
    made = settings(priority, DISTRIBUTED_PROFILE=profile, **own)
    apply_profile(made, None)
    assert of_the_profile(made) == own


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize(
    ("profile", "freezes", "level", "least"),
    [
        (NONE, False, "INFO", 1),
        (USUAL, True, "INFO", 1),
        (FAST, True, "INFO", logging.INFO),
        (FAST, True, "DEBUG", logging.DEBUG),
        (FAST, True, logging.WARNING, logging.WARNING),
    ],
)
def test_a_process_settles_when_its_spider_opens_and_makes_only_records_that_the_log_keeps(
    profile: str, freezes: bool, level: str | int, least: int
) -> None:
    for name in ("", "scrapy"):
        logging.getLogger(name).setLevel(1)
    crawler = get_crawler(Spider, {"DISTRIBUTED_ENABLED": False, "LOG_LEVEL": level})
    spider = crawler._create_spider("any")
    apply_profile(settings(DISTRIBUTED_PROFILE=profile), crawler)
    assert gc.get_freeze_count() == 0
    crawler.signals.send_catch_log(signals.spider_opened, spider=spider)
    assert (gc.get_freeze_count() > 1000) is freezes
    for name in ("scrapy.core.engine", "my.spider"):
        assert logging.getLogger(name).getEffectiveLevel() == least


@pytest.fixture
def usual_thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield (700, 10, 10)
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("profile", "at_start"), [(NONE, 700), (USUAL, AT_START), (FAST, AT_START)]
)
def test_garbage_is_collected_rarely_until_the_spider_opens(
    profile: str, at_start: int, usual_thresholds: tuple[int, int, int]
) -> None:
    crawler = get_crawler(Spider, {"DISTRIBUTED_ENABLED": False})
    spider = crawler._create_spider("any")
    apply_profile(settings(DISTRIBUTED_PROFILE=profile), crawler)
    apply_profile(settings(DISTRIBUTED_PROFILE=profile), crawler)  # of a second crawl there
    assert gc.get_threshold() == (at_start, 10, 10)
    crawler.signals.send_catch_log(signals.spider_opened, spider=spider)
    assert gc.get_threshold() == usual_thresholds


@pytest.mark.parametrize("own", [0, 100_000])
@pytest.mark.usefixtures("usual_thresholds")
def test_a_project_that_collects_more_rarely_or_never_is_left_alone(own: int) -> None:
    gc.set_threshold(own, 5, 5)
    collect_rarely()
    assert gc.get_threshold() == (own, 5, 5)
    collect_as_before()
    assert gc.get_threshold() == (own, 5, 5)


@pytest.mark.usefixtures("usual_thresholds")
def test_a_threshold_that_the_project_sets_while_it_starts_stays() -> None:
    collect_rarely()
    gc.set_threshold(5_000, 5, 5)
    collect_as_before()
    assert gc.get_threshold() == (5_000, 5, 5)


@pytest.mark.parametrize(
    ("process", "gets"),
    [
        ({START_URLS: '["http://web/"]'}, True),
        ({"DISTRIBUTED_ENABLED": True}, True),
        ({"DISTRIBUTED_ENABLED": False}, False),  # as every other job that the egg runs
    ],
)
def test_workers_and_producers_get_it_and_no_other_crawl(
    process: dict[str, Any], gets: bool
) -> None:
    made = settings(DISTRIBUTED_PROFILE=FAST, **process)
    Addon().update_settings(made)
    assert (of_the_profile(made) == PROFILE_SETTINGS[FAST]) is gets


def test_what_an_earlier_crawl_of_this_process_has_left_behind_is_collected(
    as_before: None,
) -> None:
    class Crawl:
        def __init__(self) -> None:
            self.itself = self

    leave_what_stays()
    left = weakref.ref(Crawl())
    leave_what_stays()
    gc.collect()
    assert left() is None
