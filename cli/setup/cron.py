"""`sdist cron`: prints what lets cron or systemd start a command at given times; rule: it starts and writes nothing."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from .cronfields import Times

#: cron cuts, or refuses, a longer command
LONGEST = 990


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    # What stands behind the time belongs to the other command, options and all.
    app.command("cron", rich_help_panel="Crawls", context_settings={"allow_interspersed_args": False})(cron)


def cron(
    time: Annotated[
        str,
        typer.Argument(
            metavar="TIME", help="Cron's five fields in quotes, or @daily and the like.", show_default=False
        ),
    ],
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="A command of sdist, with all its options.", show_default=False),
    ],
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Print a service and a timer for systemd instead.")
    ] = False,
    name: Annotated[
        Optional[str], typer.Option("--name", help="Name of lock, log and units; made from the command if left out.")
    ] = None,
) -> None:
    """Print a crontab line that runs a command of sdist at given times. Nothing is installed or run.

    The line goes to this folder, uses this sdist by its full path, does not start
    while the last run goes on (flock), and appends what is said to a file in .sdist.
    Put it in place with `crontab -e`. Options of `sdist cron` stand before the time.

    Example: sdist cron "0 6 * * *" crawl easy -O items.jl
    Example: sdist cron --systemd "*/30 * * * 1-5" schedule 'shop*' --unless-running
    """
    from scrapyd_dist.config import find_root

    from ..speaking import complain, put, say
    from .cronfields import read

    root = find_root()
    if root is None:
        raise ConfigError(
            f"There is no scrapy.cfg in {Path.cwd()} or in a folder above it. The command will run in the folder in "
            "which you ask for this line, so go to the Scrapy project first."
        )
    when = read(time)
    _check(command)
    timed = Timed(words=tuple(command), folder=Path.cwd(), root=root, name=_name(name, command))
    put(timed.units(when) if systemd else timed.line(when))
    for text in _notes(command, root, systemd=systemd):
        complain(text)
    say(_NEXT_SYSTEMD.format(name=timed.name) if systemd else _NEXT_CRON)


_NEXT_CRON = "Put the line in place with: crontab -e"
_NEXT_SYSTEMD = (
    "Save both in ~/.config/systemd/user/ (or /etc/systemd/system/), under the names in their first lines, then: "
    "systemctl --user daemon-reload; systemctl --user enable --now {name}.timer"
)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A command of sdist that is to be run by a timer."""

    words: tuple[str, ...]
    folder: Path  #: what relative files are looked up in
    root: Path  #: the project
    name: str

    def line(self, when: Times) -> str:
        """As a crontab has it.

        Raises:
            ConfigError: cron could not take it.
        """
        state = self.root / ".sdist"
        quoted = [shlex.quote(word) for word in (*_program(), *self.words)]
        lock, log = (shlex.quote(str(state / f"{self.name}.{kind}")) for kind in ("lock", "log"))
        flock = shlex.quote(shutil.which("flock") or "flock")
        shell = (
            f"cd {shlex.quote(str(self.folder))} && mkdir -p -m 700 {shlex.quote(str(state))} && "
            f"{flock} -n {lock} {' '.join(quoted)} >> {log} 2>&1"
        )
        line = f"{when.text} {_for_cron(shell)}"
        if len(line) > LONGEST:
            raise ConfigError(
                f"The line would have {len(line)} signs, and cron takes no more than {LONGEST}. Write the options into "
                "the project's settings, or use --systemd."
            )
        return line

    def units(self, when: Times) -> str:
        """As systemd has it: a service and a timer, each behind a comment with the name of its file."""
        calendar = "\n".join(f"OnCalendar={one}" for one in when.on_calendar())
        command = " ".join(_for_systemd(word) for word in (*_program(), *self.words))
        told = " ".join(["sdist", *self.words]).replace("%", "%%")
        return (
            f"# {self.name}.service\n"
            f"[Unit]\nDescription={told}\n"
            "Wants=network-online.target\nAfter=network-online.target\n\n"
            # While it runs, the timer starts no second one.
            f"[Service]\nType=oneshot\nWorkingDirectory={str(self.folder).replace('%', '%%')}\nExecStart={command}\n\n"
            f"# {self.name}.timer\n"
            f"[Unit]\nDescription=When to run {self.name}.service\n\n"
            f"[Timer]\n{calendar}\nPersistent=true\n\n"
            "[Install]\nWantedBy=timers.target"
        )


def _program() -> tuple[str, ...]:
    """This program by its full path: a timer knows no environment of ours."""
    script = Path(sys.executable).parent / "sdist"
    return (str(script),) if script.is_file() else (sys.executable, "-m", "scrapyd_dist")


def _for_cron(shell: str) -> str:
    """A command with its percent signs escaped: for cron they end it, in quotes too."""
    # Behind a backslash, cron takes ours for an escaped one; both are in single quotes, which may end between them.
    return shell.replace("\\%", "\\''%").replace("%", "\\%")


def _for_systemd(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@%+=:,./$-]+", escaped) else f'"{escaped}"'


def _name(given: str | None, command: list[str]) -> str:
    if given is not None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", given):
            raise ConfigError(f"--name {given!r} cannot name a file: letters, digits, dot, - and _ can.")
        return given
    plain = [word for word in command[:2] if not word.startswith("-")]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(["sdist", *plain])).strip("-")[:60]


def _check(command: list[str]) -> None:
    """Refuse a command that would only fail at the time when it is to run.

    Raises:
        ConfigError: there is no such command, or it makes no sense behind a timer.
    """
    from ..main import COMMANDS, program
    from .settingsknown import meant

    if any("\n" in word or "\r" in word for word in command):
        raise ConfigError("A word of the command has a line end in it, which no crontab can hold.")
    if command[0] not in COMMANDS or command[0] in {"cron", "completion", "version", "demo", "init"}:
        known = meant(command[0], tuple(COMMANDS))
        raise ConfigError(f"sdist has no command {command[0]!r} that a timer could run.{known} See: sdist --help")
    if "--detach" in command:
        raise ConfigError(
            "--detach would give up the lock at once, and the next run could begin in the middle of this one. Leave it "
            "out: nobody has to wait for a timer."
        )
    below = program(command[0]).commands[command[0]]
    # The options are parsed as they will be then; a wrong one is told by the one door for errors.
    below.make_context(f"sdist {command[0]}", list(command[1:]))


def _notes(command: list[str], root: Path, *, systemd: bool) -> list[str]:
    """What may surprise at the second run, or where there is no terminal."""
    from .origins import variables_of

    notes = []
    if "-o" in command or any(word.startswith("--output") for word in command):
        notes.append("-o refuses a file that is there, so that the second run would stop: -O replaces it.")
    if command[0] in {"cancel", "prune"} and not {"-y", "--yes"} & set(command):
        notes.append(f"sdist {command[0]} asks before it begins, and nobody is there to answer: add --yes.")
    missing = variables_of(root)
    if missing:
        where = "an Environment= or EnvironmentFile= line of the service" if systemd else "a line NAME=value before it"
        notes.append(
            f"scrapy.cfg takes {', '.join(missing)} from the environment, which a timer does not have: give it {where},"
            " or use ~/.netrc."
        )
    if not systemd and shutil.which("flock") is None:
        notes.append("There is no flock on this machine, which the line needs; util-linux has it.")
    return notes
