"""A command as a value: what it does, what it takes, how it ends; `--help`, the manual and completion all read this.

The rule it keeps: everything is taken from the code of the command, so that the three cannot differ from it. Typer's
own objects are only touched here, by the names that all supported versions of it have in common.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: where the parameters stand that name no panel of their own
OPTIONS = "Options"

_NUMBERS = {"int", "integer", "float", "integer range", "float range"}
_METAVARS = {"Path": "FILE", "path": "FILE", "file": "FILE"}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """An argument or an option."""

    name: str  #: the name in the code
    names: tuple[str, ...]  #: `-p`, `--project`; empty for an argument
    opposite: tuple[str, ...]  #: `--no-deploy`
    metavar: str  #: what stands for the value; empty for a flag
    help: str
    panel: str
    required: bool
    many: bool  #: an argument that takes several values, an option that can be given again
    default: str  #: empty where there is none worth a word

    @property
    def is_argument(self) -> bool:
        return not self.names

    @property
    def is_flag(self) -> bool:
        return bool(self.names) and not self.metavar

    @property
    def usage(self) -> str:
        """An argument as the usage line has it: `SPIDER`, `[CRAWL]`, `TARGET…`."""
        text = self.metavar + ("…" if self.many else "")
        return text if self.required else f"[{text}]"


@dataclass(frozen=True, kw_only=True)
class Described:
    """A command, or a group of them."""

    path: str  #: `sdist nodes drain`
    paragraphs: tuple[str, ...]  #: each one a text without line ends, the first one sums it up
    examples: tuple[str, ...]  #: command lines
    panel: str
    parameters: tuple[Parameter, ...]
    commands: tuple[Described, ...]
    stands_alone: bool  #: it does something without one of its commands

    @property
    def name(self) -> str:
        """The last word of its path."""
        return self.path.rpartition(" ")[2]

    @property
    def summary(self) -> str:
        return self.paragraphs[0] if self.paragraphs else ""

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.is_argument)

    @property
    def options(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if not parameter.is_argument)

    @property
    def usage(self) -> str:
        words = [self.path, "[OPTIONS]", *(argument.usage for argument in self.arguments)]
        if self.commands:
            words += ["[COMMAND …]"] if self.stands_alone else ["COMMAND …"]
        return " ".join(words)

    def walk(self) -> Iterator[Described]:
        """It and all below it."""
        yield self
        for command in self.commands:
            yield from command.walk()


def describe(command: Any, path: str) -> Described:
    """What Typer's object for a command says about it.

    Args:
        command: as `typer.main.get_command` makes it.
        path: what one types to get to it.
    """
    paragraphs, examples = _texts(command.help or "")
    below = getattr(command, "commands", {})
    return Described(
        path=path,
        paragraphs=paragraphs,
        examples=examples,
        panel=_text_or(getattr(command, "rich_help_panel", None), "Commands"),
        parameters=tuple(_parameter(one) for one in command.params if not getattr(one, "hidden", False)),
        commands=tuple(
            describe(one, f"{path} {name}") for name, one in below.items() if not getattr(one, "hidden", False)
        ),
        stands_alone=bool(getattr(command, "invoke_without_command", False)),
    )


def _texts(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    paragraphs, examples = [], []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text.replace("\f", ""))):
        plain = _plain(" ".join(block.split()))
        if plain.startswith("Example: "):
            examples += [line.strip() for line in plain.split("Example: ")[1:]]
        elif plain:
            paragraphs.append(plain)
    return tuple(paragraphs), tuple(examples)


def _parameter(param: Any) -> Parameter:
    is_argument = param.param_type_name == "argument"
    many = param.nargs == -1 or bool(getattr(param, "multiple", False))
    flag = not is_argument and (bool(getattr(param, "is_flag", False)) or bool(getattr(param, "count", False)))
    return Parameter(
        name=str(param.name),
        names=() if is_argument else tuple(sorted(param.opts, key=len)),
        opposite=tuple(param.secondary_opts),
        metavar="" if flag else _metavar(param, is_argument=is_argument),
        help=_plain(getattr(param, "help", None) or ""),
        panel=_text_or(getattr(param, "rich_help_panel", None), "Arguments" if is_argument else OPTIONS),
        required=bool(param.required),
        many=many,
        default="" if flag or is_argument else _default(param),
    )


def _metavar(param: Any, *, is_argument: bool) -> str:
    if param.metavar:
        # Some write the brackets themselves, which say here whether it is required.
        return str(param.metavar).removesuffix("...").removesuffix("…").removeprefix("[").removesuffix("]")
    kind = _type_name(param)
    if not is_argument and kind in _NUMBERS:
        return "SECONDS" if "timeout" in param.name or (param.help or "").startswith("Seconds") else "N"
    if not is_argument and param.name in {"dir", "folder"}:
        return "FOLDER"
    return str(param.name).upper() if is_argument else _METAVARS.get(kind, str(param.name).upper().replace("_", "-"))


def _type_name(param: Any) -> str:
    described = getattr(param, "type_descriptor", None)
    if described is not None:
        return getattr(described.annotation, "__name__", "")
    return str(getattr(getattr(param, "type", None), "name", ""))


def _default(param: Any) -> str:
    value = param.default
    shown = getattr(param, "show_default", True)
    if shown is False or value is None or value == "" or callable(value) or isinstance(value, (list, tuple, bool)):
        return ""
    # In some versions a missing default is a sentinel of an enum.
    if not isinstance(value, (str, int, float)):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _text_or(value: object, otherwise: str) -> str:
    # In some versions "not given" is an object of its own.
    return value if isinstance(value, str) and value else otherwise


def _plain(text: str) -> str:
    # Help texts are written so that Typer's markup leaves brackets alone: \[deploy].
    return text.replace("\\[", "[")
