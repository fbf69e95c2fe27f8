"""What a process was asked to heed of the throttle: its settings as one frozen value, checked at this one door.

The rule it keeps: a setting of ours goes before the one of Scrapy Cluster that means the same. Part of the worker half:
imports Scrapy and the standard library only.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.throttle.permits import Limit

from ..setting_reader import SettingReader

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

SWITCH = "DISTRIBUTED_THROTTLE"
HITS = ("DISTRIBUTED_THROTTLE_HITS", "QUEUE_HITS")
WINDOW = ("DISTRIBUTED_THROTTLE_WINDOW", "QUEUE_WINDOW")
MODERATED = ("DISTRIBUTED_THROTTLE_MODERATED", "QUEUE_MODERATED")
PER_SPIDER = ("DISTRIBUTED_THROTTLE_PER_SPIDER", "SCHEDULER_TYPE_ENABLED")
PER_IP = ("DISTRIBUTED_THROTTLE_PER_IP", "SCHEDULER_IP_ENABLED")
PUBLIC_IP = ("DISTRIBUTED_THROTTLE_PUBLIC_IP", "PUBLIC_IP_URL")
PUBLIC_IP_REGEX = ("DISTRIBUTED_THROTTLE_PUBLIC_IP_REGEX", "IP_ADDR_REGEX")
PUBLIC_IP_REFRESH = ("DISTRIBUTED_THROTTLE_PUBLIC_IP_REFRESH", "SCHEDULER_IP_REFRESH")
MAX_PAGES = ("DISTRIBUTED_THROTTLE_MAX_PAGES", "GLOBAL_PAGE_PER_DOMAIN_LIMIT")
CONCURRENCY = ("DISTRIBUTED_THROTTLE_CONCURRENCY",)
LONGEST_DELAY = ("DISTRIBUTED_THROTTLE_LONGEST_DELAY",)
#: all of them, each by the names that it has
ALL = (
    (SWITCH,), HITS, WINDOW, MODERATED, PER_SPIDER, PER_IP, PUBLIC_IP, PUBLIC_IP_REGEX, PUBLIC_IP_REFRESH, MAX_PAGES,
    CONCURRENCY, LONGEST_DELAY,
)  # fmt: skip
#: those of ours, which a worker has to be told as well
OURS = tuple(names[0] for names in ALL)
#: those of ours that ask for the throttle by themselves
ASKS = (HITS[0], MAX_PAGES[0], CONCURRENCY[0])
#: what may be an IPv4 or IPv6 address; the first match that is one counts
ADDRESSES = r"[0-9a-fA-F.:]+"
#: seconds; nothing is counted for longer than this
LONGEST_WINDOW = 86400.0 * 31


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
        if not reader.yes_no(SWITCH, any(_given(settings, name) for name in ASKS)):
            return cls(heeds=not _given(settings, SWITCH))
        return cls(
            on=True,
            limit=_limit(reader),
            moderated=reader.yes_no(_name(settings, MODERATED), True),
            per_spider=reader.yes_no(_name(settings, PER_SPIDER), False),
            per_ip=reader.yes_no(_name(settings, PER_IP), False),
            public_ip=_public_ip(settings),
            public_ip_regex=_regex(settings),
            public_ip_refresh=_seconds(reader, PUBLIC_IP_REFRESH, cls.public_ip_refresh),
            max_pages=reader.at_least(_name(settings, MAX_PAGES), 0, 0) or None,
            concurrency=_concurrency(settings),
            longest_delay=_seconds(reader, LONGEST_DELAY, cls.longest_delay),
        )


def given(settings: BaseSettings) -> dict[str, Any]:
    """All that somebody has given, by our names: those go before whatever else is said where they are told."""
    said = {names[0]: settings.get(_name(settings, names)) for names in ALL}
    return {name: value for name, value in said.items() if value not in (None, "")}


def _given(settings: BaseSettings, name: str) -> bool:
    return settings.get(name) not in (None, "")


def _name(settings: BaseSettings, names: tuple[str, ...]) -> str:
    """The first of these settings that somebody has given; ours where nobody has."""
    return next((name for name in names if _given(settings, name)), names[0])


def _limit(reader: SettingReader) -> Limit | None:
    hits, window = _name(reader.settings, HITS), _name(reader.settings, WINDOW)
    if not _given(reader.settings, hits):
        if _given(reader.settings, window):
            raise ConfigError(f"{window} is given without {hits}: a limit is so many hits in so many seconds.")
        return None
    return Limit(
        hits=reader.at_least(hits, 1, 1),
        window=_seconds(reader, WINDOW, 60.0),
        moderated=reader.yes_no(_name(reader.settings, MODERATED), True),
    )


def _seconds(reader: SettingReader, names: tuple[str, ...], default: float) -> float:
    name = _name(reader.settings, names)
    if not _given(reader.settings, name):
        return default
    value = reader.seconds(name, default)
    if value > LONGEST_WINDOW:
        raise ConfigError(f"{name} is {value:g}, and must be {LONGEST_WINDOW:.0f} seconds (31 days) or less.")
    return value


def _public_ip(settings: BaseSettings) -> str:
    name = _name(settings, PUBLIC_IP)
    text = str(settings.get(name) or "").strip()
    if not text or urlsplit(text).scheme in {"http", "https"}:
        return text
    try:
        return str(ip_address(text))
    except ValueError:
        raise ConfigError(
            f"{name} must be an address such as 203.0.113.7, or an http:// or https:// URL that tells it."
        ) from None


def _regex(settings: BaseSettings) -> str:
    name = _name(settings, PUBLIC_IP_REGEX)
    text = str(settings.get(name) or ADDRESSES)
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"{name} is no regular expression: {error}.") from None
    return text


def _concurrency(settings: BaseSettings) -> float | None:
    name = CONCURRENCY[0]
    if not _given(settings, name):
        return None
    try:
        value = settings.getfloat(name)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} is {settings.get(name)!r}, and must be a number of requests, more than 0.")
    return value
