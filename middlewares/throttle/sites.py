"""What a site's answers say of the pace that it bears, told to all workers: refusals at once, latencies once a second.

The rule it keeps: only what a site has answered itself counts; an answer out of the HTTP cache says nothing. Part of
the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from scrapy.exceptions import NotConfigured

from scrapyd_dist.frontier.slotting import site_of
from scrapyd_dist.throttle.values import SiteNews

from ..codec import PERMIT
from .gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .options import ThrottleOptions

#: near to the downloader; nearer is only what charges requests
ORDER = 985
#: answers of a site that asks for a slower pace: Too Many Requests, Service Unavailable
SLOW_DOWN = frozenset({429, 503})
#: seconds; a site that asks for a longer rest is asked again after this
LONGEST_REST = 86400.0
#: seconds between two reports of a domain's latency
EVERY = 1.0
#: domains whose latencies are remembered, before those that have nothing to tell are forgotten
REMEMBERED = 1000


class SiteWatch:
    """The downloader middleware that reports how sites answer."""

    def __init__(self, gate: Gate, options: ThrottleOptions) -> None:
        self._gate = gate
        self._latencies = Latencies(options, gate.tell) if options.concurrency is not None else None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> SiteWatch:
        gate = Gate.of(crawler)
        if not gate.in_force:
            raise NotConfigured
        return cls(gate, gate.options)

    def process_response(self, request: Request, response: Response, spider: Spider | None = None) -> Response:
        """Report the answer; whoever comes next decides what becomes of the request."""
        if not self._gate.awake or "cached" in response.flags:
            return response
        domain = site_of(request.url)
        if not self._gate.is_ruled(domain):
            return response
        latency = float(request.meta.get("download_latency") or 0.0)
        if response.status in SLOW_DOWN:
            rest = retry_after(response.headers.get("Retry-After"), time.time())
            self._gate.tell(SiteNews(domain=domain, refused_at=self._left_at(request, latency), retry_after=rest))
        if self._latencies is not None:
            self._latencies.add(domain, latency, good=response.status == 200)
        return response

    def _left_at(self, request: Request, latency: float) -> float:
        """When the request left, by the store's clock."""
        permit = request.meta.get(PERMIT)
        return permit.at if permit else self._gate.now() - latency


@dataclass
class _Heard:
    """The answers of one domain since its last report."""

    told: float
    good: float = 0.0  #: seconds of latency, in all
    goods: int = 0
    bad: float = 0.0
    bads: int = 0


class Latencies:
    """Gathers the latencies of each domain, and reports their mean once a second while answers come.

    Args:
        options: of the throttle, with a concurrency.
        tell: takes the report.
        clock: seconds, never turned back.
    """

    def __init__(
        self, options: ThrottleOptions, tell: Callable[[SiteNews], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options, self._tell, self._clock = options, tell, clock
        self._heard: dict[str, _Heard] = {}

    def add(self, domain: str, latency: float, *, good: bool) -> None:
        """Count an answer that took so many seconds; `good`: it has the status 200."""
        now = self._clock()
        heard = self._heard.get(domain)
        if heard is None:
            self._forget(now)
            heard = self._heard[domain] = _Heard(told=now - EVERY)
        if good:
            heard.good, heard.goods = heard.good + latency, heard.goods + 1
        else:
            heard.bad, heard.bads = heard.bad + latency, heard.bads + 1
        if now - heard.told >= EVERY:
            self._heard[domain] = _Heard(told=now)
            self._report(domain, heard)

    def _report(self, domain: str, heard: _Heard) -> None:
        """The mean of the good answers, where there were any: quick errors are no sign of a quick site."""
        mean = heard.good / heard.goods if heard.goods else heard.bad / heard.bads
        self._tell(
            SiteNews(
                domain=domain,
                latency=mean,
                concurrency=self._options.concurrency,
                answered=heard.goods > 0,
                longest_delay=self._options.longest_delay,
            )
        )

    def _forget(self, now: float) -> None:
        """Domains without an answer for a second have nothing to wait for."""
        if len(self._heard) >= REMEMBERED:
            self._heard = {domain: heard for domain, heard in self._heard.items() if now - heard.told < EVERY}


def retry_after(header: bytes | None, now: float) -> float | None:
    """The seconds that a Retry-After header asks for, from `now` (seconds since the epoch) on; a day at most.

    Returns:
        None without a header that can be read.
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
        seconds = (moment - datetime.fromtimestamp(now, timezone.utc)).total_seconds()
    return min(max(seconds, 0.0), LONGEST_REST)
