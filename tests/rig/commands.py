"""Commands as a user runs them: separate processes with a private HOME, their output in files."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from scrapyd_dist.cli import main
from scrapyd_dist.cli.commands import CODES, LIST, expand_alias

from .forks import start_program
from .processes import end_all, private_environment
from .waiting import wait_for

#: as a user's shell would find them, but of the environment that runs the tests
SDIST = (sys.executable, "-m", "scrapyd_dist")
SCRAPY = (sys.executable, "-m", "scrapy")
#: what takes long in the start of either
IMPORTS = ("scrapyd_dist.*", "scrapy.cmdline", "scrapy.crawler")
#: what is added to the name of the folder with their output, for that with their command lines
LINES = "-lines"
#: commands of `sdist` that start no process, and are over when they have answered
READING = {
    "crawls list", "crawls show", "jobs grep", "jobs list", "jobs stats", "items merge",
    "items pull", "items tail", "logs", "nodes metrics", "report", "status", "code versions",
}  # fmt: skip


def path_of(words: Sequence[str]) -> str:
    """The command that these words call, as `sdist.cli.commands` has it: `nodes list` for `nodes --json`."""
    first, *rest = expand_alias([*words])
    return next(
        path
        for path in (f"{first} {''.join(rest[:1])}", f"{first} {LIST}", first)
        if path in {*CODES, first}
    )


class Result(NamedTuple):
    """How a command ended: exit code (negative: killed by that signal), standard output, standard error."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its standard output, which has to be one JSON document; where it is none, the row shows all of it."""
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(
                f"no JSON; exit code {self.code}\n{self.out}\n{self.err}"
            ) from None

    def expect(self, code: int | None, *errors: str) -> Result:
        """The same, after it was seen that the command ended with this code, None for any, and wrote these errors."""
        assert code in {None, self.code}, (
            f"exit code {self.code}, and not {code}\n{self.out}\n{self.err}"
        )
        assert [text for text in errors if text not in self.err] == [], (
            f"not in what it wrote\n{self.err}"
        )
        return self


class Command:
    """A command that runs; its output is kept in the folder, which has to exist.

    `fork`: a `python -m …` may be a fork of a process that has all modules.
    """

    def __init__(
        self, arguments: Sequence[str], *, cwd: Path, folder: Path, home: Path, env: dict[str, str] | None = None,
        fork: bool = False, stdin: Path = Path(os.devnull),
    ) -> None:  # fmt: skip
        self._arguments, self._home = arguments, home
        number = len(list(folder.glob("command*.out")))
        self._out, self._err = folder / f"command{number}.out", folder / f"command{number}.err"
        self._out.touch()
        self._err.touch()
        note_command(self._out, arguments)
        home.mkdir(parents=True, exist_ok=True)
        self._process = start_program(
            arguments, cwd=cwd, env=private_environment(home, env), out=self._out, err=self._err,
            preload=IMPORTS if fork and not env and list(arguments[:2]) == [sys.executable, "-m"] else (),
            stdin=stdin,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its process group."""
        return self._process.pid

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int = signal.SIGINT) -> None:
        """Send a signal to the command alone."""
        os.kill(self.pid, number)

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal does: SIGINT to its whole process group."""
        os.killpg(self.pid, signal.SIGINT)

    def wait(self, timeout: float = 120.0, code: int | None = None) -> Result:
        """Wait for its end, which has to be with `code`, if there is one; else the output is in the error."""
        try:
            ended = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{' '.join(map(str, self._arguments))} still runs after {timeout:g} s\n{self.out}\n{self.err}"
            ) from None
        return Result(ended, self.out, self.err).expect(code)

    def wait_text(self, text: str, timeout: float = 60.0) -> None:
        """Wait until `text` is in its output or errors."""

        def there() -> bool:
            if text in self.out or text in self.err:
                return True
            if not self.running() and text not in self.out + self.err:
                raise RuntimeError(f"the command ended without {text!r}:\n{self.out}\n{self.err}")
            return False

        wait_for(
            there, timeout, f"{text!r} in the output of {' '.join(map(str, self._arguments[2:6]))}"
        )

    def close(self) -> None:
        """Kill it, and all that runs with its HOME."""
        if self.running():
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(20)
        end_all(self._home)


def note_command(out: Path, arguments: Sequence[str]) -> None:
    """Keep a command line for the report of a failure: not beside its output, which tests search for secrets."""
    words = arguments[2:] if list(arguments[1:2]) == ["-m"] else arguments
    lines = out.parent.with_name(f"{out.parent.name}{LINES}")
    lines.mkdir(exist_ok=True)
    (lines / out.stem).write_text(" ".join(map(str, words)), encoding="utf-8", errors="replace")


def run_here(
    arguments: Sequence[str], *, cwd: Path, home: Path, env: dict[str, str] | None = None
) -> Result:
    """Run `sdist` in this process, with the same working directory, environment and input as a `Command` has.

    It is for commands that start no process, handle no signal, and print no more than the test can hold.
    """
    written, before = [io.BytesIO(), io.BytesIO()], Path.cwd()
    out, err = (io.TextIOWrapper(one, encoding="utf-8", write_through=True) for one in written)
    home.mkdir(parents=True, exist_ok=True)
    with (
        patch.dict(os.environ, private_environment(home, env), clear=True),
        Path(os.devnull).open(encoding="utf-8") as nothing,
        patch.object(sys, "stdin", nothing),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        os.chdir(cwd)
        try:
            code = main._run([*arguments], debug=False)
        finally:
            os.chdir(before)
    return Result(code, *(one.getvalue().decode("utf-8", "replace") for one in written))
