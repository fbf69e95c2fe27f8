"""The settings of the throttle as one value, and what a request is charged to: an address, and a budget of pages.

A setting of ours goes before the one of Scrapy Cluster that means the same.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.settings import SETTINGS, SettingReader, Travels, travelling
from scrapyd_dist.throttle.permits import Limit

from ..assignment import FRONTIER, Assignment, is_filler

SWITCH = "DISTRIBUTED_THROTTLE"
_PREFIX = f"{SWITCH}_"
#: those that switch it on
ASKS = tuple(_PREFIX + name for name in ("HITS", "MAX_PAGES", "CONCURRENCY"))
#: what may be an IPv4 or IPv6 address; the first match that is one counts
ADDRESSES = r"[0-9a-fA-F.:]+"


@dataclass(frozen=True, kw_only=True)
class ThrottleOptions:
    """The settings of the throttle. Seconds and counts as in `docs/reference/settings.md`."""

    on: bool = False
    heeds: bool = False  #: nothing was said of the throttle: of all that follows, only the rules of the store hold
    limit: Limit | None = None  #: of a domain without a rule of its own
    moderated: bool = (
        True  #: whether the hits of a rule are spread evenly, where there is no `limit`
    )
    per_spider: bool = False  #: each spider has a budget of its own
    per_ip: bool = False  #: each address that requests leave from has one
    public_ip: str = ""  #: an address, or the URL of a page that tells it
    public_ip_regex: str = (
        ADDRESSES  #: finds the address in that page; its first group, where it has one
    )
    public_ip_refresh: float = 60.0  #: seconds after which that page is asked again
    max_pages: int | None = None  #: of one domain, in one crawl
    concurrency: float | None = (
        None  #: requests under way at a domain at once, over the whole fleet
    )
    longest_delay: float = (
        60.0  #: seconds between two requests that a site's robots.txt or latency can ask for
    )

    @property
    def may_hold(self) -> bool:
        """Whether requests may have to wait here."""
        return self.on or self.heeds

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
        values = {
            **reader.values_for(cls, _PREFIX),
            "public_ip": _public_ip(reader),
            "public_ip_regex": _regex(reader),
        }
        return cls(
            **{
                **values,
                "on": True,
                "limit": _limit(reader),
                "max_pages": values["max_pages"] or None,
            }
        )


def options_of(settings: BaseSettings) -> ThrottleOptions:
    """The options; settings that make no sense are those of a throttle that is on, and that refuses to begin."""
    try:
        return ThrottleOptions.from_settings(settings)
    except ConfigError:
        return ThrottleOptions(on=True)


def waits_by_address(settings: BaseSettings) -> bool:
    """Whether requests wait by the addresses of their hosts; `get` would warn of that setting."""
    return str(settings["CONCURRENT_REQUESTS_PER_IP"] or 0) != "0"


def given(settings: BaseSettings) -> dict[str, Any]:
    """All limits that are given, by our names; an address with a password is left out."""
    reader = SettingReader(settings)
    said = {name: settings.get(reader.name(name)) for name in travelling(Travels.LIMITS)}
    return {
        name: value
        for name, value in said.items()
        if value not in (None, "")
        and not (SETTINGS[name].secret and "@" in urlsplit(str(value)).netloc)
    }


def _limit(reader: SettingReader) -> Limit | None:
    hits, window = (reader.name(_PREFIX + name) for name in ("HITS", "WINDOW"))
    if reader.given(hits):
        return Limit(**reader.values_for(Limit, _PREFIX))
    if reader.given(window):
        raise ConfigError(
            f"{window} is given without {hits}: a limit is so many hits in so many seconds."
        )
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


logger = logging.getLogger(__name__)
#: request meta: the most pages of its domain, with this request; the name is Scrapy Cluster's
META = "domain_max_pages"
#: the name of an address that is not known: all such machines share its budget
UNKNOWN = "unknown"
#: seconds for one question to the page that tells the address
TIMEOUT = 5.0
#: bytes of that page that are looked at
LOOKED_AT = 65536


class PageBudget:
    """The budgets of pages for the requests of one process."""

    def __init__(self, options: ThrottleOptions, crawler: Crawler) -> None:
        self._crawler, self._most, self._warned = crawler, options.max_pages, False

    def pages_of(self, request: Request) -> int | None:
        """How many pages of its domain the crawl may have; None for no limit.

        Where the settings and the request both have a limit, the smaller one holds; None and 0 are none.
        """
        said = request.meta.get(META)
        if not said:
            return self._most
        if not isinstance(said, int) or said < 0:
            if not self._warned:
                self._warned = True
                form = "which must be a whole number, 0 or more: it is not heeded there."
                logger.warning("A request has %r as its %s, %s", said, META, form)
            return self._most
        return said if self._most is None else min(said, self._most)

    @cached_property
    def name(self) -> str:
        """Pages are counted together under this name: the crawl's unique home, or one of this process's own.

        The producer sets it (`charge_pages_to`), as it knows only after its checks which crawl it runs.
        """
        settings = self._crawler.settings
        job = Assignment.from_settings(settings)
        if job is not None:
            return job.home or job.crawl
        named = settings.get(FRONTIER) if is_filler(settings) else settings.get("DISTRIBUTED_CRAWL")
        return str(named or f"{settings.get('BOT_NAME')}.{uuid4().hex}")


class Egress:
    """The egress address of each request, as its site sees it; `fetch` gets the text of the page that tells ours."""

    def __init__(
        self, options: ThrottleOptions, crawler: Crawler, fetch: Callable[[str], str] | None = None
    ) -> None:
        self._options = options
        self._bound = _bound(crawler.settings.get("DOWNLOAD_BIND_ADDRESS"))
        self._fetch = fetch or _fetch
        self._public = UNKNOWN
        self._warned = ""
        self._closed = threading.Event()
        self.settled = (
            threading.Event()
        )  #: the first lookup has ended, well or not: longer nothing needs to wait
        if options.per_ip and urlsplit(options.public_ip).scheme:
            threading.Thread(target=self._keep_asking, name="sdist-public-ip", daemon=True).start()
            crawler.signals.connect(self.close, signals.spider_closed)
        else:
            self._public = options.public_ip or UNKNOWN
            self.settled.set()

    def own(self, request: Request) -> str:
        """The address that a request does not share with all others of this process: its proxy's, or one of its own.

        "" where it leaves as they do, and where addresses make no difference.
        """
        if not self._options.per_ip:
            return ""
        meta = request.meta
        if meta.get("proxy") and not meta.get(
            "_scheme_proxy"
        ):  # Scrapy's mark of a proxy that the environment names
            return _host(str(meta["proxy"]))
        return _bound(meta.get("bindaddress"))

    @property
    def machine(self) -> str:
        """The address of all other requests, as far as it is known now."""
        return self._bound or self._public

    def _keep_asking(self) -> None:
        while not self._closed.is_set():
            self._ask()
            self.settled.set()
            self._closed.wait(self._options.public_ip_refresh)

    def _ask(self) -> None:
        place = urlsplit(self._options.public_ip).hostname
        try:
            found = address_in(self._fetch(self._options.public_ip), self._options.public_ip_regex)
            what = "" if found else f"what {place} says has no address in it"
        except (
            OSError,
            ValueError,
        ) as error:  # HTTPException is neither, and is made one by `_fetch`
            found, what = "", f"{place} does not tell the address of this machine ({error})"
        if what and what != self._warned:
            logger.warning(
                "%s; until it does, its requests are counted as those of %s.", what, self._public
            )
        self._public, self._warned = found or self._public, what

    def close(self) -> None:
        self._closed.set()


def address_in(text: str, pattern: str) -> str:
    """The first match of the pattern (of its first group, where it has one) that is an address; "" without one."""
    for match in re.finditer(pattern, text):
        try:
            return str(ip_address((match[1] if match.re.groups else match[0]) or ""))
        except ValueError:
            continue
    return ""


def _bound(said: Any) -> str:
    """The address in a `bindaddress`, which is one, or a pair with a port; "" for none."""
    host = said[0] if isinstance(said, (tuple, list)) and said else said
    return _plain(str(host)) if host else ""


def _host(proxy: str) -> str:
    try:
        return _plain(urlsplit(proxy if "://" in proxy else f"//{proxy}").hostname or "") or UNKNOWN
    except ValueError:
        return UNKNOWN


def _plain(host: str) -> str:
    """One spelling for one address."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()


def _fetch(url: str) -> str:
    from http.client import HTTPException  # few processes look their address up
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=TIMEOUT) as answer:
            data: bytes = answer.read(LOOKED_AT)
    except HTTPException as error:
        raise OSError(str(error)) from None
    return data.decode("utf-8", "replace")
