"""What goes together when a frontier is consumed."""

from pathlib import Path

import pytest
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.consume_request import ConsumeRequest, frontier_request
from scrapyd_dist.middlewares.producer.crawl_request import CrawlRequest

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy


def asked(settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CrawlRequest:
    monkeypatch.chdir(folder)
    return frontier_request(settings, "easy", {"city": "Bonn"}, {"LOG_LEVEL": "INFO"})


@pytest.mark.parametrize(
    ("fair", "prefix", "rows", "refused"),
    [
        ("spread", "a", False, True),
        ("spread", "", False, False),
        ("", "a", False, False),
        ("spread", "a", True, False),
    ],
)
def test_workers_that_take_from_all_slots_are_bound_to_none(
    fair: str,
    prefix: str,
    rows: bool,
    refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings({"DISTRIBUTED_CRAWL": "shop", "DISTRIBUTED_FAIR": fair})
    crawl = asked(settings, tmp_path, monkeypatch)

    def make() -> ConsumeRequest:
        return ConsumeRequest(
            settings=settings,
            crawl=crawl,
            scaling=ScalingPolicy(prefix=prefix),
            rows=rows,
            command="sdist frontier consume easy shop",
        )

    if refused:
        with pytest.raises(ConfigError, match="--prefix a binds each to one"):
            make()
    else:
        assert make().frontier == "shop"


def test_what_was_given_is_what_the_workers_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl = asked(Settings({"DISTRIBUTED_CRAWL": "shop"}), tmp_path, monkeypatch)
    assert (crawl.spider, crawl.args, crawl.given, crawl.options.crawl) == (
        "easy",
        {"city": "Bonn"},
        {"LOG_LEVEL": "INFO"},
        "shop",
    )


def test_a_reserved_argument_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="_job"):
        frontier_request(Settings(), "easy", {"_job": "1"}, {})
