"""Runs Python programs as forks of a process that has imported their modules: most of a program's start is imports.

    python -I fork_server.py SOCKET MODULE …

imports these modules (`package.*` stands for all modules of a package) and then listens on the Unix socket. A client
sends its standard input, output and errors as open files, and a program as JSON; it hears the program's process id,
and its exit code when it has ended, a line each. A client that is gone takes its program with it.

The server ends when its standard input does, as that of a process that was killed.

A program has a session, a working directory and an environment of its own, as if it were started by `python -m`. Its
`/proc/PID/cmdline` and `environ` are its own, too. What cannot be given to a fork is refused with the process id 0.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import sys
import time
import warnings
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

#: Linux shows as command line and environment what lies where those of the start lay: the room for a program's own.
PADDING = "-" * 120_000
ARGUMENTS_OF_PADDING = 8
#: the fields of /proc/PID/stat (proc(5) counts from 1) that say where the command line and the environment lie
ARG_START = 48
#: the length of a request, before the request
HEADER = struct.Struct("!I")


def main() -> None:
    address, *modules = (argument for argument in sys.argv[1:] if argument != PADDING)
    refusing = RefuseReactor()
    sys.meta_path.insert(0, refusing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a program hears of what it imports itself
        for name in modules:
            preload(name)
    sys.meta_path.remove(refusing)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leaves no zombies
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            client = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                become_parent(client)
                return
            client.close()
    Path(address).unlink()
    Path(address).parent.rmdir()


class RefuseReactor(MetaPathFinder):
    """Lets no module be imported that brings the reactor: it has an open epoll, which forks would share."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "twisted.internet.reactor":
            raise ImportError(f"{name} is for the forks")


def preload(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".*"))
    if not name.endswith(".*"):
        return
    for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
        # Importing `__main__` would run the program; the examples are a project's files.
        if not found.name.endswith("__main__") and ".examples." not in found.name:
            # Of a package that is not needed, like Scrapy's h2; or of the reactor.
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)


def become_parent(client: socket.socket) -> None:
    """Fork once more: the child becomes the program, and this process waits for it, or for the client's end."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, files, _, _ = socket.recv_fds(client, HEADER.size, 3)
    program = json.loads(receive(client, *HEADER.unpack(header)))
    cmdline, environ = identity(program)
    room = rooms()
    if len(cmdline) > room[1] - room[0] or len(environ) > room[3] - room[2]:
        client.sendall(b"0\n")
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        client.close()
        become(program, files)
        return
    for file in files:
        os.close(file)
    client.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, client.fileno()], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        client.sendall(f"{code}\n".encode())
    finally:
        os._exit(0)


def receive(client: socket.socket, length: int) -> bytes:
    request = bytearray()
    while len(request) < length:
        request += client.recv(length - len(request))
    return bytes(request)


def become(program: dict[str, Any], files: list[int]) -> None:
    os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in program["ignored"] else signal.SIG_DFL)
    if signal.SIGINT not in program["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, file in enumerate(files):
        os.dup2(file, target)
    os.closerange(3, 64)
    os.umask(program["umask"])
    os.chdir(program["cwd"])
    os.environ.clear()
    os.environ.update(program["env"])
    time.tzset()
    open_streams()
    cmdline, environ = identity(program)
    start, end, environ_start, environ_end = rooms()
    ctypes.memmove(start, cmdline.ljust(end - start, b"\0"), end - start)
    ctypes.memmove(
        environ_start,
        environ.ljust(environ_end - environ_start, b"\0"),
        environ_end - environ_start,
    )
    module = program["module"]
    sys.path.insert(0, program["cwd"])
    sys.argv = [module, *program["arguments"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def open_streams() -> None:
    """Make the streams of the files 0 to 2, as an interpreter does at its start.

    Their encoding is what the environment asks for, else that of the server's; errors are handled as the server's.
    """
    encoding = os.environ.get("PYTHONIOENCODING", sys.stdout.encoding)
    options: dict[str, Any] = {"encoding": encoding, "closefd": False}
    sys.stdin = os.fdopen(0, errors=sys.stdin.errors, **options)
    sys.stdout = os.fdopen(1, "w", errors=sys.stdout.errors, **options)
    sys.stderr = os.fdopen(2, "w", 1, errors=sys.stderr.errors, **options)
    sys.__dict__.update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def identity(program: dict[str, Any]) -> tuple[bytes, bytes]:
    """What /proc shows as command line and environment of a program."""
    words = [sys.executable, "-m", program["module"], *program["arguments"]]
    variables = [f"{name}={value}" for name, value in program["env"].items()]
    cmdline, environ = ("".join(f"{text}\0" for text in texts) for texts in (words, variables))
    return os.fsencode(cmdline), os.fsencode(environ)


def rooms() -> tuple[int, int, int, int]:
    """The addresses where this process's command line begins and ends, and its environment."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    first = ARG_START - 3  # two fields come before the bracket, and lists begin at 0
    start, end, environ_start, environ_end = map(int, fields[first : first + 4])
    return start, end, environ_start, environ_end


if __name__ == "__main__":
    main()
