"""Sends calls with the requests library, for blocking code.

The defaults of requests are switched off: environment proxies, netrc, redirects, cookies, decoding; its exceptions are
translated. Connections are not kept open, because a stale one would make a failed POST ambiguous.
"""

from __future__ import annotations

import socket
import time
from http.client import HTTPException, RemoteDisconnected
from typing import TYPE_CHECKING, Any, TypeVar

import requests
import urllib3

from scrapyd_dist.errors import (
    ConnectionLost,
    ConnectionRefused,
    ConnectTimeout,
    CutReply,
    HostNotFound,
    NodeError,
    NoReply,
    NotJson,
    NoTls,
    TlsRefused,
)
from scrapyd_dist.transports import CONNECT_TIMEOUT, SILENCE
from scrapyd_dist.transports.reply_intake import PIECE, ReplyIntake, request_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call

T = TypeVar("T")


class _UncheckedAdapter(urllib3.connection.HTTPSConnection):
    """A connection for `verify = no`, without urllib3's warning at each call: the target asks for it explicitly."""

    def connect(self) -> None:
        super().connect()
        self.is_verified = (
            True  # urllib3 uses it for its warning only; a warning filter would affect the project's, too
        )


class _UncheckedPool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _UncheckedAdapter


class _Session(requests.Session):
    """A session that does not look for a redirect's target, which would consume the body of the reply."""

    def get_redirect_target(self, resp: requests.Response) -> None:  # noqa: ARG002 - requests' own
        return None


class _Tls(requests.adapters.HTTPAdapter):
    """TLS options of a target: may connect to an address and check the certificate for a host name.

    Args:
        name: the host name that the address was looked up from, or None.
        verify: whether the certificate is checked.
    """

    def __init__(self, name: str | None, *, verify: bool) -> None:
        self._name, self._verify = name, verify
        super().__init__()

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: Any) -> None:
        if self._name is not None:
            kwargs = {**kwargs, "server_hostname": self._name, "assert_hostname": self._name}
        super().init_poolmanager(connections, maxsize, block, **kwargs)
        if not self._verify:
            manager = self.poolmanager
            manager.pool_classes_by_scheme = {**manager.pool_classes_by_scheme, "https": _UncheckedPool}


class RequestsTransport:
    """A `Sender` over requests. It has no state between calls, so any thread may use it."""

    def __init__(self, *, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        self._connect_timeout = connect_timeout

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        """See `Sender.send`. A body that stalls right after its head may take the timeout twice."""
        seconds = call.timeout if timeout is None else timeout
        return self._exchange(node, call, None, seconds=seconds, deadline=time.monotonic() + seconds)

    def download(self, node: Node, call: Call[T], sink: Callable[[bytes], object], *, silence: float = SILENCE) -> T:
        """See `Sender.download`."""
        return self._exchange(node, call, sink, seconds=silence, deadline=None)

    def close(self) -> None:
        """Do nothing: no connection is kept open."""

    def _exchange(
        self,
        node: Node,
        call: Call[T],
        sink: Callable[[bytes], object] | None,
        *,
        seconds: float,
        deadline: float | None,
    ) -> T:
        with _Session() as session:
            response = self._head(session, node, call, seconds)
            with response:
                intake = ReplyIntake(node, call, response.status_code, response.headers.items(), sink)
                # Only errors of reading are translated; an exception of the sink is not the node's fault.
                for piece in _pieces(response, node, call, seconds, deadline):
                    intake.feed(piece)
                    if intake.full:
                        break
                return intake.done()

    def _head(self, session: requests.Session, node: Node, call: Call[T], seconds: float) -> requests.Response:
        """Send the request and wait for the head of the reply."""
        content_type, body = call.body()
        session.trust_env = False
        session.headers.clear()
        if node.tls_name is not None or not node.verify:
            session.mount("https://", _Tls(node.tls_name, verify=node.verify))
        connect = min(self._connect_timeout, seconds)
        try:
            return session.request(
                call.method,
                node.url_of(call.target),
                data=body,
                headers={**request_headers(node, call, content_type), "Connection": "close"},
                # `read` starts when the request is sent, so the total is `seconds`
                timeout=urllib3.Timeout(connect=connect, read=seconds, total=seconds),  # type: ignore[arg-type]  # the stubs lag
                allow_redirects=False,
                stream=True,
                verify=(node.ca or True) if node.verify else False,
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, UnicodeError) as e:
            raise _head_error(e, node, call, connect, seconds) from e


def _pieces(
    response: requests.Response, node: Node, call: Call[T], seconds: float, deadline: float | None
) -> Iterator[bytes]:
    """Yield the raw body as it arrives, until its end or the deadline."""
    # Older releases of urllib3 lack read1, and wait until a piece is full.
    read = getattr(response.raw, "read1", None) or response.raw.read
    while True:
        try:
            piece = read(PIECE, decode_content=False)
        except (urllib3.exceptions.TimeoutError, TimeoutError) as e:
            raise _no_reply(node, call, seconds) from e
        except (urllib3.exceptions.HTTPError, HTTPException, OSError) as e:
            raise CutReply.at(str(node), f"{call.path}: the connection broke in the middle of the reply") from e
        if not piece:
            return
        if deadline is not None and time.monotonic() > deadline:
            raise _no_reply(node, call, seconds)
        yield piece


def _head_error(error: Exception, node: Node, call: Call[T], connect: float, seconds: float) -> NodeError:
    """Translate a failure before the head of the reply; the class says whether the request may have been sent."""
    if isinstance(error, requests.ConnectTimeout):
        return ConnectTimeout.at(str(node), f"{connect:g} s")
    if isinstance(error, requests.Timeout):
        if any("handshake" in str(cause) for cause in _causes(error)):
            # A server without TLS takes the handshake for the beginning of a request and waits for the rest.
            return NoTls.at(str(node), f"{connect:g} s")
        return _no_reply(node, call, seconds)
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        # requests checks for the CA file before it connects
        return TlsRefused.at(str(node), f"the CA file {node.ca} cannot be read")
    return _connection_error(error, node, call)


def _connection_error(error: Exception, node: Node, call: Call[T]) -> NodeError:
    where = str(node)
    causes = list(_causes(error))
    if _any(causes, requests.exceptions.SSLError) and "EOF" not in str(error):
        return TlsRefused.at(where, _tls_words(causes))
    if _any(causes, socket.gaierror) or _any(causes, requests.exceptions.InvalidURL) or _any(causes, UnicodeError):
        return HostNotFound.at(where)
    if _any(causes, urllib3.exceptions.NewConnectionError):
        return ConnectionRefused.at(where, _system_words(causes))
    if _any(causes, HTTPException) and not _any(causes, RemoteDisconnected):
        return NotJson.at(where, f"{call.path}: the server does not speak HTTP")
    return ConnectionLost.at(where, call.path)


def _no_reply(node: Node, call: Call[T], seconds: float) -> NodeError:
    return NoReply.at(str(node), f"{call.path}, {seconds:g} s")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all its causes, wherever the libraries keep them."""
    seen: set[int] = set()
    queue: list[object] = [error]
    while queue:
        item = queue.pop(0)
        if isinstance(item, BaseException) and id(item) not in seen:
            seen.add(id(item))
            queue += [*item.args, getattr(item, "reason", None), item.__cause__, item.__context__]
            yield item


def _any(causes: list[BaseException], kind: type[BaseException]) -> bool:
    return any(isinstance(cause, kind) for cause in causes)


def _system_words(causes: list[BaseException]) -> str:
    """Return the operating system's reason, unless it is only "connection refused"."""
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, ConnectionRefusedError):
            return cause.strerror
    return ""


def _tls_words(causes: list[BaseException]) -> str:
    """Return the message of OpenSSL or of the host name check."""
    return str(causes[-1])[:200]
