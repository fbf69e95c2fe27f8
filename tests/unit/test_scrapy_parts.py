"""Parts of a project that cannot work in a distributed crawl are refused with their names."""

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.scrapy_parts import check_parts, put_aside
from scrapyd_dist.middlewares.producer.spider_check import explain_lack

from scrapyd_dist.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("SCHEDULER", "scrapy_redis.scheduler.Scheduler"),
        ("SCHEDULER", "no_such_package.Scheduler"),
        ("DUPEFILTER_CLASS", "scrapy_redis.dupefilter.RFPDupeFilter"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["as they are", "put aside"])
def test_foreign_parts_are_refused_with_their_name(name: str, part: str, late: bool) -> None:
    settings = Settings({name: part})
    if late:
        put_aside(settings)
        assert settings[name].startswith("scrapy."), (
            "Scrapy's own stands in, so that the crawl can be refused"
        )
    with pytest.raises(ConfigError, match=name) as refused:
        check_parts(settings)
    assert part in str(refused.value)


def test_parts_made_from_scrapys_own_are_taken() -> None:
    from scrapy.core.scheduler import Scheduler
    from scrapy.dupefilters import RFPDupeFilter

    own = {"SCHEDULER": Scheduler, "DUPEFILTER_CLASS": RFPDupeFilter}
    for settings in (
        Settings(),
        *(Settings({name: type("Mine", (part,), {})}) for name, part in own.items()),
    ):
        before = dict(settings)
        put_aside(settings)
        check_parts(settings)
        assert dict(settings) == before


class _Books(Spider):
    name = "books"

    def __init__(self, category: str, *, page: str) -> None:
        super().__init__()


class _Comics(_Books):
    name = "comics"


def test_a_spider_that_lacks_arguments_is_refused_with_how_they_are_given() -> None:
    with pytest.raises(TypeError) as caught:
        _Comics()  # type: ignore[call-arg]
    assert explain_lack(_Comics, str(caught.value)) == (
        "The spider comics cannot be started: it lacks 1 argument. Give it -a category=…. Nothing"
        " was started."
    )
    assert explain_lack(Spider, str(caught.value)) == ""
    assert explain_lack(_Comics, "something else") == ""
