"""Names of related systems are answered with what to write here, and no name of a project's own is."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rig.commands import Result
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares import targets

from scrapyd_dist.related_names import (
    CLASSES,
    DEPLOY_OPTIONS,
    META,
    NAMES,
    OPTIONS,
    SETTINGS_OF,
    answers,
    option_answer,
)
from scrapyd_dist.settings import SETTINGS, find_warnings

ROOT = Path(__file__).parents[2]
LISTED = [(system, name) for system, names in SETTINGS_OF.items() for name in names]
VALUES = {
    "STRATEGY": ("shop.strategies.News", "`sdist strategy run shop.strategies:News`"),
    "STRATEGY_ARGS": (
        {"limit": 3, "site": "a.com"},
        "`sdist strategy run MODULE:CLASS -a limit=… -a site=…`",
    ),
    "MAX_REQUESTS": (100, "DISTRIBUTED_GOAL_REQUESTS = 100, or --max-requests 100"),
    "SEEDS_SOURCE": ("seeds.txt", "--seeds FILE"),
    "DOMAINS_BLACKLIST": (["a.com"], "sdist throttle set DOMAIN --block"),
    "SPIDER_FEED_PARTITIONS": (4, "--workers"),
    "HCF_PRODUCER_FRONTIER": ("shop", "DISTRIBUTED_FRONTIER = 'shop'"),
    "HCF_PRODUCER_NUMBER_OF_SLOTS": (8, "DISTRIBUTED_SLOTS = 8"),
    "HCF_CONSUMER_SLOT": ("p3", "--prefix p3"),
    "HCF_CONSUMER_MAX_BATCHES": (50, "--max-batches 50"),
    "FRONTERA_SCHEDULER_REQUEST_CALLBACKS_TO_FRONTIER": (
        ["parse_a"],
        "DISTRIBUTED_TARGET_CALLBACKS = ['parse_a']",
    ),
    "FRONTERA_SCHEDULER_CALLBACK_SLOT_PREFIX_MAP": (
        {"parse": "p/4"},
        "DISTRIBUTED_CALLBACK_SLOTS = {'parse': 'p/4'}",
    ),
}


@pytest.mark.parametrize(("system", "name"), LISTED)
def test_a_setting_is_answered_with_its_system_and_what_to_write(system: str, name: str) -> None:
    value, expected = VALUES.get(name, ("x", ""))
    (said,) = answers({"LOG_LEVEL": "INFO", name: value})
    assert said.startswith(f"{name} is a setting of {system}, and scrapyd-dist does not read it. ")
    assert expected in said
    # Names that a project may well have for itself.
    assert said.endswith("If the project reads it itself, keep it.") != name.startswith(
        ("HCF_", "FRONTERA_", "SEEDS_S3_")
    )
    assert "{" not in said.replace("{'parse': 'p/4'}", "")
    assert set(re.findall(r"DISTRIBUTED_[A-Z_]+", said)) <= SETTINGS.keys()
    assert answers({name: None}) == answers({name: ""}) == []


def test_a_name_of_a_family_that_is_not_listed_is_answered_too() -> None:
    assert [
        said.partition(" is")[0] for said in answers({"HCF_SOMETHING": 1, "SEEDS_S3_KEY": "k"})
    ] == [
        "HCF_SOMETHING",
        "SEEDS_S3_KEY",
    ]


def test_a_secret_is_not_shown() -> None:
    assert "s3cret" not in " ".join(
        answers({"HCF_AUTH": "s3cret", "SEEDS_S3_KEY": "s3cret", "SEEDS_SOURCE": "s3cret"})
    )


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_answered_if_it_is_of_such_a_system(name: str) -> None:
    for value in (
        "scrapy_frontera.scheduler.FronteraScheduler",
        "hcf_backend.HCFBackend",
        "frontera.contrib.Any",
    ):
        (said,) = answers({name: value})
        assert said.startswith(f"{name} names a class of ")
    assert answers({name: "scrapy.core.scheduler.Scheduler"}) == []


def test_settings_inside_an_argument_or_an_attribute_of_the_spider_are_answered() -> None:
    given = {"frontera_settings_json": json.dumps({"HCF_CONSUMER_SLOT": "p3"}), "other": "x"}
    first, second = answers({}, given)
    assert first.startswith("frontera_settings_json is an argument of HCF")
    assert "--prefix p3" in second
    (only,) = answers({}, {"frontera_settings": {"HCF_PRODUCER_FRONTIER": "shop"}})
    assert only.startswith("HCF_PRODUCER_FRONTIER")
    assert len(answers({}, {"frontera_settings_json": "no json"})) == 1


def test_what_a_process_warns_of_has_them_among_other_complaints() -> None:
    class Page(Spider):
        name = "page"
        custom_settings = {"HCF_CONSUMER_FRONTIER": "shop", "DISTRIBUTED_LIMITT": 5}  # noqa: RUF012 - as spiders have it

    crawler = get_crawler(Page, {"DISTRIBUTED_ENABLED": False})
    said = find_warnings(crawler.settings, {"frontera_settings_json": "{}"})
    assert [text.split()[0] for text in said] == [
        "The",
        "HCF_CONSUMER_FRONTIER",
        "frontera_settings_json",
    ]
    assert find_warnings(get_crawler(Spider).settings) == []


@pytest.mark.parametrize("key", META)
def test_a_key_in_meta_is_answered_once(key: str, caplog: pytest.LogCaptureFixture) -> None:
    targets._warn_of_key.cache_clear()
    spider, target = Spider("page"), targets.Target()
    for _ in range(3):
        assert not target.takes(Request("http://a.com", meta={key: "x"}), spider)
    assert not target.takes(Request("http://a.com", meta={"other": "x"}), spider)
    (record,) = caplog.records
    assert repr(key) in record.getMessage()
    assert "distribute" in record.getMessage()


@pytest.mark.parametrize("name", DEPLOY_OPTIONS)
def test_an_option_of_scrapyd_deploy_is_answered(name: str, sdist: Callable[..., Result]) -> None:
    said = sdist("deploy", "--quiet", name).expect(2, "is an option of scrapyd-deploy").err
    assert option_answer(name).strip() in said


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_a_related_command_is_answered_where_there_is_none(
    name: str, sdist: Callable[..., Result]
) -> None:
    assert (
        option_answer(name).strip()
        in sdist("frontier", "consume", "page", "shop", name, "3").expect(2).err
    )
    assert option_answer("--nonsense") == ""


def test_the_project_s_settings_are_asked_for_by_these_names() -> None:
    assert {"STRATEGY", "HCF_CONSUMER_SLOT", "SCHEDULER"} <= set(NAMES)


def test_every_name_stands_in_the_documents() -> None:
    text = (ROOT / "docs" / "coming-from" / "frontera.md").read_text("utf-8")
    names: list[Any] = [*NAMES, *META, *OPTIONS, "frontera_settings_json", "frontera_settings"]
    assert [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", text)] == []
