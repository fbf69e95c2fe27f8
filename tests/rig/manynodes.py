"""Many fake Scrapyd nodes behind one port of loopback, each below a base path of its own; and addresses that are dead.

For tests of sweeps alone, where 200 real daemons would measure the machine.
"""

import asyncio
import json
import socket
import threading
from contextlib import suppress
from email.utils import formatdate

from scrapyd_dist.nodes import Node

#: full queues of connections that were never taken; the kernel then lets further ones wait, as a dead host does
_FILLERS = 4


class ManyNodes:
    """Answers daemonstatus.json and listversions.json below any base path, `latency` seconds later.

    `asked` are the paths that were asked for. With `together`, an answer waits until so many are asked for at a time.
    """

    def __init__(self, latency: float = 0.0, *, together: int = 1) -> None:
        self.asked: list[str] = []
        self._latency = latency
        self._together = together
        self._waiting: list[asyncio.Future[None]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def node(self, name: str) -> Node:
        return Node.parse(f"http://127.0.0.1:{self.port}/{name}", name=name)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.sleep(0)  # what was closed last is closed in the next turn of the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1].decode()
        self.asked.append(path)
        await asyncio.sleep(self._latency)
        await self._wait_for_others()
        answer = {"pending": 0, "running": 0, "finished": 0, "versions": ["1"], "status": "ok"}
        body = json.dumps({**answer, "node_name": path.split("/")[1]}).encode()
        lines = [
            "HTTP/1.1 200 OK",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        lines += [f"Date: {formatdate(usegmt=True)}", "Connection: close", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()

    async def _wait_for_others(self) -> None:
        asked = asyncio.get_running_loop().create_future()
        self._waiting.append(asked)
        if len(self._waiting) >= self._together:
            for one in self._waiting:
                one.set_result(None)
            self._waiting.clear()
        await asked


class BlackHole:
    """A port of loopback that takes no connection and refuses none: connecting to it takes until the time-out."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port: int = self._listener.getsockname()[1]
        self._fillers = [socket.socket() for _ in range(_FILLERS)]
        for filler in self._fillers:
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(("127.0.0.1", self.port))

    def node(self, name: str) -> Node:
        return Node.parse(f"http://127.0.0.1:{self.port}/{name}", name=name)

    def close(self) -> None:
        for filler in self._fillers:
            filler.close()
        self._listener.close()


def refusing(name: str) -> Node:
    """A node of that name at a closed port."""
    return Node.parse(f"http://127.0.0.1:1/{name}", name=name)
