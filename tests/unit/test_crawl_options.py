"""The options of `sdist crawl` and `sdist plan` become settings, or are refused before anything starts."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from scrapyd_dist.cli.crawls.crawl_options import CrawlOptions, CrawlOrder, pairs, refuse_secrets
from scrapyd_dist.cli.options import as_typer_command

from scrapyd_dist.errors import ConfigError

#: option -> the setting of its own that it gives a value, and that value
GIVEN: dict[str, tuple[str, Any]] = {
    "rule": ("TARGET_RULE", 0), "callback": ("TARGET_CALLBACKS", ["parse_item"]), "shards": ("SHARDS", 20),
    "index": ("INDEX", "http://w/i_%d"), "pages": ("PAGES", 7), "limit": ("LIMIT", 9),
    "batch-size": ("BATCH_SIZE", 10), "max-attempts": ("MAX_ATTEMPTS", 2),
    "max-failed": ("MAX_FAILED", 0), "max-jobs": ("MAX_JOBS", 3),
    "node": ("NODES", ["a", "b:1"]),
    "feed": ("TARGET_FEED_URL", "ftp://h/%(batch)s"),
    "min-items": ("MIN_ITEMS", 5), "on-finish": ("ON_FINISH", "true"),
    "fair": ("FAIR", "spread"), "deliver": ("DELIVER", "s3://bucket/items"),
}  # fmt: skip


def order_of(folder: Path, *words: str) -> CrawlOrder:
    """What a command line of `sdist crawl` asks of the crawl's process."""
    orders: list[CrawlOrder] = []

    def crawl(asked: CrawlOptions) -> None:
        orders.append(asked.order(folder))

    app = typer.Typer(add_completion=False)
    app.command()(as_typer_command(crawl))
    app(["easy", *words], standalone_mode=False)
    return orders[0]


def test_each_option_becomes_its_setting_also_a_zero(tmp_path: Path) -> None:
    words: list[str] = []
    for name, (_, value) in GIVEN.items():
        for text in value if isinstance(value, list) else [value]:
            words += [f"--{name}", str(text)]
    assert order_of(tmp_path, *words) == CrawlOrder(
        spider="easy", settings={f"DISTRIBUTED_{name}": value for name, value in GIVEN.values()}
    )


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ({}, {}),
        ({"deploy": True}, {"DISTRIBUTED_DEPLOY": "if-missing"}),
        ({"deploy": False}, {"DISTRIBUTED_DEPLOY": "never"}),
        ({"pull": True}, {"DISTRIBUTED_MODE": "pull"}),
        ({"pull": False}, {"DISTRIBUTED_MODE": "push"}),
    ],
)
def test_flags_set_words_and_what_is_left_out_sets_nothing(
    tmp_path: Path, option: dict[str, Any], settings: dict[str, str]
) -> None:
    assert CrawlOptions(spider="s", **option).order(tmp_path) == CrawlOrder(
        spider="s", settings=settings
    )


def test_arguments_and_settings_of_the_spider_are_kept_apart_from_ours(tmp_path: Path) -> None:
    order = CrawlOptions(
        spider="s", arg=["a=1", "b=x=y", "a=2"], setting=["LOG_LEVEL=INFO", "EMPTY="]
    ).order(tmp_path)
    assert order.args == {"a": "2", "b": "x=y"}
    assert order.spider_settings == {"LOG_LEVEL": "INFO", "EMPTY": ""}
    assert order.settings == {}


def test_an_option_goes_before_the_same_setting_after_s(tmp_path: Path) -> None:
    words = ("-s", "DISTRIBUTED_FAIR=spread", "-s", "LOG_LEVEL=INFO")
    order = order_of(tmp_path, "--fair", "by-domain", *words)
    assert order.settings == {"DISTRIBUTED_FAIR": "by-domain"}
    assert order.spider_settings == {"LOG_LEVEL": "INFO"}
    assert order_of(tmp_path, *words).spider_settings["DISTRIBUTED_FAIR"] == "spread"
    with pytest.raises(ConfigError, match="DISTRIBUTED_FAIR"):
        order_of(tmp_path, "--fair", "by-domain", "-s", "DISTRIBUTED_FAIR=sideways")


@pytest.mark.parametrize("text", ["name", "=value", ""])
def test_a_pair_without_name_or_sign_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        pairs("-a", [text])


def test_outputs_are_absolute_and_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "old.json").touch()
    asked = CrawlOptions(spider="s", add_to=["new.jl", "odd.txt:csv"], overwrite=["old.json"])
    assert asked.order(tmp_path).settings["DISTRIBUTED_OUTPUTS"] == [
        {"path": str(tmp_path / "new.jl"), "format": None, "overwrite": False},
        {"path": str(tmp_path / "odd.txt"), "format": "csv", "overwrite": False},
        {"path": str(tmp_path / "old.json"), "format": None, "overwrite": True},
    ]


def test_a_folder_to_deliver_to_is_absolute_and_an_address_with_a_password_is_refused(
    tmp_path: Path,
) -> None:
    asked = CrawlOptions(spider="s", deliver="out").order(tmp_path)
    assert asked.settings == {"DISTRIBUTED_DELIVER": str(tmp_path / "out")}
    for refused in (
        lambda: CrawlOptions(spider="s", deliver="sftp://me:s3cret@host/x").order(tmp_path),
        lambda: refuse_secrets({"DISTRIBUTED_DELIVER": "sftp://me:s3cret@host/x"}),
    ):
        with pytest.raises(ConfigError, match="process list") as refusal:
            refused()
        assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"add_to": ["items.jl:json"]}, "nothing can be added to a JSON list"),
        ({"overwrite": ["items"]}, "is none of them"),
        ({"overwrite": ["folder.jl"]}, "is a folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    (tmp_path / "items.jl").write_text("mine")
    (tmp_path / "folder.jl").mkdir()
    with pytest.raises(ConfigError, match=words):
        CrawlOptions(spider="s", **options).order(tmp_path)


def test_the_list_of_start_urls_must_be_there_and_goes_over_as_a_whole_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start addresses"):
        CrawlOptions(spider="s", start_urls=tmp_path / "urls.txt").order(tmp_path)
    (tmp_path / "urls.txt").touch()
    settings = CrawlOptions(spider="s", start_urls=tmp_path / "urls.txt").order(tmp_path).settings
    assert settings == {"DISTRIBUTED_START_URLS_FILE": str((tmp_path / "urls.txt").resolve())}


def test_a_password_in_the_feed_url_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"settings\.py") as refused:
        CrawlOptions(spider="s", feed="ftp://me:hush@files/%(batch)s.jl").order(tmp_path)
    assert "hush" not in str(refused.value)


def test_a_command_shows_the_fields_of_asked_and_gets_them_as_one_value() -> None:
    seen: list[tuple[CrawlOptions, bool]] = []

    def command(asked: CrawlOptions, flag: bool = False) -> None:
        seen.append((asked, flag))

    shown = as_typer_command(command)
    names = [name for name in inspect.signature(shown).parameters if name != "flag"]
    fields_ = {entry.name for entry in fields(CrawlOptions)}
    assert fields_ - {*names} == {"registered"}
    shown(**{**dict.fromkeys(names), "spider": "easy", "shards": 3, "pull": True}, flag=True)
    registered = {"DISTRIBUTED_SHARDS": 3}
    assert seen == [(CrawlOptions(spider="easy", registered=registered, pull=True), True)]
