"""Makes a leasing worker's events for a crawling strategy: of each page, and of its links.

The rule it keeps: each request of a batch that is done leads to one event, CRAWLED or ERROR, but
for those that are put off, which are made again in another batch. Part of the worker half: imports
Scrapy and the standard library only.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urljoin, urlsplit

from scrapy import Request
from scrapy.http import Response, TextResponse
from scrapy.utils.gz import gunzip, gzip_magic_number
from scrapy.utils.sitemap import Sitemap

from scrapyd_dist.batches import PUT_OFF
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.frontier.slots import HOSTS, site_of
from scrapyd_dist.payload import REPLACES, RequestValue
from scrapyd_dist.strategy.links import (
    EVENT_LINKS,
    EXPIRED,
    LINK_META,
    PAGE,
    PRIORITY,
    READ,
    SITEMAP,
    EventKind,
    FoundLink,
    LinkEvent,
    link_meta,
    partition_of,
    priority_of,
    with_link_meta,
)

from ..classifier import Disposition, FoundRequests
from ..codec import plain_request
from ..slot_routing import Addressee, Undeliverable
from .work_unit import BatchUnit, RequestLedger, UnitMark, mark_of

logger = logging.getLogger(__name__)
#: bytes of text in one event
BODY_BYTES = 512 << 10
#: maximum bytes of one sitemap, by the protocol
SITEMAP_BYTES = 50 << 20
#: maximum links of one sitemap, by the protocol
SITEMAP_LINKS = 50_000
#: links of a sitemap between two turns of the event loop
TURN = 100
#: how Twisted calls, and Scrapy before 2.14, what newer ones have exceptions of their own for
_ERRORS = {
    "CannotResolveHostError": "DNSLookupError",
    "DownloadCancelledError": "CancelledError",
    "DownloadConnectionRefusedError": "ConnectionRefusedError",
    "DownloadFailedError": "ResponseFailed",
    "DownloadTimeoutError": "TimeoutError",
    "UnsupportedURLSchemeError": "SchemeNotSupported",
}


def error_name(error: BaseException) -> str:
    """Return the name of an exception's class, the same on every version of Scrapy."""
    name = type(error).__name__
    return _ERRORS.get(name, name)


class LinkRequest(NamedTuple):
    """What the strategy says of one request of a batch."""

    fingerprint: bytes
    priority: int = PRIORITY
    expires: float = 0.0  #: seconds since the epoch; 0: never
    read: str = PAGE

    @classmethod
    def from_value(
        cls, value: RequestValue, fingerprint: Callable[[RequestValue], bytes]
    ) -> "LinkRequest":
        """Return what a request's meta has; `fingerprint` is called where that has none."""
        meta = link_meta(value)
        known = meta.get("fingerprint")
        return cls(
            fingerprint=bytes.fromhex(known) if known else fingerprint(value),
            priority=priority_of(float(meta.get("score", 1.0))),
            expires=float(meta.get("expires") or 0.0),
            read=meta.get(READ) or PAGE,
        )


@dataclass(kw_only=True, eq=False)
class PageLinks(FoundRequests):
    """Keeps the links that the requests of one batch led to: of each request, each link once."""

    #: what would be crawled here would lead on and on, and the strategy would not know of it
    stay: str = "refuse"
    salt: str | None = None  #: the strategy alone decides what is requested again
    #: request of the batch -> its links by fingerprint
    _pages: dict[int | None, dict[bytes, FoundLink]] = field(default_factory=dict)
    #: the links of the request that is in work
    _page: dict[bytes, FoundLink] = field(default_factory=dict)
    #: those that no request of the batch led to, as a timer or an idle handler asked for them
    of_no_page: list[FoundLink] = field(default_factory=list)

    def keep(self, request: Request, source: int | None = None) -> Disposition:
        """Keep a link that the request `source` led to."""
        request.meta.pop(LINK_META, None)  # a spider has passed on the meta of its page
        disposition, found = self._sort_on_page(request, source)
        if found is not None:
            link = FoundLink(fingerprint=found.fingerprint, request=found.value, slot=found.slot)
            self._page[link.fingerprint] = link
            if source is None:
                self.of_no_page.append(link)
        return disposition

    def take_address(self, url: str, source: int | None, read: str) -> None:
        """Keep an address that a sitemap had.

        Its callback is the one that the project has for such.
        """
        _, found = self._sort_on_page(Request(url), source)
        if found is None:
            return
        value = {"url": found.value["url"]}
        if read != PAGE:
            value = with_link_meta(value, {READ: read})
        self._page[found.fingerprint] = FoundLink(
            fingerprint=found.fingerprint, slot=found.slot, request=value
        )

    def give_to(self, other: FoundRequests) -> bool:
        """Let another batch have all that was found; say whether that was anything."""
        assert isinstance(other, PageLinks)
        has_links = bool(self.of_no_page)
        other.of_no_page.extend(self.of_no_page)
        self.of_no_page.clear()
        return super().give_to(other) or has_links

    def forget_known(self) -> None:
        """Remember no more what was found before: it may be found again."""
        self._pages.clear()
        self._page = {}

    def links_of(self, source: int) -> Iterable[FoundLink]:
        """Return the links that a request of the batch led to."""
        return self._pages.get(source, {}).values()

    def _sort_on_page(
        self, request: Request, source: int | None
    ) -> tuple[Disposition, FrontierIntake | None]:
        """Sort a link that the request `source` led to, and warn of a new reason against it."""
        self._page = self._pages.setdefault(source, {})
        known = len(self.reasons)
        disposition, found = self._sort_from(request, source)
        if len(self.reasons) > known:
            logger.warning(
                "The link %s, and all like it, cannot go to the strategy: %s",
                request.url,
                [*self.reasons][-1],
            )
        return disposition, found

    def _is_known(self, fingerprint: bytes) -> Disposition | None:
        return Disposition.DUPLICATE if fingerprint in self._page else None

    def _addressee(self, request: Request, callback: str) -> Addressee | None:
        to = super()._addressee(request, callback)
        if to is not None:
            raise Undeliverable(
                f"it is for the spider {to.spider}, and all work of a crawl with a strategy is that"
                " of its own spider; give it to a frontier of its own"
            )
        return None


class PageNote(NamedTuple):
    """The answer to a request, as far as its event has it."""

    url: str
    status: int
    digest: str = ""


class LinkLedger(RequestLedger):
    """The account of a batch, with what the events of each request say."""

    def __init__(self, urls: list[str], *, again: bool = False) -> None:
        super().__init__(urls, again=again)
        self.notes: dict[int, PageNote] = {}  #: by request, as all of these
        self.bodies: dict[int, str] = {}  #: texts that are for the strategy itself
        self._errors: dict[int, str] = {}

    def page(self, index: int | None, response: Response) -> None:
        """Note a page that goes to a callback."""
        super().page(index, response)
        if index is not None:
            # SHA-1 is the fastest that there is.
            digest = hashlib.sha1(response.body, usedforsecurity=False).hexdigest()
            self.notes[index] = PageNote(response.url, response.status, digest)

    def missed(
        self, index: int | None, kind: str, reason: str, error: BaseException | None = None
    ) -> None:
        """Note that a request gave no result, with the error for its event."""
        super().missed(index, kind, reason)
        if index is None or index in self._errors:
            return
        self._errors[index] = reason if error is None else error_name(error)
        response = getattr(error, "response", None)
        if isinstance(response, Response):  # of an HttpError, which no callback sees
            self.notes[index] = PageNote(response.url, response.status)

    def reopen(self, mark: UnitMark) -> None:
        """Forget what was noted of a request, as it is made again."""
        super().reopen(mark)
        if mark.position is not None:
            self._errors.pop(mark.position, None)
            self.notes.pop(mark.position, None)
            self.bodies.pop(mark.position, None)

    def error(self, index: int) -> str | None:
        """Return the error of a request that gave no page, for its event.

        It is "" for one that gave a page, and None if it is put off.
        """
        outcome = self.page_outcome(index)
        if outcome is None:
            return ""
        kind, reason = outcome
        if kind == PUT_OFF:
            return None
        return self._errors.get(index, reason)


class StrategyBatch(BatchUnit):
    """A batch of links, made in the order of their scores, with events for each in the end."""

    ledger: LinkLedger
    finds: PageLinks
    _ledger_class: ClassVar[type[RequestLedger]] = LinkLedger

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._links = [LinkRequest.from_value(value, self._fingerprint) for value in self.values]

    def _fingerprint(self, value: RequestValue) -> bytes:
        """Return the project's own fingerprint, of a request that the strategy has not made."""
        fingerprinter = self.finds.crawler.request_fingerprinter
        assert fingerprinter is not None
        return fingerprinter.fingerprint(plain_request(value))

    # requests

    def unwanted(self, index: int) -> str:
        """Say why a request is not made any more; empty when it is."""
        expires = self._links[index].expires
        return EXPIRED if expires and expires <= time.time() else ""

    def made(self, request: Request, index: int) -> Request:
        """Return a request of the batch as Scrapy gets it."""
        link = self._links[index]
        request.priority = link.priority
        if link.read != PAGE:
            request.callback = self._read_sitemap if link.read == SITEMAP else self._read_body
            request.errback = None
            # A robots.txt cannot forbid itself (RFC 9309, 2.2.2).
            if urlsplit(request.url).path == "/robots.txt":
                request.meta["dont_obey_robotstxt"] = True
        return request

    def followed(self, request: Request, source: int | None) -> Request:
        """Return a request that has followed from the `source`, with a priority near that."""
        priority = PRIORITY if source is None else self._links[source].priority
        if request.priority < priority / 2:  # else it is a copy of its page's request
            request.priority += priority
        return request

    # pages that are for the strategy itself

    def _read_body(self, response: Response, **_: Any) -> None:
        mark = mark_of(response)
        if mark is not None and mark.position is not None:
            if isinstance(response, TextResponse):
                text = response.text
            else:
                text = response.body[:BODY_BYTES].decode("utf-8", "replace")
            self.ledger.bodies[mark.position] = _cut(text)

    async def _read_sitemap(self, response: Response, **_: Any) -> None:
        mark = mark_of(response)
        if mark is None:
            return
        try:
            await self._keep_addresses(response, mark.source)
        except Exception as error:  # noqa: BLE001 - whatever a site may send, it is no fault of the project's code
            logger.warning(
                "the sitemap %s cannot be read: %s: %s", response.url, type(error).__name__, error
            )
            self.ledger.missed(
                mark.position, "failed", f"it cannot be read as a sitemap: {error}", error
            )

    async def _keep_addresses(self, response: Response, source: int | None) -> None:
        """Keep all addresses of a sitemap, up to the limit of the protocol."""
        for number, (url, read) in enumerate(sitemap_links(response)):
            if number % TURN == 0:
                await asyncio.sleep(0)
            if number >= SITEMAP_LINKS:
                logger.warning(
                    "the sitemap %s has more than %d links; the rest is left", response.url, number
                )
                break
            try:
                self.finds.take_address(url, source, read)
            except ValueError as error:  # it is no address
                logger.debug("the sitemap %s has %r: %s", response.url, url, error)

    # events

    def events(self, *, is_good: bool = True) -> list[LinkEvent]:
        """Return the events of all requests, if the batch is good, and those of other links."""
        events: list[LinkEvent] = []
        if is_good:
            for index, value in enumerate(self.values):
                events.extend(self._events_of_request(index, value))
        events.extend(self._events_of_no_page())
        return events

    def _events_of_no_page(self) -> Iterator[LinkEvent]:
        """Yield the events of links that no page led to, as links of the last one that has ended.

        A strategy knows links by their page only.
        """
        links = self.finds.of_no_page
        if not links:
            return
        if not self.values:
            logger.warning(
                "%d links that no page led to cannot be told to the strategy: the batch that was"
                " to tell of them cannot be read",
                len(links),
            )
            self.finds.counts[Disposition.REFUSED.value] += len(links)
            return
        last = len(self.values) - 1
        for index in range(len(self.values)):
            if self.ledger.error(index) is not None:
                last = index
        yield from self._events_of_links(last, links)

    def _events_of_request(self, index: int, value: RequestValue) -> Iterator[LinkEvent]:
        """Yield the event of the page, then those of its links."""
        error = self.ledger.error(index)
        if error is None:
            return
        note = self._note_of(index)
        kind = EventKind.ERROR
        body = None
        if not error:
            kind = EventKind.CRAWLED
            body = self.ledger.bodies.get(index)
        yield LinkEvent(
            kind=kind,
            fingerprint=self._links[index].fingerprint,
            request=_without_replaces(value),
            url=note.url,
            partition=_partition(value["url"]),
            status=note.status,
            error=error,
            digest=note.digest,
            body=body,
        )
        yield from self._events_of_links(index, self.finds.links_of(index))

    def _note_of(self, index: int) -> PageNote:
        """Return the answer to a request; of one without any, where it has gone."""
        return self.ledger.notes.get(index) or PageNote(self.ledger.address(index), 0)

    def _events_of_links(self, index: int, found: Iterable[FoundLink]) -> Iterator[LinkEvent]:
        """Yield the events of links of a page, by partitions of their sites."""
        request = _without_replaces(self.values[index])
        note = self._note_of(index)
        parts: dict[int, list[FoundLink]] = {}
        for link in found:
            parts.setdefault(_partition(link.request["url"]), []).append(link)
        for partition, links in parts.items():
            for start in range(0, len(links), EVENT_LINKS):
                yield LinkEvent(
                    kind=EventKind.LINKS,
                    fingerprint=self._links[index].fingerprint,
                    request=request,
                    partition=partition,
                    url=note.url,
                    status=note.status,
                    links=links[start : start + EVENT_LINKS],
                )


def _without_replaces(value: RequestValue) -> RequestValue:
    """Return the request as the strategy has asked for it."""
    return {name: item for name, item in value.items() if name != REPLACES}


class NoSitemap(ValueError):
    """A page that was to be a sitemap is none."""


def sitemap_links(response: Response) -> Iterator[tuple[str, str]]:
    """Yield the addresses that a sitemap has, and what each is to be read as.

    Whatever it raises says that this is no sitemap, or none that can be read.
    """
    body = response.body
    if gzip_magic_number(response):
        body = gunzip(body, max_size=SITEMAP_BYTES)
    if not body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        yield from _plain_links(body)
        return
    sitemap = Sitemap(body)
    if sitemap.type not in {"urlset", "sitemapindex"}:
        raise NoSitemap(f"it is a <{sitemap.type}>")
    read = SITEMAP if sitemap.type == "sitemapindex" else PAGE
    for entry in sitemap:
        if entry.get("loc"):
            yield urljoin(response.url, entry["loc"].strip()), read


def _plain_links(body: bytes) -> Iterator[tuple[str, str]]:
    """Yield the addresses of a sitemap in plain text, which the protocol allows: one a line."""
    lines = [line.strip() for line in body.decode("utf-8", "replace").splitlines()]
    if not any(line.startswith(("http://", "https://")) for line in lines):
        raise NoSitemap("it has neither XML nor addresses")
    for line in lines:
        if line:
            yield line, PAGE


def _partition(url: str) -> int:
    return _partition_at("/".join(url.split("/", 3)[:3]))


@lru_cache(HOSTS)
def _partition_at(origin: str) -> int:
    return partition_of(site_of(origin))


def _cut(text: str) -> str:
    """Return as much of the text as an event may have."""
    if len(text) * 4 <= BODY_BYTES:
        return text
    return text.encode("utf-8", "replace")[:BODY_BYTES].decode("utf-8", "ignore")
