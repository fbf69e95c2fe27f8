"""What a job on a node was given: which attempt it is, the batch's requests, the egg's key.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.spiders import CrawlSpider

import scrapyd_dist
from scrapyd_dist.payload import REPLACES, PayloadError, RequestValue, decode
from scrapyd_dist.sealing import SealError, unseal

from ..codec import from_value
from ..targets import only_rule

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def crawl_key(told: Mapping[str, Any]) -> bytes | None:
    """The key of the crawl that a job works for: its egg's own, or the one that was sealed for it.

    Args:
        told: what the job was told; with `foreign` it works for a crawl of another project.

    Raises:
        SealError: it was sealed for other code than this.
    """
    if not told.get("foreign"):
        return egg_key()
    sealed, own = str(told.get("key_sealed") or ""), egg_key()
    if not sealed:
        return None
    if own is None:
        raise SealError("this code carries no key; deploy it with sdist")
    return unseal(sealed, own)


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


class Made(NamedTuple):
    """One of the batch's requests, as far as it can be made here."""

    url: str
    request: Request | None
    reason: str = ""  #: why it cannot, in words
    again: bool = False  #: it was made in an earlier batch, and failed there


def requests_of(crawler: Crawler) -> tuple[list[Made], str]:
    """The batch's requests, or none and what is wrong with it."""
    try:
        return [_made(value, crawler) for value in decode(crawler.settings.get, key=egg_key())], ""
    except PayloadError as error:
        return [], f"This batch cannot be crawled: {error}."


def _made(value: RequestValue, crawler: Crawler) -> Made:
    assert crawler.spider
    again = REPLACES in value
    try:
        return Made(value["url"], from_value(with_target(value, crawler), crawler.spider), again=again)
    except (ValueError, TypeError, AttributeError) as error:  # CannotTravel among them
        return Made(value["url"], None, f"it cannot be made here: {error}", again=again)


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
