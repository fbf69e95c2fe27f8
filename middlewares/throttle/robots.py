"""The Crawl-delay of a robots.txt that one worker was given, told to all of them.

The rule it keeps: it is looked at where it is fetched anyway, with ROBOTSTXT_OBEY. Part of the worker half: imports
Scrapy and the standard library only (protego comes with Scrapy).
"""

from __future__ import annotations

import logging
import time
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy.exceptions import NotConfigured

from scrapyd_dist.frontier.slotting import site_of
from scrapyd_dist.throttle.values import SiteNews

from .gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)

#: close to the engine: redirects have been followed here, and bodies are no longer compressed
ORDER = 120
PATH = "/robots.txt"
#: statuses that say what the rules are: there they stand, or there are none
SAYS = frozenset({200, 404, 410})
#: seconds after which a delay is told again while its domain is crawled; the store keeps it for longer than that,
#: though another host of the domain may ask for none
AGAIN = 1200.0
#: domains that are looked at with each that has a delay, whether it can be forgotten
LOOKED_AT = 2


class CrawlDelay:
    """The downloader middleware that reads what a robots.txt says of pauses.

    Args:
        gate: takes the news.
        agent: the name that robots.txt is searched for; "" for the one that the request goes under.
        clock: seconds, never turned back.
    """

    def __init__(self, gate: Gate, agent: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._gate, self._agent, self._clock = gate, agent, clock
        self._longest = gate.options.longest_delay
        self._told: dict[str, tuple[float, float]] = {}  #: by domain: the longest of its hosts', and when; oldest first

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CrawlDelay:
        gate = Gate.of(crawler)
        if not gate.options.on or not crawler.settings.getbool("ROBOTSTXT_OBEY"):
            raise NotConfigured
        return cls(gate, crawler.settings.get("ROBOTSTXT_USER_AGENT") or "")

    def process_response(self, request: Request, response: Response, spider: Spider | None = None) -> Response:
        """Tell of the pause that a robots.txt asks for; of none, too, as it may have asked for one before."""
        asked = first_url(request.url, request.meta)
        domain = site_of(asked)
        known, since = self._told.get(domain, (0.0, 0.0))
        if urlsplit(asked).path == PATH and response.status in SAYS:
            self._tell(domain, max(known, self._delay(request, response, domain)))
        elif known and self._clock() - since >= AGAIN:
            self._tell(domain, known)
        return response

    def _delay(self, request: Request, response: Response, domain: str) -> float:
        if response.status != 200:
            return 0.0
        agent = self._agent or (request.headers.get("User-Agent") or b"*").decode("latin-1")
        delay = crawl_delay(response.body, agent)
        if delay > self._longest:
            logger.warning(
                "The robots.txt of %s asks for %g s between two requests; %g s are kept"
                " (DISTRIBUTED_THROTTLE_LONGEST_DELAY).",
                domain, delay, self._longest,
            )  # fmt: skip
        return min(delay, self._longest)

    def _tell(self, domain: str, delay: float) -> None:
        if delay:
            self._told.pop(domain, None)
            self._told[domain] = (delay, self._clock())
            self._forget()
        self._gate.tell(SiteNews(domain=domain, crawl_delay=delay))

    def _forget(self) -> None:
        """Whose delay was to be told again, and was not, has not answered since: the store keeps it."""
        old = self._clock() - 2 * AGAIN
        for domain, (_, since) in list(islice(self._told.items(), LOOKED_AT)):
            if since < old:
                del self._told[domain]


def first_url(url: str, meta: Mapping[str, object]) -> str:
    """The URL that was asked for before any redirect."""
    before = meta.get("redirect_urls")
    return str(before[0]) if isinstance(before, list) and before else url


def crawl_delay(body: bytes, agent: str) -> float:
    """The seconds between two requests that a robots.txt asks this user agent for; 0 where it asks for none."""
    from protego import Protego  # only who obeys a robots.txt pays for it

    delay = Protego.parse(body.decode("utf-8-sig", "ignore")).crawl_delay(agent)
    return max(float(delay), 0.0) if delay is not None else 0.0
