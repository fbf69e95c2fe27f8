"""Starts Scrapyd daemons as forks of a process that has imported it: run by the nodes' interpreter, not by the tests'.

Most of a daemon's start is imports. A fork runs Scrapyd's own `main`, and its jobs are processes as they always are. A
line of JSON on standard input asks for a daemon: `cwd`, `env` and `log`, the file of its output. A line on standard
output has its process id.
"""

import gc
import json
import os
import signal
import sys
from typing import Any

import pkg_resources  # noqa: F401 - imported for the forks, like those below
import scrapy  # noqa: F401
import twisted.application.app
import twisted.cred.portal
import twisted.web.guard
import twisted.web.server
import twisted.web.static  # noqa: F401

# A reactor has an open epoll, which forks would share.
assert "twisted.internet.reactor" not in sys.modules, "something imported the reactor"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombie is left of a daemon that ends
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            become_scrapyd(json.loads(line))
            return
        print(pid, flush=True)


def become_scrapyd(asked: dict[str, Any]) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, target)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.path.insert(0, asked["cwd"])  # as `python -m scrapyd` has it

    from scrapyd import __main__ as scrapyd

    sys.argv = [scrapyd.__file__, "--pidfile="]
    scrapyd.main()


main()
