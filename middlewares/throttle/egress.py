"""The address from which a request leaves for its site, as the site sees it; looked up without holding anything up.

The rule it keeps: an address that is not known is called `unknown`, and all machines that do not know theirs share the
budget of that name. Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import logging
import re
import threading
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from scrapy import signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler

    from .throttle_options import ThrottleOptions

logger = logging.getLogger(__name__)

UNKNOWN = "unknown"
#: seconds for one question to the page that tells the address
TIMEOUT = 5.0
#: bytes of that page that are looked at
LOOKED_AT = 65536


class Egress:
    """Tells of each request where it leaves from.

    Args:
        options: of the throttle.
        crawler: whose requests they are.
        fetch: gets the text of a page, or raises an OSError or a ValueError.

    Attributes:
        settled: set once the first question has an answer or has failed; nothing needs to wait for longer than that.
    """

    def __init__(self, options: ThrottleOptions, crawler: Crawler, fetch: Callable[[str], str] | None = None) -> None:
        self._options = options
        self._bound = _bound(crawler.settings.get("DOWNLOAD_BIND_ADDRESS"))
        self._fetch = fetch or _fetch
        self._public = UNKNOWN
        self._warned = ""
        self._closed = threading.Event()
        self.settled = threading.Event()
        if options.per_ip and urlsplit(options.public_ip).scheme:
            threading.Thread(target=self._keep_asking, name="sdist-public-ip", daemon=True).start()
            crawler.signals.connect(self._close, signals.spider_closed)
        else:
            self._public = options.public_ip or UNKNOWN
            self.settled.set()

    def own(self, request: Request) -> str:
        """The address that a request does not share with all others of this process: its proxy's, or one of its own.

        Returns:
            "" where it leaves as they do, and where addresses make no difference.
        """
        if not self._options.per_ip:
            return ""
        meta = request.meta
        if meta.get("proxy") and not meta.get("_scheme_proxy"):  # Scrapy's mark of a proxy that the environment names
            return _host(str(meta["proxy"]))
        return _bound(meta.get("bindaddress"))

    @property
    def machine(self) -> str:
        """The address of all other requests, as far as it is known now."""
        return self._bound or self._public

    def address(self, request: Request) -> str:
        """Where a request leaves from; "" where addresses make no difference. Never waits."""
        return (self.own(request) or self.machine) if self._options.per_ip else ""

    def _keep_asking(self) -> None:
        while not self._closed.is_set():
            self._ask()
            self.settled.set()
            self._closed.wait(self._options.public_ip_refresh)

    def _ask(self) -> None:
        place = urlsplit(self._options.public_ip).hostname
        try:
            found = address_in(self._fetch(self._options.public_ip), self._options.public_ip_regex)
        except (OSError, ValueError) as error:  # HTTPException is neither, and is made one by `_fetch`
            self._warn(f"{place} does not tell the address of this machine ({error})")
            return
        if not found:
            self._warn(f"what {place} says has no address in it")
            return
        self._public, self._warned = found, ""

    def _warn(self, what: str) -> None:
        if what != self._warned:
            self._warned = what
            logger.warning("%s; until it does, its requests are counted as those of %s.", what, self._public)

    def _close(self) -> None:
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
    from http.client import HTTPException

    try:
        with urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - http and https only, as the options see to
            data: bytes = answer.read(LOOKED_AT)
    except HTTPException as error:
        raise OSError(str(error)) from None
    return data.decode("utf-8", "replace")
