"""Limits against sites that never end: the depth, pages, query variants and path repetitions of a domain."""

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
            f"The argument {name} of the strategy is {value!r}, and has to be a whole number from 0 on."
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
    def of(cls, **limits: Any) -> "Traps":
        """Return the limits of a strategy's arguments, which may be text."""
        return cls(**{name: number_of(name, value) for name, value in limits.items()})

    def passes(self, link: Request) -> bool:
        """Whether a link's depth and path are within the limits."""
        if self.max_depth and link.meta.get("depth", 0) > self.max_depth:
            return False
        parts = (
            Counter(part for part in urlsplit(link.url).path.split("/") if part)
            if self.max_repeats
            else None
        )
        return not parts or max(parts.values()) <= self.max_repeats

    def admit(self, domains: DomainMapping, link: Request) -> bool:
        """Whether its domain may have one more page, and its path one more query; counts it then."""
        if not (self.max_pages or self.max_variants):
            return True
        counted = domains[link.site].setdefault(COUNTED, {"pages": 0, "variants": {}})
        if self.max_pages and counted["pages"] >= self.max_pages:
            return False
        if self.max_variants and "?" in link.url:
            address = urlsplit(link.url)
            path, variants = (
                f"{crc32(f'{address.netloc}{address.path}'.encode()):x}",
                counted["variants"],
            )
            if variants.get(path, 0) >= self.max_variants:
                return False
            variants[path] = variants.pop(path, 0) + 1
            if len(variants) > PATHS:
                del variants[next(iter(variants))]
        counted["pages"] += 1
        return True
