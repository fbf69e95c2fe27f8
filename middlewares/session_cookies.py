"""Lets the cookies of a session travel: those that Scrapy would send with a request from its jar.

Part of the worker half: imports Scrapy and the standard library only.
"""

from collections.abc import Iterator
from functools import cached_property
from http.cookiejar import Cookie
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.http.cookies import CookieJar, WrappedRequest


class SessionCookies:
    """Finds the cookies that this process has received and would send with a request.

    Ask once the crawler has its engine.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @cached_property
    def _middleware(self) -> CookiesMiddleware | None:
        return self._crawler.get_downloader_middleware(CookiesMiddleware)

    def for_request(self, request: Request) -> list[dict[str, Any]]:
        """Return them in the form of `Request.cookies`."""
        if self._middleware is None or request.meta.get("dont_merge_cookies"):
            return []
        jar = self._middleware.jars.get(request.meta.get("cookiejar"))
        # Scrapy's own way into the jar.
        if jar is None or not jar._cookies:  # noqa: SLF001
            return []
        return [_fields_of(cookie) for cookie in _cookies_to_send(jar, request)]


def _cookies_to_send(jar: CookieJar, request: Request) -> Iterator[Cookie]:
    """Yield the cookies of the jar that go into the header of a request with none of its own."""
    trial = Request(request.url)
    jar.add_cookie_header(trial)
    header = (trial.headers.get("Cookie") or b"").decode("utf-8", "replace")
    pairs = set(header.split("; "))
    asking: Any = WrappedRequest(trial)
    for cookie in jar.jar:
        if f"{cookie.name}={cookie.value}" not in pairs:
            continue
        if jar.policy.path_return_ok(cookie.path, asking) and jar.policy.return_ok(cookie, asking):
            yield cookie


def _fields_of(cookie: Cookie) -> dict[str, Any]:
    fields = {
        "name": cookie.name,
        "value": cookie.value,
        "path": cookie.path,
        "secure": cookie.secure,
    }
    # One that names no domain is for its host alone, and says so by naming none.
    if cookie.domain_specified:
        fields["domain"] = cookie.domain
    return fields
