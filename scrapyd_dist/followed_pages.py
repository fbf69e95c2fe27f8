"""Tells which pages a batch has led to, in a few bytes each, so that batches can be compared.

Part of the worker half: it imports the standard library only.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
