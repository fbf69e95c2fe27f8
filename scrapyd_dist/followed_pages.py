"""Tells which pages a batch has led to, in a few bytes each, so that batches can be compared.

Part of the worker half: it imports the standard library only.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any

#: bytes of a page's hash
HASH = 8
#: maximum number of pages that a report tells of: those with the lowest hashes, which are the same
#: pages in every batch
MOST = 2_000
#: maximum number of pages of which it also has the address, to name one
MOST_URLS = 5
#: maximum number of characters of such an address
URL_LENGTH = 300
#: pages of which an attempt keeps the addresses: some may turn out to count no more
_KEPT = 2 * MOST
#: bytes of Scrapy's own fingerprints; others may begin alike
_FINGERPRINT = 20


def hash_page(fingerprint: bytes) -> bytes:
    """Return the hash of the page that a request with this fingerprint asks for."""
    if len(fingerprint) != _FINGERPRINT:
        fingerprint = hashlib.sha1(fingerprint, usedforsecurity=False).digest()
    return fingerprint[:HASH]


@dataclass(frozen=True, kw_only=True)
class FollowedPages:
    """Holds the pages with items that are none of a batch's own requests."""

    hashes: Sequence[bytes]  #: in order
    urls: Sequence[str] = ()  #: addresses of the first of them
    count: int  #: how many there are, with those that are left out

    @classmethod
    def from_addresses(cls, found: Mapping[bytes, str]) -> FollowedPages:
        """Return the pages of a mapping from hash to address."""
        hashes = sorted(found)[:MOST]
        urls = [found[page][:URL_LENGTH] for page in hashes[:MOST_URLS]]
        return cls(hashes=hashes, urls=urls, count=len(found))

    @classmethod
    def read_document(cls, document: Mapping[str, Any]) -> FollowedPages:
        """Read what `document` has written.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        joined = b64decode(document["hashes"], validate=True)
        if len(joined) % HASH or len(joined) > HASH * MOST:
            raise ValueError("hashes of pages that are none")
        hashes = [joined[start : start + HASH] for start in range(0, len(joined), HASH)]
        urls = [str(url) for url in document["urls"]][: min(MOST_URLS, len(hashes))]
        return cls(hashes=hashes, urls=urls, count=max(len(hashes), int(document["count"])))

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of it in reports."""
        joined = b64encode(b"".join(self.hashes)).decode()
        return {"count": self.count, "hashes": joined, "urls": list(self.urls)}


def _hash_of(entry: tuple[tuple[bytes, int | None], str]) -> bytes:
    (page, _), _ = entry
    return page


class LowestPages:
    """Collects the pages that the requests of an attempt lead to; of many, the lowest hashes.

    A job may follow millions of links in one batch.
    """

    def __init__(self) -> None:
        #: hash, and which request has led to it -> its address
        self._urls: dict[tuple[bytes, int | None], str] = {}
        self._counts = Counter[int | None]()  #: request -> pages that it has led to
        self._highest: bytes | None = None  #: higher hashes are left out; None: none is yet

    def add(self, page: bytes, url: str, source: int | None) -> None:
        """Add a page by its hash, to which this request has led."""
        self._counts[source] += 1
        if self._highest is not None and page > self._highest:
            return
        self._urls[page, source] = url[:URL_LENGTH]
        if len(self._urls) > 2 * _KEPT:
            lowest = nsmallest(_KEPT, self._urls.items(), key=_hash_of)
            self._urls = dict(lowest)
            self._highest = _hash_of(lowest[-1])

    def without(self, sources: Container[int | None], pages: Container[bytes]) -> FollowedPages:
        """Return the pages that are none of these, and to which others than these have led."""
        found = {}
        left_out = 0
        for (page, source), url in self._urls.items():
            if source in sources:
                continue
            if page in pages:
                left_out += 1
            else:
                found[page] = url
        followed = FollowedPages.from_addresses(found)
        if self._highest is None:
            return followed
        counted = sum(self._counts[source] for source in self._counts if source not in sources)
        return replace(followed, count=max(len(found), counted - left_out))
