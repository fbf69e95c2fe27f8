"""Real Redis servers, alone or as a cluster, each with its own port and folder, to be killed and started again."""

import os
import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import redis

from .nodes import free_port
from .waiting import wait_for

#: with all that has to be percent-encoded in a URL
PASSWORD = "p:ss/w@rd"
#: of a cluster
_SLOTS = 16_384


class RedisServer:
    """A server on loopback that keeps every step in its file before it answers.

    Its file, its socket and its log are in the folder; `options` are as on its command line, without the two dashes.
    """

    def __init__(
        self,
        folder: Path,
        password: str | None = PASSWORD,
        *,
        program: str = "redis-server",
        **options: str,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.password, self._program = folder, password, program
        self.port = free_port()
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": folder,
            "logfile": folder / "redis.log",
        }
        settings |= {
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "unixsocket": folder / "s",
            **options,
        }
        lines = [f'{name.replace("_", "-")} "{value}"' for name, value in settings.items()]
        # In a file, as one would for real: every user can read an argument list.
        lines += [f'requirepass "{password}"'] if password else []
        (folder / "redis.conf").write_text("\n".join(lines) + "\n", "utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://{self._user}127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        return f"unix://{self._user}{self.folder / 's'}?db=0"

    @property
    def _user(self) -> str:
        """Its password, percent-encoded, as it stands in an address."""
        return f":{quote(self.password, safe='')}@" if self.password else ""

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def start(self) -> None:
        """Start it with what its file has, and wait until it listens."""
        line, nothing = [self._program, str(self.folder / "redis.conf")], subprocess.DEVNULL
        self._process = subprocess.Popen(
            line, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )
        wait_for(self._listens, 20, "the Redis server")

    def _listens(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return b"LOADING" not in connection.recv(100)

    def kill(self) -> None:
        """What a power cut does."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """It does not answer any more."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(20)
        self._process = None


class ServerCluster:
    """A Redis Cluster of three nodes on loopback, each with a third of the slots."""

    def __init__(self, folder: Path) -> None:
        self._open = ExitStack()
        buses = [free_port() for _ in range(3)]
        try:
            self.nodes = [self._node(folder / str(bus), bus) for bus in buses]
            self.clients = [
                self._open.enter_context(redis.Redis.from_url(node.url)) for node in self.nodes
            ]
            for number, client in enumerate(self.clients):
                first, last = (_SLOTS * at // len(buses) for at in (number, number + 1))
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last - 1)
                client.execute_command("CLUSTER MEET", "127.0.0.1", self.nodes[0].port, buses[0])
            wait_for(self._is_whole, 30, "the cluster")
        except BaseException:
            self.close()
            raise

    def _node(self, folder: Path, bus: int) -> RedisServer:
        node = RedisServer(folder, cluster_enabled="yes", cluster_port=str(bus))
        self._open.callback(node.close)
        return node

    def _is_whole(self) -> bool:
        told = [client.execute_command("CLUSTER INFO") for client in self.clients]
        return all(
            info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3" for info in told
        )

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def close(self) -> None:
        self._open.close()
