"""The cookies of a session: those that Scrapy would send with a request from its jar travel with it.

Part of the worker half: imports Scrapy and the standard library only.
"""

from collections.abc import Iterator
from http.cookiejar import Cookie
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.http.cookies import CookieJar, WrappedRequest


def session_cookies(crawler: Crawler, request: Request) -> list[dict[str, Any]]:
    """The cookies that this process has received and would send with the request, as `Request.cookies` has them."""
    if request.meta.get("dont_merge_cookies"):
        return []
    middleware = crawler.get_downloader_middleware(CookiesMiddleware)
    jar = None if middleware is None else middleware.jars.get(request.meta.get("cookiejar"))
    if jar is None or not jar._cookies:
        return []
    return [_fields(cookie) for cookie in _sent(jar, request)]


def _sent(jar: CookieJar, request: Request) -> Iterator[Cookie]:
    """The cookies of the jar that go into the header of a request that has none of its own."""
    trial = Request(request.url)
    jar.add_cookie_header(trial)
    header = (trial.headers.get("Cookie") or b"").decode("utf-8", "replace")
    pairs = set(header.split("; "))
    asking: Any = WrappedRequest(trial)
    for cookie in jar.jar:
        is_in_header = f"{cookie.name}={cookie.value}" in pairs
        if (
            is_in_header
            and jar.policy.path_return_ok(cookie.path, asking)
            and jar.policy.return_ok(cookie, asking)
        ):
            yield cookie


def _fields(cookie: Cookie) -> dict[str, Any]:
    fields = {
        "name": cookie.name,
        "value": cookie.value,
        "path": cookie.path,
        "secure": cookie.secure,
    }
    # One that names no domain is for its host alone, and says so by naming none.
    return {**fields, "domain": cookie.domain} if cookie.domain_specified else fields
