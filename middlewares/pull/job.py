"""What a pulling worker's job was told (`DISTRIBUTED_PULL`, JSON): the store, what it leases, when it ends.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.values import OTHER_SPIDER, UNFAIR, Lessee

from ..distributed import PULL

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

#: what a job is told of the store, and of the key that opens the rest
TOLD = ("store", "store_sealed", "foreign", "key_sealed")
#: kinds of feeds that are written while a job runs
LOCAL_FEEDS = frozenset({"", "file", "stdout"})


@dataclass(frozen=True, kw_only=True)
class PullJob:
    """A worker's orders; of limits, 0 is none."""

    crawl: str
    worker: int
    home: str  #: the crawl's folder of files in this node's logs
    node: str  #: the node's name
    url: str = ""  #: the node's base address, without secrets
    slots: tuple[str, ...] = ()  #: none: all but those of other spiders
    lease: float = 60.0  #: seconds for which a batch is this worker's without a word from it
    version: str = ""
    collected: tuple[str, ...] = ()  #: folders of other crawls, which may go
    start_by: float = 0.0  #: seconds since the epoch after which it must not start
    start: str = "skip"  #: the spider's own start requests: not made, or made `first`
    ahead: int = 1  #: further rounds of requests that are kept ready while one is being made
    max_batches: int = 0
    max_requests: int = 0
    max_time: float = 0.0  #: seconds
    idle: float = 0.0  #: seconds without work
    batch_size: int = 100  #: requests in a batch of what it finds, at most
    fair: str = UNFAIR  #: how workers share the slots, one of `frontier.values.FAIR`
    introduce: bool = False  #: only say who it is: the crawl is another project's, and does not know this code yet
    needs_client: bool = False  #: the crawl's store is a Redis server
    told: dict[str, Any] = field(default_factory=dict)  #: of the store, and of the crawl's key

    @property
    def name(self) -> str:
        """The job's id, which names its report and holds its leases."""
        return f"{self.crawl}.w{self.worker}.a1"

    @property
    def lessee(self) -> Lessee:
        return Lessee(job=self.name, node=self.node, url=self.url)

    @property
    def other_slot(self) -> str:
        """The slot of work for another spider that it was started for; empty when it is the crawl's own spider's."""
        return next((slot for slot in self.slots if slot.startswith(OTHER_SPIDER)), "")

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> PullJob:
        said = json.loads(settings[PULL])
        known = {one.name for one in fields(cls)} - {"told"}
        of_store = {name: said[name] for name in TOLD if name in said}
        given = {name: value for name, value in said.items() if name in known}
        given |= {name: tuple(given[name]) for name in ("slots", "collected") if name in given}
        return cls(**given, told=of_store)


def uploading_feeds(settings: BaseSettings) -> list[str]:
    """The feeds of this process that are stored elsewhere when it closes, without what is secret in their addresses."""
    feeds = (urlsplit(str(uri)) for uri in settings.getdict("FEEDS"))
    return [
        uri._replace(netloc=uri.netloc.rpartition("@")[2]).geturl() for uri in feeds if uri.scheme not in LOCAL_FEEDS
    ]


def spider_method(crawler: Crawler, setting: str) -> Callable[..., Any] | None:
    """The method of the spider that a setting names; None when it names none.

    Raises:
        ConfigError: the spider has no such method.
    """
    name = crawler.settings.get(setting)
    method: Callable[..., Any] | None = getattr(crawler.spider, str(name), None) if name else None
    if name and not callable(method):
        assert crawler.spider
        raise ConfigError(f"{setting} names {name!r}, and the spider {crawler.spider.name} has no method of that name.")
    return method
