"""The ways to send a Call to a Node, all with the same two verbs. Rule: importing this loads no HTTP library.

`requests` blocks; `treq` is for a Twisted reactor; `threads` is for asyncio without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call

T = TypeVar("T")

#: Seconds in which a connection has to come about, if the call itself has not less.
CONNECT_TIMEOUT = 10.0
#: Seconds that a download may be silent. It has no limit as a whole: parts can be large, and lines slow.
SILENCE = 30.0


class Sender(Protocol):
    """Sends calls and blocks until the reply is read. May be used by many threads at once."""

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        """Send the call and give what it reads from the reply.

        Args:
            node: where to.
            call: what.
            timeout: seconds for all of it, connection and body included; None = the call's own.

        Raises:
            NodeError: the subclass says what went wrong, and whether the node may have accepted the call.
        """

    def download(self, node: Node, call: Call[T], sink: Callable[[bytes], object], *, silence: float = SILENCE) -> T:
        """Send a call for a raw file and hand its bytes to `sink` as they come; what is read has an empty body.

        Nothing is handed over unless the node really answers with the file, from the byte that was asked for. When
        the connection breaks, what was handed over is right as far as it goes. An exception of `sink` comes through.

        Args:
            node: where from.
            call: as `api.fetch` gives it.
            sink: takes each piece.
            silence: seconds without a byte after which it is given up.

        Raises:
            NodeError: as in `send`.
        """

    def close(self) -> None:
        """Close the connections that are idle."""


class AsyncSender(Protocol):
    """The same, awaited."""

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> Awaitable[T]:
        """See `Sender.send`."""

    def download(
        self, node: Node, call: Call[T], sink: Callable[[bytes], object], *, silence: float = SILENCE
    ) -> Awaitable[T]:
        """See `Sender.download`."""

    def close(self) -> None:
        """Let go of threads and connections."""
