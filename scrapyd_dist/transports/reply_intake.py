"""Builds request headers and reads replies for all transports. No IO."""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from scrapyd_dist.errors import ConnectionRefused, CutReply, NodeError, NoReply, NotJson
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.reply import Reply, content_range, is_raw

T = TypeVar("T")
#: maximum bytes of a reply in memory
REPLY_BYTES = 32 * 1024 * 1024
#: bytes after which the echoes in a reply are shortened; each is far shorter than this
SHORTEN_BYTES = 1024 * 1024
#: a long run of characters that JSON has only in texts, and of which any part may be left out
_LONG_RUN = re.compile(rb"(?<![\w+/=-])([\w+/=-]{512})[\w+/=-]{512,}")
#: the header with Content-Encoding, where a library would unpack a body by itself
AS_SENT = b"x-sdist-content-encoding"
#: for zlib: gzip or deflate, as the header says
_ANY_HEADER = 47
#: bytes per read
PIECE = 64 * 1024


class Unpacker(Protocol):
    """What Python's zlib unpacks with."""

    @property
    def unconsumed_tail(self) -> bytes:
        """The input that is left, as the output has reached its maximum length."""

    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes:
        """Return what the data unpacks to, at most `max_length` bytes; 0: any number."""


def request_headers(node: Node, call: Call[T], content_type: str | None) -> dict[str, str]:
    """Return the headers of a request, without Content-Length.

    Host is among them only if it does not follow from the url.
    """
    headers = {"Accept-Encoding": "identity", "User-Agent": "scrapyd-dist", **call.headers}
    if node.tls_name is not None:
        headers["Host"] = node.host_header
    if content_type is not None:
        headers["Content-Type"] = content_type
    authorization = node.authorization()
    if authorization is not None:
        headers["Authorization"] = authorization
    return headers


def no_reply(node: Node, call: Call[T], seconds: float) -> NodeError:
    """Return the error of a call without a whole reply after so many seconds."""
    return NoReply.at(str(node), f"{call.path}, {seconds:g} s")


def nobody_listens(node: Node, reason: str = "") -> NodeError:
    """Return the error of a node where nothing listens; reason: in the system's words."""
    hint = ""
    if node.local and not reason:
        reason = "its process has ended; `sdist nodes up N` starts it again"
        hint = "N is how many local nodes shall run."
    return ConnectionRefused.at(str(node), reason, hint=hint)


def broken_reply(node: Node, call: Call[T]) -> NodeError:
    """Return the error of a reply whose connection ended too early."""
    return CutReply.at(str(node), f"{call.path}: the connection broke in the middle of the reply")


def _make_unpacker(head: Reply) -> Unpacker | None:
    """Return what unpacks a body that a proxy has compressed; None for a plain body.

    NotJson for a way of compressing that is not known, and for a piece of a compressed file.
    """
    header = head.headers.get(AS_SENT.decode(), head.headers.get("content-encoding", ""))
    encoding = header.strip().lower()
    # Of a file that is packed, Twisted says so as well.
    if encoding in {"", "identity"} or head.path.endswith((".gz", ".bz2")):
        return None
    if encoding not in {"gzip", "x-gzip", "deflate"} or head.status == 206:
        raise head.error(
            NotJson,
            f"a proxy compresses it ({encoding[:20]}), though it was asked not to: switch that off",
        )
    return zlib.decompressobj(_ANY_HEADER)


class ReplyIntake(Generic[T]):
    """Receives one reply (head, pieces of the body, end) and reads the call's value from it.

    The bytes of a raw file go to the call's sink, if it has one; any other body is kept for the
    call to check.
    """

    def __init__(
        self, node: Node, call: Call[T], status: int, headers: Iterable[tuple[str, str]]
    ) -> None:
        self._call = call
        self._head = Reply(
            where=str(node),
            path=call.path,
            status=status,
            headers={name.lower(): value for name, value in headers},
            login_hint=node.login_hint,
        )
        begins, _ = content_range(self._head)
        #: whether the head announces the file from the requested byte on
        self._is_wanted = is_raw(self._head) and (status != 206 or call.start in (None, begins))
        self._consume: Callable[[bytes], object] = self._keep
        if call.sink is not None and self._is_wanted:
            self._consume = call.sink
        self._unpack = _make_unpacker(self._head)
        self._body = bytearray()
        self._shortened = 0  #: bytes of the body whose echoes are shortened
        self._came = 0  #: bytes as they came, before they are unpacked
        self._received = 0  #: bytes after they were unpacked
        self._given = 0  #: bytes that were wanted
        #: bytes to be skipped: a server without ranges sends the whole file
        self._unwanted = (call.start or 0) if status == 200 else 0
        #: wanted bytes that may still come, since servers may ignore the end of a range; None: any
        self._left = call.limit if self._is_wanted else None
        self._due = self._compute_due()  #: bytes that must come; None: not known

    def _compute_due(self) -> int | None:
        begins, total = content_range(self._head)
        is_range = self._head.status == 206 and self._is_wanted
        if not is_range or begins is None or total is None:
            return self._head.length
        available = total - begins
        if self._call.limit is None:
            return available
        return min(self._call.limit, available)

    @property
    def full(self) -> bool:
        """Whether all requested bytes are here, so that the rest can be dropped."""
        if self._left != 0:
            return False
        # Without Content-Length, or with that of a compressed file, the size is only known at its
        # end.
        is_size_known = self._head.length is not None and self._unpack is None
        return is_size_known or self._head.status != 200 or self._call.sink is not None

    def feed(self, piece: bytes) -> None:
        """Receive a piece of the body; raises `NodeError`, and what the sink raises."""
        self._came += len(piece)
        if self._unpack is None:
            self._feed(piece)
            return
        try:
            while piece:
                self._feed(self._unpack.decompress(piece, PIECE))
                piece = self._unpack.unconsumed_tail
        except zlib.error:
            raise self._head.error(CutReply, "it is compressed, and damaged") from None

    def _feed(self, piece: bytes) -> None:
        self._received += len(piece)
        if self._unwanted:
            skipped = min(self._unwanted, len(piece))
            self._unwanted -= skipped
            piece = piece[skipped:]
        if self._left is not None:
            piece = piece[: self._left]
            self._left -= len(piece)
        if piece:
            self._given += len(piece)
            self._consume(piece)

    def done(self) -> T:
        """Return the call's value.

        Raises:
            NodeError: the reply ended too early, or is not what was asked for.
        """
        came = self._given if self._head.status == 206 else self._came
        if self._due is not None and came < self._due and not self.full:
            raise self._head.error(CutReply, f"{came} of {self._due} bytes came")
        body = bytes(self._body)
        self._body.clear()
        return self._call.read(replace(self._head, headers=self._complete_headers(), body=body))

    def _keep(self, piece: bytes) -> None:
        self._body += piece
        if self._call.echoes and len(self._body) - self._shortened > SHORTEN_BYTES:
            begin = max(0, self._shortened - SHORTEN_BYTES // 2)  # the last run may go on
            self._body[begin:] = _LONG_RUN.sub(rb"\1", self._body[begin:])
            self._shortened = len(self._body)
        if len(self._body) > REPLY_BYTES:
            raise self._head.error(NotJson, f"it is longer than {REPLY_BYTES} bytes")

    def _complete_headers(self) -> Mapping[str, str]:
        """Return the headers, with the number of received bytes if a file was sent without it."""
        is_size_known = self._head.length is not None and self._unpack is None
        if self._head.status != 200 or is_size_known or self.full:
            return self._head.headers
        headers = dict(self._head.headers)
        headers.pop("transfer-encoding", None)
        headers["content-length"] = str(self._received)
        return headers
