"""Sends calls with the requests library, for blocking code, or in threads for asyncio.

There is no session of requests, and so no proxies of the environment, no netrc, no redirects and no
cookies; its exceptions are translated. Connections are not kept open, because a stale one would
make a failed POST ambiguous.
"""

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPException, HTTPResponse, RemoteDisconnected
from io import BufferedReader, RawIOBase
from typing import Any, TypeVar

import requests
import urllib3

from scrapyd_dist.errors import (
    ConnectionLost,
    ConnectTimeout,
    HostNotFound,
    NodeError,
    NotJson,
    NoTls,
    TlsRefused,
)
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.transports import CONNECT_TIMEOUT, Sender
from scrapyd_dist.transports.reply_intake import (
    PIECE,
    ReplyIntake,
    broken_reply,
    no_reply,
    nobody_listens,
    request_headers,
)

T = TypeVar("T")
#: maximum concurrent calls per node, for asyncio
THREADS = 8


class _Deadline:
    """When a reply must be complete, by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Move the deadline to the whole time from now on."""
        self._at = time.monotonic() + self._seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline; below 0 after it."""
        return self._at - time.monotonic()


class _TimedReader(RawIOBase):
    """Reads from a socket until the deadline.

    The timeouts of a socket hold for each read alone: a head, the size of a chunk, or trailers that
    come byte by byte, or have no end, would never exceed them.
    """

    def __init__(self, sock: Any, source: Any, deadline: _Deadline) -> None:
        self._sock = sock
        self._source = source
        self._deadline = deadline

    def readable(self) -> bool:
        """Return True, as the interface of `RawIOBase` asks."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read into the buffer, and return the number of bytes; TimeoutError at the deadline."""
        left = self._deadline.left
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        read: int | None = self._source.readinto(buffer)
        return read

    def close(self) -> None:
        """Close the socket's reader as well."""
        self._source.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """A response that is read until the deadline."""

    def __init__(self, deadline: _Deadline, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = BufferedReader(_TimedReader(sock, self.fp.detach(), deadline))


def _make_timed_pool(
    kind: type[urllib3.HTTPConnectionPool], deadline: _Deadline, *args: Any, **kwargs: Any
) -> Any:
    """Return a pool of this kind, whose replies must be complete at the deadline."""

    class Pool(kind):  # type: ignore[misc, valid-type]  # a class like any other
        def _new_conn(self) -> Any:
            connection = super()._new_conn()
            connection.response_class = partial(_TimedResponse, deadline)
            return connection

    return Pool(*args, **kwargs)


class _UncheckedAdapter(urllib3.connection.HTTPSConnection):
    """A connection for `verify = no`, without urllib3's warning at each call.

    The target asks for it explicitly.
    """

    def connect(self) -> None:
        """Connect, and keep urllib3 from warning."""
        super().connect()
        # urllib3 uses it for its warning only; a warning filter would affect the project's, too.
        self.is_verified = True


class _UncheckedPool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _UncheckedAdapter


class TimedAdapter(requests.adapters.HTTPAdapter):
    """Makes connections whose replies must be complete after so many seconds."""

    _https: type[urllib3.HTTPConnectionPool] = urllib3.HTTPSConnectionPool

    def __init__(self, seconds: float) -> None:
        self.deadline = _Deadline(seconds)
        super().__init__()

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **kwargs: Any
    ) -> None:
        """Make the pools of connections, with the deadline."""
        super().init_poolmanager(connections, maxsize, block, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {
            "http": partial(_make_timed_pool, urllib3.HTTPConnectionPool, self.deadline),
            "https": partial(_make_timed_pool, self._https, self.deadline),
        }


class _NodeAdapter(TimedAdapter):
    """Makes a connection by a node's TLS options.

    It may connect to an address and check the certificate for a host name.
    """

    def __init__(self, node: Node, seconds: float) -> None:
        self._node = node
        if not node.verify:
            self._https = _UncheckedPool
        super().__init__(seconds)

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **kwargs: Any
    ) -> None:
        """Make the pools of connections, for the host name of the certificate."""
        name = self._node.tls_name
        if name is not None and self._node.url.startswith("https:"):
            kwargs = {**kwargs, "server_hostname": name, "assert_hostname": name}
        super().init_poolmanager(connections, maxsize, block, **kwargs)


class RequestsTransport:
    """A `Sender` over requests. It has no state between calls, so any thread may use it."""

    def __init__(self, *, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        self._connect_timeout = connect_timeout

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        """Send a call and return the value that it reads from the reply; see `Sender`."""
        seconds = call.timeout if timeout is None else timeout
        with (
            closing(_NodeAdapter(node, seconds)) as adapter,
            self._request_head(adapter, node, call, seconds) as response,
        ):
            intake = ReplyIntake(node, call, response.status_code, response.headers.items())
            while not intake.full:
                try:  # an exception of the sink is not the node's fault
                    piece = response.raw.read1(PIECE, decode_content=False)
                except (urllib3.exceptions.TimeoutError, TimeoutError) as e:
                    raise no_reply(node, call, seconds) from e
                except (urllib3.exceptions.HTTPError, HTTPException, OSError) as e:
                    raise broken_reply(node, call) from e
                if not piece:
                    break
                intake.feed(piece)
                if call.sink is not None:
                    adapter.deadline.renew()
            return intake.done()

    def _request_head(
        self, adapter: _NodeAdapter, node: Node, call: Call[T], seconds: float
    ) -> requests.Response:
        """Send the request and wait for the head of the reply."""
        content_type, body = call.body()
        headers = {**request_headers(node, call, content_type), "Connection": "close"}
        connect = min(self._connect_timeout, seconds)
        # `read` starts when the request is sent, so the total is `seconds`.
        timeout = urllib3.Timeout(connect=connect, read=seconds, total=seconds)
        verify: bool | str = node.verify
        if node.verify and node.ca:
            verify = node.ca
        try:
            request = requests.Request(
                call.method, node.url_of(call.target), headers=headers, data=body
            ).prepare()
            return adapter.send(
                request,
                stream=True,
                timeout=timeout,  # type: ignore[arg-type]  # the stubs lag
                verify=verify,
            )
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
            UnicodeError,
        ) as e:
            raise _translate_head_error(e, node, call, connect, seconds) from e


class ThreadTransport:
    """An `AsyncSender` over a blocking `Sender`.

    It has a thread pool per node, so that a silent node blocks no other. A cancelled call continues
    in its thread until its timeout; the node may still accept it. The timeout of a call starts when
    a thread begins it. The sink of a call is called in a thread of the pool.
    """

    def __init__(self, sender: Sender | None = None) -> None:
        self._sender = sender or RequestsTransport()
        self._pools: dict[str, ThreadPoolExecutor] = {}  #: by node url

    async def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        """Send a call in a thread of the node's pool; see `AsyncSender`."""
        if node.url not in self._pools:
            self._pools[node.url] = ThreadPoolExecutor(
                max_workers=THREADS, thread_name_prefix="sdist-send"
            )
        work = partial(self._sender.send, node, call, timeout=timeout)
        return await asyncio.get_running_loop().run_in_executor(self._pools[node.url], work)

    def close(self) -> None:
        """Shut the pools down; a thread that waits for a reply ends with it."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


def _translate_head_error(
    error: Exception, node: Node, call: Call[T], connect: float, seconds: float
) -> NodeError:
    """Return the `NodeError` for a failure before the head of the reply.

    Its class says whether the request may have been sent.
    """
    where = str(node)
    causes = list(_find_causes(error))
    if isinstance(error, requests.ConnectTimeout):
        return ConnectTimeout.at(where, f"{connect:g} s")
    if isinstance(error, requests.Timeout):
        # A server without TLS takes the handshake for the beginning of a request and waits for the
        # rest.
        if any("handshake" in str(cause) for cause in causes):
            return NoTls.at(where, f"{connect:g} s")
        return no_reply(node, call, seconds)
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        # requests checks for the CA file before it connects.
        return TlsRefused.at(where, f"the CA file {node.ca} cannot be read")
    return _translate_connection_error(causes, node, call.path)


def _translate_connection_error(causes: list[BaseException], node: Node, path: str) -> NodeError:
    where = str(node)

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if has(requests.exceptions.SSLError) and "EOF" not in str(causes[0]):
        return TlsRefused.at(where, str(causes[-1])[:200])
    if has(socket.gaierror, requests.exceptions.InvalidURL, UnicodeError):
        return HostNotFound.at(where)
    if has(urllib3.exceptions.NewConnectionError):
        return nobody_listens(node, _find_reason(causes))
    if has(HTTPException) and not has(RemoteDisconnected):
        return NotJson.at(where, f"{path}: the server does not speak HTTP")
    return ConnectionLost.at(where, path)


def _find_reason(causes: list[BaseException]) -> str:
    """Return the system's words for why there is no connection; empty if it was just refused."""
    for cause in causes:
        if isinstance(cause, ConnectionRefusedError):
            continue
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return ""


def _find_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all its causes, wherever the libraries keep them."""
    seen: set[int] = set()
    queue: list[object] = [error]
    while queue:
        item = queue.pop(0)
        if isinstance(item, BaseException) and id(item) not in seen:
            seen.add(id(item))
            queue += [*item.args, getattr(item, "reason", None), item.__cause__, item.__context__]
            yield item
