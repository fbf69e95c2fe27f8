"""Discovery of sites: their robots.txt, sitemaps and home pages, then a limited number of pages of each."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin, urlsplit

from protego import Protego

from scrapyd_dist.strategy.interface import CrawlingStrategy, Request, Response
from scrapyd_dist.strategy.links import States
from scrapyd_dist.strategy.traps import number_of

ROBOTS, SITEMAP, HOME, INTERESTING, OTHER = 1.0, 0.9, 0.8, 0.7, 0.5  #: scores
FATAL, ROBOTS_SIZE = (
    "DNSLookupError",
    32_768,
)  #: the error that ends a domain; the part of a robots.txt that is kept
FIRST = r"(?i)/(about|contact|company|team|jobs|careers|news|blog|press)\b"
#: keys of a domain's metadata; `wait` also of a request's meta: the addresses that wait for its robots.txt
_HOSTS, _WAIT, _RULES, _PAGES, _SITEMAPS, _GONE = (
    "hosts",
    "wait",
    "rules",
    "pages",
    "sitemaps",
    "gone",
)
#: a robots.txt -> its rules
_rules = lru_cache(1_000)(Protego.parse)


class Discovery(CrawlingStrategy):
    """Requests at most `max_pages` pages of each domain, and no path that its robots.txt keeps closed.

    A seed stands for its host; the first one of a host is requested as well. `interesting` is a regular expression.
    Where redirects lead is not known before: leave ROBOTSTXT_OBEY on, so that closed paths are safe from them, too.
    """

    def __init__(
        self,
        max_pages: Any = 100,
        max_sitemaps: Any = 100,
        interesting: str = FIRST,
        user_agent: str = "*",
    ) -> None:
        self.max_pages, self.max_sitemaps = (
            number_of("max_pages", max_pages),
            number_of("max_sitemaps", max_sitemaps),
        )
        self.interesting, self.user_agent = re.compile(interesting), user_agent

    @classmethod
    def from_crawler(cls, crawler: Any, **arguments: str) -> "Discovery":
        agent = (
            crawler.settings.get("ROBOTSTXT_USER_AGENT")
            or crawler.settings.get("USER_AGENT")
            or "*"
        )
        return cls(**{"user_agent": agent, **arguments})

    def read_seeds(self, stream: Iterable[str] | None) -> None:
        for url in filter(None, map(str.strip, stream or ())):
            self._ask(url, [url])

    def page_crawled(self, response: Response) -> None:
        if response.body is not None:
            self._open(
                response.request, response.body[:ROBOTS_SIZE] if response.status_code < 300 else ""
            )

    def request_error(self, request: Request, error: str) -> None:
        super().request_error(request, error)
        if error == FATAL:
            self.domains[request.site][_GONE] = True
        elif request.meta.get("read") == "body":
            self._open(request, "")  # without a robots.txt all is open

    def links_extracted(self, request: Request, links: list[Request]) -> None:
        for link in links:
            domain, host = self.domains[link.site], urlsplit(link.url).netloc
            hosts = domain.setdefault(_HOSTS, {})
            if link.meta["state"] != States.NOT_CRAWLED or domain.get(_GONE):
                continue
            if link.meta.get("read") == "sitemap":
                self._sitemap(link, domain)
            elif _RULES in hosts.get(host, ()):
                self._page(link, INTERESTING if self.interesting.search(link.url) else OTHER)
            elif host in hosts:
                hosts[host][_WAIT] = [*dict.fromkeys([*hosts[host][_WAIT], link.url])][
                    : self.max_pages
                ]
            elif len(hosts) < self.max_pages:
                hosts[host] = {_WAIT: [link.url]}
                self._ask(link.url, [])

    def _ask(self, url: str, wait: list[str]) -> None:
        self.schedule(
            self.create_request(urljoin(url, "/robots.txt"), meta={"read": "body", _WAIT: wait}),
            ROBOTS,
        )

    def _open(self, robots: Request, text: str) -> None:
        """The rules of a host are known: schedule its sitemaps, its home page, and what has waited for that."""
        domain, host = self.domains[robots.site], urlsplit(robots.url).netloc
        waited = domain.setdefault(_HOSTS, {}).get(host, {}).get(_WAIT, ())
        domain[_HOSTS][host] = {_RULES: text}
        for url in _rules(text).sitemaps:
            self._sitemap(
                self.create_request(urljoin(robots.url, url), meta={"read": "sitemap"}), domain
            )
        urls = dict.fromkeys([urljoin(robots.url, "/"), *robots.meta.get(_WAIT, ()), *waited])
        self.refresh_states(pages := list(map(self.create_request, urls)))
        for page in pages:
            if page.meta["state"] == States.NOT_CRAWLED:
                self._page(page, HOME if urlsplit(page.url).path == "/" else OTHER)

    def _sitemap(self, sitemap: Request, domain: dict[str, Any]) -> None:
        if domain.get(_SITEMAPS, 0) < self.max_sitemaps:
            domain[_SITEMAPS] = domain.get(_SITEMAPS, 0) + 1
            self.schedule(sitemap, SITEMAP)

    def _page(self, page: Request, score: float) -> None:
        domain = self.domains[page.site]
        rules, pages = (
            _rules(domain[_HOSTS][urlsplit(page.url).netloc][_RULES]),
            domain.get(_PAGES, 0),
        )
        if (
            pages < self.max_pages
            and not domain.get(_GONE)
            and rules.can_fetch(page.url, self.user_agent)
        ):
            domain[_PAGES] = pages + 1
            self.schedule(page, score)
