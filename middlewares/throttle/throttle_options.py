"""The settings of the throttle as one frozen value.

A setting of ours goes before the one of Scrapy Cluster that means the same. Part of the worker half: imports Scrapy and
the standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.settings import SETTINGS, Travels, travelling
from scrapyd_dist.throttle.permits import Limit

from ..setting_reader import SettingReader

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

SWITCH = "DISTRIBUTED_THROTTLE"
#: those that switch it on
ASKS = tuple(f"{SWITCH}_{name}" for name in ("HITS", "MAX_PAGES", "CONCURRENCY"))
#: what may be an IPv4 or IPv6 address; the first match that is one counts
ADDRESSES = r"[0-9a-fA-F.:]+"


@dataclass(frozen=True, kw_only=True)
class ThrottleOptions:
    """The settings of the throttle. Seconds and counts as in `docs/settings.md`."""

    on: bool = False
    heeds: bool = False  #: nothing was said of the throttle: of all that follows, only the rules of the store hold
    limit: Limit | None = None  #: of a domain without a rule of its own
    moderated: bool = True  #: whether the hits of a rule are spread evenly, where there is no `limit`
    per_spider: bool = False  #: each spider has a budget of its own
    per_ip: bool = False  #: each address that requests leave from has one
    public_ip: str = ""  #: an address, or the URL of a page that tells it
    public_ip_regex: str = ADDRESSES  #: finds the address in that page; its first group, where it has one
    public_ip_refresh: float = 60.0  #: seconds after which that page is asked again
    max_pages: int | None = None  #: of one domain, in one crawl
    concurrency: float | None = None  #: requests under way at a domain at once, over the whole fleet
    longest_delay: float = 60.0  #: seconds between two requests that a site's robots.txt or latency can ask for

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> ThrottleOptions:
        """The options in these settings; where the throttle is off, nothing else is looked at.

        Raises:
            ConfigError: a value is not of its kind, or two do not go together.
        """
        reader = SettingReader(settings)
        said = reader.value(SWITCH)
        if not (any(map(reader.given, ASKS)) if said is None else said):
            return cls(heeds=said is None)
        return cls(
            on=True,
            limit=_limit(reader),
            moderated=reader.value("DISTRIBUTED_THROTTLE_MODERATED"),
            per_spider=reader.value("DISTRIBUTED_THROTTLE_PER_SPIDER"),
            per_ip=reader.value("DISTRIBUTED_THROTTLE_PER_IP"),
            public_ip=_public_ip(reader),
            public_ip_regex=_regex(reader),
            public_ip_refresh=reader.value("DISTRIBUTED_THROTTLE_PUBLIC_IP_REFRESH"),
            max_pages=reader.value("DISTRIBUTED_THROTTLE_MAX_PAGES") or None,
            concurrency=reader.value("DISTRIBUTED_THROTTLE_CONCURRENCY"),
            longest_delay=reader.value("DISTRIBUTED_THROTTLE_LONGEST_DELAY"),
        )


def given(settings: BaseSettings) -> dict[str, Any]:
    """All limits that are given, by our names; an address with a password is left out."""
    reader = SettingReader(settings)
    said = {name: settings.get(reader.name(name)) for name in travelling(Travels.LIMITS)}
    return {
        name: value
        for name, value in said.items()
        if value not in (None, "") and not (SETTINGS[name].secret and "@" in urlsplit(str(value)).netloc)
    }


def _limit(reader: SettingReader) -> Limit | None:
    hits, window = (reader.name(f"{SWITCH}_{name}") for name in ("HITS", "WINDOW"))
    if reader.given(hits):
        return Limit(
            hits=reader.value("DISTRIBUTED_THROTTLE_HITS"),
            window=reader.value("DISTRIBUTED_THROTTLE_WINDOW"),
            moderated=reader.value("DISTRIBUTED_THROTTLE_MODERATED"),
        )
    if reader.given(window):
        raise ConfigError(f"{window} is given without {hits}: a limit is so many hits in so many seconds.")
    return None


def _public_ip(reader: SettingReader) -> str:
    name = "DISTRIBUTED_THROTTLE_PUBLIC_IP"
    text = (reader.value(name) or "").strip()
    if not text or urlsplit(text).scheme in {"http", "https"}:
        return text
    try:
        return str(ip_address(text))
    except ValueError:
        raise ConfigError(
            f"{reader.name(name)} must be an address such as 203.0.113.7, or an http:// or https:// URL that tells it."
        ) from None


def _regex(reader: SettingReader) -> str:
    name = "DISTRIBUTED_THROTTLE_PUBLIC_IP_REGEX"
    text = reader.value(name) or ADDRESSES
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"{reader.name(name)} is no regular expression: {error}.") from None
    return str(text)
