"""Reads the settings of the throttle, and says what a request is charged to.

That is an address, and a budget of pages. A setting of ours goes before the one of Scrapy Cluster
that means the same.
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

logger = logging.getLogger(__name__)
#: the setting that switches the throttle on or off
SWITCH = "DISTRIBUTED_THROTTLE"
_PREFIX = f"{SWITCH}_"
#: those that switch it on
ASKS = tuple(_PREFIX + name for name in ("HITS", "MAX_PAGES", "CONCURRENCY"))
#: what may be an IPv4 or IPv6 address; the first match that is one counts
ADDRESSES = r"[0-9a-fA-F.:]+"
#: request meta: the most pages of its domain, with this request; the name is Scrapy Cluster's
META = "domain_max_pages"
#: the name of an address that is not known: all such machines share its budget
UNKNOWN = "unknown"
#: seconds for one question to the page that has the address
TIMEOUT = 5.0
#: bytes of that page that are searched
LOOKED_AT = 65536


@dataclass(frozen=True, kw_only=True)
class ThrottleOptions:
    """Holds the settings of the throttle, as `docs/reference/settings.md` describes them."""

    on: bool = False
    #: no setting names the throttle: of all that follows, only the rules of the store hold
    heeds: bool = False
    limit: Limit | None = None  #: of a domain without a rule of its own
    #: whether the hits of a rule are spread evenly, where there is no `limit`
    moderated: bool = True
    per_spider: bool = False  #: each spider has a budget of its own
    per_ip: bool = False  #: each address that requests leave from has one
    public_ip: str = ""  #: an address, or the URL of a page that has it
    #: finds the address in that page; its first group, where it has one
    public_ip_regex: str = ADDRESSES
    public_ip_refresh: float = 60.0  #: seconds after which that page is asked again
    max_pages: int | None = None  #: of one domain, in one crawl
    #: requests under way at a domain at once, over the whole fleet
    concurrency: float | None = None
    #: seconds between two requests that a site's robots.txt or latency can ask for
    longest_delay: float = 60.0

    @property
    def may_hold(self) -> bool:
        """Tell whether requests may have to wait here."""
        return self.on or self.heeds

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> ThrottleOptions:
        """Read the options in these settings; where the throttle is off, nothing else is read.

        Raises:
            ConfigError: a value is not of its kind, or two do not go together.
        """
        reader = SettingReader(settings)
        switch = reader.value(SWITCH)
        is_on = switch
        if switch is None:
            is_on = any(map(reader.given, ASKS))
        if not is_on:
            return cls(heeds=switch is None)
        values = dict(reader.values_for(cls, _PREFIX))
        values["public_ip"] = _read_public_ip(reader)
        values["public_ip_regex"] = _read_regex(reader)
        values["on"] = True
        values["limit"] = _read_limit(reader)
        values["max_pages"] = values["max_pages"] or None
        return cls(**values)


def options_of(settings: BaseSettings) -> ThrottleOptions:
    """Return the options in these settings.

    Settings that make no sense are those of a throttle that is on, and that refuses to begin.
    """
    try:
        return ThrottleOptions.from_settings(settings)
    except ConfigError:
        return ThrottleOptions(on=True)


def waits_by_address(settings: BaseSettings) -> bool:
    """Tell whether requests wait by the addresses of their hosts."""
    # `get` would warn of that setting.
    return str(settings["CONCURRENT_REQUESTS_PER_IP"] or 0) != "0"


def options_in(settings: BaseSettings) -> dict[str, Any]:
    """Return all limits that are given, by our names; an address with a password is left out."""
    reader = SettingReader(settings)
    limits = {}
    for name in travelling(Travels.LIMITS):
        value = settings.get(reader.name(name))
        if value in (None, ""):
            continue
        has_password = SETTINGS[name].secret and "@" in urlsplit(str(value)).netloc
        if not has_password:
            limits[name] = value
    return limits


def _read_limit(reader: SettingReader) -> Limit | None:
    hits = reader.name(_PREFIX + "HITS")
    window = reader.name(_PREFIX + "WINDOW")
    if reader.given(hits):
        return Limit(**reader.values_for(Limit, _PREFIX))
    if reader.given(window):
        raise ConfigError(
            f"{window} is given without {hits}: a limit is so many hits in so many seconds."
        )
    return None


def _read_public_ip(reader: SettingReader) -> str:
    name = "DISTRIBUTED_THROTTLE_PUBLIC_IP"
    text = (reader.value(name) or "").strip()
    if not text or urlsplit(text).scheme in {"http", "https"}:
        return text
    try:
        return str(ip_address(text))
    except ValueError:
        raise ConfigError(
            f"{reader.name(name)} must be an address such as 203.0.113.7, or an http:// or https://"
            " URL that tells it."
        ) from None


def _read_regex(reader: SettingReader) -> str:
    name = "DISTRIBUTED_THROTTLE_PUBLIC_IP_REGEX"
    text = reader.value(name) or ADDRESSES
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"{reader.name(name)} is no regular expression: {error}.") from None
    return str(text)


class PageBudget:
    """Knows the budgets of pages for the requests of one process."""

    def __init__(self, options: ThrottleOptions, crawler: Crawler) -> None:
        self._crawler = crawler
        self._most = options.max_pages
        self._warned = False  #: whether the log has a warning of a wrong value in meta

    def pages_of(self, request: Request) -> int | None:
        """Return how many pages of its domain the crawl may have; None for no limit.

        Where the settings and the request both have a limit, the smaller one holds; None and 0 are
        none.
        """
        own = request.meta.get(META)
        if not own:
            return self._most
        if not isinstance(own, int) or own < 0:
            self._warn_once(own)
            return self._most
        if self._most is None:
            return own
        return min(own, self._most)

    def _warn_once(self, value: Any) -> None:
        if not self._warned:
            self._warned = True
            form = "which must be a whole number, 0 or more: it is not heeded there."
            logger.warning("A request has %r as its %s, %s", value, META, form)

    @cached_property
    def name(self) -> str:
        """Return the name under which pages are counted together.

        It is the crawl's unique home, or one of this process's own. The producer sets it
        (`charge_pages_to`), as it knows only after its checks which crawl it runs.
        """
        settings = self._crawler.settings
        job = Assignment.from_settings(settings)
        if job is not None:
            return job.home or job.crawl
        crawl = settings.get(FRONTIER if is_filler(settings) else "DISTRIBUTED_CRAWL")
        return str(crawl or f"{settings.get('BOT_NAME')}.{uuid4().hex}")


class Egress:
    """Knows the egress address of each request, as its site sees it.

    `fetch` gets the text of the page that has ours.
    """

    def __init__(
        self, options: ThrottleOptions, crawler: Crawler, fetch: Callable[[str], str] | None = None
    ) -> None:
        self._options = options
        self._bound = _bound_address(crawler.settings.get("DOWNLOAD_BIND_ADDRESS"))
        self._fetch = fetch or _fetch
        self._public = UNKNOWN
        self._warned = ""  #: the problem of which the log has a warning
        self._closed = threading.Event()
        #: the first lookup has ended, well or not: longer nothing needs to wait
        self.settled = threading.Event()
        if options.per_ip and urlsplit(options.public_ip).scheme:
            threading.Thread(target=self._keep_asking, name="sdist-public-ip", daemon=True).start()
            crawler.signals.connect(self.close, signals.spider_closed)
        else:
            self._public = options.public_ip or UNKNOWN
            self.settled.set()

    def own(self, request: Request) -> str:
        """Return the address that a request does not share with all others of this process.

        It is its proxy's, or one of its own; "" where it leaves as they do, and where addresses
        make no difference.
        """
        if not self._options.per_ip:
            return ""
        meta = request.meta
        # Scrapy marks a proxy that the environment names.
        if meta.get("proxy") and not meta.get("_scheme_proxy"):
            return _host_of(str(meta["proxy"]))
        return _bound_address(meta.get("bindaddress"))

    @property
    def machine(self) -> str:
        """Return the address of all other requests, as far as it is known now."""
        return self._bound or self._public

    def _keep_asking(self) -> None:
        while not self._closed.is_set():
            self._refresh()
            self.settled.set()
            self._closed.wait(self._options.public_ip_refresh)

    def _refresh(self) -> None:
        """Look the address up once; without an answer the one that is known stays."""
        place = urlsplit(self._options.public_ip).hostname
        found = ""
        problem = ""
        try:
            found = address_in(self._fetch(self._options.public_ip), self._options.public_ip_regex)
            if not found:
                problem = f"what {place} says has no address in it"
        except (OSError, ValueError) as error:  # `_fetch` makes an OSError of an HTTPException
            problem = f"{place} does not tell the address of this machine ({error})"
        if problem and problem != self._warned:
            logger.warning(
                "%s; until it does, its requests are counted as those of %s.", problem, self._public
            )
        self._public = found or self._public
        self._warned = problem

    def close(self) -> None:
        """Look the address up no more."""
        self._closed.set()


def address_in(text: str, pattern: str) -> str:
    """Return the first match of the pattern that is an address; "" without one.

    Of a pattern with groups, the first group counts.
    """
    for match in re.finditer(pattern, text):
        found = match[1] if match.re.groups else match[0]
        try:
            return str(ip_address(found or ""))
        except ValueError:
            continue
    return ""


def _bound_address(bind_address: Any) -> str:
    """Return the address in a `bindaddress`, which is one, or a pair with a port; "" for none."""
    host = bind_address
    if isinstance(bind_address, (tuple, list)) and bind_address:
        host = bind_address[0]
    if not host:
        return ""
    return _normalize(str(host))


def _host_of(proxy: str) -> str:
    url = proxy if "://" in proxy else f"//{proxy}"
    try:
        return _normalize(urlsplit(url).hostname or "") or UNKNOWN
    except ValueError:
        return UNKNOWN


def _normalize(host: str) -> str:
    """Return the one spelling of an address."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()


def _fetch(url: str) -> str:
    from http.client import HTTPException  # few processes look their address up
    from urllib.request import urlopen

    try:
        # The options see to it that it is http or https.
        with urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310
            data: bytes = answer.read(LOOKED_AT)
    except HTTPException as error:
        raise OSError(str(error)) from None
    return data.decode("utf-8", "replace")
