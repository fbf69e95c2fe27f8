"""Calls that fetch pieces of raw files below a node's /logs/ by Range, without decoding them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from scrapyd_dist.errors import NotFound, NotJson
from scrapyd_dist.scrapyd.call import Call
from scrapyd_dist.scrapyd.reply import Reply, content_range, judge_raw

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a raw file. An empty body means that the file has not grown."""

    #: the bytes; empty if they went to a sink
    body: bytes = field(repr=False)
    #: offset of the first byte in the file
    start: int
    #: size of the whole file, if the server reports it; less than `start` if a shorter file has replaced it
    total: int | None
    #: the node's clock, UTC, whole seconds
    date: datetime | None


def fetch(path: str, *, start: int | None = None, limit: int | None = None) -> Call[Chunk | None]:
    """Fetch a raw file, such as `logs/PROJECT/SPIDER/JOB.log`, from byte `start` on, at most `limit` bytes.

    The reply is None if there is no such file. `path` is not quoted.
    """
    first = start or 0
    last = "" if limit is None else str(first + limit - 1)
    wanted = {} if start is None and limit is None else {"Range": f"bytes={first}-{last}"}

    def read(reply: Reply) -> Chunk | None:
        return _chunk(reply, first)

    return Call(path=quote(path), read=read, headers=wanted, start=first, limit=limit)


def tail(path: str, size: int, head: Chunk | None) -> Call[Chunk | None] | None:
    """Fetch the last `size` bytes of a raw file; returns None if `head` has them already.

    The file's size must be known first, because Twisted answers a Range of "the last n bytes" with error 500 if the
    file is shorter.

    Args:
        path: path of the file relative to the node's base, not quoted.
        size: number of bytes.
        head: the reply of `fetch(path, start=0, limit=size)`.
    """
    if head is None or head.total is None or head.total <= len(head.body):
        return None
    return fetch(path, start=max(0, head.total - size), limit=size)


def serves_logs() -> Call[bool]:
    """Ask whether the node serves a log folder.

    The first job creates the folder, so a fresh node answers 404 as a node without logs_dir does; only the former's
    page says "File not found".
    """
    return _serves("logs/")


def serves_items() -> Call[bool]:
    """Ask whether the node has an items_dir, with which it replaces the FEEDS setting of plain jobs."""
    return _serves("items/")


def _serves(folder: str) -> Call[bool]:
    def read(reply: Reply) -> bool:
        if reply.status == 404:
            return b"File not found" in reply.body
        if reply.status != 200:  # judge_raw would take an HTML listing for a proxy's page
            judge_raw(reply)
        return True

    return Call(path=folder, read=read)


def _chunk(reply: Reply, first: int | None) -> Chunk | None:
    """Return the piece in a reply to a request from byte `first` on (None: any)."""
    begins, total = content_range(reply)
    if reply.status == 416:
        if total is not None and total > (first or 0):
            raise reply.error(NotJson, f"nothing from byte {first or 0} on, of a file of {total} bytes")
        return Chunk(body=b"", start=first or 0, total=total, date=reply.date)
    try:
        judge_raw(reply)
    except NotFound:
        return None
    if reply.status == 200:
        total, begins = reply.length, first or 0
    if begins is None or (first is not None and begins != first):
        raise reply.error(NotJson, "another piece of the file than was asked for")
    return Chunk(body=reply.body, start=begins, total=total, date=reply.date)
