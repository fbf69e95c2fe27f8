"""The demo site's memory: each request with its sender and time; readable while it serves, and written to a file."""

from __future__ import annotations

import json
import time
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Hit(NamedTuple):
    """One request, as it came: kept raw, because parsing it can wait until it is read."""

    #: time.monotonic() of its arrival, in seconds
    time: float
    #: method and target (path with query), as in the request line
    method: str
    target: str
    #: the client's address and port, which tells connections apart
    address: str
    port: int
    #: the headers, as bytes, without the request line
    head: bytes
    body: bytes

    def headers(self) -> dict[str, str]:
        """Header name in lower case -> value."""
        return parse_headers(self.head)

    def row(self, *, with_headers: bool) -> dict[str, Any]:
        """The hit as the log shows it."""
        headers = self.headers()
        shown: dict[str, Any] = (
            {"headers": headers} if with_headers else {"headers_sha256": _sha(self.head)}
        )
        return {
            "time": self.time,
            "host": headers.get("host", ""),
            "method": self.method,
            "target": self.target,
            "address": self.address,
            "port": self.port,
            "body_sha256": _sha(self.body) if self.body else None,
            **shown,
        }


def parse_headers(head: bytes) -> dict[str, str]:
    """Raw header lines -> name in lower case -> value (of a repeated header the last)."""
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n") if line)
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _sha(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


class Log:
    """All hits since the start or the last `clear`.

    Args:
        path: a file that gets one JSON line per hit, or None.
        with_headers: show all headers instead of a hash of them.
    """

    def __init__(self, path: Path | None = None, *, with_headers: bool = False) -> None:
        self._hits: list[Hit] = []
        self._visits: Counter[str] = Counter()
        self._written = 0
        self._with_headers = with_headers
        self._file = path.open("a", encoding="utf-8") if path else None

    def add(self, method: str, target: str, peer: tuple[str, int], head: bytes, body: bytes) -> Hit:
        """Keep one request; `peer` is the client's address and port."""
        hit = Hit(time.monotonic(), method, target, *peer, head, body)
        self._hits.append(hit)
        return hit

    def visit(self, path: str) -> int:
        """Count a visit of a page that behaves, and tell which one it is (from 1)."""
        self._visits[path] += 1
        return self._visits[path]

    def counts(self) -> dict[str, int]:
        """Target (path with query) -> how often it was asked for."""
        return dict(Counter(hit.target for hit in self._hits))

    def lines(self) -> str:
        """The whole log, one JSON object per line."""
        return "".join(
            json.dumps(hit.row(with_headers=self._with_headers)) + "\n" for hit in self._hits
        )

    def flush(self) -> None:
        """Write what is not yet in the file."""
        if self._file:
            fresh = self._hits[self._written :]
            self._file.write(
                "".join(
                    json.dumps(hit.row(with_headers=self._with_headers)) + "\n" for hit in fresh
                )
            )
            self._file.flush()
            self._written = len(self._hits)

    def clear(self) -> None:
        """Forget all hits and visits; the file keeps what it has."""
        self.flush()
        self._hits.clear()
        self._visits.clear()
        self._written = 0

    def close(self) -> None:
        """Write the rest and close the file."""
        self.flush()
        if self._file:
            self._file.close()
