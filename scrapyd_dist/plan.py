"""Shards: how the index pages are divided among start pages. Values only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scrapyd_dist.batches import Shard
from scrapyd_dist.errors import ConfigError

_PLACE = re.compile(r"%0?(\d*)d|\{page(?::0?(\d+)d?)?\}")


@dataclass(frozen=True)
class Template:
    """The address of an index page with one place for its number: `index_%05d.html` or `index_{page}.html`."""

    text: str

    def __post_init__(self) -> None:
        places = len(_PLACE.findall(self.text))
        if places != 1:
            raise ConfigError(
                f"The index address {self.text!r} needs one place for the page number, and has {places or 'none'}:"
                " write it like index_%d.html, index_%05d.html or ?page={page}. (In a shell, quote the address.)"
            )

    @property
    def _width(self) -> int:
        widths = [number or page for number, page in _PLACE.findall(self.text)]
        return int(widths[0] or 0)

    @property
    def place(self) -> str:
        """The place for the number, as it is written."""
        return next(match[0] for match in _PLACE.finditer(self.text))

    def url_with(self, text: str) -> str:
        """The address with this text in the number's place."""
        return _PLACE.sub(lambda _: text, self.text)

    def url(self, page: int) -> str:
        """The address of one page."""
        return self.url_with(f"{page:0{self._width}d}")

    def page(self, url: str) -> int | None:
        """The number of the page at this address, or None when it is no page of this template."""
        before, after = _PLACE.split(self.text)[0], _PLACE.split(self.text)[-1]
        middle = url[len(before) : len(url) - len(after)]
        if not url.startswith(before) or not url.endswith(after) or not middle.isdecimal():
            return None
        return int(middle) if self.url(int(middle)) == url else None


def shards_of_pages(template: Template, *, pages: int, shards: int, first_page: int = 0) -> list[Shard]:
    """Divide `pages` index pages among `shards` start pages, at `first_page + floor(pages * x / shards)`.

    With more shards than pages there is one shard per page.

    Raises:
        ConfigError: there is nothing to divide.
    """
    if pages < 1:
        raise ConfigError(f"The number of index pages (--pages) is {pages}; there must be at least one.")
    if shards < 1:
        raise ConfigError(f"The number of shards (--shards) is {shards}; there must be at least one.")
    if first_page < 0:
        raise ConfigError(f"The first page (--first-page) is {first_page}; page numbers start at 0.")
    count = min(shards, pages)
    edges = [pages * x // count for x in range(count + 1)]
    return [
        Shard(
            number=number,
            url=template.url(first_page + edges[number]),
            first_page=first_page + edges[number],
            last_page=first_page + edges[number + 1] - 1,
        )
        for number in range(count)
    ]


def shards_of_urls(urls: list[str]) -> list[Shard]:
    """One shard for each start page of a list.

    Raises:
        ConfigError: the list is empty.
    """
    distinct = list(dict.fromkeys(urls))
    if not distinct:
        raise ConfigError("The list of start URLs is empty; there must be at least one.")
    return [Shard(number=number, url=url) for number, url in enumerate(distinct)]
