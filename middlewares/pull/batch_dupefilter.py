"""The filter of duplicates of a pulling worker: a fresh one for each attempt, so that no batch is denied a page.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.misc import build_from_crawler, load_object

from .work_unit import attempt_over, mark_of

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings


def put_in(settings: BaseSettings) -> None:
    """Called before the crawl's components are made."""
    usual = load_object(settings["DUPEFILTER_CLASS"])
    if not issubclass(usual, BatchDupeFilter):
        settings.set(
            "DUPEFILTER_CLASS", type("BatchDupeFilter", (BatchDupeFilter,), {"usual": usual}), priority="cmdline"
        )
    # What is left of a crawl is in the store; a queue on disk would be this job's alone, and never be read.
    settings.set("JOBDIR", None, priority="cmdline")


class BatchDupeFilter(BaseDupeFilter):
    """As many of the project's own filters as there are attempts in this process.

    As if each were a process of its own: what follows from one batch is fetched for it, whatever the worker has
    fetched before, and a worker that runs for days does not grow.
    """

    usual: type[BaseDupeFilter]  #: the project's own

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._filters: dict[tuple[int, int] | None, BaseDupeFilter] = {}
        crawler.signals.connect(self._over, attempt_over)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BatchDupeFilter:
        return cls(crawler)

    def _filter(self, request: Request) -> BaseDupeFilter:
        mark = mark_of(request)
        key = None if mark is None else mark.key
        if key not in self._filters:
            self._filters[key] = build_from_crawler(self.usual, self._crawler)
            self._filters[key].open()
        return self._filters[key]

    def request_seen(self, request: Request) -> bool:
        return self._filter(request).request_seen(request)

    def log(self, request: Request, spider: Spider) -> None:
        self._filter(request).log(request, spider)

    def _over(self, key: tuple[int, int]) -> None:
        gone = self._filters.pop(key, None)
        if gone is not None:
            gone.close("finished")

    def close(self, reason: str) -> None:
        while self._filters:
            self._filters.popitem()[1].close(reason)
