"""Interfaces for sending a Call to a Node; importing this package loads no HTTP library.

`requests` blocks, `treq` runs in a Twisted reactor, `threads` is for asyncio without a reactor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call

T = TypeVar("T")

#: Connect timeout in seconds, unless the call's own timeout is shorter.
CONNECT_TIMEOUT = 10.0
#: Seconds without data after which a download fails. There is no total timeout: parts can be large, and links slow.
SILENCE = 30.0


class Sender(Protocol):
    """Sends calls and blocks until the reply is read. Thread-safe."""

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        """Send a call and return the value that it reads from the reply.

        Args:
            node: the node to call.
            call: the call.
            timeout: total seconds, including connection and body; None for the call's own timeout.

        Raises:
            NodeError: the subclass says what went wrong, and whether the node may have accepted the call.
        """

    def download(self, node: Node, call: Call[T], sink: Callable[[bytes], object], *, silence: float = SILENCE) -> T:
        """Send a call for a raw file and pass its bytes to `sink` as they arrive; the result has an empty body.

        `sink` is called only if the node answers with the file, from the requested byte on. If the connection breaks,
        the bytes passed so far are correct. Exceptions of `sink` are raised.

        Args:
            node: the node to call.
            call: a call made by `api.fetch`.
            sink: called with each piece.
            silence: seconds without data after which the download fails.

        Raises:
            NodeError: as in `send`.
        """

    def close(self) -> None:
        """Close idle connections."""


class AsyncSender(Protocol):
    """Sends calls asynchronously."""

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> Awaitable[T]:
        """See `Sender.send`."""

    def download(
        self, node: Node, call: Call[T], sink: Callable[[bytes], object], *, silence: float = SILENCE
    ) -> Awaitable[T]:
        """See `Sender.download`."""

    def close(self) -> None:
        """Release threads and connections."""
