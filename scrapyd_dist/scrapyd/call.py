"""One request to one page of a node, as a value. Rule: all that is sent is decided here, none of it by a library."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scrapyd_dist.scrapyd.reply import Reply

T = TypeVar("T")

#: Seconds for a call that a healthy node answers at once, though it may be busy reading an egg.
TIMEOUT = 15.0
#: Seconds for a call that makes the node run `scrapy list` first (listspiders, the first schedule of a version).
SLOW_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One file of a multipart form."""

    name: str
    filename: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One request to one page of a node, and how its reply is read."""

    #: relative to the node's base, already quoted
    path: str
    read: Callable[[Reply], T] = field(repr=False)
    method: str = "GET"
    params: tuple[tuple[str, str], ...] = ()
    #: form fields of a POST; a name may come more than once
    data: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    upload: Upload | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: whether sending it twice does no more than sending it once
    idempotent: bool = True
    #: seconds within which the whole reply should be here, when the sender is told nothing else
    timeout: float = TIMEOUT
    #: first byte wanted of a raw file, None = wherever it begins
    start: int | None = None
    #: how many bytes of a raw file from there on, None = all
    limit: int | None = None

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.params)}" if self.params else self.path

    def body(self) -> tuple[str | None, bytes | None]:
        """Content type and bytes of the request; None and None for a GET."""
        if self.upload is not None:
            return _multipart(self.data, self.upload)
        if self.method == "POST":
            return "application/x-www-form-urlencoded", urlencode(self.data).encode("ascii")
        return None, None


def _multipart(data: Iterable[tuple[str, str]], upload: Upload) -> tuple[str, bytes]:
    # The boundary cannot occur in the content that it is the hash of, or we have found more than a bug.
    boundary = hashlib.sha256(upload.content).hexdigest()
    parts = [_part(boundary, f'name="{name}"', value.encode()) for name, value in data]
    kind = f'name="{upload.name}"; filename="{upload.filename}"\r\nContent-Type: application/octet-stream'
    parts.append(_part(boundary, kind, upload.content))
    return f"multipart/form-data; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode("ascii")])


def _part(boundary: str, disposition: str, content: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return b"".join([head.encode("ascii"), content, b"\r\n"])
