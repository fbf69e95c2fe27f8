"""Sends calls with treq, in a Twisted reactor, with one timeout for the whole call.

The timeout of treq covers only the head of a reply, hence the timers here. Failures of Twisted are
translated: a request that may have been sent gets an error with `maybe_accepted`. Connections are
not kept open, because a stale one would make a failed POST ambiguous.
"""

# mypy: allow-untyped-calls
# Twisted is typed in part, and a zope interface is no type to mypy: hence Any.

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import treq
from OpenSSL import SSL
from service_identity import CertificateError, VerificationError
from twisted.internet import error

# The resolver that reactors start with has no public name.
from twisted.internet._resolver import GAIResolver
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IReactorPluggableNameResolver,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.ssl import Certificate, CertificateOptions, trustRootFromCertificates
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import Agent, BrowserLikePolicyForHTTPS, HTTPConnectionPool, ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import UNKNOWN_LENGTH, IAgentEndpointFactory, IPolicyForHTTPS
from zope.interface import implementer  # type: ignore[import-untyped]  # has no types

from scrapyd_dist.errors import (
    ConnectionLost,
    ConnectTimeout,
    HostNotFound,
    NodeError,
    NotJson,
    TlsRefused,
)
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.transports import CONNECT_TIMEOUT
from scrapyd_dist.transports.reply_intake import (
    AS_SENT,
    ReplyIntake,
    broken_reply,
    no_reply,
    nobody_listens,
    request_headers,
)

T = TypeVar("T")

#: the url given to treq; `_NodeAgent` replaces it
_STAND_IN = "http://node.invalid/"
#: maximum bytes of the head of a reply
HEAD_BYTES = 1 << 20
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class TreqTransport:
    """An `AsyncSender` over treq on the asyncio reactor.

    The sink of a call is called in the reactor's thread.
    """

    def __init__(self, *, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

        self._reactor: Any = reactor
        self._policies: dict[tuple[object, ...], _TlsPolicy] = {}
        self._connect_timeout = connect_timeout

    async def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        """Send a call and return the value that it reads from the reply; see `AsyncSender`."""
        seconds = call.timeout if timeout is None else timeout
        exchange = self._exchange(node, call, seconds)
        return await Deferred.fromCoroutine(exchange).asFuture(asyncio.get_running_loop())

    def close(self) -> None:
        """Do nothing: no connection is kept open."""

    async def _exchange(self, node: Node, call: Call[T], seconds: float) -> T:
        started = self._reactor.seconds()
        response = await self._request_head(node, call, seconds)
        intake = ReplyIntake(node, call, response.code, _list_headers(response))
        renewed = call.sink is not None
        left = seconds
        if not renewed:
            left -= self._reactor.seconds() - started
        body = _Body(
            self._reactor,
            intake,
            max(left, 0.001),
            renewed=renewed,
            late=no_reply(node, call, seconds),
            cut=broken_reply(node, call),
        )
        response.deliverBody(body)
        await body.finished
        return intake.done()

    async def _request_head(self, node: Node, call: Call[T], seconds: float) -> Any:
        """Send the request and wait for the head of the reply."""
        content_type, body = call.body()
        headers = Headers()
        for name, value in request_headers(node, call, content_type).items():
            headers.setRawHeaders(name, [value])
        endpoints = _NodeEndpoints(
            _SystemNames(self._reactor), self._find_policy(node), self._connect_timeout
        )
        pool = HTTPConnectionPool(self._reactor, persistent=False)
        twisted_agent = Agent.usingEndpointFactory(self._reactor, endpoints, pool=pool)
        agent: Any = _NodeAgent(twisted_agent, node.url_of(call.target))
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
            sent.addTimeout(seconds, self._reactor, onTimeoutCancel=lambda failure, _: failure)
            response = await sent
        except Exception as e:
            # It is one of Twisted or OpenSSL; the future of a call that its caller cancelled drops
            # this error.
            raise _translate_head_error(e, node, call, self._connect_timeout, seconds) from e
        endpoints.head_left = float("inf")
        return response

    def _find_policy(self, node: Node) -> "_TlsPolicy":
        """Return the policy for the node's TLS options.

        It is cached, because making one reads certificates.
        """
        key = (node.verify, node.ca, node.tls_name)
        if key not in self._policies:
            self._policies[key] = _TlsPolicy(node)
        return self._policies[key]


@implementer(IAgentEndpointFactory)
class _NodeEndpoints:
    """Connects for one call.

    A head that is too long breaks the connection: Twisted would keep all of it.
    """

    def __init__(self, reactor: Any, policy: "_TlsPolicy", connect_timeout: float) -> None:
        self._reactor = reactor
        self._policy = policy
        self._connect_timeout = connect_timeout
        self.head_left = float(HEAD_BYTES)  #: bytes that may still come before the head is over

    def endpointForURI(self, uri: Any) -> Any:  # noqa: N802 - Twisted's
        """Return the endpoint that connects to the host of the URL."""
        endpoint: Any = HostnameEndpoint(
            self._reactor, uri.host, uri.port, timeout=self._connect_timeout
        )
        if uri.scheme == b"https":
            endpoint = wrapClientTLS(self._policy.creatorForNetloc(uri.host, uri.port), endpoint)
        return _CountedEndpoint(endpoint, self)


@implementer(IStreamClientEndpoint)
class _CountedEndpoint:
    """Counts the bytes of the reply's head."""

    def __init__(self, endpoint: Any, owner: _NodeEndpoints) -> None:
        self._endpoint = endpoint
        self._owner = owner

    def connect(self, factory: Any) -> Deferred[Any]:
        """Connect with a protocol that aborts a connection whose head is too long."""
        owner = self._owner

        class Counted(ProtocolWrapper):
            def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's
                """Pass data on, or abort the connection."""
                owner.head_left -= len(data)
                if owner.head_left < 0:
                    self.abortConnection()
                else:
                    super().dataReceived(data)

        wrapping = WrappingFactory(factory)
        wrapping.protocol = Counted
        wrapping.noisy = False
        connected: Deferred[Any] = self._endpoint.connect(wrapping)
        return connected.addCallback(lambda counted: counted.wrappedProtocol)


class _NodeAgent:
    """Sends treq's requests to the node's url, and keeps treq from decoding the reply.

    treq encodes host names with IDNA, which fails for IPv6 addresses; and the bytes of a log must
    be those that Range counts.
    """

    def __init__(self, agent: Any, url: str) -> None:
        self._agent = agent
        self._uri = url.encode("ascii")

    def request(
        self,
        method: bytes,
        uri: bytes,  # noqa: ARG002 - the stand-in
        headers: Headers | None = None,
        bodyProducer: Any = None,  # noqa: N803 - the stand-in
    ) -> Deferred[Any]:
        """Send a request to the node's url in place of `uri`."""
        headers = headers.copy() if headers is not None else Headers()
        headers.setRawHeaders(b"Accept-Encoding", [b"identity"])
        sent: Deferred[Any] = self._agent.request(method, self._uri, headers, bodyProducer)
        return sent.addCallback(_hide_encoding)


def _hide_encoding(response: Any) -> Any:
    # treq would unpack the body; the intake does, for all transports.
    encodings = response.headers.getRawHeaders(b"Content-Encoding", [])
    response.headers.removeHeader(b"Content-Encoding")
    if encodings:
        response.headers.setRawHeaders(AS_SENT, encodings)
    return response


class _Body(Protocol):
    """Passes a body to a `ReplyIntake` until its end, a timeout, or an exception of the intake.

    `late` and `cut` are the errors of a body that does not come in time, and of one whose
    connection ends too early. `renewed`: the timeout begins again with each piece.
    """

    def __init__(
        self,
        clock: Any,
        intake: ReplyIntake[Any],
        seconds: float,
        *,
        renewed: bool,
        late: NodeError,
        cut: NodeError,
    ) -> None:
        self.finished: Deferred[None] = Deferred(lambda _: self._drop())
        self._intake = intake
        self._seconds = seconds
        self._renewed = renewed
        self._cut = cut
        self._timer = clock.callLater(seconds, self._end, Failure(late))

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's
        """Pass a piece to the intake."""
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
        """End the body, with an error if it may not be whole."""
        is_whole = reason.check(ResponseDone, PotentialDataLoss)
        self._end(None if is_whole else Failure(self._cut))

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


def _list_headers(response: Any) -> list[tuple[str, str]]:
    """Return the headers, with the length that Twisted stores separately."""
    headers: list[tuple[str, str]] = []
    for name, values in response.headers.getAllRawHeaders():
        headers += [(name.decode("latin-1"), value.decode("latin-1")) for value in values]
    if response.length is not UNKNOWN_LENGTH:
        headers.append(("Content-Length", str(response.length)))
    return headers


@implementer(IReactorPluggableNameResolver)
class _SystemNames:
    """A reactor with the system's name resolver; Scrapy installs one that does not support IPv6."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self.nameResolver = GAIResolver(reactor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


@implementer(IPolicyForHTTPS)
class _TlsPolicy:
    """Checks certificates as a node's TLS options say.

    They are for the host that its address was looked up from.
    """

    def __init__(self, node: Node) -> None:
        self._name: bytes | None = None
        if node.tls_name is not None:
            self._name = node.tls_name.encode("ascii")
        self._checked: Any = None
        if node.verify:
            self._checked = BrowserLikePolicyForHTTPS(_load_roots(node))

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:  # noqa: N802 - Twisted's
        """Return what makes the TLS connections to a host."""
        name = hostname
        if self._name is not None:
            name = self._name
        if self._checked is None:
            return _UncheckedCreator(name)
        return self._checked.creatorForNetloc(name, port)


def _load_roots(node: Node) -> Any:
    """Return the certificates to trust; None for the system's."""
    if node.ca is None:
        return None
    try:
        texts = _PEM.findall(Path(node.ca).read_bytes())
        certificates = [Certificate.loadPEM(text) for text in texts]
    except (OSError, SSL.Error, ValueError) as e:
        raise TlsRefused.at(str(node), f"the CA file {node.ca} cannot be read") from e
    if not certificates:
        raise TlsRefused.at(str(node), f"the CA file {node.ca} has no certificate in it")
    return trustRootFromCertificates(certificates)


@implementer(IOpenSSLClientConnectionCreator)
class _UncheckedCreator:
    """Makes the connections for `verify = no`."""

    def __init__(self, hostname: bytes) -> None:
        self._hostname = hostname

    def clientConnectionForTLS(self, tlsProtocol: object) -> SSL.Connection:  # noqa: ARG002, N802, N803 - Twisted's
        """Return a connection that checks no certificate."""
        connection = SSL.Connection(CertificateOptions(verify=False).getContext(), None)
        connection.set_tlsext_host_name(self._hostname)
        return connection


def _translate_head_error(
    failed: Exception, node: Node, call: Call[T], connect: float, seconds: float
) -> NodeError:
    """Return the `NodeError` for a failure before the head of the reply.

    Its class says whether the request may have been sent.
    """
    where = str(node)
    causes = list(_find_causes(failed))
    if any(isinstance(cause, error.ConnectingCancelledError) for cause in causes):
        return ConnectTimeout.at(where, f"{seconds:g} s")
    if any(isinstance(cause, CancelledError) for cause in causes):  # by the timeout
        return no_reply(node, call, seconds)
    if isinstance(failed, (error.TimeoutError, error.TCPTimedOutError)):
        return ConnectTimeout.at(where, f"{connect:g} s")
    return _translate_connection_error(failed, causes, node, call.path)


def _translate_connection_error(
    failed: Exception, causes: list[BaseException], node: Node, path: str
) -> NodeError:
    where = str(node)
    if isinstance(failed, (error.DNSLookupError, UnicodeError)):
        return HostNotFound.at(where)
    if isinstance(failed, error.ConnectionRefusedError):
        return nobody_listens(node)
    if isinstance(failed, error.ConnectError):
        return nobody_listens(node, str(getattr(failed, "string", None) or failed)[:200])
    for cause in causes:
        is_tls = isinstance(cause, (SSL.Error, VerificationError, CertificateError))
        if is_tls and "unexpected eof" not in str(cause):
            return TlsRefused.at(where, _describe_tls_error(cause))
    lost = (error.ConnectionDone, error.ConnectionLost, error.ConnectionAborted, SSL.Error)
    if isinstance(causes[-1], lost):
        return ConnectionLost.at(where, path)
    return NotJson.at(where, f"{path}: the server does not speak HTTP")


def _find_causes(failed: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that Twisted wrapped in it."""
    yield failed
    for reason in getattr(failed, "reasons", None) or ():
        yield from _find_causes(reason.value)


def _describe_tls_error(cause: BaseException) -> str:
    """Return OpenSSL's reason; its errors are lists of (library, function, reason)."""
    if isinstance(cause, SSL.Error) and cause.args and isinstance(cause.args[0], list):
        return ", ".join(str(reason) for *_, reason in cause.args[0])[:200]
    return f"the certificate is not for this host ({type(cause).__name__})"
