"""Puts the throttle between engine and sites, as middlewares of the downloader.

They see to the permits of what leaves, the sites' answers, and the Crawl-delay of robots.txt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from datetime import timezone
from email.utils import parsedate_to_datetime
from itertools import islice
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.throttle.permits import SiteNews

from ..assignment import is_producer, is_worker
from ..codec import PERMIT, SENT_BACK, WAITS
from .downloader_capacity import sent_back
from .gate import Gate

logger = logging.getLogger(__name__)
#: behind the HTTP cache, whose answers cost nothing, and all else
PERMIT_ORDER = 990
#: close to the engine: redirects have been followed here, and bodies are no longer compressed
ROBOTS_ORDER = 120
#: statuses that say what the rules are: there they stand, or there are none
SAYS = frozenset({200, 404, 410})
#: seconds after which a delay is reported again while its domain is crawled; the store keeps it for
#: longer than that, though another host of the domain may ask for none
REPEAT_AFTER = 1200.0
#: domains that are checked with each that has a delay, whether they can be forgotten
LOOKED_AT = 2
#: answers of a site that asks for a slower pace: Too Many Requests, Service Unavailable
SLOW_DOWN = frozenset({429, 503})
#: seconds; a site that asks for a longer rest is asked again after this
LONGEST_REST = 86400.0
#: seconds between two reports of a domain's latency
EVERY = 1.0
#: domains whose latencies are remembered, before those that have nothing to report are forgotten
REMEMBERED = 1000


class PermitMiddleware:
    """Lets requests with a permit pass, and all others wait for one.

    It also reports what sites say of their pace.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._latencies = None
        concurrency = gate.options.concurrency
        if concurrency is not None:
            self._latencies = Latencies(concurrency, gate.options.longest_delay, gate.report_site)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PermitMiddleware:
        """Make the middleware of this crawler.

        Raises:
            ConfigError: there is no store to ask, and no other component here that says so.
            NotConfigured: nothing of the throttle can hold here.
        """
        gate = Gate.for_crawler(crawler)
        if not gate.options.may_hold or (gate.problem and not gate.options.on):
            raise NotConfigured
        if gate.problem and not is_worker(crawler.settings) and not is_producer(crawler.settings):
            raise ConfigError(gate.problem)
        return cls(gate)

    def process_request(
        self, request: Request, spider: Spider | None = None
    ) -> Request | Coroutine[None, None, None] | None:
        """Use the request's permit.

        Without one it waits for another: in the queue, if it came from there.
        """
        if not self._gate.awake:
            return None
        has = self._gate.use(request)
        if SENT_BACK in request.meta:  # once is enough: it leaves as it was before
            request.dont_filter = request.meta.pop(SENT_BACK)
        elif has is False or (has is None and self._gate.left_before(request)):
            return sent_back(request)
        if has:
            return None
        if has is None:
            permit = self._gate.permit_at_once(request)
            if permit is not None:
                request.meta[PERMIT] = permit
                return None
        return self._wait(request, page=has is not None)

    async def _wait(self, request: Request, *, page: bool) -> None:
        request.meta[WAITS] = True
        try:
            request.meta[PERMIT] = await self._gate.wait(request, page=page)
        finally:
            request.meta.pop(WAITS, None)

    def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Response:
        """Report how the site answers.

        A permit that was not used is returned: a cache or a middleware has answered.
        """
        if self._gate.awake:
            self._gate.forget(request)
            if "cached" not in response.flags:
                domain = site_of(request.url)
                if self._gate.is_ruled(domain):
                    self._report(domain, request, response)
        return response

    def _report(self, domain: str, request: Request, response: Response) -> None:
        latency = float(request.meta.get("download_latency") or 0.0)
        if response.status in SLOW_DOWN:
            permit = request.meta.get(PERMIT)
            left_at = permit.at if permit else self._gate.now() - latency
            rest = retry_after(response.headers.get("Retry-After"), time.time())
            self._gate.report_site(SiteNews(domain=domain, refused_at=left_at, retry_after=rest))
        if self._latencies is not None:
            self._latencies.add(domain, latency, good=response.status == 200)

    def process_exception(
        self, request: Request, exception: Exception, spider: Spider | None = None
    ) -> None:
        """Return the permit of a request that another middleware has dropped, if it has one."""
        self._gate.forget(request)


class CrawlDelay:
    """Reads what a robots.txt says of pauses.

    It is searched for the name of the `agent`; "" for the one that the request goes under.
    """

    def __init__(
        self, gate: Gate, agent: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._gate = gate
        self._agent = agent
        self._clock = clock
        self._longest = gate.options.longest_delay
        #: by domain: the longest of its hosts' delays, and when it was reported; oldest first
        self._reported: dict[str, tuple[float, float]] = {}

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CrawlDelay:
        """Make the middleware of this crawler.

        Raises:
            NotConfigured: the throttle is off here, or robots.txt is not obeyed.
        """
        gate = Gate.for_crawler(crawler)
        if not gate.options.on or not crawler.settings.getbool("ROBOTSTXT_OBEY"):
            raise NotConfigured
        return cls(gate, crawler.settings.get("ROBOTSTXT_USER_AGENT") or "")

    def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Response:
        """Report the pause that a robots.txt asks for.

        It reports that there is none, too, as it may have asked for one before.
        """
        before = request.meta.get("redirect_urls")
        asked = str(before[0]) if isinstance(before, list) and before else request.url
        domain = site_of(asked)
        known, since = self._reported.get(domain, (0.0, 0.0))
        if urlsplit(asked).path == "/robots.txt" and response.status in SAYS:
            self._report(domain, max(known, self._delay(request, response, domain)))
        elif known and self._clock() - since >= REPEAT_AFTER:
            self._report(domain, known)
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
                domain,
                delay,
                self._longest,
            )
        return min(delay, self._longest)

    def _report(self, domain: str, delay: float) -> None:
        if delay:
            now = self._clock()
            self._reported.pop(domain, None)
            self._reported[domain] = (delay, now)
            for old, (_, since) in list(islice(self._reported.items(), LOOKED_AT)):
                # It has not answered since; the store keeps its delay.
                if since < now - 2 * REPEAT_AFTER:
                    del self._reported[old]
        self._gate.report_site(SiteNews(domain=domain, crawl_delay=delay))


def crawl_delay(body: bytes, agent: str) -> float:
    """Return the seconds between two requests that a robots.txt asks this user agent for.

    It is 0 where it asks for none.
    """
    from protego import Protego  # loaded only where ROBOTSTXT_OBEY is set

    delay = Protego.parse(body.decode("utf-8-sig", "ignore")).crawl_delay(agent)
    if delay is None:
        return 0.0
    return max(float(delay), 0.0)


class Latencies:
    """Gathers the latencies of each domain.

    It reports their mean once a second while answers come.
    """

    def __init__(
        self,
        concurrency: float,
        longest_delay: float,
        report: Callable[[SiteNews], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._concurrency = concurrency
        self._longest = longest_delay
        self._report = report
        self._clock = clock
        #: domain -> when it was last reported, and the latencies since then, in seconds, each with
        #: `True` if it is that of a good answer
        self._answers: dict[str, tuple[float, list[tuple[bool, float]]]] = {}

    def add(self, domain: str, latency: float, *, good: bool) -> None:
        """Count an answer that took so many seconds; `good` says that it has the status 200."""
        now = self._clock()
        if domain not in self._answers and len(self._answers) >= REMEMBERED:
            # Domains without an answer for a second have nothing to wait for.
            self._answers = {
                name: entry for name, entry in self._answers.items() if now - entry[0] < EVERY
            }
        since, answers = self._answers.setdefault(domain, (now - EVERY, []))
        answers.append((good, latency))
        if now - since >= EVERY:
            self._answers[domain] = (now, [])
            # Good answers alone count if there are any: quick errors are no sign of a quick site.
            has_good = any(is_good for is_good, _ in answers)
            latencies = [seconds for is_good, seconds in answers if is_good == has_good]
            gap = sum(latencies) / len(latencies) / self._concurrency
            news = SiteNews(
                domain=domain, target_gap=gap, answered=has_good, longest_delay=self._longest
            )
            self._report(news)


def retry_after(header: bytes | None, now: float) -> float | None:
    """Return the seconds that a Retry-After header asks for, a day at most.

    `now` is the time in seconds since the epoch. None if the header is missing or says nothing.
    """
    text = (header or b"").decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        seconds = float(text)
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        seconds = moment.timestamp() - now
    return min(max(seconds, 0.0), LONGEST_REST)
