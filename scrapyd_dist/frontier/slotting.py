"""Which slot of a frontier a request lies in: one of a numbered family, by its fingerprint or site; or its site's own.

The rule it keeps: the same request always lies in the same slot, whoever asks, on whatever machine; nothing is looked
up on the net. Part of the worker half: the standard library, and tldextract (which Scrapy brings) for slots by site.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.values import LONGEST_SLOT, OTHER_SPIDER, SLOT_NAME, check_slot_name

if TYPE_CHECKING:
    from tldextract import TLDExtract

#: what may choose the slot of a request: one of a number of slots by its fingerprint, or by its site (`domain`); or
#: each site has a slot to itself
FINGERPRINT, DOMAIN, SITE = WAYS = ("fingerprint", "domain", "site")
#: slots of one family, at most
MOST = 10_000
#: hosts whose site is remembered
HOSTS = 10_000
#: what stands for the site of an address that has none, such as `data:…`
NO_SITE = "-"


@dataclass(frozen=True, kw_only=True)
class Slots:
    """A family of slots: a prefix, and behind it a number from 0 on, or a site."""

    prefix: str = ""
    number: int = 1  #: how many; means nothing where each site has one
    by: str = FINGERPRINT

    def __post_init__(self) -> None:
        if self.prefix.startswith(OTHER_SPIDER):
            raise ConfigError(
                f"{self.prefix!r} cannot be a slot prefix: slots that begin with {OTHER_SPIDER} are those of other"
                " spiders."
            )
        check_slot_name(f"{self.prefix}{self.number}")
        if not 1 <= self.number <= MOST:
            raise ConfigError(f"The number of slots is {self.number}, and must be from 1 to {MOST}.")
        if self.by not in WAYS:
            raise ConfigError(f"Requests cannot go to slots by {self.by!r}, only by {' or '.join(WAYS)}.")

    @classmethod
    def parse(cls, text: str, *, by: str = FINGERPRINT) -> Slots:
        """The family that `prefix/number` names; a prefix alone is one slot.

        Raises:
            ConfigError: it is not of that form.
        """
        prefix, slash, number = text.partition("/")
        if slash and not re.fullmatch(r"[0-9]+", number):
            raise ConfigError(f"{text!r} names no slots: write them as prefix/number, such as pages/4.")
        return cls(prefix=prefix, number=int(number) if slash else 1, by=by)

    def names(self) -> list[str]:
        """All of them, where they have numbers."""
        return [f"{self.prefix}{number}" for number in range(self.number)]

    def of(self, url: str, fingerprint: bytes) -> str:
        """The slot of a request."""
        if self.by == SITE:
            return slot_of_site(self.prefix, site_of(url))
        if self.number == 1:
            return f"{self.prefix}0"
        what = fingerprint if self.by == FINGERPRINT else site_of(url).encode()
        # The fingerprint itself is mixed again: a custom one may be no hash at all.
        mixed = hashlib.sha256(what).digest()[:8]
        return f"{self.prefix}{int.from_bytes(mixed, 'big') % self.number}"


def slot_of_site(prefix: str, site: str) -> str:
    """The slot that a site has to itself.

    A name that no slot can have gets a digest in its place: what can be read of it, and behind that what tells it from
    all others. So does one that another spider's slot could have.
    """
    name = f"{prefix}{site or NO_SITE}"
    if SLOT_NAME.fullmatch(name) and not name.startswith(OTHER_SPIDER):
        return name
    digest = hashlib.sha256(site.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    room = LONGEST_SLOT - len(prefix) - len(digest) - 1
    readable = re.sub(r"[^A-Za-z0-9.-]", "_", site)[: max(0, room)]
    return check_slot_name(f"{prefix}{readable}_{digest}")


def slot_of_spider(spider: str, project: str = "") -> str:
    """The slot of work for another spider, of this project or of another one.

    Raises:
        ConfigError: the names cannot be a slot's.
    """
    return check_slot_name(OTHER_SPIDER + (f"{project}:{spider}" if project else spider))


def spider_of_slot(slot: str) -> tuple[str, str] | None:
    """The project ("" for the frontier's own) and the spider that a slot of work for another spider names."""
    if not slot.startswith(OTHER_SPIDER):
        return None
    project, _, spider = slot.removeprefix(OTHER_SPIDER).rpartition(":")
    return project, spider


def site_of(url: str) -> str:
    """The registered domain of a URL, as `example.co.uk`; its host where it has none."""
    try:
        return _site(urlsplit(url).hostname or "")
    except ValueError:
        return ""


@lru_cache(HOSTS)
def _site(host: str) -> str:
    parts = _extract()(host)
    return f"{parts.domain}.{parts.suffix}" if parts.domain and parts.suffix else host


@cache
def _extract() -> TLDExtract:
    from tldextract import TLDExtract  # noqa: PLC0415 - slow to import, and only slots by site need it

    return TLDExtract(suffix_list_urls=(), cache_dir=None)  # its own copy of the list; no look-up, no files


def is_public_suffix(host: str) -> bool:
    """Whether anybody may register a name below it, as below `co.uk`: it is no site itself."""
    parts = _extract()(host)
    return bool(parts.suffix) and not parts.domain
