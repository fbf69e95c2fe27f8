"""Translates Twisted's failures to errors of nodes, and sets up TLS by the options of a target.

Invariant: a request that may have been sent gets an error with `maybe_accepted`.
"""

# mypy: allow-untyped-calls
# Twisted is typed in part, and a zope interface is no type to mypy: hence Any.

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from OpenSSL import SSL
from service_identity import CertificateError, VerificationError
from twisted.internet import error
from twisted.internet._resolver import GAIResolver  # the one that reactors start with; it has no public name
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IReactorPluggableNameResolver
from twisted.internet.ssl import Certificate, CertificateOptions, trustRootFromCertificates
from twisted.web.client import BrowserLikePolicyForHTTPS
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer  # type: ignore[import-untyped]  # has no types

from scrapyd_dist.errors import (
    ConnectionLost,
    ConnectionRefused,
    ConnectTimeout,
    HostNotFound,
    NodeError,
    NoReply,
    NotJson,
    TlsRefused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call

T = TypeVar("T")

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_TLS_ERRORS = (SSL.Error, VerificationError, CertificateError)
# Failures of a connection that ended without a protocol error of the server.
_ENDINGS = (error.ConnectionDone, error.ConnectionLost, error.ConnectionAborted)


class TimedOut(Exception):
    """A call has timed out; the argument is the exception that cancelling it raised."""


def head_error(failed: Exception, node: Node, call: Call[T], connect: float, seconds: float) -> NodeError:
    """Translate a failure before the head of the reply; the class says whether the request may have been sent."""
    causes = list(_causes(failed))
    if any(isinstance(cause, error.ConnectingCancelledError) for cause in causes):
        return ConnectTimeout.at(str(node), f"{seconds:g} s")
    if isinstance(failed, TimedOut):
        return no_reply(node, call, seconds)
    if isinstance(failed, (error.TimeoutError, error.TCPTimedOutError)):
        return ConnectTimeout.at(str(node), f"{connect:g} s")
    return _connection_error(failed, causes, node, call)


def _connection_error(failed: Exception, causes: list[BaseException], node: Node, call: Call[T]) -> NodeError:
    where = str(node)
    if isinstance(failed, (error.DNSLookupError, UnicodeError)):
        return HostNotFound.at(where)
    if isinstance(failed, error.ConnectError):
        return ConnectionRefused.at(where, _system_words(failed))
    for cause in causes:
        if isinstance(cause, _TLS_ERRORS) and "unexpected eof" not in str(cause):
            return TlsRefused.at(where, _tls_words(cause))
    if isinstance(causes[-1], (*_ENDINGS, SSL.Error)):
        return ConnectionLost.at(where, call.path)
    return NotJson.at(where, f"{call.path}: the server does not speak HTTP")


def was_cancelled(failed: Exception) -> bool:
    """Whether the caller cancelled the call, rather than a timeout or a failure."""
    kinds = (CancelledError, error.ConnectingCancelledError)
    return not isinstance(failed, TimedOut) and any(isinstance(cause, kinds) for cause in _causes(failed))


def no_reply(node: Node, call: Call[T], seconds: float) -> NodeError:
    """Return the error of a call that was sent and not answered in time."""
    return NoReply.at(str(node), f"{call.path}, {seconds:g} s")


@implementer(IReactorPluggableNameResolver)
class SystemNames:
    """A reactor with the system's name resolver; Scrapy installs one that does not support IPv6."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self.nameResolver = GAIResolver(reactor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


def tls_policy(node: Node) -> Any:
    """Return the IPolicyForHTTPS that checks certificates of this node.

    Raises:
        TlsRefused: the CA file of the target cannot be read.
    """
    policy = _policy(node)
    return policy if node.tls_name is None else _Named(policy, node.tls_name.encode("ascii"))


def _policy(node: Node) -> Any:
    if not node.verify:
        return _TrustAll()
    if node.ca is None:
        return BrowserLikePolicyForHTTPS()
    try:
        found = [Certificate.loadPEM(pem) for pem in _PEM.findall(Path(node.ca).read_bytes())]
    except (OSError, SSL.Error, ValueError) as e:
        raise TlsRefused.at(str(node), f"the CA file {node.ca} cannot be read") from e
    if not found:
        raise TlsRefused.at(str(node), f"the CA file {node.ca} has no certificate in it")
    return BrowserLikePolicyForHTTPS(trustRootFromCertificates(found))


@implementer(IPolicyForHTTPS)
class _Named:
    """Checks certificates for this name, whatever address the url has."""

    def __init__(self, policy: Any, name: bytes) -> None:
        self._policy = policy
        self._name = name

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:  # noqa: ARG002, N802 - Twisted's
        return self._policy.creatorForNetloc(self._name, port)


@implementer(IPolicyForHTTPS)
class _TrustAll:
    """The policy for `verify = no`."""

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:  # noqa: ARG002, N802 - Twisted's
        return _Unchecked(hostname)


@implementer(IOpenSSLClientConnectionCreator)
class _Unchecked:
    def __init__(self, hostname: bytes) -> None:
        self._hostname = hostname

    def clientConnectionForTLS(self, tlsProtocol: object) -> SSL.Connection:  # noqa: ARG002, N802, N803 - Twisted's
        connection = SSL.Connection(CertificateOptions(verify=False).getContext(), None)
        connection.set_tlsext_host_name(self._hostname)
        return connection


def _causes(failed: object) -> Iterator[BaseException]:
    """Yield an exception and those that Twisted wrapped in it."""
    if not isinstance(failed, BaseException):
        return
    yield failed
    if isinstance(failed, TimedOut):
        yield from _causes(failed.args[0])
    for reason in getattr(failed, "reasons", None) or ():
        yield from _causes(reason.value)


def _system_words(failed: error.ConnectError) -> str:
    """Return the operating system's reason, unless it is only "connection refused"."""
    if isinstance(failed, error.ConnectionRefusedError):
        return ""
    return str(getattr(failed, "string", None) or failed)[:200]


def _tls_words(cause: BaseException) -> str:
    """Return OpenSSL's reason; its errors are lists of (library, function, reason)."""
    if isinstance(cause, SSL.Error) and cause.args and isinstance(cause.args[0], list):
        return ", ".join(str(entry[-1]) for entry in cause.args[0])[:200]
    return f"the certificate is not for this host ({type(cause).__name__})"
