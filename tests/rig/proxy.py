"""A proxy in front of a node, over real TCP, that spoils chosen exchanges; all others go through byte for byte."""

import socket
import ssl
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from .badpeer import BadPeer, Connection, reply
from .nodes import ScrapydNode

_NO = b'{"status": "error", "message": "no"}'
_OOPS = reply(500, b"oops", "Content-Type: text/plain")
_PAGE = reply(200, b"<html><body>Please log in</body></html>", "Content-Type: text/html")


@dataclass(frozen=True, kw_only=True)
class Mishap:
    """What goes wrong with one exchange."""

    forward: bool = True  #: the node gets the request
    hold: float = 0.0  #: seconds before the node gets it
    delay: float = 0.0  #: seconds before the answer goes back
    answer: bytes | None = None  #: what goes back instead of the node's own answer
    share: float | None = (
        None  #: how much of the answer goes back before the connection is reset; None for all of it
    )
    garbled: bool = False  #: a byte in the middle of the answer's body is another one


#: the node has taken it, and says so when the client has given up
LATE = Mishap(delay=20)
#: the node has taken it, and the connection breaks in the middle of its answer
CUT = Mishap(share=0.7)
#: the node has taken it, and the connection breaks before its answer
RESET = Mishap(share=0.0)
#: the node has taken it, and something between says that it failed
FAILED_AFTER = Mishap(answer=_OOPS)
#: the node has never seen it, and something between says that it failed
FAILED_BEFORE = Mishap(forward=False, answer=_OOPS)
#: the node has taken it, and a proxy's page comes back
PAGE_AFTER = Mishap(answer=_PAGE)
#: the node has never seen it, and a proxy's page comes back
PAGE_BEFORE = Mishap(forward=False, answer=_PAGE)
#: the node never sees it, and there is no answer
SWALLOWED = Mishap(forward=False, delay=20, share=0.0)
#: Scrapyd's own words for no
REFUSED = Mishap(forward=False, answer=reply(200, _NO, "Content-Type: application/json"))
#: what lies there is not shown to the world
NOT_FOUND = Mishap(forward=False, answer=reply(404, b"gone", "Content-Type: text/plain"))
#: the answer comes whole, but is not what the node has sent
GARBLED = Mishap(garbled=True)


class Proxy(BadPeer):
    """Stands before one node, at a port of its own; `spoilt` counts the spoilt exchanges about each page."""

    def __init__(self, node: ScrapydNode, tls: ssl.SSLContext | None = None) -> None:
        self.node = node
        self.spoilt: Counter[str] = Counter()
        self._plans: dict[str, list[Mishap]] = {}
        self._standing: dict[str, Mishap] = {}
        self._lock = threading.Lock()
        super().__init__(self._exchange, tls)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}/"

    def section(self, project: str, name: str) -> str:
        """Its section of scrapy.cfg."""
        return f"[deploy:{name}]\nurl = {self.url}\nproject = {project}\n"

    def spoil(self, page: str, mishap: Mishap, times: int = 1) -> None:
        """Let the next exchanges about this page (`schedule.json`, …) go wrong; `*` stands for every page."""
        with self._lock:
            self._plans.setdefault(page, []).extend([mishap] * times)

    def spoil_always(self, ending: str, mishap: Mishap) -> None:
        """Let every exchange about a page whose path ends so go wrong from now on."""
        with self._lock:
            self._standing[ending] = mishap

    def forward_to(self, node: ScrapydNode) -> None:
        """Lead to another node from now on, as an address does that another machine was given."""
        self.node = node

    def heal(self) -> None:
        with self._lock:
            self._plans.clear()
            self._standing.clear()

    def _plan_for(self, request: bytes) -> Mishap:
        page = request.split(b" ", 2)[1].decode("latin-1").partition("?")[0].lstrip("/")
        with self._lock:
            for name in (page, "*"):
                if self._plans.get(name):
                    self.spoilt[name] += 1
                    return self._plans[name].pop(0)
            for ending, mishap in self._standing.items():
                if page.endswith(ending):
                    self.spoilt[ending] += 1
                    return mishap
        return Mishap()

    def _exchange(self, connection: Connection, request: bytes) -> None:
        if not request:
            return
        mishap = self._plan_for(request)
        connection.pause(mishap.hold)
        answer = self._ask(request) if mishap.forward else b""
        if mishap.answer is not None:
            answer = mishap.answer
        if mishap.garbled:
            answer = _garble(answer)
        connection.pause(mishap.delay)
        if mishap.share is None:
            connection.say(answer)
            connection.end()
        else:
            connection.say(answer[: int(len(answer) * mishap.share)])
            connection.reset()

    def _ask(self, request: bytes) -> bytes:
        """The node's whole answer; nothing when it is not there, which the client then sees as a lost connection."""
        head, _, body = request.partition(b"\r\n\r\n")
        lines = [
            line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")
        ]
        answer = b""
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.node.port), timeout=60) as upstream,
        ):
            upstream.sendall(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
            while piece := upstream.recv(1 << 16):
                answer += piece
        return answer


def _garble(answer: bytes) -> bytes:
    """An answer of the same length, in whose body one byte is another."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not body:
        return answer
    middle = len(body) // 2
    return head + end + body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
