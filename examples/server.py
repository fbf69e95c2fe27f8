"""The demo site on the wire: HTTP/1.1 with keep-alive and pipelining, as little work per request as Python allows."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, NamedTuple

from .behaviour import Behaviour, Behaviours
from .hits import Log, parse_headers

if TYPE_CHECKING:
    from .pages import Site

#: what happens to the connection behind an answer
After = Literal["keep", "close", "reset", "hang"]

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_NO_LINGER = struct.pack("ii", 1, 0)


class Request(NamedTuple):
    """One request as it stood on the wire."""

    method: str
    target: str
    head: bytes
    body: bytes
    close: bool

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def host(self) -> str:
        """The Host header."""
        return parse_headers(self.head).get("host", "localhost")


class Answer(NamedTuple):
    """What goes back, when, and what then becomes of the connection."""

    data: bytes
    delay: float = 0.0
    after: After = "keep"


class BadRequestError(Exception):
    """What came is not HTTP."""


def response(
    status: int,
    body: bytes,
    headers: dict[str, str] | None = None,
    kind: str = "text/html; charset=utf-8",
) -> bytes:
    """A whole HTTP response, ready to be written."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}", f"Content-Type: {kind}"]
    lines += [
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def _json(value: object, status: int = 200) -> Answer:
    return Answer(response(status, json.dumps(value).encode(), kind="application/json"))


def take_request(buffer: bytes) -> tuple[Request, bytes] | None:
    """Split the first whole request off `buffer`; None while it is not whole.

    Raises:
        BadRequestError: when the request line or the length make no sense.
    """
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    line, _, head = buffer[:end].partition(b"\r\n")
    lower, length = head.lower(), 0
    try:
        method, target, version = line.decode("latin-1").split(" ")
        if b"content-length:" in lower:
            length = int(parse_headers(head)["content-length"])
    except (ValueError, KeyError) as error:
        raise BadRequestError from error
    if b"transfer-encoding:" in lower:
        raise BadRequestError
    if len(buffer) < end + 4 + length:
        return None
    close = b"connection: close" in lower or (
        version == "HTTP/1.0" and b"connection: keep-alive" not in lower
    )
    return Request(method, target, head, buffer[end + 4 : end + 4 + length], close), buffer[
        end + 4 + length :
    ]


class Server:
    """Answers requests for one site.

    Args:
        site: what exists.
        log: where the hits go.
        latency: seconds before each answer; other connections do not wait for it.
        behaviours: what some pages do instead of answering.
    """

    def __init__(
        self,
        site: Site,
        log: Log | None = None,
        *,
        latency: float = 0.0,
        behaviours: Behaviours | None = None,
    ) -> None:
        self.site = site
        self.log = log or Log()
        self.latency = latency
        self.behaviours = behaviours or Behaviours.parse({})
        self._ready: dict[tuple[str, str], Answer] = {}
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.BaseTransport] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen, and return the port."""
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self, self._connections), host, port, backlog=1024
        )
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Stop listening, drop all connections, close the log."""
        if self._listener:
            self._listener.close()
        for connection in list(self._connections):
            connection.close()
        self.log.close()

    def answer(self, request: Request, peer: tuple[str, int]) -> Answer:
        """Find the answer to one request from a client's address and port."""
        if request.target.startswith("/__"):
            return self._control(request)
        self.log.add(request.method, request.target, peer, request.head, request.body)
        path, _, query = request.target.partition("?")
        behaviour = self.behaviours.of(path)
        if behaviour is None and "behave=" not in query:
            return self._page(request, path)
        return self._behave(
            request,
            path,
            behaviour or Behaviour.parse(query.partition("behave=")[2].partition("&")[0]),
        )

    def _page(self, request: Request, path: str) -> Answer:
        key = (path, request.host if self.site.offsite else "")
        ready = self._ready.get(key)
        if ready is None:
            if path == "/echo":
                return self._echo(request)
            body = self.site.body(path, request.host)
            if body is None:
                return Answer(response(404, b"<h1>No such page</h1>"), self.latency)
            ready = self._ready[key] = Answer(response(200, body), self.latency)
        return ready

    def _behave(self, request: Request, path: str, behaviour: Behaviour) -> Answer:
        status = behaviour.error_status(self.log.visit(path))
        page = self._page(request, path)
        if behaviour.kind in {"hang", "reset"}:
            return Answer(b"", after="hang" if behaviour.kind == "hang" else "reset")
        if status is not None:
            page = Answer(response(status, b"<h1>Not today</h1>", behaviour.error_headers()))
        elif behaviour.kind == "says":
            page = Answer(
                response(200, behaviour.argument.encode(), kind="text/plain; charset=utf-8")
            )
        elif not behaviour.lets_in(parse_headers(request.head)):
            page = Answer(response(403, b"<h1>Not for you</h1>"))
        elif behaviour.kind == "redirect":
            page = Answer(response(302, b"", {"Location": behaviour.argument}))
        elif behaviour.kind == "setcookie":
            head, _, body = page.data.partition(b"\r\n\r\n")
            page = Answer(
                head + f"\r\nSet-Cookie: {behaviour.argument}; Path=/\r\n\r\n".encode() + body
            )
        elif behaviour.kind == "cut":
            return Answer(page.data[: -(len(page.data) // 4)], self.latency, "close")
        slow = float(behaviour.argument) if behaviour.kind == "slow" else 0.0
        return Answer(page.data, self.latency + slow)

    def _echo(self, request: Request) -> Answer:
        said = {
            "method": request.method,
            "target": request.target,
            "headers": parse_headers(request.head),
        }
        return _json({**said, "body": request.body.decode("utf-8", "replace")})._replace(
            delay=self.latency
        )

    def _control(self, request: Request) -> Answer:
        if request.path == "/__hits__":
            return _json(self.log.counts())
        if request.path == "/__log__":
            self.log.flush()
            return Answer(response(200, self.log.lines().encode(), kind="application/jsonl"))
        if request.path == "/__reset__" and request.method == "POST":
            self.log.clear()
            return _json({"status": "ok"})
        if request.path == "/__behave__" and request.method == "POST":
            try:
                self.behaviours = Behaviours.parse(json.loads(request.body))
            except (ValueError, AttributeError) as error:
                return _json({"status": "error", "message": str(error)}, 400)
            return _json({"status": "ok"})
        return _json({"status": "error", "message": "no such page of the site's own"}, 404)


class _Connection(asyncio.Protocol):
    """One client; its requests are answered in their order, one after the other."""

    _transport: asyncio.Transport

    def __init__(self, server: Server, connections: set[asyncio.BaseTransport]) -> None:
        self._server = server
        self._connections = connections
        self._buffer = b""
        self._peer = ("", 0)
        self._waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer = transport.get_extra_info("peername")[:2]
        self._connections.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._waiting:
            self._serve()

    def _serve(self) -> None:
        while not self._waiting and not self._transport.is_closing():
            try:
                taken = take_request(self._buffer)
                if taken is None:
                    return
                request, self._buffer = taken
                answer = self._server.answer(request, self._peer)
            except (BadRequestError, ValueError):
                answer, request = (
                    Answer(response(400, b"<h1>Bad request</h1>"), after="close"),
                    None,
                )
            if request is not None and request.method == "HEAD":
                answer = answer._replace(data=answer.data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
            if request is not None and request.close and answer.after == "keep":
                answer = answer._replace(after="close")
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        if answer.after == "hang":
            self._waiting = True
        elif answer.delay:
            self._waiting = True
            asyncio.get_running_loop().call_later(answer.delay, self._send_late, answer)
        elif answer.after == "reset":
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER
            )
            self._transport.abort()
        else:
            self._transport.write(answer.data)
            if answer.after == "close":
                self._transport.close()

    def _send_late(self, answer: Answer) -> None:
        self._waiting = False
        if not self._transport.is_closing():
            self._send(answer._replace(delay=0.0))
            self._serve()
