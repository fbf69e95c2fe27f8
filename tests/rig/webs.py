"""A generated web: sites with links, robots.txt, errors, redirects and traps, and the pages that a crawl may fetch.

Everything follows from a seed. Each link leads exactly one level deeper, or to a page that was linked before by every
way that leads there; so the depth of a page, and with it the set of pages up to a depth, is the same in any order.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import parse_qs, urljoin, urlsplit

from w3lib.url import canonicalize_url

#: what a page does instead of being a page of links
PAGE, GONE, FAIL, HANG, RESET, MOVED, FILE = (
    "page",
    "gone",
    "fail",
    "hang",
    "reset",
    "moved",
    "file",
)
#: which robots.txt a site has
OPEN, NONE, FOLDER, CLOSED = "open", "none", "folder", "closed"
#: the folder that robots.txt may disallow
PRIVATE = "/private/"
#: traps: a calendar that never ends, and a path that gets longer with each page
CALENDAR, LONGER = "/calendar", "/again/"
#: share of the sites whose home pages are seeds: one in so many
SEEDED = 10
#: levels below its home page that a site has, at most, and the depth of the home pages that are linked last
LEVELS, LAST_ENTRY = 3, 2
#: links that lead to hosts on which nothing listens have numbers from here
_DOWN = 60_000


@dataclass(frozen=True, kw_only=True)
class WebPage:
    """What one address answers."""

    kind: str = PAGE
    links: tuple[str, ...] = ()  #: as they stand in the page
    location: str = ""  #: of a redirect


@dataclass(frozen=True, kw_only=True)
class PageVisits:
    """How a whole crawl may fetch one page."""

    depth: int
    least: int = 1
    most: int = 1


@dataclass(kw_only=True)
class WebSite:
    """One host."""

    number: int
    entry: int  #: depth of its home page
    robots: str
    sitemap: tuple[str, ...]  #: paths that only the sitemap has
    pages: dict[str, WebPage]  #: path with query -> what is there; traps are not among them
    traps: frozenset[str]

    @property
    def host(self) -> str:
        return host_of(self.number)

    def allows(self, target: str) -> bool:
        """Whether robots.txt lets a crawler fetch a path."""
        return self.robots != CLOSED and not (self.robots == FOLDER and target.startswith(PRIVATE))

    @property
    def robots_txt(self) -> str | None:
        """The text, or None where there is no such file."""
        rules = {OPEN: "Disallow:", FOLDER: f"Disallow: {PRIVATE}", CLOSED: "Disallow: /"}.get(
            self.robots
        )
        if rules is None:
            return None
        sitemap = "\nSitemap: /sitemap.xml" if self.sitemap else ""
        return f"User-agent: *\n{rules}\n{sitemap}\n"

    def page(self, target: str) -> WebPage:
        """What is at a path with query."""
        path, _, query = target.partition("?")
        if path == CALENDAR and CALENDAR in self.traps:
            return _calendar(query)
        if path.startswith(LONGER) and LONGER in self.traps:
            return WebPage(links=("again/", "/"))
        return self.pages.get(target, WebPage(kind=GONE))


def host_of(number: int) -> str:
    """The address of a site."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def _calendar(query: str) -> WebPage:
    """A month, which links to the next, and to itself with the query in another order."""
    asked = parse_qs(query)
    month = int(asked["month"][0])
    if "view" in asked:
        return WebPage(links=("/",))
    ways = (
        f"?month={month}&view=list",
        f"?view=list&month={month}",
        f"?view=list&month={month}#top",
    )
    return WebPage(links=(f"?month={month + 1}", *ways, "/"))


class GeneratedWeb:
    """A web of so many sites; the same for the same numbers.

    Args:
        sites: how many.
        seed: of all that is random.
        scale: how much larger or smaller its sites are.
        port: of all hosts.
    """

    def __init__(self, sites: int, *, seed: int = 1, scale: float = 1.0, port: int = 80) -> None:
        self.port = port
        self._seed = seed
        self.sites = {site.host: site for site in _Maker(sites, seed, scale, port).make()}

    @property
    def seeds(self) -> list[str]:
        """The home pages that a crawl begins with."""
        return [self.url(site.host, "/") for site in self.sites.values() if site.entry == 0]

    def url(self, host: str, target: str) -> str:
        return f"http://{host}:{self.port}{target}"

    def page(self, url: str) -> WebPage | None:
        """What is at an address; None where nothing listens."""
        host, target = split_url(url)
        return self.sites[host].page(target) if host in self.sites else None

    def allowed(
        self, *, max_depth: int, retries: int = 0, redirects: int = 0, sitemaps: bool = False
    ) -> dict[str, PageVisits]:
        """URL -> how often a crawl from the seeds fetches it, up to a depth; robots.txt and sitemaps are left out.

        `retries`: how often a page that fails is tried again. `redirects`: how often a redirect to itself is followed.
        `sitemaps`: pages that only sitemaps have are fetched.
        """
        return _Allowed(self, max_depth, retries, redirects).find(sitemaps=sitemaps)

    @cached_property
    def forbidden(self) -> frozenset[str]:
        """URLs of all pages that some robots.txt disallows."""
        return frozenset(
            self.url(site.host, target)
            for site in self.sites.values()
            for target in site.pages
            if not site.allows(target)
        )


def split_url(url: str) -> tuple[str, str]:
    """Host and path with query of an address."""
    parts = urlsplit(url)
    return parts.hostname or "", f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"


@dataclass
class _Allowed:
    """A breadth-first walk over a web."""

    web: GeneratedWeb
    max_depth: int
    retries: int
    redirects: int
    found: dict[str, PageVisits] = field(default_factory=dict)
    by_redirect: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    only_by_redirect: dict[str, int] = field(default_factory=dict)  #: URL -> depth

    def find(self, *, sitemaps: bool) -> dict[str, PageVisits]:
        level = list(self.web.seeds)
        for depth in range(self.max_depth + 1):
            level = self._level(depth, level)
        if sitemaps:
            for site in self.web.sites.values():
                if self.web.url(site.host, "/") in self.found:
                    self._level(
                        site.entry + 1, [self.web.url(site.host, target) for target in site.sitemap]
                    )
        for url, depth in self.only_by_redirect.items():
            self.found.setdefault(url, PageVisits(depth=depth, least=1, most=0))
        for url, times in self.by_redirect.items():
            one = self.found[url]
            self.found[url] = PageVisits(depth=one.depth, least=one.least, most=one.most + times)
        return self.found

    def _level(self, depth: int, urls: list[str]) -> list[str]:
        """Fetch these pages, all of one depth; which they link to."""
        linked: dict[str, None] = {}
        for url in dict.fromkeys(canonicalize_url(one) for one in urls):
            page = self._fetched(url, depth)
            for link in page.links if page is not None else ():
                linked[canonicalize_url(urljoin(url, link))] = None
        return [url for url in linked if url not in self.found]

    def _fetched(self, url: str, depth: int) -> WebPage | None:
        page = self.web.page(url)
        if url in self.found or page is None or not self._allows(url):
            return None
        tries = 1 + (self.retries if page.kind in {FAIL, HANG, RESET} else 0)
        tries *= (
            2 if page.kind == RESET else 1
        )  # Twisted asks again where a connection that was kept is reset
        self.found[url] = PageVisits(depth=depth, least=1, most=tries)
        start = url
        while page.kind == MOVED:
            url = canonicalize_url(urljoin(url, page.location))
            if url == start:
                self.by_redirect[url] += self.redirects
                return None
            following = self.web.page(url)
            if following is None or not self._allows(url) or self.by_redirect[url]:
                return None
            page = following
            self.by_redirect[url] += 1
            self.only_by_redirect.setdefault(url, depth)
        return page

    def _allows(self, url: str) -> bool:
        host, target = split_url(url)
        return self.web.sites[host].allows(target)


class _Maker:
    """Makes the sites of a web."""

    def __init__(self, sites: int, seed: int, scale: float, port: int) -> None:
        self._count, self._seed, self._scale, self._port = sites, seed, scale, port
        self._dice = random.Random(f"{seed} web")
        self._inner: list[
            dict[str, int]
        ] = []  #: of each site: page -> level, of those that have links
        self._links: list[dict[str, list[str]]] = []
        self._entries: list[int] = []
        self._at_depth: dict[int, list[tuple[int, str]]] = defaultdict(
            list
        )  #: depth -> (site, page)

    def make(self) -> list[WebSite]:
        sites = [self._site(number) for number in range(self._count)]
        self._across()
        for number, site in enumerate(sites):
            links = self._links[number]
            site.pages |= {target: WebPage(links=tuple(found)) for target, found in links.items()}
        return sites

    def _site(self, number: int) -> WebSite:
        dice = random.Random(f"{self._seed} {number}")
        entry = 0 if number % SEEDED == 0 else 1 + dice.randrange(LAST_ENTRY)
        robots = dice.choices((OPEN, NONE, FOLDER, CLOSED), (40, 30, 27, 0 if entry == 0 else 3))[0]
        traps = frozenset(trap for trap in (CALENDAR, LONGER) if dice.random() < 0.2)
        links, levels = self._tree(dice)
        pages = self._oddities(dice, links)
        links["/"] += [f"{CALENDAR}?month=0"] * (CALENDAR in traps) + [LONGER] * (LONGER in traps)
        listed = (
            tuple(f"/listed/{one}" for one in range(dice.randrange(6)))
            if robots in {OPEN, FOLDER}
            else ()
        )
        pages |= {target: WebPage(links=("/",)) for target in listed}
        self._links.append(links)
        self._entries.append(entry)
        if robots != CLOSED:
            for target, level in levels.items():
                self._at_depth[entry + level].append((number, target))
        return WebSite(
            number=number, entry=entry, robots=robots, sitemap=listed, pages=pages, traps=traps
        )

    def _tree(self, dice: random.Random) -> tuple[dict[str, list[str]], dict[str, int]]:
        """The pages of a site that have links: page -> its links, page -> its level."""
        least, most = dice.choices(((5, 25), (25, 60), (150, 300)), (80, 15, 5))[0]
        count = max(3, round(dice.randint(least, most) * self._scale))
        levels = {"/": 0}
        links: dict[str, list[str]] = {"/": []}
        by_level: dict[int, list[str]] = defaultdict(list, {0: ["/"]})
        for one in range(count):
            level = 1 if one < 2 else dice.randint(1, LEVELS)
            while not by_level[level - 1]:
                level -= 1
            target = f"{PRIVATE if dice.random() < 0.05 else '/'}page/{one}"
            # One parent that has it for certain, and others: each page is linked more than once.
            parents = {dice.choice(by_level[level - 1]) for _ in range(dice.randint(1, 3))}
            for parent in sorted(parents):
                links[parent].append(target)
            links[target], levels[target] = ["/", "#here"], level
            by_level[level].append(target)
        first = by_level[1][
            :3
        ]  # the menu, which every page has: of pages that the home page links to
        for target, level in levels.items():
            if level:
                links[target] += first
        return links, {
            target: level for target, level in levels.items() if not target.startswith(PRIVATE)
        }

    def _oddities(self, dice: random.Random, links: dict[str, list[str]]) -> dict[str, WebPage]:
        """Pages without links: errors, redirects, files, and one under several spellings."""
        found: dict[str, WebPage] = {}
        holders = [target for target in links if not target.startswith(PRIVATE)]

        def add(share: float, pages: dict[str, WebPage], *linked: str) -> None:
            if dice.random() < share:
                found.update(pages)
                links[dice.choice(holders)].extend(linked)

        leaf = WebPage(links=("/",))
        add(0.4, {}, "/gone")
        add(0.2, {"/fail": WebPage(kind=FAIL)}, "/fail")
        add(0.05, {"/hang": WebPage(kind=HANG)}, "/hang")
        add(0.1, {"/reset": WebPage(kind=RESET)}, "/reset")
        add(0.2, {"/file": WebPage(kind=FILE)}, "/file")
        add(0.3, {"/old": WebPage(kind=MOVED, location="/new"), "/new": leaf}, "/old")
        chain = {
            "/first": WebPage(kind=MOVED, location="/second"),
            "/second": WebPage(kind=MOVED, location="/third"),
        }
        add(0.1, {**chain, "/third": leaf}, "/first")
        add(0.1, {"/round": WebPage(kind=MOVED, location="/round")}, "/round")
        hidden = {
            "/leads-away": WebPage(kind=MOVED, location=f"{PRIVATE}moved"),
            f"{PRIVATE}moved": leaf,
        }
        add(0.2, hidden, "/leads-away")
        add(
            0.2, {"/both": leaf, "/alias": WebPage(kind=MOVED, location="/both")}, "/both", "/alias"
        )
        spelt = ("/list?a=1&b=2", "/list?b=2&a=1", "/list?a=1&b=2#end")
        add(0.4, {"/list?a=1&b=2": leaf, "/list?b=2&a=1": leaf}, *spelt)
        return found

    def _across(self) -> None:
        """Links between sites: each home page is linked from pages one level above it; and some lead nowhere."""
        for number, entry in enumerate(self._entries):
            above = (
                [place for place in self._at_depth[entry - 1] if place[0] != number]
                if entry
                else []
            )
            for site, target in self._dice.sample(above, min(len(above), self._dice.randint(1, 3))):
                self._links[site][target].append(self._home(number))
        seeds = [number for number, entry in enumerate(self._entries) if entry == 0]
        for number, links in enumerate(self._links):
            links["/"].append(self._home(self._dice.choice(seeds)))
            if self._dice.random() < 0.1:
                links["/"].append(self._home(_DOWN + number))

    def _home(self, number: int) -> str:
        return f"http://{host_of(number)}:{self._port}/"
