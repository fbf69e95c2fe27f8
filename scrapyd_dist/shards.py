"""Divides the index pages of a crawl into shards."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from scrapyd_dist.batches import Shard
from scrapyd_dist.errors import ConfigError

#: digits of a page number that an address may have room for
_WIDEST = 20
_PLACE = re.compile(r"%0?(\d*)d|\{page(?::0?(\d+)d?)?\}")


@dataclass(frozen=True)
class ShardTemplate:
    """An index page's URL with one placeholder for its number.

    It is written `index_%05d.html` or `index_{page}.html`.
    """

    text: str

    def __post_init__(self) -> None:
        places = len(_PLACE.findall(self.text))
        if places != 1:
            raise ConfigError(
                f"The index address {self.text!r} needs one place for the page number, and has"
                f" {places or 'none'}: write it like index_%d.html, index_%05d.html or"
                " ?page={page}. (In a shell, quote the address.)"
            )
        if self._width > _WIDEST:
            raise ConfigError(
                f"The index address has room for {self._width} digits; it can be {_WIDEST} at most."
            )

    @property
    def place(self) -> str:
        """The placeholder for the number, as written."""
        (match,) = _PLACE.finditer(self.text)
        return match[0]

    def url_with(self, text: str) -> str:
        """Return the URL with this text instead of the placeholder."""
        return _PLACE.sub(lambda _: text, self.text)

    def url(self, page: int) -> str:
        """Return the URL of a page."""
        return self.url_with(f"{page:0{self._width}d}")

    @property
    def _width(self) -> int:
        ((percent_width, brace_width),) = _PLACE.findall(self.text)
        return int(f"{percent_width or brace_width or 0}"[:9])

    def page(self, url: str) -> int | None:
        """Return the page number in a URL, or None if it does not match the template."""
        before, after = self.text.split(self.place)
        digits = url.removeprefix(before).removesuffix(after)
        if not digits.isdecimal():
            return None
        page = int(digits)
        return page if self.url(page) == url else None


def check_page(url: str, what: str) -> str:
    """Return the URL of a start page, or raise `ConfigError` if no page can be asked for there.

    The message calls the URL `what`.
    """
    if not _is_page(url):
        raise ConfigError(
            f"{what} is no address of a page: it begins with http:// or https:// and has a host."
        )
    return url


def _is_page(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return False
    return port != 0 and " " not in parts.netloc


def shards_of_pages(
    template: ShardTemplate, *, pages: int, shards: int, first_page: int = 0
) -> list[Shard]:
    """Divide `pages` index pages into shards of nearly the same length.

    Shard `x` starts at `first_page + floor(pages * x / shards)`. If there are more shards than
    pages, each page is a shard.
    """
    count = min(shards, pages)
    found: list[Shard] = []
    for number in range(count):
        first = first_page + pages * number // count
        last = first_page + pages * (number + 1) // count - 1
        found.append(
            Shard(number=number, url=template.url(first), first_page=first, last_page=last)
        )
    return found


def shards_of_urls(urls: list[str]) -> list[Shard]:
    """Return one shard for each distinct URL of a list of start pages.

    Raises:
        ConfigError: the list is empty.
    """
    distinct = list(dict.fromkeys(urls))
    if not distinct:
        raise ConfigError("The list of start URLs is empty; there must be at least one.")
    return [Shard(number=number, url=url) for number, url in enumerate(distinct)]
