"""Options in groups: a command takes a dataclass, and typer sees its fields; rule: each option is written once."""

from __future__ import annotations

import inspect
from contextlib import ExitStack, closing
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from .context import Context

if TYPE_CHECKING:
    from collections.abc import Callable


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
