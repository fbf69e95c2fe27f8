"""The profile "fast": opt-in, below everything that anybody has set, and nothing of it is left out."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Spider, signals
from scrapy.settings import BaseSettings, Settings
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.addon import Addon
from scrapyd_dist.middlewares.producer.asked import Asked, job_settings
from scrapyd_dist.middlewares.producer.options import Options, read_options
from scrapyd_dist.middlewares.profile import FAST, FAST_SETTINGS, NONE, apply_profile, settle

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.payload import START_URLS

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGGERS = ("", "scrapy", "scrapy.core.engine", "my.spider")


@pytest.fixture
def as_before() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    gc.unfreeze()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def settings(priority: str = "project", **values: Any) -> Settings:
    made = Settings()
    for name, value in values.items():
        made.set(name, value, priority=priority)
    return made


def of_the_profile(made: BaseSettings) -> dict[str, Any]:
    return {name: made.get(name) for name in FAST_SETTINGS}


@pytest.mark.parametrize("asked", [{}, {"DISTRIBUTED_PROFILE": NONE}])
def test_nobody_gets_it_who_did_not_ask(asked: dict[str, str]) -> None:
    made = settings(**asked)
    apply_profile(made, None)
    assert of_the_profile(made) == of_the_profile(Settings())


def test_it_takes_the_place_of_scrapys_defaults() -> None:
    made = settings(DISTRIBUTED_PROFILE=FAST)
    apply_profile(made, None)
    assert of_the_profile(made) == FAST_SETTINGS
    assert all(FAST_SETTINGS[name] != Settings().get(name) for name in FAST_SETTINGS)


@pytest.mark.parametrize("priority", ["project", "spider", "cmdline"])
def test_what_anybody_has_set_stays(priority: str) -> None:
    own = {"CONCURRENT_ITEMS": 100, "LOG_LEVEL": "DEBUG"}  # even where it is what Scrapy would do anyway
    assert set(own) == set(FAST_SETTINGS)
    made = settings(priority, DISTRIBUTED_PROFILE=FAST, **own)
    apply_profile(made, None)
    assert of_the_profile(made) == own


@pytest.mark.parametrize("level", ["INFO", "DEBUG", logging.WARNING])
@pytest.mark.usefixtures("as_before")
def test_only_records_that_the_log_would_throw_away_are_not_made(level: str | int) -> None:
    logging.getLogger().setLevel(logging.NOTSET)  # as Scrapy does when a crawl begins
    logging.getLogger("scrapy").setLevel(logging.DEBUG)
    crawler = get_crawler(Spider, {"LOG_LEVEL": level, "DISTRIBUTED_ENABLED": False})
    settle(crawler._create_spider("any"))
    least = logging.getLevelName(level) if isinstance(level, str) else level
    for name in ("scrapy.core.engine", "my.spider"):
        assert logging.getLogger(name).isEnabledFor(least)
        assert not logging.getLogger(name).isEnabledFor(least - 1)


@pytest.mark.usefixtures("as_before")
def test_a_process_settles_when_its_spider_opens_and_not_before() -> None:
    crawler = get_crawler(Spider, {"DISTRIBUTED_ENABLED": False})
    spider = crawler._create_spider("any")
    apply_profile(settings(DISTRIBUTED_PROFILE=FAST), crawler)
    assert gc.get_freeze_count() == 0
    crawler.signals.send_catch_log(signals.spider_opened, spider=spider)
    assert gc.get_freeze_count() > 1000


@pytest.mark.parametrize(
    ("process", "gets"),
    [
        ({START_URLS: '["http://web/"]'}, True),
        ({"DISTRIBUTED_ENABLED": True}, True),
        ({"DISTRIBUTED_ENABLED": False}, False),  # as every other job that the egg runs
    ],
)
def test_workers_and_producers_get_it_and_no_other_crawl(process: dict[str, Any], gets: bool) -> None:
    made = settings(DISTRIBUTED_PROFILE=FAST, **process)
    Addon().update_settings(made)
    assert (of_the_profile(made) == FAST_SETTINGS) is gets


@pytest.mark.parametrize("name", [NONE, FAST])
def test_the_jobs_are_told_which(name: str) -> None:
    options = read_options(settings(DISTRIBUTED_PROFILE=name))
    assert job_settings(Asked(), options)["DISTRIBUTED_PROFILE"] == name
    assert Options().profile == NONE


def test_a_profile_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="DISTRIBUTED_PROFILE is 'quick'; it can be none or fast"):
        read_options(settings(DISTRIBUTED_PROFILE="quick"))
