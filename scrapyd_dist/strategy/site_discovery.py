"""Ships the discovery strategy: a site's robots.txt, sitemaps and home page, then some pages."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin, urlsplit

from protego import Protego

from scrapyd_dist.strategy.interface import CrawlingStrategy, Request, Response
from scrapyd_dist.strategy.links import States
from scrapyd_dist.strategy.traps import number_of

# Scores.
ROBOTS = 1.0
SITEMAP = 0.9
HOME = 0.8
INTERESTING = 0.7
OTHER = 0.5

#: the error that ends a domain
FATAL = "DNSLookupError"
#: characters of a robots.txt that are kept
ROBOTS_SIZE = 32_768
#: the pages that are interesting, unless an argument says otherwise
FIRST = r"(?i)/(about|contact|company|team|jobs|careers|news|blog|press)\b"

# Keys of a domain's metadata.
_HOSTS = "hosts"  #: host -> an object with `_RULES` or `_WAIT`
_RULES = "rules"  #: the text of the host's robots.txt
_WAIT = "wait"  #: the addresses that wait for it; also a key of the meta of its request
_PAGES = "pages"  #: number of pages that were scheduled
_SITEMAPS = "sitemaps"  #: likewise, of sitemaps
_GONE = "gone"  #: whether the domain has no address

#: returns the rules of a robots.txt
_parse_rules = lru_cache(1_000)(Protego.parse)


class Discovery(CrawlingStrategy):
    """Requests some pages of each domain, and no path that its robots.txt keeps closed.

    At most `max_pages` are requested. A seed stands for its host; the first one of a host is
    requested as well. `interesting` is a regular expression. Where redirects lead is not known
    before: leave ROBOTSTXT_OBEY on, so that closed paths are safe from them, too.
    """

    def __init__(
        self,
        max_pages: Any = 100,
        max_sitemaps: Any = 100,
        interesting: str = FIRST,
        user_agent: str = "*",
    ) -> None:
        self.max_pages = number_of("max_pages", max_pages)
        self.max_sitemaps = number_of("max_sitemaps", max_sitemaps)
        self.interesting = re.compile(interesting)
        self.user_agent = user_agent

    @classmethod
    def from_crawler(cls, crawler: Any, **arguments: str) -> "Discovery":
        """Make the strategy, with the user agent of the project's settings."""
        settings = crawler.settings
        agent = settings.get("ROBOTSTXT_USER_AGENT") or settings.get("USER_AGENT") or "*"
        return cls(**{"user_agent": agent, **arguments})

    def read_seeds(self, stream: Iterable[str] | None) -> None:
        """Schedule the robots.txt of each seed's host."""
        for line in stream or ():
            url = line.strip()
            if url:
                self._schedule_robots(url, [url])

    def page_crawled(self, response: Response) -> None:
        """Read a robots.txt that has come; other pages are done with."""
        if response.body is None:
            return
        text = ""
        if response.status_code < 300:
            text = response.body[:ROBOTS_SIZE]
        self._open_host(response.request, text)

    def request_error(self, request: Request, error: str) -> None:
        """Give a domain without an address up, and take a host without a robots.txt for open."""
        super().request_error(request, error)
        if error == FATAL:
            self.domains[request.site][_GONE] = True
        elif request.meta.get("read") == "body":
            self._open_host(request, "")

    def links_extracted(self, request: Request, links: list[Request]) -> None:  # noqa: ARG002 - all are sorted alike
        """Schedule new links, within the limits of their domains."""
        for link in links:
            domain = self.domains[link.site]
            domain.setdefault(_HOSTS, {})
            if link.meta["state"] != States.NOT_CRAWLED or domain.get(_GONE):
                continue
            if link.meta.get("read") == "sitemap":
                self._schedule_sitemap(link, domain)
            else:
                self._add_page(link, domain[_HOSTS])

    def _add_page(self, link: Request, hosts: dict[str, Any]) -> None:
        """Schedule a page if the rules of its host are known, else let it wait for them."""
        host = urlsplit(link.url).netloc
        if _RULES in hosts.get(host, ()):
            is_interesting = self.interesting.search(link.url)
            self._schedule_page(link, INTERESTING if is_interesting else OTHER)
        elif host in hosts:
            waiting = dict.fromkeys([*hosts[host][_WAIT], link.url])
            hosts[host][_WAIT] = list(waiting)[: self.max_pages]
        elif len(hosts) < self.max_pages:
            hosts[host] = {_WAIT: [link.url]}
            self._schedule_robots(link.url, [])

    def _schedule_robots(self, url: str, waiting: list[str]) -> None:
        robots_url = urljoin(url, "/robots.txt")
        robots = self.create_request(robots_url, meta={"read": "body", _WAIT: waiting})
        self.schedule(robots, ROBOTS)

    def _open_host(self, robots: Request, text: str) -> None:
        """Schedule the sitemaps and the home page of a host, and what has waited for its rules."""
        domain = self.domains[robots.site]
        host = urlsplit(robots.url).netloc
        hosts = domain.setdefault(_HOSTS, {})
        waited = hosts.get(host, {}).get(_WAIT, ())
        hosts[host] = {_RULES: text}
        for url in _parse_rules(text).sitemaps:
            sitemap_url = urljoin(robots.url, url)
            sitemap = self.create_request(sitemap_url, meta={"read": "sitemap"})
            self._schedule_sitemap(sitemap, domain)
        urls = dict.fromkeys([urljoin(robots.url, "/"), *robots.meta.get(_WAIT, ()), *waited])
        pages = list(map(self.create_request, urls))
        self.refresh_states(pages)
        for page in pages:
            if page.meta["state"] == States.NOT_CRAWLED:
                is_home = urlsplit(page.url).path == "/"
                self._schedule_page(page, HOME if is_home else OTHER)

    def _schedule_sitemap(self, sitemap: Request, domain: dict[str, Any]) -> None:
        number = domain.get(_SITEMAPS, 0)
        if number < self.max_sitemaps:
            domain[_SITEMAPS] = number + 1
            self.schedule(sitemap, SITEMAP)

    def _schedule_page(self, page: Request, score: float) -> None:
        """Schedule a page, unless its domain has too many, is gone, or closes its path."""
        domain = self.domains[page.site]
        host = urlsplit(page.url).netloc
        rules = _parse_rules(domain[_HOSTS][host][_RULES])
        pages = domain.get(_PAGES, 0)
        if pages >= self.max_pages or domain.get(_GONE):
            return
        if rules.can_fetch(page.url, self.user_agent):
            domain[_PAGES] = pages + 1
            self.schedule(page, score)
