"""An HTTP request to a node as a value, so that no HTTP library decides what is sent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scrapyd_dist.scrapyd.reply import Reply

T = TypeVar("T")

#: Timeout in seconds of a call that a node answers at once, unless it is reading an egg.
TIMEOUT = 15.0
#: Timeout in seconds of a call that makes the node run `scrapy list` (listspiders, the first schedule of a version).
SLOW_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A file of a multipart form."""

    name: str
    filename: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """A request to an endpoint or file of a node, and the function that reads its reply."""

    #: relative to the node's base, already quoted
    path: str
    read: Callable[[Reply], T] = field(repr=False)
    method: str = "GET"
    params: tuple[tuple[str, str], ...] = ()
    #: form fields of a POST; names may repeat
    data: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    upload: Upload | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: whether sending it twice has the same effect as sending it once
    idempotent: bool = True
    #: default timeout in seconds for the whole reply
    timeout: float = TIMEOUT
    #: first byte of a raw file to fetch, or None for any
    start: int | None = None
    #: maximum bytes of a raw file to fetch, or None for all
    limit: int | None = None

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.params)}" if self.params else self.path

    def body(self) -> tuple[str | None, bytes | None]:
        """Return content type and body of the request; (None, None) for a GET."""
        if self.upload is not None:
            return _multipart(self.data, self.upload)
        if self.method == "POST":
            return "application/x-www-form-urlencoded", urlencode(self.data).encode("ascii")
        return None, None


def _multipart(data: Iterable[tuple[str, str]], upload: Upload) -> tuple[str, bytes]:
    # The boundary is the hash of the content, so it does not occur in it.
    boundary = hashlib.sha256(upload.content).hexdigest()
    parts = [_part(boundary, f'name="{name}"', value.encode()) for name, value in data]
    kind = f'name="{upload.name}"; filename="{upload.filename}"\r\nContent-Type: application/octet-stream'
    parts.append(_part(boundary, kind, upload.content))
    return f"multipart/form-data; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode("ascii")])


def _part(boundary: str, disposition: str, content: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return b"".join([head.encode("ascii"), content, b"\r\n"])
