"""What the demo property site holds: its URLs, its pages and its items, all computed from an item's number. No IO."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Literal

UrlStyle = Literal["numbered", "slug", "hashed", "long"]

#: length of a `long` path; with `http://127.0.0.1:PORT` before it, the URL has 150 characters
LONG_PATH = 128

#: what a `--index` template for this site looks like, behind scheme and host
INDEX_TEMPLATE = "/properties/index_%05d.html"

#: number of agents; each detail page links to one of them
_AGENTS = 50

_LOOKS = ("Bright", "Quiet", "Spacious", "Modern", "Victorian", "Compact", "Sunny", "Restored")
_KINDS = (
    "garden flat",
    "town house",
    "studio",
    "loft",
    "cottage",
    "maisonette",
    "terrace",
    "bungalow",
)
_PLACES = (
    "Camden",
    "Brixton",
    "Hackney",
    "Ealing",
    "Richmond",
    "Islington",
    "Greenwich",
    "Chelsea",
)
_STREETS = ("Mill Lane", "Station Road", "Orchard Close", "Bridge Street", "Park View", "Kiln Yard")
_EXTRAS = (
    "It is close to the river and to two schools.",
    "The kitchen was renewed last year & the roof the year before.",
    "Both bedrooms look south, over a shared garden.",
    "A cellar and a place for two bicycles belong to it.",
)

_DETAIL = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><div class="header"><a href="/properties/index_00000.html">All properties</a></div>
<div class="property" itemscope itemtype="https://schema.org/Product">
<h1 itemprop="name">{title}</h1>
<p>Reference <span class="number">{number}</span></p>
<p class="offer" itemprop="offers"><span itemprop="price">{price}</span> per month</p>
<div class="picture"><img itemprop="image" src="{image}" alt="{title}"></div>
<div class="text"><p itemprop="description">{description}</p></div>
<p>Where: <span itemprop="address">{address}</span></p>
<p>Ask <a class="agent" href="/agents/agent_{agent:02d}.html">the agent</a></p>
</div></body></html>
"""

_INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Properties, page {page}</title></head>
<body><h1>Properties, page {page}</h1>
<ul class="list">
{links}
</ul>
{next_link}
</body></html>
"""


def _digest(number: int) -> bytes:
    return blake2b(b"property %d" % number, digest_size=16).digest()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site of `items` detail pages behind a chain of index pages.

    Two sites with the same fields are the same site, byte for byte, in any process: so a test can
    know every URL and every item of a site that another process serves.
    """

    #: number of detail pages; their numbers are 0 to items-1
    items: int = 3000
    #: links on one index page; the last page may have fewer
    per_page: int = 30
    #: how detail URLs look
    url_style: UrlStyle = "numbered"
    #: links per index page that lead to another host name
    offsite: int = 0
    #: links per index page that stand there twice, with the parts of their query in another order
    duplicates: int = 0

    @property
    def pages(self) -> int:
        """Number of index pages; a site without items has one, empty."""
        return max(1, -(-self.items // self.per_page))

    def index_path(self, page: int) -> str:
        """Path of index page `page`, counted from 0."""
        return INDEX_TEMPLATE % page

    def detail_path(self, number: int) -> str:
        """Path of the detail page of item `number`."""
        if self.url_style == "numbered":
            return f"/properties/property_{number:06d}.html"
        if self.url_style == "slug":
            slug = self.item(number)["title"].lower().replace(" ", "-")
            return f"/properties/{slug}-{number:06d}.html"
        if self.url_style == "hashed":
            return f"/properties/{_digest(number).hex()}.html"
        start, end = "/properties/listing/", f"-{number:06d}.html"
        hexes = blake2b(b"long %d" % number, digest_size=64).hexdigest()
        return start + hexes[: LONG_PATH - len(start) - len(end)] + end

    def item(self, number: int) -> dict[str, str]:
        """The six fields of item `number`, as a spider that strips white space scrapes them."""
        seed = _digest(number)
        look, kind, place = _LOOKS[seed[0] % 8], _KINDS[seed[1] % 8], _PLACES[seed[2] % 8]
        return {
            "title": f"{look} {kind} in {place}",
            "price": f"{600 + seed[3] * 9}.{seed[4] % 100:02d}",
            "description": f"{look} {kind}, number {number} of our list. {_EXTRAS[seed[5] % 4]} Free at once.",
            "address": f"{1 + seed[6]} {_STREETS[seed[7] % 6]}, {place}",
            "image": f"/images/{number:06d}.jpg",
            "number": str(number),
        }

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Detail path -> item number, for all items."""
        return {self.detail_path(number): number for number in range(self.items)}

    @cached_property
    def _index_pages(self) -> dict[str, int]:
        return {self.index_path(page): page for page in range(self.pages)}

    @cached_property
    def _agents(self) -> dict[str, int]:
        return {f"/agents/agent_{agent:02d}.html": agent for agent in range(_AGENTS)}

    def body(self, path: str, host: str) -> bytes | None:
        """The page at `path` (without a query), or None where there is none.

        Args:
            path: the path of the request.
            host: its Host header, `name:port`; offsite links are made from it.
        """
        number = self.numbers.get(path)
        if number is not None:
            return self._detail(number)
        page = self._index_pages.get(path)
        if page is not None:
            return self._index(page, host)
        agent = self._agents.get(path)
        return (
            None
            if agent is None
            else f"<html><body><h1 class='agent'>Agent {agent}</h1></body></html>".encode()
        )

    def _detail(self, number: int) -> bytes:
        fields = {name: _escaped(value) for name, value in self.item(number).items()}
        return _DETAIL.format(agent=number % _AGENTS, **fields).encode()

    def _index(self, page: int, host: str) -> bytes:
        first = page * self.per_page
        numbers = range(first, min(first + self.per_page, self.items))
        links = [self._link(number, "?from=list&sort=price" if at < self.duplicates else "")
                 for at, number in enumerate(numbers)]  # fmt: skip
        links += [
            self._link(number, "?sort=price&from=list") for number in numbers[: self.duplicates]
        ]
        links += [
            self._link(number, "?via=partner", self.other_host(host))
            for number in numbers[: self.offsite]
        ]
        has_next = page + 1 < self.pages
        next_link = (
            f'<p class="pager"><a class="next" href="{self.index_path(page + 1)}">Next page</a></p>'
        )
        return _INDEX.format(
            page=page, links="\n".join(links), next_link=next_link if has_next else ""
        ).encode()

    def _link(self, number: int, query: str, origin: str = "") -> str:
        href = _escaped(origin + self.detail_path(number) + query)
        return f'<li class="property"><a itemprop="url" href="{href}">Property {number}</a></li>'

    @staticmethod
    def other_host(host: str) -> str:
        """The same server under another name: a place to lead offsite that still leaves a trace in the log."""
        name, _, port = host.partition(":")
        other = "127.0.0.1" if name == "localhost" else "localhost"
        return f"http://{other}:{port}" if port else f"http://{other}"
