"""Budgets of pages: how many of a domain a request's crawl may have, and whose pages are counted together.

The rule it keeps: one crawl has one budget for each domain, in whichever processes its requests are made. Part of the
worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import uuid4

from scrapy.exceptions import IgnoreRequest

from ..assignment import Assignment, PullAssignment
from ..roles import FRONTIER, is_filler, is_pulling, is_worker

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from .throttle_options import ThrottleOptions

logger = logging.getLogger(__name__)

#: request meta: the most pages of its domain, with this request; the name is Scrapy Cluster's
META = "domain_max_pages"


class PagesUsedUp(IgnoreRequest):
    """The request is not made: its crawl has had all pages of this domain that it may have."""

    def __init__(self, domain: str, pages: int) -> None:
        super().__init__(f"the budget of {pages} pages of {domain} is used up")


class PageBudget:
    """The budgets of one process.

    Args:
        options: of the throttle.
        crawler: whose requests they are for.
    """

    def __init__(self, options: ThrottleOptions, crawler: Crawler) -> None:
        self._most = options.max_pages
        self._crawler = crawler
        self._warned = False

    def pages_of(self, request: Request) -> int | None:
        """The pages of its domain that may be made before this request is one too many; None for no such limit.

        Where the settings and the request both have one, the smaller holds; None and 0 are none.
        """
        said = request.meta.get(META)
        if not said:
            return self._most
        if not isinstance(said, int) or said < 0:
            self._warn(said)
            return self._most
        return said if self._most is None else min(said, self._most)

    @cached_property
    def name(self) -> str:
        """Whose pages are counted together: the crawl's, by what tells it from others of its name; else this process's.

        The producer sets it (`Gate.charge_pages_to`), as it knows only after its checks which crawl it runs.
        """
        settings = self._crawler.settings
        if is_pulling(settings):
            return PullAssignment.from_settings(settings).home
        job = Assignment.from_settings(settings) if is_worker(settings) else None
        if job is not None:
            return job.home or job.crawl
        named = settings.get(FRONTIER) if is_filler(settings) else settings.get("DISTRIBUTED_CRAWL")
        return str(named or f"{settings.get('BOT_NAME')}.{uuid4().hex}")

    def _warn(self, said: object) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "A request has %r as its %s, which must be a whole number, 0 or more: it is not heeded there.",
                said,
                META,
            )
