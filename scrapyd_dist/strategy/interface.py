"""Defines a crawling strategy: a class that decides what a crawl requests next, in which order.

Its methods have the names, arguments and moments of Frontera's `BaseCrawlingStrategy`; where that
has bytes, text is `str`.
"""

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol

from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.strategy.links import LINK_META, PAGE, READ, States

#: keys of `Request.meta` that speak to the strategy or the manager, and do not travel to the worker
OWN_META = frozenset({"state", "depth", "slot", "crawl_at", "expires", READ, LINK_META})
#: fields of a value that are left out when they are empty
_OPTIONAL = frozenset({"headers", "cookies", "meta", "body"})


class Meta(dict[str, Any]):
    """The meta of a request; names may be bytes, as in Frontera's strategies: `meta[b"state"]`."""

    def __getitem__(self, name: str | bytes) -> Any:
        return super().__getitem__(_text(name))

    def __setitem__(self, name: str | bytes, value: Any) -> None:
        super().__setitem__(_text(name), value)

    def __delitem__(self, name: str | bytes) -> None:
        super().__delitem__(_text(name))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(_text(name) if isinstance(name, bytes) else name)

    def get(self, name: str | bytes, default: Any = None) -> Any:
        """Return a value, as that of a dict."""
        return super().get(_text(name), default)

    def pop(self, name: str | bytes, *default: Any) -> Any:
        """Remove and return a value, as that of a dict."""
        return super().pop(_text(name), *default)

    def setdefault(self, name: str | bytes, default: Any = None) -> Any:
        """Return a value, which is the default if there was none, as that of a dict."""
        return super().setdefault(_text(name), default)

    def update(self, *others: Any, **names: Any) -> None:
        """Set several values, as that of a dict."""
        for name, value in dict(*others, **names).items():
            self[name] = value


class Request:
    """A request as a strategy sees it.

    `meta` has `state` (one of `States`; missing until it was looked up), `depth` (links from a
    seed) and what the spider or the strategy put there, which arrives in `response.meta` of the
    callback. `schedule` reads from it, too: `crawl_at` and `expires` (seconds since the epoch),
    `slot`, `depth`, and `read`: "body" sends the page's text to `page_crawled`, "sitemap" the links
    of a sitemap to `links_extracted`, and the spider's callback has neither.
    """

    # Of a request that a worker reported, `headers`, `cookies` and `body` are in `__dict__` only
    # once they were used or set: most links are passed on with none of them.

    __slots__ = ("__dict__", "_hidden", "_known", "_site", "_value", "meta", "method", "url")

    def __init__(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, Any] | None = None,
        cookies: Any = None,
        meta: Mapping[Any, Any] | None = None,
        body: str | bytes = "",
    ) -> None:
        self.url = _text(url)
        self.method = _text(method)
        self.headers = dict(headers or {})
        self.cookies = cookies or {}
        self.meta = Meta()
        self.meta.update(meta or {})
        self.body = _text(body)
        self._value: RequestValue = {}  # as the worker sent it; empty for a new request
        self._site = ("", "")  # the URL for which it was computed, and its site
        self._hidden: dict[str, Any] = {}  # the spider's own meta under names of `OWN_META`
        self._known = b""  # the fingerprint of `_value`

    @classmethod
    def from_value(cls, value: RequestValue, fingerprint: bytes = b"") -> "Request":
        """Return the request that a worker sent."""
        self = cls.__new__(cls)
        self.url = value["url"]
        self.method = value.get("method", "GET")
        meta = value.get("meta", {})
        self.meta = Meta(meta.get("$dict", meta))
        # A spider's own meta may have these names as well: it is put back before the request
        # travels on.
        self._hidden = {name: self.meta.pop(name) for name in OWN_META & self.meta.keys()}
        self._value = value
        self._site = ("", "")
        self._known = fingerprint
        link = self._hidden.pop(LINK_META, None)
        if isinstance(link, dict) and link.get(READ, PAGE) != PAGE:
            self.meta[READ] = link[READ]
        return self

    @cached_property
    def headers(self) -> dict[str, Any]:
        """Header names -> values."""
        return dict(self._value.get("headers", {}))

    @cached_property
    def cookies(self) -> Any:
        """Cookies as Scrapy has them: names -> values, or a list of objects."""
        return self._value.get("cookies", {})

    @cached_property
    def body(self) -> str:
        """The body as text."""
        body = self._value.get("body", "")
        if isinstance(body, dict):
            raw = base64.b64decode(body.get("$bytes", ""))
            return raw.decode(self._value.get("encoding", "utf-8"), "replace")
        return str(body)

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint by which the request is known; empty when it was not calculated yet."""
        value = self._value
        if value.get("url") != self.url or value.get("method", "GET") != self.method:
            return b""
        return b"" if "body" in vars(self) else self._known

    @property
    def site(self) -> str:
        """The registered domain, such as `example.co.uk`.

        It is the key of `domains`, and decides the partition.
        """
        if self._site[0] != self.url:
            self._site = (self.url, site_of(self.url))
        return self._site[1]

    @property
    def is_plain(self) -> bool:
        """Whether it has nothing but what a worker sent."""
        return bool(self._value) and not vars(self) and self.meta.keys() <= OWN_META

    def to_value(self) -> RequestValue:
        """Return the request as it travels: without what only speaks to the strategy."""
        value = {**self._value, "url": self.url, "method": self.method}
        if self.method == "GET":
            del value["method"]
        value["meta"] = self._collect_meta()
        if vars(self):
            self._add_fields(value)
        return {name: item for name, item in value.items() if item or name not in _OPTIONAL}

    def _collect_meta(self) -> dict[str, Any]:
        own = {name: item for name, item in self.meta.items() if name not in OWN_META}
        meta = {**self._hidden, **own}
        if self.meta.get(READ, PAGE) != PAGE:
            meta[LINK_META] = {READ: self.meta[READ]}
        # The codec wraps a dict with keys that begin with $.
        return {"$dict": meta} if any(name.startswith("$") for name in meta) else meta

    def _add_fields(self, value: RequestValue) -> None:
        """Add those of headers, cookies and body that were used or set; the others are there."""
        fields = vars(self)
        if "headers" in fields:
            value["headers"] = {_text(name): _texts(item) for name, item in self.headers.items()}
        if "cookies" in fields:
            value["cookies"] = self.cookies
        if "body" not in fields:
            return
        body_before = Request.from_value(self._value).body if self._value else ""
        if self.body != body_before:
            raw = self.body.encode(value.get("encoding", "utf-8"))
            value["body"] = {"$bytes": base64.b64encode(raw).decode()} if raw else ""

    def __repr__(self) -> str:
        return f"<{self.method} {self.url} {dict(self.meta)}>"


class Response:
    """A page that has come, as a strategy sees it.

    It has no body, unless the request had `meta["read"] = "body"`.
    """

    __slots__ = ("body", "digest", "request", "status_code", "url")

    def __init__(
        self,
        url: str,
        status_code: int = 200,
        body: str | None = None,
        request: Request | None = None,
        digest: str = "",
    ) -> None:
        self.url = url  #: after redirects
        self.status_code = status_code
        self.body = body
        self.digest = digest  #: the same as long as the page stays the same
        self.request = request or Request(url)

    @property
    def meta(self) -> Meta:
        """The meta of the request."""
        return self.request.meta

    def __repr__(self) -> str:
        return f"<{self.status_code} {self.url}>"


class DomainMapping(Protocol):
    """Metadata of sites: a JSON object for each, empty at first, and kept when it is changed."""

    def __getitem__(self, site: str) -> dict[str, Any]: ...
    def __setitem__(self, site: str, metadata: dict[str, Any]) -> None: ...
    def __delitem__(self, site: str) -> None: ...
    def __contains__(self, site: str) -> bool: ...


class StrategyContext(Protocol):
    """What the manager does for a strategy."""

    @property
    def domains(self) -> DomainMapping:
        """Metadata of sites."""
        ...

    def schedule(self, request: Request, score: float, *, dont_queue: bool) -> None:
        """Put a request into the queue."""

    def refresh_states(self, requests: Iterable[Request]) -> None:
        """Set the states of requests to what they are now."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        ...


class CrawlingStrategy(ABC):
    """Decides what a crawl requests next, in which order. Its methods are called in one thread.

    A round of the manager handles some hundred events and keeps all that follows from them in one
    step. When that step fails, or the process is killed, the events are handled again by the same
    or by another object; so what has to be exact belongs into `domains`, which is kept in that
    step, and not into attributes. When a handler raises, nothing of what it did is kept: its event
    becomes a dead letter (`sdist strategy replay`), and the others go on.
    """

    context: StrategyContext  #: set by the manager

    @classmethod
    def from_crawler(cls, crawler: Any, **arguments: str) -> "CrawlingStrategy":  # noqa: ARG003 - for strategies that need it
        """Make the strategy, once in each process.

        The arguments are those of `-a NAME=VALUE`, as text.

        `crawler` is the Scrapy crawler of the process, with the project's `settings`.
        """
        return cls(**arguments)

    @abstractmethod
    def read_seeds(self, stream: Iterable[str] | None) -> None:
        """Schedule the first requests. Called once for each source of seeds, before any event.

        `stream` has the lines of `--seeds`; None without it. It may be endless: what was scheduled
        is kept in steps of a thousand, so memory stays flat; so ask for a `domains[site]` again
        after each `schedule`. A seed that the crawl knows already is not requested again.
        """

    @abstractmethod
    def page_crawled(self, response: Response) -> None:
        """Handle a page that has come with any status. Called once for each.

        Its state is in `response.meta["state"]`; it becomes CRAWLED unless the request is scheduled
        again, or another state is set here.
        """

    def filter_extracted_links(self, request: Request, links: list[Request]) -> Iterable[Request]:  # noqa: ARG002 - for strategies that need it
        """Return the links that are worth a look-up of their states; all by default.

        Called for the links of each page, by partition of their sites, so for one page it may be
        called more than once. They have no state yet. Costs no call to the store; each link
        returned is one key of the round's look-up.
        """
        return links

    @abstractmethod
    def links_extracted(self, request: Request, links: list[Request]) -> None:
        """Schedule links of a page that are worth it.

        Called with what `filter_extracted_links` returned, if any. Each link has its state, as of
        now, in `meta["state"]`, and its depth. Costs no call to the store.
        """

    def request_error(self, request: Request, error: str) -> None:  # noqa: ARG002 - for strategies that need it
        """Handle a request that gave no page, or whose callback raised.

        The state becomes ERROR by default. `error` is the name of the exception's class, such as
        `DNSLookupError`, or some words. Schedule the request to have it tried again; what Scrapy
        tries again by itself is over by then.
        """
        request.meta["state"] = States.ERROR

    def finished(self) -> bool:
        """Return whether the crawl has reached its goal; called after each round.

        From True on this process takes nothing more from the queue. The crawl ends when all
        processes say so: what is in batches then is still crawled, the queue is left as it is.
        False by default: the crawl ends when nothing is left.
        """
        return False

    def close(self) -> None:  # noqa: B027 - most strategies open nothing
        """Release what the strategy has opened.

        Called once, when its process ends and no round is under way.
        """

    # what the manager provides

    @property
    def domains(self) -> DomainMapping:
        """Metadata of sites: `self.domains["example.com"]["pages"] = 1`. Kept in the round's step.

        Any may be read. Changed may be those of the sites that a handler is called with: of the
        page in `page_crawled` and `request_error`, of the links in `links_extracted`. The first
        look at a site costs a look-up.
        """
        return self.context.domains

    def schedule(self, request: Request, score: float = 1.0, dont_queue: bool = False) -> None:
        """Put a request into the queue: of a site, the highest score is requested first.

        A score is from 0.0 to 1.0. The state is QUEUED then. A request that is queued already only
        gets the new score, and the new `crawl_at`; with `dont_queue` the score only, and a link
        that is in no queue is put in none. A request without a state, which is one of
        `create_request` that was not looked up, is left alone when the crawl knows it already.
        Costs no call to the store.

        Raises:
            ValueError: the score is none, or the request cannot travel.
        """
        self.context.schedule(request, score, dont_queue=dont_queue)

    def create_request(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, Any] | None = None,
        cookies: Any = None,
        meta: Mapping[str, Any] | None = None,
        body: str = "",
    ) -> Request:
        """Make a request, for any site.

        It has no state until `refresh_states`, and depth 0 unless `meta` says so.
        """
        return Request(url, method, headers, cookies, meta, body)

    def refresh_states(self, requests: Request | Iterable[Request]) -> None:
        """Set the states of a request, or of several, to what they are now.

        Costs one call to the store for all of them.
        """
        if isinstance(requests, Request):
            requests = [requests]
        self.context.refresh_states(requests)

    def now(self) -> float:
        """Return the seconds since the epoch, by the clock of the manager."""
        return self.context.now()


def _text(item: str | bytes) -> str:
    return item.decode("latin-1") if isinstance(item, bytes) else item


def _texts(item: Any) -> list[str]:
    """Return the values of a header, which may be one."""
    if isinstance(item, (list, tuple)):
        return [_text(value) for value in item]
    return [_text(item)]
