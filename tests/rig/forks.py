"""Programs in the background; forked from a process with their modules imported they cost a tenth of a start."""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from .fork_server import ARGUMENTS_OF_PADDING, HEADER, PADDING
from .processes import private_environment

SERVER = Path(__file__).parent / "fork_server.py"


def start_program(
    line: Sequence[str], *, cwd: Path, env: Mapping[str, str], out: Path, err: Path, preload: Sequence[str] = (),
    stdin: Path = Path(os.devnull),
) -> subprocess.Popen[bytes] | ForkedProgram:  # fmt: skip
    """Start a command line in this whole environment, in a session of its own; its output is appended to the files.

    With `preload`, what `python -m …` runs is a fork of a process that has imported these modules already.
    """
    with stdin.open("rb") as source, out.open("ab") as output, err.open("ab") as errors:
        if preload:
            python, _, module, *arguments = line
            program = {"module": module, "arguments": arguments, "cwd": str(cwd), "env": dict(env)}
            return fork_server(python, tuple(preload)).start(
                program, source.fileno(), output.fileno(), errors.fileno()
            )
        return subprocess.Popen(
            line,
            cwd=cwd,
            env=env,
            stdin=source,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )


class ForkServer:
    """The process that has the modules; it lives as long as this one. `address` is its Unix socket."""

    def __init__(self, python: str, modules: tuple[str, ...]) -> None:
        self.address = f"{tempfile.mkdtemp(prefix='forks')}/socket"
        line = [
            python,
            "-I",
            str(SERVER),
            self.address,
            *modules,
            *[PADDING] * ARGUMENTS_OF_PADDING,
        ]
        env = private_environment(Path(os.devnull), {"PADDING": PADDING})
        # It ends with its standard input: pytest's workers may end without the functions of `atexit`.
        self._process = subprocess.Popen(
            line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(self.close)
        assert self._process.stdout
        assert self._process.stdout.readline() == b"ready\n", f"{python} could not import {modules}"

    def start(
        self, program: Mapping[str, object], source: int, output: int, errors: int
    ) -> ForkedProgram:
        """Have a program forked; its input and its output are these open files."""
        umask = os.umask(0)
        os.umask(umask)
        request = json.dumps({**program, "umask": umask, "ignored": []}).encode()
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.address)
        socket.send_fds(client, [HEADER.pack(len(request))], [source, output, errors])
        client.sendall(request)
        return ForkedProgram(client)

    def close(self) -> None:
        self._process.communicate()


_lock = threading.Lock()
_fork_server = cache(ForkServer)


def fork_server(python: str, modules: tuple[str, ...]) -> ForkServer:
    """The server of this interpreter and these modules, started when it is first asked for."""
    with _lock:
        return _fork_server(python, modules)


class ForkedProgram:
    """A child of another process; it has what is used of a Popen."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._answers = client.makefile("r", encoding="ascii")
        self.pid = int(self._answers.readline())
        assert self.pid, "the program's arguments are longer than a fork can have"
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None and select.select([self._client], [], [], 0)[0]:
            return self.wait(0)
        return self._code

    def wait(self, timeout: float) -> int:
        if self._code is None:
            if not select.select([self._client], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self._code = int(self._answers.readline())
            self._answers.close()
            self._client.close()
        return self._code
