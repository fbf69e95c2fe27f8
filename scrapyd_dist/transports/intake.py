"""What all transports share: the headers of a call and the taking in of its reply. Rule: no IO, one way for all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from scrapyd_dist.errors import CutReply, NotJson
from scrapyd_dist.scrapyd.reply import Reply, content_range, is_raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call

T = TypeVar("T")

#: Most bytes of a reply that are kept in memory. The largest that Scrapyd has is a job list, which echoes batches.
REPLY_BYTES = 256 * 1024 * 1024
#: Bytes to read at once.
PIECE = 64 * 1024


def request_headers(node: Node, call: Call[T], content_type: str | None) -> dict[str, str]:
    """All headers of the request, but for Content-Length, and for Host where it is what the url says."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "scrapyd-dist", **call.headers}
    if node.tls_name is not None:
        headers["Host"] = node.host_header
    if content_type is not None:
        headers["Content-Type"] = content_type
    authorization = node.authorization()
    if authorization is not None:
        headers["Authorization"] = authorization
    return headers


class Intake(Generic[T]):
    """Takes in one reply: its head, its bytes as they come, its end; then gives what the call reads from it.

    With a sink the bytes of a raw file go there and are not kept; anything else is kept and judged by the call.
    """

    def __init__(
        self,
        node: Node,
        call: Call[T],
        status: int,
        headers: Iterable[tuple[str, str]],
        sink: Callable[[bytes], object] | None = None,
    ) -> None:
        self._call = call
        self._head = Reply(
            where=str(node),
            path=call.path,
            status=status,
            headers={name.lower(): value for name, value in headers},
            login_hint=node.login_hint,
        )
        self._body = bytearray()
        self._take = sink if sink is not None and self._is_wanted() else self._keep
        self._received = self._given = 0
        # a server that knows no ranges sends the file from its first byte
        self._unwanted = (call.start or 0) if status == 200 else 0
        # … and to its last one; others heed the first byte only
        self._left = call.limit if self._is_wanted() else None
        self._to_sink = sink is not None

    @property
    def full(self) -> bool:
        """Whether all that was asked for is here, so that the rest need not come."""
        # The size of a file that is sent without one is known at its end.
        return self._left == 0 and (self._to_sink or self._head.length is not None or self._head.status != 200)

    def feed(self, piece: bytes) -> None:
        """The next bytes of the body, as they came over the wire."""
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
            self._take(piece)

    def done(self) -> T:
        """The reply ended.

        Raises:
            NodeError: it ended too early, or is not what the call asked for.
        """
        came, due = (self._given, self._due()) if self._head.status == 206 else (self._received, self._head.length)
        if due is not None and came < due and not self.full:
            raise self._head.error(CutReply, f"{came} of {due} bytes came")
        return self._call.read(replace(self._head, headers=self._headers(), body=bytes(self._body)))

    def _is_wanted(self) -> bool:
        """Whether the head announces the file, from the byte that was asked for."""
        begins, _ = content_range(self._head)
        misplaced = self._head.status == 206 and self._call.start not in (None, begins)
        return is_raw(self._head) and not misplaced

    def _keep(self, piece: bytes) -> None:
        if len(self._body) + len(piece) > REPLY_BYTES:
            raise self._head.error(NotJson, f"it is longer than {REPLY_BYTES} bytes")
        self._body += piece

    def _headers(self) -> Mapping[str, str]:
        """Those of the head, and the size of a file that was sent without one."""
        if self._head.status != 200 or self._head.length is not None or self.full:
            return self._head.headers
        told = {name: value for name, value in self._head.headers.items() if name != "transfer-encoding"}
        return {**told, "content-length": str(self._received)}

    def _due(self) -> int | None:
        """Bytes of a piece, by what was asked for and by the size of the file."""
        begins, total = content_range(self._head)
        if not self._is_wanted() or begins is None or total is None:
            return self._head.length
        return total - begins if self._call.limit is None else min(self._call.limit, total - begins)
