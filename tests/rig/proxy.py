"""A proxy in front of a node, over real TCP, that spoils chosen exchanges; all others go through byte for byte."""

import json
import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from .nodes import ScrapydNode

_RESET = struct.pack("ii", 1, 0)


def reply(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """A whole HTTP reply."""
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close"
    return head.encode() + b"\r\n\r\n" + body


@dataclass(frozen=True, kw_only=True)
class Mishap:
    """What goes wrong with one exchange.

    Attributes:
        forward: whether the node gets the request at all.
        hold: seconds before the node gets it.
        delay: seconds before the answer goes back.
        answer: what goes back instead of the node's own answer.
        share: how much of the answer goes back before the connection is reset; None for all of it.
    """

    forward: bool = True
    hold: float = 0.0
    delay: float = 0.0
    answer: bytes | None = None
    share: float | None = None


#: the node has taken it, and says so too late for anybody
LATE = Mishap(delay=20)
#: the node has taken it, and the connection breaks in the middle of its answer
CUT = Mishap(share=0.7)
#: the node has taken it, and the connection breaks before its answer
RESET = Mishap(share=0.0)
#: the node has taken it, and something between says that it failed
FAILED_AFTER = Mishap(answer=reply(500, b"oops", "text/plain"))
#: the node has never seen it, and something between says that it failed
FAILED_BEFORE = Mishap(forward=False, answer=reply(500, b"oops", "text/plain"))
#: the node has taken it, and a proxy's page comes back
PAGE_AFTER = Mishap(answer=reply(200, b"<html><body>Please log in</body></html>", "text/html"))
#: the node has never seen it, and a proxy's page comes back
PAGE_BEFORE = Mishap(forward=False, answer=reply(200, b"<html><body>Please log in</body></html>", "text/html"))
#: the node never sees it, and there is no answer
SWALLOWED = Mishap(forward=False, delay=20, share=0.0)
#: Scrapyd's own words for no
REFUSED = Mishap(forward=False, answer=reply(200, json.dumps({"status": "error", "message": "no"}).encode()))


class Proxy:
    """Stands before one node, at a port of its own.

    Attributes:
        url: its address, to be used in place of the node's.
        spoilt: pages whose exchanges were spoilt, and how often.
    """

    def __init__(self, node: ScrapydNode) -> None:
        self.node = node
        self.spoilt: Counter[str] = Counter()
        self._plans: dict[str, list[Mishap]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def section(self, project: str, name: str) -> str:
        """Its section of scrapy.cfg."""
        return f"[deploy:{name}]\nurl = {self.url}\nproject = {project}\n"

    def spoil(self, page: str, mishap: Mishap, times: int = 1) -> None:
        """Let the next exchanges about this page (`schedule.json`, …) go wrong; `*` stands for every page."""
        with self._lock:
            self._plans.setdefault(page, []).extend([mishap] * times)

    def heal(self) -> None:
        """From now on all goes well."""
        with self._lock:
            self._plans.clear()

    def close(self) -> None:
        """Stop listening, and wait for the exchanges under way."""
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]  # of any target
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.settimeout(60)
            request = _read_request(client)
            if request:
                self._exchange(client, request, self._plan_for(request))

    def _plan_for(self, request: bytes) -> Mishap:
        page = request.split(b" ", 2)[1].decode("latin-1").partition("?")[0].lstrip("/")
        with self._lock:
            for name in (page, "*"):
                if self._plans.get(name):
                    self.spoilt[name] += 1
                    return self._plans[name].pop(0)
        return Mishap()

    def _exchange(self, client: socket.socket, request: bytes, mishap: Mishap) -> None:
        self._over.wait(mishap.hold)
        answer = self._ask(request) if mishap.forward else b""
        if mishap.answer is not None:
            answer = mishap.answer
        self._over.wait(mishap.delay)
        if mishap.share is None:
            client.sendall(answer)
            return
        client.sendall(answer[: int(len(answer) * mishap.share)])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _ask(self, request: bytes) -> bytes:
        """The node's whole answer; nothing when it is not there, which the client then sees as a lost connection."""
        answer = b""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.node.port), timeout=60) as upstream:
            upstream.sendall(request)
            while piece := upstream.recv(1 << 16):
                answer += piece
        return answer


def _read_request(client: socket.socket) -> bytes:
    """One whole request, which asks for the connection to be closed behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(1 << 16)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    length = next((int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        piece = client.recv(1 << 16)
        if not piece:
            return b""
        body += piece
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""]) + body
