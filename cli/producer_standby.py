"""Starts the process of a crawl at once: it loads Scrapy while the command reads and checks.

It does nothing else before it is told which crawl is its own: no code of the project is imported,
and the store has no word of it. One that is not needed is ended with the command.

Each command imports this module: what only a start needs is imported there.
"""

import json
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapyd_dist.python_process import command_of_waiting

if TYPE_CHECKING:
    import subprocess

#: the commands that start a crawl's process, and the words that keep them from it
_CRAWLING = ("crawl", "resume")
_HELP = frozenset({"-h", "--help"})
#: standard input, if the crawl of this command may read it
_input: list[int] = []
#: the process that waits, if there is one
_waiting: "list[subprocess.Popen[bytes]]" = []


def start_for(words: Sequence[str]) -> None:
    """Start a process that waits, if the command line with these words will need one."""
    if words and words[0] in _CRAWLING and _HELP.isdisjoint(words):
        if _is_readable(detach="--detach" in words):
            _input.append(0)
        start()


def start() -> None:
    """Start a process that waits for its crawl, in a session of its own: no Ctrl-C reaches it."""
    import subprocess

    from scrapyd_dist.config import find_root

    with suppress(OSError), ExitStack() as stack:  # else it is started in its turn
        kept = _keep_input(stack)  # the order comes by the standard input of the process
        process = subprocess.Popen(
            command_of_waiting("scrapyd_dist.middlewares.producer.standby", *map(str, kept)),
            pass_fds=kept,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Python makes a relative PYTHONPATH absolute as it starts.
            cwd=find_root(),
            start_new_session=True,
        )
        _waiting.append(process)


def has_input() -> bool:
    """Tell whether the crawl's process may read the command's standard input."""
    return bool(_input)


def _is_readable(*, detach: bool) -> bool:
    """Tell whether standard input is a file or a pipe: the process has no terminal.

    Who writes into the pipe of a command that ends at once would wait for the crawl. And `ssh`
    waits until no process has the socket that is both input and output of its command.
    """
    with suppress(OSError):
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            return True
        if detach:
            return False
        if stat.S_ISSOCK(status.st_mode):
            return not os.path.samestat(status, os.fstat(1))
        return stat.S_ISFIFO(status.st_mode)
    return False


def _keep_input(stack: ExitStack) -> list[int]:
    """Return a copy of standard input that is open until `stack` is closed, if it may be read."""
    if not has_input():
        return []
    number = os.dup(0)
    stack.callback(os.close, number)
    return [number]


def call(
    crawl: str,
    *,
    root: Path,
    log: Path,
    environment: dict[str, str],
    claim: Callable[[int], None],
) -> "subprocess.Popen[bytes] | None":
    """Let the process that waits run this crawl; None if there is none, or it has ended.

    `root` is the folder that it works in, `log` the file that gets what it writes. Of the
    environment it gets what this process has not. `claim` writes down the id of the process that
    will run the crawl: before it may, since what is refused at once has its end at once.
    """
    if not _waiting:
        return None
    process = _waiting.pop()
    if process.stdin is None:
        return None
    own = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    claim(process.pid)
    order = {"crawl": crawl, "root": str(root), "log": str(log), "environment": own}
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.close()
    except OSError:
        _end(process)
        return None
    return process


def end() -> None:
    """End the process that waits, if there is one."""
    while _waiting:
        _end(_waiting.pop())


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    with suppress(OSError):
        process.communicate()
