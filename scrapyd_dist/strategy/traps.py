"""Limits crawls of sites that never end: the depth, pages, queries and repetitions of a domain."""

from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.strategy.interface import DomainMapping, Request

#: paths of a domain whose variants are counted; beyond that the oldest is forgotten
PATHS = 1_000
#: the key in a domain's metadata
COUNTED = "traps"


def number_of(name: str, value: Any) -> int:
    """Return an argument that is a whole number of 0 or more, or raise `ConfigError`."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ConfigError(
            f"The argument {name} of the strategy is {value!r}, and has to be a whole number from 0"
            " on."
        )
    return number


@dataclass(frozen=True, kw_only=True)
class Traps:
    """The limits of a strategy; 0 is none. Seeds do not count."""

    max_depth: int = 0  #: links from a seed
    max_pages: int = 0  #: of a domain
    max_variants: int = 0  #: queries of one path
    max_repeats: int = 0  #: times that a part of a path stands in it, as in /a/b/a/b/a/b

    @classmethod
    def from_arguments(cls, **limits: Any) -> "Traps":
        """Return the limits of a strategy's arguments, which may be text."""
        return cls(**{name: number_of(name, value) for name, value in limits.items()})

    def passes(self, link: Request) -> bool:
        """Return whether a link's depth and path are within the limits."""
        if self.max_depth and link.meta.get("depth", 0) > self.max_depth:
            return False
        if not self.max_repeats:
            return True
        parts = urlsplit(link.url).path.split("/")
        repeats = Counter(filter(None, parts))
        return not repeats or max(repeats.values()) <= self.max_repeats

    def admit(self, domains: DomainMapping, link: Request) -> bool:
        """Return whether its domain may have one more page, and its path one more query.

        Counts the page and the query then.
        """
        if not (self.max_pages or self.max_variants):
            return True
        counted = domains[link.site].setdefault(COUNTED, {"pages": 0, "variants": {}})
        if self.max_pages and counted["pages"] >= self.max_pages:
            return False
        has_variants = self.max_variants and "?" in link.url
        if has_variants and not self._admit_variant(counted["variants"], link.url):
            return False
        counted["pages"] += 1
        return True

    def _admit_variant(self, variants: dict[str, int], url: str) -> bool:
        """Count one more query of a path, unless it has too many; the least recent come first."""
        address = urlsplit(url)
        path = f"{address.netloc}{address.path}"
        key = f"{crc32(path.encode()):x}"
        if variants.get(key, 0) >= self.max_variants:
            return False
        variants[key] = variants.pop(key, 0) + 1
        if len(variants) > PATHS:
            del variants[next(iter(variants))]
        return True
