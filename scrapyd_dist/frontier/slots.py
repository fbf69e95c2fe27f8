"""Chooses the frontier slot of a request: by fingerprint, by domain, or one slot for each site.

Invariant: the same request gets the same slot on every machine, without network access. Part of the
worker half: imports the standard library, and for slots by site tldextract, a dependency of Scrapy.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import LONGEST_SLOT, OTHER_SPIDER, SLOT_NAME, check_slot_name
from scrapyd_dist.settings import MOST_SLOTS, SETTINGS

if TYPE_CHECKING:
    from tldextract import TLDExtract

#: ways to choose a slot
WAYS = SETTINGS["DISTRIBUTED_SLOT_BY"].choices
#: a numbered slot by the request's fingerprint, a numbered slot by its site, or a slot for each
#: site
FINGERPRINT, DOMAIN, SITE = WAYS
#: size of the cache of host -> site
HOSTS = 10_000
#: the site of a URL without a host, such as `data:…`
NO_SITE = "-"


@dataclass(frozen=True, kw_only=True)
class SlotRule:
    """Slots with a common prefix, followed by a number from 0 or by a site."""

    prefix: str = ""
    number: int = 1  #: number of slots; ignored if each site has its own
    by: str = FINGERPRINT  #: one of WAYS

    def __post_init__(self) -> None:
        if self.prefix.startswith(OTHER_SPIDER):
            raise ConfigError(
                f"{self.prefix!r} cannot be a slot prefix: slots that begin with {OTHER_SPIDER} are"
                " those of other spiders."
            )
        check_slot_name(f"{self.prefix}{self.number}")
        if not 1 <= self.number <= MOST_SLOTS:
            raise ConfigError(
                f"The number of slots is {self.number}, and must be from 1 to {MOST_SLOTS}."
            )
        if self.by not in WAYS:
            raise ConfigError(
                f"Requests cannot go to slots by {self.by!r}, only by {' or '.join(WAYS)}."
            )

    @classmethod
    def parse(cls, text: str, *, by: str = FINGERPRINT) -> SlotRule:
        """Parse `prefix/number`, or raise `ConfigError`; a prefix alone means one slot."""
        prefix, slash, number = text.partition("/")
        if slash and not re.fullmatch(r"[0-9]+", number):
            raise ConfigError(
                f"{text!r} names no slots: write them as prefix/number, such as pages/4."
            )
        return cls(prefix=prefix, number=int(number) if slash else 1, by=by)

    def names(self) -> list[str]:
        """Return all slots of the rule, if they are numbered."""
        return [f"{self.prefix}{number}" for number in range(self.number)]

    def slot_for(self, url: str, fingerprint: bytes) -> str:
        """Return the slot of a request."""
        if self.by == SITE:
            return slot_of_site(self.prefix, site_of(url))
        if self.number == 1:
            return f"{self.prefix}0"
        what = fingerprint if self.by == FINGERPRINT else site_of(url).encode()
        # The fingerprint itself is mixed again: a custom one may be no hash at all.
        mixed = hashlib.sha256(what).digest()[:8]
        return f"{self.prefix}{int.from_bytes(mixed, 'big') % self.number}"


def slot_of_site(prefix: str, site: str) -> str:
    """Return the slot of a site.

    A site that is not a valid slot name, or looks like the slot of another spider, is shortened to
    its readable characters and a digest.
    """
    name = f"{prefix}{site or NO_SITE}"
    if SLOT_NAME.fullmatch(name) and not name.startswith(OTHER_SPIDER):
        return name
    digest = hashlib.sha256(site.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    room = LONGEST_SLOT - len(prefix) - len(digest) - 1
    readable = re.sub(r"[^A-Za-z0-9.-]", "_", site)[: max(0, room)]
    return check_slot_name(f"{prefix}{readable}_{digest}")


def slot_of_spider(spider: str, project: str = "") -> str:
    """Return the slot for requests of another spider, of this project or another.

    Raises `ConfigError` if no slot can have that name.
    """
    if project:
        return check_slot_name(f"{OTHER_SPIDER}{project}:{spider}")
    return check_slot_name(f"{OTHER_SPIDER}{spider}")


def spider_of_slot(slot: str) -> tuple[str, str]:
    """Return the project and spider of another spider's slot, each "" for the frontier's own."""
    if not slot.startswith(OTHER_SPIDER):
        return "", ""
    project, _, spider = slot.removeprefix(OTHER_SPIDER).rpartition(":")
    return project, spider


def site_of(url: str) -> str:
    """Return the registered domain of a URL, such as `example.co.uk`, or else its host."""
    try:
        return _site(urlsplit(url).hostname or "")
    except ValueError:
        return ""


@lru_cache(HOSTS)
def _site(host: str) -> str:
    parts = _extract()(host)
    if parts.domain and parts.suffix:
        return f"{parts.domain}.{parts.suffix}"
    return host


@cache
def _extract() -> TLDExtract:
    from tldextract import TLDExtract  # noqa: PLC0415 - slow to import, and only slots by site need it

    # The bundled list: no network, no cache files.
    return TLDExtract(suffix_list_urls=(), cache_dir=None)


def is_public_suffix(host: str) -> bool:
    """Say whether a host is a public suffix such as `co.uk`, below which domains are registered."""
    parts = _extract()(host)
    return bool(parts.suffix) and not parts.domain
