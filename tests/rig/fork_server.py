"""Runs Python programs as forks of a process that has imported their modules: most of a program's start is imports.

    python -I fork_server.py MODULE …

imports these modules; `package.*` stands for all modules of a package. A line of JSON on standard input asks for a
program. A line on standard output answers with two process ids: the program's, and that of its parent, which ends when
the program has ended and its exit code is written. A program has a session, a working directory and an environment of
its own, as if it were started by `python -m`; only its `/proc/PID/environ` and `cmdline` are not its own.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
import time
from typing import Any


def main() -> None:
    for name in sys.argv[1:]:
        preload(name)
    # A reactor has an open epoll, which forks would share.
    assert "twisted.internet.reactor" not in sys.modules, "an import brought the reactor"
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leaves no zombies
    for line in sys.stdin:
        if os.fork() == 0:
            become_parent(json.loads(line))
            return


def preload(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".*"))
    if not name.endswith(".*"):
        return
    for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
        # Importing `__main__` would run the program; the examples are a project's files.
        if not found.name.endswith("__main__") and ".examples." not in found.name:
            importlib.import_module(found.name)


def become_parent(asked: dict[str, Any]) -> None:
    """Fork once more: the child becomes the program, and this process waits for it."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    program = os.fork()
    if program == 0:
        become(**asked)
        return
    print(program, os.getpid(), flush=True)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with open(asked["code"], "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib may not be what it was
        file.write(str(code))
    os._exit(0)


def become(module: str, arguments: list[str], cwd: str, env: dict[str, str], out: str, err: str, code: str) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for target, name in ((1, out), (2, err)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), target)
    os.closerange(3, 64)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.path.insert(0, cwd)
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


main()
