"""The one line in a user's settings: `ADDONS = {"scrapyd_dist.Addon": 500}`.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .distributed import Distributed, is_producer, is_worker
from .worker import Job

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

#: close to the engine, so that what it sees already has its depth, its referer and its rule
PRIORITY = 100
#: what makes two attempts' files differ; each is added to a feed URL that lacks it
FEED_FIELDS = ("%(batch)s", "%(attempt)s")


class Addon:
    """Puts the middleware in, and gives a worker's batch its own feed."""

    def __init__(self, crawler: Crawler | None = None) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Addon:
        return cls(crawler)

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy before the crawl's components are made."""
        if not is_worker(settings) and not is_producer(settings):
            return
        settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", Distributed, PRIORITY)
        if is_worker(settings):
            _give_feed(settings)
        else:
            from .producer import take_outputs

            take_outputs(settings)


def _give_feed(settings: BaseSettings) -> None:
    job = Job.from_settings(settings)
    if job is None or not job.feed:
        return
    uri = feed_uri(settings["DISTRIBUTED_TARGET_FEED_URL"], job.batch, job.attempt)
    feeds = settings.getdict("FEEDS")
    # Scrapyd's items_dir sends a FEEDS of its own at the command line's priority: both are written.
    feeds[uri] = {"format": settings.get("DISTRIBUTED_TARGET_FEED_FORMAT", "jsonlines")}
    settings.set("FEEDS", json.dumps(feeds), priority="cmdline")


def feed_uri(template: str, batch: int, attempt: int) -> str:
    """The feed URL of one attempt: `%(batch)s` and `%(attempt)s` filled in, or added to the file's name.

    `%(name)s` and `%(time)s` are left for Scrapy, which fills them in when the feed opens.
    """
    missing = [field for field in FEED_FIELDS if field not in template]
    if missing:
        folder, slash, name = template.rpartition("/")
        template = f"{folder}{slash}{'_'.join(missing)}_{name}"
    return template.replace("%(batch)s", str(batch)).replace("%(attempt)s", f"a{attempt}")


def has_password(url: str) -> bool:
    """Whether this feed URL must not travel as a setting."""
    return bool(urlsplit(url).password)
