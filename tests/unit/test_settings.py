"""The registry is the one place that lists settings, and every setting is read."""

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import WorkerRequest
from scrapyd_dist.goals import Goals
from scrapyd_dist.scheduling.scheduler_state import SchedulerLimits
from scrapyd_dist.settings import (
    SETTINGS,
    Setting,
    SettingReader,
    ValueKind,
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


@pytest.mark.parametrize("name", ["DISTRIBUTED_NODES", "DISTRIBUTED_TARGET_HOSTS"])
def test_an_address_with_a_password_is_not_shown_where_it_is_wrong(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a list of texts"):
        SETTINGS[name].judged({"http://me:hush@web1:6800": 1})
