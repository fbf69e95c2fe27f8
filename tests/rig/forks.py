"""Programs in the background; forked from a process with their modules imported they cost a tenth of a start."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from .processes import private_environment

SERVER = Path(__file__).parent / "fork_server.py"


def start_program(
    line: Sequence[str], *, cwd: Path, env: Mapping[str, str], out: Path, err: Path, preload: Sequence[str] = (),
) -> subprocess.Popen[bytes] | ForkedProgram:  # fmt: skip
    """Start a command line in this whole environment, in a session of its own; its output is appended to the files.

    With `preload`, what `python -m …` runs is a fork of a process that has imported these modules already; its exit
    code is kept beside `out`.
    """
    if not preload:
        with out.open("ab") as output, err.open("ab") as errors:
            return subprocess.Popen(
                line, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )
    python, _, module, *arguments = line
    code = out.with_suffix(".code")
    code.unlink(missing_ok=True)
    asked = {"cwd": str(cwd), "env": dict(env), "out": str(out), "err": str(err), "code": str(code)}
    asked |= {"module": module, "arguments": arguments}
    return ForkedProgram(*_server(python, tuple(preload)).start(asked), code)


class _ForkServer:
    """The process that has the modules; it lives as long as this one."""

    def __init__(self, python: str, preload: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        line, env, pipe = [python, "-I", str(SERVER), *preload], private_environment(Path(os.devnull)), subprocess.PIPE
        self._process = subprocess.Popen(line, env=env, stdin=pipe, stdout=pipe, text=True)
        atexit.register(self.close)

    def start(self, asked: Mapping[str, object]) -> tuple[int, int]:
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            program, parent = map(int, self._process.stdout.readline().split())
        return program, parent

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


_server = cache(_ForkServer)


class ForkedProgram:
    """A child of another process, which ends after it; it has what is used of a Popen."""

    def __init__(self, pid: int, parent: int, code: Path) -> None:
        self.pid = pid
        self._code = code
        self._parent: int | None = None
        with suppress(ProcessLookupError):  # it has ended
            self._parent = os.pidfd_open(parent)

    def poll(self) -> int | None:
        if self._parent is not None and not select.select([self._parent], [], [], 0)[0]:
            return None
        return self.wait(0)

    def wait(self, timeout: float) -> int:
        if self._parent is not None:
            if not select.select([self._parent], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            os.close(self._parent)
            self._parent = None
        return int(self._code.read_text(encoding="ascii"))
