"""A node's `runner`: has its job run as a fork of a process that has imported Scrapy, and stands for it.

    python -m sdist_forked_runner crawl …

is what Scrapyd starts. Signals go on to the job; its exit code, or the signal that ended it, is also this process's.
A killed runner takes its job with it. What a fork cannot be given is run by Scrapyd's own runner, in this process.
"""

import contextlib
import json
import os
import signal
import socket
import sys

#: names the socket of the server that forks
VARIABLE = "SDIST_JOB_SERVER"
RUNNER = "scrapyd.runner"


def main() -> None:
    env = dict(os.environ)
    address = env.pop(VARIABLE)
    # What Python's variables ask for happens when an interpreter starts; the server does what this one asks for.
    if any(name.startswith("PYTHON") and name != "PYTHONIOENCODING" for name in env):
        run_here(env)
    ignored = [
        int(number)
        for number in signal.valid_signals()
        if signal.getsignal(number) == signal.SIG_IGN
    ]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    umask = os.umask(0)
    os.umask(umask)
    program = {"module": RUNNER, "arguments": sys.argv[1:], "cwd": os.getcwd(), "env": env}  # noqa: PTH109
    request = json.dumps({**program, "umask": umask, "ignored": ignored}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(request)
        answers = server.makefile()
        pid = int(answers.readline())
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
            run_here(env)
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGUSR1,
            signal.SIGUSR2,
            signal.SIGQUIT,
        ):
            signal.signal(number, lambda number, _: pass_on(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        end_like(int(answers.readline()))


def pass_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, number)


def end_like(code: int) -> None:
    """End with the exit code of the job, or by the signal that ended it."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def run_here(env: dict[str, str]) -> None:
    os.execve(sys.executable, [sys.executable, "-m", RUNNER, *sys.argv[1:]], env)  # noqa: S606


if __name__ == "__main__":
    main()
