"""A setting that is none of ours, or misspelt, is told with the one that was meant."""

import logging

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.addon import Addon

from scrapyd_dist.settings import INTERNAL, SETTINGS
from scrapyd_dist.unknown_settings import describe_unknown, find_warnings, suggest_name


def test_a_misspelt_name_of_a_setting_is_told_with_the_nearest_one_and_that_of_a_variable_is_told() -> (
    None
):
    assert describe_unknown(
        ["DISTRIBUTED_SHARD", "LOG_LEVEL", *SETTINGS, *INTERNAL, "DISTRIBUTED_START_URLS_7"]
    ) == [
        "The setting DISTRIBUTED_SHARD is none of scrapyd-dist's, and does nothing. Did you mean DISTRIBUTED_SHARDS?"
    ]
    (told,) = describe_unknown(["DISTRIBUTE_MAX_JOBS", "DISTANCE", "DIST_KEY", "MAX_JOBS"])
    assert told.endswith("does nothing. Did you mean DISTRIBUTED_MAX_JOBS?")
    assert suggest_name("DISTRIBUTED_XYZZY") == suggest_name("DISTRIBUTED_PAUSE") == ""
    assert suggest_name("node 3", ["node 33"]) == " Did you mean 'node 33'?"
    variables = ("SDIST_STOR", "SDIST_STORE", "SDIST_WEB1")
    assert [bool(describe_unknown([], [name])) for name in variables] == [True, False, False]


def test_custom_settings_of_a_spider_are_looked_at_as_well() -> None:
    class Misspelt(Spider):
        name = "misspelt"
        custom_settings = {"DISTRIBUTED_LIMITT": 5}  # noqa: RUF012 - as spiders have it

    crawler = get_crawler(Misspelt, {"DISTRIBUTED_ENABLED": False})
    assert any(
        "Did you mean DISTRIBUTED_LIMIT?" in text for text in find_warnings(crawler.settings)
    )


def test_a_process_that_is_not_spread_warns_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    made = Settings({"DISTRIBUTED_ENABLED": False, "DISTRIBUTED_THROTTLE_HTIS": 5})
    with caplog.at_level(logging.WARNING):
        Addon().update_settings(made)
    assert [text for text in caplog.messages if "Did you mean DISTRIBUTED_THROTTLE_HITS?" in text]
