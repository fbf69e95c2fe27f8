"""Sends calls with treq, in a Twisted reactor, with one timeout for the whole call.

The timeout of treq covers only the head of a reply, hence the timers here. Exceptions of Twisted are translated.
Connections are not kept open, because a stale one would make a failed POST ambiguous.
"""

# mypy: allow-untyped-calls
# Twisted is typed in part, and a zope interface is no type to mypy: hence Any.

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

import treq
from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import UNKNOWN_LENGTH, IAgent
from zope.interface import implementer  # type: ignore[import-untyped]  # has no types

from scrapyd_dist.errors import CutReply
from scrapyd_dist.transports import CONNECT_TIMEOUT, SILENCE
from scrapyd_dist.transports.reply_intake import ReplyIntake, request_headers
from scrapyd_dist.transports.twisted import SystemNames, TimedOut, head_error, no_reply, tls_policy, was_cancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call

T = TypeVar("T")

#: The url given to treq; `_NodeAgent` replaces it.
_STAND_IN = "http://node.invalid/"


class TreqTransport:
    """An `AsyncSender` over treq."""

    def __init__(
        self,
        *,
        reactor: Any = None,
        agent: Any = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        wait: Callable[[Deferred[Any]], Awaitable[Any]] | None = None,
    ) -> None:
        """Create a transport; a reactor must be installed.

        Args:
            reactor: the reactor; by default the installed one.
            agent: sends all requests, instead of one Twisted Agent per set of TLS options.
            connect_timeout: seconds for a connection.
            wait: converts a Deferred to an awaitable. By default a Future under the asyncio reactor and the Deferred
                itself under others, as in Scrapy.
        """
        if reactor is None:
            from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one
        self._reactor = reactor
        self._agent = agent
        self._agents: dict[tuple[object, ...], Any] = {}
        self._connect_timeout = connect_timeout
        self._wait = wait or (_as_future if isinstance(reactor, AsyncioSelectorReactor) else _as_it_is)

    async def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        """See `Sender.send`."""
        seconds = call.timeout if timeout is None else timeout
        return cast("T", await self._wait(Deferred.fromCoroutine(self._exchange(node, call, None, seconds))))

    async def download(
        self, node: Node, call: Call[T], sink: Callable[[bytes], object], *, silence: float = SILENCE
    ) -> T:
        """See `Sender.download`. The sink is called in the reactor's thread."""
        return cast("T", await self._wait(Deferred.fromCoroutine(self._exchange(node, call, sink, silence))))

    def close(self) -> None:
        """Do nothing: no connection is kept open."""

    async def _exchange(self, node: Node, call: Call[T], sink: Callable[[bytes], object] | None, seconds: float) -> T:
        started = self._reactor.seconds()
        response = await self._head(node, call, seconds)
        intake = ReplyIntake(node, call, response.code, _headers(response), sink)
        left = seconds if sink is not None else seconds - (self._reactor.seconds() - started)
        body = _Body(self._reactor, intake, max(left, 0.001), renewed=sink is not None)
        response.deliverBody(body)
        try:
            await body.finished
        except TimedOut as e:
            raise no_reply(node, call, seconds) from e
        except _Broken as e:
            raise CutReply.at(str(node), f"{call.path}: the connection broke in the middle of the reply") from e
        return intake.done()

    async def _head(self, node: Node, call: Call[T], seconds: float) -> Any:
        """Send the request and wait for the head of the reply."""
        content_type, body = call.body()
        headers = Headers({name: [value] for name, value in request_headers(node, call, content_type).items()})
        agent: Any = _NodeAgent(self._agent_for(node), node.url_of(call.target))
        try:
            sent = treq.request(
                call.method,
                _STAND_IN,
                headers=headers,
                data=body,
                agent=agent,
                allow_redirects=False,
                unbuffered=True,
                reactor=self._reactor,
            )
            sent.addTimeout(seconds, self._reactor, onTimeoutCancel=_timed_out)
            return await sent
        except Exception as e:
            if was_cancelled(e):
                raise CancelledError from e
            # Any other exception is one of Twisted or OpenSSL.
            raise head_error(e, node, call, self._connect_timeout, seconds) from e

    def _agent_for(self, node: Node) -> Any:
        """Return the agent for the node's TLS options, cached because creating one reads certificates."""
        key = (node.verify, node.ca, node.tls_name)
        if key not in self._agents:
            self._agents[key] = self._agent or Agent(
                SystemNames(self._reactor),
                contextFactory=tls_policy(node),
                connectTimeout=self._connect_timeout,
                pool=HTTPConnectionPool(self._reactor, persistent=False),
            )
        return self._agents[key]


class _Broken(Exception):
    """The connection ended before the body did."""


@implementer(IAgent)
class _NodeAgent:
    """Sends treq's requests to the node's url, and keeps treq from decoding the reply.

    treq encodes host names with IDNA, which fails for IPv6 addresses; and the bytes of a log must be those that Range
    counts.
    """

    def __init__(self, agent: Any, url: str) -> None:
        self._agent = agent
        self._uri = url.encode("ascii")

    def request(
        self,
        method: bytes,
        uri: bytes,  # noqa: ARG002 - the stand-in
        headers: Headers | None = None,
        bodyProducer: Any = None,  # noqa: N803 - IAgent's
    ) -> Deferred[Any]:
        headers = headers.copy() if headers is not None else Headers()
        headers.setRawHeaders(b"Accept-Encoding", [b"identity"])
        sent: Deferred[Any] = self._agent.request(method, self._uri, headers, bodyProducer)
        return sent.addCallback(self._undeclared)

    @staticmethod
    def _undeclared(response: Any) -> Any:
        response.headers.removeHeader(b"Content-Encoding")
        return response


class _Body(Protocol):
    """Passes a body to an `ReplyIntake` until its end, a timeout, or an exception of the intake."""

    def __init__(self, clock: Any, intake: ReplyIntake[Any], seconds: float, *, renewed: bool) -> None:
        self.finished: Deferred[None] = Deferred(lambda _: self._drop())
        self._intake = intake
        self._seconds = seconds
        self._renewed = renewed
        self._timer = clock.callLater(seconds, self._end, Failure(TimedOut()))

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's
        if self.finished.called:
            return
        if self._renewed:
            self._timer.reset(self._seconds)
        try:
            self._intake.feed(data)
        except Exception:  # noqa: BLE001 - raised where the body is awaited
            self._end(Failure())
        else:
            if self._intake.full:
                self._end(None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 - Twisted's
        whole = reason.check(ResponseDone, PotentialDataLoss)
        self._end(None if whole else Failure(_Broken()))

    def _end(self, result: Failure | None) -> None:
        if self.finished.called:
            return
        self._drop()
        if result is None:
            self.finished.callback(None)
        else:
            self.finished.errback(result)

    def _drop(self) -> None:
        if self._timer.active():
            self._timer.cancel()
        transport: Any = self.transport
        if transport is not None:
            transport.loseConnection()


def _headers(response: Any) -> list[tuple[str, str]]:
    """Return the headers, with the length that Twisted stores separately."""
    pairs = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, values in response.headers.getAllRawHeaders()
        for value in values
    ]
    return pairs if response.length is UNKNOWN_LENGTH else [*pairs, ("Content-Length", str(response.length))]


def _timed_out(result: object, _seconds: float) -> object:
    """Wrap the failure of a cancelled call in `TimedOut`."""
    return Failure(TimedOut(result.value)) if isinstance(result, Failure) else result


def _as_future(deferred: Deferred[Any]) -> Awaitable[Any]:
    return deferred.asFuture(asyncio.get_running_loop())


def _as_it_is(deferred: Deferred[Any]) -> Awaitable[Any]:
    return deferred
