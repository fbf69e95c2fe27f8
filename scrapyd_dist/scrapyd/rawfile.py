"""Raw files of a node's /logs/, in pieces by Range. Rule: the bytes are the file's own, never decoded or shifted."""

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
    """A piece of a raw file. An empty body means that there is nothing new."""

    #: empty when the bytes went to a sink
    body: bytes = field(repr=False)
    #: position in the file of the first byte
    start: int
    #: size of the whole file, where the server tells it. Below `start`: the file was replaced by a shorter one
    total: int | None
    #: the node's clock, UTC, whole seconds
    date: datetime | None


def fetch(path: str, *, start: int | None = None, limit: int | None = None) -> Call[Chunk | None]:
    """A raw file of the node, such as `logs/PROJECT/SPIDER/JOB.log`, from byte `start` on, at most `limit` bytes.

    Gives None where there is no such file. `path` is not quoted yet.
    """
    first = start or 0
    last = "" if limit is None else str(first + limit - 1)
    wanted = {} if start is None and limit is None else {"Range": f"bytes={first}-{last}"}

    def read(reply: Reply) -> Chunk | None:
        return _chunk(reply, first)

    return Call(path=quote(path), read=read, headers=wanted, start=first, limit=limit)


def tail(path: str, size: int, head: Chunk | None) -> Call[Chunk | None] | None:
    """The last `size` bytes of a raw file of the node, or None where they are known already.

    A Range of "the last n bytes" is an error 500 of Twisted's where the file is shorter, so the file's size has to
    be known first.

    Args:
        path: of the file, below the node's base; not quoted yet.
        size: how many bytes.
        head: what `fetch(path, start=0, limit=size)` gave.
    """
    if head is None or head.total is None or head.total <= len(head.body):
        return None
    return fetch(path, start=max(0, head.total - size), limit=size)


def serves_logs() -> Call[bool]:
    """Whether the node serves a log folder at all.

    The folder itself is made with the first job, so a fresh node answers 404 too, but in other words than
    a node without logs_dir: only those that say that a file is missing are a yes.
    """
    return _serves("logs/")


def serves_items() -> Call[bool]:
    """Whether the node has an items_dir of its own, and so replaces the FEEDS that a plain job is given."""
    return _serves("items/")


def _serves(folder: str) -> Call[bool]:
    def read(reply: Reply) -> bool:
        if reply.status == 404:
            return b"File not found" in reply.body
        if reply.status != 200:  # a listing is HTML, which judge_raw takes for a proxy's page
            judge_raw(reply)
        return True

    return Call(path=folder, read=read)


def _chunk(reply: Reply, first: int | None) -> Chunk | None:
    """The piece in a reply that was asked for from byte `first` on (None: wherever it begins)."""
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
