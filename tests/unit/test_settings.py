"""The registry is the one place that lists settings, and misspelt names are told with the one that was meant."""

import ast
import logging
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.addon import Addon
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import WorkerRequest
from scrapyd_dist.goals import Goals
from scrapyd_dist.scheduling.base import SchedulerLimits
from scrapyd_dist.settings import (
    INTERNAL,
    SETTINGS,
    Setting,
    SettingReader,
    ValueKind,
    describe_unknown,
    find_warnings,
    suggest_name,
)
from scrapyd_dist.throttle.permits import Limit

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for part in ("scrapyd_dist", "middlewares", "cli", "deploy")
    for path in (ROOT / part).rglob("*.py")
]
#: names of settings as values of their own, in one file
FEW = 6
#: files with more, and why
READERS = {
    "middlewares/producer/producer_options.py": "reads each of them once, as a field of the producer's options"
}
#: values whose fields are read from the settings of the same names, and what these begin with
VALUES = {
    ProducerOptions: "DISTRIBUTED_", SchedulerLimits: "DISTRIBUTED_", WorkerRequest: "DISTRIBUTED_",
    ThrottleOptions: "DISTRIBUTED_THROTTLE_", Limit: "DISTRIBUTED_THROTTLE_", Goals: "DISTRIBUTED_GOAL_",
}  # fmt: skip


def names_in(path: Path) -> set[str]:
    """The names of settings that are texts of their own in a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return SETTINGS.keys() & {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)
    }


def test_every_setting_is_read_and_no_other_module_lists_settings() -> None:
    found = {str(path.relative_to(ROOT)): names_in(path) for path in FILES}
    assert {path for path, names in found.items() if len(names) > FEW} == set(READERS)
    read = {prefix + one.name.upper() for kind, prefix in VALUES.items() for one in fields(kind)}
    assert set(SETTINGS) - read.union(*found.values()) == set()


def test_the_registry_needs_the_standard_library_only() -> None:
    loaded = (
        "import sys, scrapyd_dist.settings; print({name.partition('.')[0] for name in sys.modules})"
    )
    said = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    ).stdout
    assert ast.literal_eval(said) & {"scrapy", "twisted", "typer", "requests"} == set()


@pytest.mark.parametrize("row", SETTINGS.values(), ids=list(SETTINGS))
def test_a_default_may_be_given_as_well(row: Setting) -> None:
    given = Settings() if row.default is None else Settings({row.name: row.default})
    read = SettingReader(given).value(row.name)
    assert read == SettingReader(Settings()).value(row.name)
    assert read == (() if row.kind in {ValueKind.LIST, ValueKind.FILES} else row.default)


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


@pytest.mark.parametrize("name", ["DISTRIBUTED_NODES", "DISTRIBUTED_TARGET_HOSTS"])
def test_an_address_with_a_password_is_not_shown_where_it_is_wrong(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a list of texts"):
        SETTINGS[name].judged({"http://me:hush@web1:6800": 1})
