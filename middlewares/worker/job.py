"""What a job on a node was given: which attempt it is, the batch's requests, the egg's key.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from scrapy.spiders import CrawlSpider

import scrapyd_dist
from scrapyd_dist.payload import RequestValue, decode

from ..codec import from_value
from ..targets import only_rule

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

KEY_FILE = "_key.txt"


@cache
def egg_key() -> bytes | None:
    """The key that travelled in this egg, if this code came from one; each look reads the egg's whole list of files."""
    try:
        return files(scrapyd_dist.__name__).joinpath(KEY_FILE).read_bytes().strip() or None
    except (OSError, KeyError):  # a zip says KeyError
        return None


@dataclass(frozen=True)
class Job:
    """What the coordinator says about this attempt (the setting `DISTRIBUTED_JOB`, JSON)."""

    crawl: str
    batch: int
    attempt: int
    home: str = ""  #: the crawl's folder of files in this node's logs
    start_by: float = 0.0  #: seconds since the epoch after which it must not start; 0 for no limit
    feed: bool = False  #: items go to the project's feed URL instead of the log folder
    collected: list[str] = field(default_factory=list)  #: folders of other crawls, which may go
    version: str = ""
    row: str = ""  #: in words, the arguments that this run of the whole spider was given; empty for a batch of requests
    lease: float = 0.0  #: seconds of its lease; 0 for none
    store: str = ""  #: the address of the crawl's store, where it has no secret
    store_sealed: str = ""  #: the same, encrypted with the egg's key

    @property
    def name(self) -> str:
        """The job's id, which names its files as well."""
        return f"{self.crawl}.b{self.batch}.a{self.attempt}"

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Job | None:
        """None when the batch was typed by hand, as in the book."""
        text = settings.get("DISTRIBUTED_JOB")
        if not text:
            return None
        said, known = json.loads(text), {one.name for one in fields(cls)}
        # The coordinator may be newer than this code, which a crawl keeps to its end.
        return cls(**{name: value for name, value in said.items() if name in known})


def requests_of(crawler: Crawler) -> tuple[list[Request], str]:
    """The batch's requests, or none and what is wrong with it."""
    spider = crawler.spider
    assert spider
    try:
        values = decode(crawler.settings.get, key=egg_key())
        return [from_value(with_target(value, crawler), spider) for value in values], ""
    except (ValueError, TypeError, AttributeError) as error:  # PayloadError and CannotTravel among them
        return [], f"This batch cannot be crawled: {error}."


def with_target(value: RequestValue, crawler: Crawler) -> RequestValue:
    """A bare URL (the book's form) is taken by the project's own target settings."""
    if "rule" in value or "callback" in value:
        return value
    return {**_default_target(crawler), **value}


def _default_target(crawler: Crawler) -> RequestValue:
    settings, spider = crawler.settings, crawler.spider
    rule = settings.getint("DISTRIBUTED_TARGET_RULE", -1)
    if rule >= 0 and isinstance(spider, CrawlSpider):
        return {"rule": rule}
    callbacks = settings.getlist("DISTRIBUTED_TARGET_CALLBACKS")
    if callbacks:
        return {"callback": callbacks[0]}
    found = only_rule(spider)
    return {} if found is None else {"rule": found}
