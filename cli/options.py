"""The options that several commands have, each declared once, and groups of options: dataclasses of them."""

from __future__ import annotations

import inspect
import re
from contextlib import ExitStack, closing
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional, get_type_hints

import typer

from scrapyd_dist.errors import ConfigError

from .candidates import nodes, spiders
from .context import Context

if TYPE_CHECKING:
    from collections.abc import Callable

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, and nothing else there.")]
Project = Annotated[
    Optional[str],
    typer.Option("--project", "-p", help="Scrapyd's name of the project: \\[deploy] project, else BOT_NAME."),
]
Nodes = Annotated[
    Optional[list[str]],
    typer.Option(
        "--node",
        metavar="NAME",
        autocompletion=nodes,
        help="Only these nodes: names, or globs as in 'eu-*'; repeatable.",
    ),
]
JobProject = Annotated[Optional[str], typer.Option("--project", "-p", help="Only jobs of this project.")]
Spider = Annotated[
    Optional[str],
    typer.Option(
        metavar="NAME", autocompletion=spiders, help="Only jobs of this spider, or of spiders that fit, as in 'shop*'."
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds that a node gets for each answer.", min=0.1)]
ConnectTimeout = Annotated[
    float, typer.Option("--connect-timeout", help="Seconds in which a connection has to come about.", min=0.1)
]
#: the default of `ConnectTimeout`; a SYN that was lost is sent again after 1 and 3 s
CONNECT_TIMEOUT = 4.0


def seconds(option: str, text: str | None) -> float | None:
    """A span of time such as `90`, `90s`, `30m`, `2h` in seconds; None for None.

    Raises:
        ConfigError: it is none, or not more than zero.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    value = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if value <= 0:
        raise ConfigError(f"{option} {text!r} is no span of time. Write seconds, or a number with m or h: 90, 30m, 2h.")
    return value


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """A command with parameters that are groups of options, dataclasses such as `Output`: typer sees their fields.

    A parameter of type `Context` is no option: it gets one, which is closed when the command ends.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: parameter.annotation for name, parameter in parameters.items() if is_dataclass(parameter.annotation)
    }

    contexts = [name for name, parameter in parameters.items() if parameter.annotation is Context]

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{entry.name: values.pop(entry.name) for entry in fields(group)})
        with ExitStack() as stack:
            for name in contexts:
                values[name] = stack.enter_context(closing(Context()))
            command(**values)

    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        if name in contexts:
            continue
        flat += _of_group(groups[name]) if name in groups else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    run.__name__, run.__doc__, run.__annotations__ = command.__name__, command.__doc__, {}
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # typer reads it
    return run


def _of_group(group: Any) -> list[inspect.Parameter]:
    """The fields of a group of options, as parameters of a command."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if entry.default is MISSING else entry.default,
            annotation=hints[entry.name],
        )
        for entry in fields(group)
    ]


def group(text: str | None = None, *, alone: Callable[..., None] | None = None, **commands: Callable[..., None]) -> Any:
    """A command that has commands below it.

    Args:
        text: its help.
        alone: what runs when none of them is named; its docstring is the help.
        commands: those below it, by name.
    """
    found = typer.Typer(help=text) if alone is None else typer.Typer()
    if alone is not None:
        found.callback(invoke_without_command=True)(asks(alone))
    for name, command in commands.items():
        found.command(name)(asks(command))
    return found
