"""What may stand at a place of the command line; rule: only what this machine knows, and never a call over the network.

Commands and options come from the code. Values are told by what an option or argument is called: names of targets, of
local nodes, of crawls and throttled domains in the local store, of spiders in the project's files.
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .described import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapyd_dist.store import Store

    from .described import Described, Parameter

_SPIDER = re.compile(r"""^\s+name\s*(?::\s*\w+\s*)?=\s*["']([^"'\n]+)["']""", re.MULTILINE)
#: source files of a project that are looked into, at most
_MOST_FILES = 2000
#: bytes of a source file that are looked into
_MOST_BYTES = 200_000

_WORDS = {
    "level": ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    "state": ("pending", "running", "stalled", "finished", "failed", "cancelled", "killed", "died", "unknown"),
    "placement": ("by-capacity", "round-robin", "least-loaded"),
    "shell": ("bash", "zsh", "fish"),
    "endpoint": (
        "daemonstatus", "listprojects", "listversions", "listspiders", "listjobs", "status", "schedule", "cancel",
        "addversion", "delversion", "delproject",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One thing that may be typed."""

    value: str
    help: str = ""
    kind: str = ""  #: of a crawl: `crawl` or `frontier`


@dataclass(frozen=True, kw_only=True)
class Choices:
    """All that may be typed at one place."""

    of: tuple[Choice, ...] = ()
    files: bool = False  #: names of files too


def choices(words: Sequence[str], typed: str) -> Choices:
    """What may follow.

    Args:
        words: what stands before, without `sdist` itself.
        typed: the beginning of the word in question, perhaps empty.
    """
    command, rest = _command(words)
    given, waiting = _parse(command, rest)
    if waiting is None and typed.startswith("--") and "=" in typed:
        name, _, typed = typed.partition("=")
        waiting = _option(command, name)
    if waiting is not None:
        return _starting(typed, _values(waiting))
    if typed.startswith("-"):
        return _starting(typed, Choices(of=tuple(_options(command))))
    below = Choices()
    if command.commands and not given:
        below = Choices(of=tuple(Choice(value=one.name, help=one.summary) for one in command.commands))
    argument = _argument(command, given)
    values = _values(argument) if argument is not None else Choices()
    return _starting(typed, Choices(of=below.of + values.of, files=values.files))


def _command(words: Sequence[str]) -> tuple[Described, list[str]]:
    """The command that the words lead to, and those behind it."""
    from .app import program

    plain = [word for word in words if not word.startswith("-")]
    command, rest = describe(program(plain[0] if plain else ""), "sdist"), list(words)
    while command.commands:
        place = next((at for at, word in enumerate(rest) if not word.startswith("-")), None)
        below = next((one for one in command.commands if place is not None and one.name == rest[place]), None)
        if place is None or below is None:
            break
        command, rest = below, rest[place + 1 :]
    return command, rest


def _parse(command: Described, words: Sequence[str]) -> tuple[list[str], Parameter | None]:
    """The arguments among the words, and the option that waits for its value behind them."""
    given: list[str] = []
    waiting: Parameter | None = None
    for word in words:
        if waiting is not None:
            waiting = None
        elif word.startswith("-") and word != "-":
            option = _option(command, word)
            waiting = option if option is not None and not option.is_flag and "=" not in word else None
        else:
            given.append(word)
    return given, waiting


def _option(command: Described, word: str) -> Parameter | None:
    name = word.partition("=")[0]
    return next((option for option in command.options if name in (*option.names, *option.opposite)), None)


def _options(command: Described) -> Iterator[Choice]:
    for option in command.options:
        for name in (*option.names, *option.opposite):
            if name.startswith("--"):
                yield Choice(value=name, help=option.help)
    yield Choice(value="--help", help="Say what the command does.")


def _argument(command: Described, given: Sequence[str]) -> Parameter | None:
    """The argument that the next word is for."""
    left = len(given)
    for argument in command.arguments:
        if argument.many or left == 0:
            return argument
        left -= 1
    return None


def _values(parameter: Parameter) -> Choices:
    named = _WORDS.get(parameter.name)
    if named is not None:
        return Choices(of=tuple(Choice(value=word) for word in named))
    wanted = {*re.findall(r"[A-Z]+", parameter.metavar), parameter.name.upper().rstrip("S")}
    found = [choice for kind, look in _SOURCES.items() if kind in wanted for choice in look()]
    return Choices(of=tuple(dict.fromkeys(found)), files=bool(wanted & {"FILE", "PATH", "FOLDER", "TEXTFILE"}))


def _starting(typed: str, all_: Choices) -> Choices:
    return Choices(of=tuple(one for one in all_.of if one.value.startswith(typed)), files=all_.files)


def _nodes() -> list[Choice]:
    from scrapyd_dist.config import STATE_FOLDER, load

    found = load()
    targets = [Choice(value=node.name, help=node.url) for node in found.targets]
    if targets:
        return targets
    from scrapyd_dist.deploy import local

    return [Choice(value=node.name, help=node.url) for node in local.running(found.root / STATE_FOLDER)]


def _local_store() -> Store | None:
    """The project's store if it is a file; a server may be far away."""
    from scrapyd_dist.config import load
    from scrapyd_dist.store import open_store
    from scrapyd_dist.store.address import is_url

    from .storing import where

    address = where(load().root)
    return None if is_url(address) or not Path(address).exists() else open_store(address)


def _crawls() -> list[Choice]:
    store = _local_store()
    if store is None:
        return []
    with closing(store):
        return [
            Choice(value=crawl.id, help=f"{crawl.spider or crawl.kind}, {crawl.state.value}", kind=crawl.kind)
            for crawl in store.crawls()
        ]


def _domains() -> list[Choice]:
    store = _local_store()
    if store is None:
        return []
    with closing(store):
        return [Choice(value=domain) for domain in sorted(store.rules().rules)]


def _frontiers() -> list[Choice]:
    return [choice for choice in _crawls() if choice.kind == "frontier"]


def _spiders() -> list[Choice]:
    from scrapyd_dist.config import load

    found = load()
    package = found.root.joinpath(*found.settings_module.split(".")[:-1])
    names = {name for file in _sources(package) for name in _SPIDER.findall(file)}
    return [Choice(value=name) for name in sorted(names)]


def _sources(package: Path) -> Iterator[str]:
    for number, path in enumerate(sorted(package.rglob("*.py"))):
        if number >= _MOST_FILES:
            return
        if "spider" in str(path.relative_to(package)):
            with suppress(OSError), path.open("rb") as file:
                yield file.read(_MOST_BYTES).decode("utf-8", "replace")


def _quietly(look: Callable[[], list[Choice]]) -> Callable[[], list[Choice]]:
    def run() -> list[Choice]:
        # Whatever is wrong with the project is told when the command runs, not at a press of TAB.
        with suppress(Exception):
            return look()
        return []

    return run


#: word in the name of an option or argument -> what it can be
_SOURCES: dict[str, Callable[[], list[Choice]]] = {
    "NODE": _quietly(_nodes),
    "TARGET": _quietly(_nodes),
    "CRAWL": _quietly(_crawls),
    "FRONTIER": _quietly(_frontiers),
    "DOMAIN": _quietly(_domains),
    "SPIDER": _quietly(_spiders),
}
