"""A setting is one row of the registry: its option, its page, its way to the jobs and its check follow from that."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rig.commands import Result
from scrapy.settings import Settings
from scrapyd_dist.cli.commands import load
from scrapyd_dist.cli.crawls.crawl_options import CrawlOptions
from scrapyd_dist.cli.manual import page, settings_page
from scrapyd_dist.cli.options import as_typer_command
from scrapyd_dist.cli.setting_options import RegisteredOptions
from scrapyd_dist.middlewares.producer.job_settings import make_job_settings

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.settings import (
    GROUPS,
    SETTINGS,
    Setting,
    SettingReader,
    Travels,
    ValueKind,
    check_settings,
)

Run = Callable[..., Result]
ROOT = Path(__file__).parents[2]
HEADING = "Workers that lease"
ROW = Setting(
    name="DISTRIBUTED_NAP",
    kind=ValueKind.SECONDS,
    default=30.0,
    help="seconds that a worker *naps* after each batch ([more](../howto/login.md))",
    option="--nap",
    travels=Travels.JOBS,
)


def add_row(monkeypatch: pytest.MonkeyPatch, row: Setting) -> None:
    monkeypatch.setitem(GROUPS, HEADING, (*GROUPS[HEADING], row))
    monkeypatch.setitem(SETTINGS, row.name, row)


def chosen(*words: str) -> CrawlOptions:
    """What a command line of `sdist crawl` asks for."""
    seen: list[CrawlOptions] = []

    def crawl(asked: CrawlOptions) -> None:
        seen.append(asked)

    app = typer.Typer(add_completion=False)
    app.command()(as_typer_command(crawl))
    app(["easy", *words], standalone_mode=False)
    return seen[0]


def test_a_row_more_is_an_option_in_the_manual_and_reaches_the_jobs(
    monkeypatch: pytest.MonkeyPatch, sdist: Run, tmp_path: Path
) -> None:
    add_row(monkeypatch, ROW)
    line = "* `--nap TIME`: Seconds that a worker *naps* after each batch (30)."
    assert line in page("crawl").splitlines()
    assert "--nap" in sdist("help", "--all", "plan").expect(0).out
    text = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8")
    definition = (
        "### `DISTRIBUTED_NAP`\n\nDefault: `30`; option `--nap`.\n\n"
        "Seconds that a worker *naps* after each batch ([more](../howto/login.md)).\n"
    )
    assert definition in settings_page(text)

    settings = Settings()
    assert SettingReader(settings).value(ROW.name) == 30.0
    assert ROW.name not in make_job_settings(settings, given={}, limits={}, leases=False).own
    order = chosen("--nap", "2m").order(tmp_path)
    assert order.settings == {ROW.name: 120.0}
    settings.setdict(order.settings, priority="cmdline")  # as the crawl's process does
    sent = make_job_settings(settings, given={}, limits={}, leases=False)
    assert sent.own[ROW.name] == "120.0"
    assert ROW.name not in sent.foreign
    received = Settings(dict(sent.own))  # as Scrapyd gives them to the job
    assert SettingReader(received).value(ROW.name) == 120.0
    with pytest.raises(ConfigError, match="DISTRIBUTED_NAP is 'soon', and must be"):
        check_settings({ROW.name: "soon"})


@pytest.mark.parametrize(
    ("changes", "words", "value"),
    [
        ({"kind": ValueKind.YES_NO, "default": None, "option": "--nap/--no-nap"}, ["--no-nap"], False),
        ({"kind": ValueKind.WHOLE, "default": 0}, ["--nap", "0"], 0),
        ({"kind": ValueKind.TEXT, "default": None}, ["--nap", "x"], "x"),
        ({"kind": ValueKind.LIST, "default": []}, ["--nap", "a", "--nap", "b"], ["a", "b"]),
        ({"kind": ValueKind.CHOICE, "default": "", "choices": ("", "a")}, ["--nap", "a"], "a"),
    ],
)  # fmt: skip
def test_an_option_has_the_kind_of_its_row(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: list[str], value: Any
) -> None:
    add_row(monkeypatch, replace(ROW, **changes))
    assert chosen(*words).registered == {ROW.name: value}
    assert chosen().registered == {}


def test_what_a_command_declares_itself_is_not_made_again() -> None:
    made = RegisteredOptions(without=("DISTRIBUTED_CRAWL",)).make({"node"})
    assert "DISTRIBUTED_CRAWL" not in made
    assert "DISTRIBUTED_NODES" not in made
    assert made["DISTRIBUTED_LIMIT"].name == "limit"
    assert not [name for name, row in SETTINGS.items() if name in made and " " in row.option]
    assert {param.name for param in load("crawl").params} >= {"node", "name", "limit"}
