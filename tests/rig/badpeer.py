"""A server that keeps to no rule but the test's: for each connection it plays what it was given, byte for byte."""

import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

#: what to do with one connection, given the request that came
Play = Callable[["Connection", bytes], None]


def reply(status: int, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """A whole HTTP reply; `length` is what it claims to be long."""
    lines = [
        f"HTTP/1.1 {status} Whatever",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


class Connection:
    """One accepted connection, in the hands of a play."""

    def __init__(self, sock: socket.socket, over: threading.Event) -> None:
        self._sock, self._over = sock, over

    @property
    def over(self) -> bool:
        """Whether the test is over."""
        return self._over.is_set()

    def say(self, data: bytes) -> None:
        self._sock.sendall(data)

    def answer(self, status: int, body: bytes, *headers: str, length: int | None = None) -> None:
        self.say(reply(status, body, *headers, length=length))

    def hang(self) -> None:
        """Do nothing until the test is over."""
        self._over.wait(60)

    def pause(self, seconds: float) -> None:
        """Do nothing for a while, less if the test is over."""
        self._over.wait(seconds)

    def wait_closed(self) -> bytes:
        """Wait until the other side closes, and give what it said before (nothing: b"")."""
        try:
            return self._sock.recv(1)
        except ConnectionResetError:
            return b""

    def end(self) -> None:
        """Say farewell as TLS wants it: without, the end of the stream looks like an attack."""
        if isinstance(self._sock, ssl.SSLSocket):
            self._sock.unwrap()

    def reset(self) -> None:
        """Break the connection, so that the other side sees ECONNRESET."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()


class BadPeer:
    """Listens on a free port of this machine and plays; `requests` has what came, an entry for each connection."""

    def __init__(
        self,
        play: Play,
        tls: ssl.SSLContext | None = None,
        *,
        listens: bool = True,
        host: str = "127.0.0.1",
    ) -> None:
        self.requests: list[bytes] = []
        self._play, self._tls, self._listens = play, tls, listens
        self._over = threading.Event()
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Stop listening, let all plays end, and wait for them."""
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            sock.settimeout(60)
            with self._tls.wrap_socket(sock, server_side=True) if self._tls else sock as spoken:
                request = _read_request(spoken) if self._listens else spoken.recv(65536)
                self.requests.append(request)
                self._play(Connection(spoken, self._over), request)


def _read_request(sock: socket.socket) -> bytes:
    """One whole HTTP request: the head, and as much body as it announces; less when it ends before."""
    with sock.makefile("rb") as stream:
        head = b""
        while not head.endswith(b"\r\n\r\n") and (line := stream.readline()):
            head += line
        announced = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
        return head + stream.read(int(announced[1]) if announced else 0)
