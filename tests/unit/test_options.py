"""The settings of a producer, checked at one door."""

from typing import Any

import pytest
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions, read_options

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.scheduling.base import SchedulerLimits
from scrapyd_dist.settings import SETTINGS


def options(values: dict[str, Any] | None = None, priority: str = "project", **more: Any) -> ProducerOptions:
    settings = Settings()
    for name, value in {**(values or {}), **more}.items():
        settings.set(f"DISTRIBUTED_{name}", value, priority=priority)
    return read_options(settings)


def test_without_settings_everything_is_as_documented() -> None:
    assert options() == ProducerOptions()
    usual = ProducerOptions()
    assert (usual.batch_size, usual.sent_size, usual.batch_max_age) == (100, 10_000, 30.0)
    assert usual.placement == "by-capacity"
    assert ProducerOptions().limits == SchedulerLimits()


def test_values_of_the_command_line_are_read_like_those_of_a_file() -> None:
    as_text = options(
        CRAWL="c-1", NODES="a,b:6801", INDEX="http://web/%d", PAGES="7", FIRST_PAGE="2", SHARDS="3", BATCH_SIZE="5",
        BATCH_MAX_AGE="0.5", MAX_JOBS="4", MAX_ATTEMPTS="2", MAX_FAILED="9", WAIT="0", POLL_INTERVAL="2",
        PLACEMENT="least-loaded",
    )  # fmt: skip
    as_values = options(
        CRAWL="c-1", NODES=["a", "b:6801"], INDEX="http://web/%d", PAGES=7, FIRST_PAGE=2, SHARDS=3, BATCH_SIZE=5,
        BATCH_MAX_AGE=0.5, MAX_JOBS=4, MAX_ATTEMPTS=2, MAX_FAILED=9, WAIT=False, POLL_INTERVAL=2,
        PLACEMENT="least-loaded",
    )  # fmt: skip
    assert as_text == as_values
    assert (as_text.nodes, as_text.sharded, as_text.limits.wait) == (("a", "b:6801"), True, False)


def test_batches_have_the_size_that_was_given_and_adapt_where_none_was() -> None:
    assert options().batch_adapt
    assert not options(BATCH_SIZE=50).batch_adapt
    assert options(BATCH_SIZE=50, BATCH_ADAPT="1").batch_adapt
    assert not options(BATCH_ADAPT=False).batch_adapt
    assert not options(WAIT=False).batch_adapt  # who does not stay cannot see what fits


def test_auto_is_the_size_that_no_setting_says() -> None:
    assert options(BATCH_SIZE="auto") == options() == ProducerOptions()
    assert options(MODE="pull", BATCH_SIZE="auto") == options(MODE="pull")


def test_old_names_of_lists_are_entries_of_the_one_list() -> None:
    old = {"NODES_FILE": "nodes.txt", "NODES_COMMAND": "list --all"}
    assert options(old).nodes == ("file:nodes.txt", "cmd:list --all")
    assert options(old, NODES=["one"]).nodes == ("one",)
    assert options(old, TARGET_HOSTS=["web1:6800"]).nodes == ()  # it goes before the lists


def test_the_books_settings_keep_their_names() -> None:
    found = options(TARGET_HOSTS=["scrapyd1:6800"], BATCH_SIZE=2000, TARGET_FEED_URL="ftp://h/%(batch)s.jl")
    assert (found.hosts, found.batch_size, found.feed_url) == (("scrapyd1:6800",), 2000, "ftp://h/%(batch)s.jl")
    assert found.send_feed_url


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"CRAWL": "a/b"}, "cannot name a crawl"),
    ({"PAGES": "ten", "INDEX": "u%d"}, "DISTRIBUTED_PAGES is 'ten'"),
    ({"PAGES": 1.5, "INDEX": "u%d"}, "whole number"),
    ({"BATCH_SIZE": 0}, "BATCH_SIZE is 0, and must be 1 or more"),
    ({"BATCH_SIZE": "-1"}, "1 or more"),
    ({"BATCH_SIZE": "all"}, "a whole number, or auto"),
    ({"WAIT": "perhaps"}, "WAIT is 'perhaps', and must be True or False"),
    ({"BATCH_MAX_AGE": 0}, "more than 0 seconds"),
    ({"BATCH_MAX_AGE": "soon"}, "number of seconds"),
    ({"POLL_INTERVAL": "nan"}, "more than 0 seconds"),
    ({"NODE_TIMEOUT": -1}, "NODE_TIMEOUT is -1"),
    ({"BATCH_ADAPT": "perhaps"}, "True or False"),
    ({"NODES_EVERY": 0}, "more than 0 seconds"),
    ({"MAX_ATTEMPTS": 0}, "MAX_ATTEMPTS"),
    ({"MAX_JOBS": -1}, "MAX_JOBS"),
    ({"MAX_FAILED": -1}, "MAX_FAILED"),
    ({"DEPLOY": "always"}, "if-missing or never"),
    ({"PLACEMENT": "random"}, "by-capacity or round-robin or least-loaded"),
    ({"UNSENDABLE": "drop"}, "local or refuse"),
    ({"MODE": "pulled"}, "MODE is 'pulled'; it can be auto or push or pull"),
    ({"WORKERS": "-1"}, "WORKERS is -1, and must be 0 or more"),
    ({"MAX_TIME": "-1"}, "0 seconds or more"),
    ({"IDLE": "soon"}, "number of seconds"),
    ({"LEASE": "0"}, "LEASE is 0.0, and must be more than 0"),
    ({"START": "last"}, "skip or first"),
    ({"PROFILE": "quick"}, "PROFILE is 'quick'; it can be usual or fast or none"),
    ({"FAIR": "equal"}, r"FAIR is 'equal'; it can be spread or by-domain\."),
    ({"INDEX": "u%d"}, "needs the number of its pages"),
    ({"PAGES": 3}, "needs the address of the index"),
    ({"SHARDS": 3}, "Shards need to know the index pages"),
    ({"SHARDS": 0}, "Shards need to know the index pages"),
    ({"INDEX": "u%d", "PAGES": 3, "START_URLS_FILE": "f"}, "not both"),
]


@pytest.mark.parametrize(("values", "why"), WRONG)
def test_what_is_wrong_is_told_with_its_name(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        options(values)


@pytest.mark.parametrize("name", SETTINGS)
def test_an_empty_value_is_none(name: str) -> None:
    assert read_options(Settings({name: ""})) == ProducerOptions()


SECRET = "ftp://me:s3cret@host/%(batch)s.jl"


def test_a_feed_url_with_a_password_does_not_travel_and_must_be_deployed() -> None:
    assert not options(TARGET_FEED_URL=SECRET).send_feed_url
    with pytest.raises(ConfigError, match="has a password") as caught:
        options({"TARGET_FEED_URL": SECRET}, priority="cmdline")
    assert "s3cret" not in str(caught.value)
    assert options({"TARGET_FEED_URL": "ftp://me@host/x"}, priority="cmdline").send_feed_url


@pytest.mark.parametrize("url", ["ftp://[", "ftp://me:s3c/ret@host/x", "ftp://host:port/x"])
def test_a_feed_url_that_cannot_be_read_is_told_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(TARGET_FEED_URL=url)
    assert url not in str(caught.value)
