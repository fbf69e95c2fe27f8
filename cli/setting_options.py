"""Makes options of commands from the rows of the registry of settings."""

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from scrapyd_dist.settings import GROUPS, PREFIX, SETTINGS, Setting, ValueKind

from .options import TIME, OptionSource, one_of, option, parser_of

#: the type of an option's value, where it is no text
_TYPES: dict[ValueKind, Any] = {
    ValueKind.YES_NO: bool,
    ValueKind.WHOLE: int,
    ValueKind.SECONDS: float,
    ValueKind.NUMBER: float,
    ValueKind.LIST: list[str],
}
#: what stands for a value in the help, where the row names nothing else
_METAVARS = {
    ValueKind.WHOLE: "N",
    ValueKind.SECONDS: TIME,
    ValueKind.NUMBER: "N",
    ValueKind.CHOICE: "KIND",
    ValueKind.LIST: "NAME",
}


def setting_option(name: str, *names: str, **more: Any) -> Any:
    """Return the option that gives the setting DISTRIBUTED_<name> its value.

    It has the help and the panel of the registry. One with names of its own is a switch, such as
    --pull/--push.
    """
    row = SETTINGS[PREFIX + name]
    if not names and row.kind not in (ValueKind.LIST, ValueKind.YES_NO):
        more["parser"] = parser_of(row)
    text = as_sentence_start(row.plain_help)
    if type(row.default) in {int, float} and row.default > 0:
        text += f" ({row.default_text})"
    return option(f"{text}.", *names, panel=_panel_of(row), show_default=False, **more)


def as_sentence_start(text: str) -> str:
    """Return the text with a capital at its beginning."""
    return f"{text[:1].upper()}{text[1:]}"


def _panel_of(row: Setting) -> str:
    """Return the heading that a setting stands under; LookupError where there is none."""
    for heading, rows in GROUPS.items():
        if row in rows:
            return heading
    raise LookupError(row.name)


@dataclass(frozen=True)
class RegisteredOptions(OptionSource):
    """Gives a command the options of `sdist crawl` that the registry has."""

    without: tuple[str, ...] = ()  #: settings whose options are not made here

    def make(self, declared: Collection[str]) -> dict[str, inspect.Parameter]:
        """Return the parameter for each setting, but for the fields that the command declares."""
        made: dict[str, inspect.Parameter] = {}
        for name, row in SETTINGS.items():
            is_left_out = name in self.without or row.field in declared
            if row.option.startswith("--") and not is_left_out:
                made[name] = _make_parameter(row)
        return made


def _make_parameter(row: Setting) -> inspect.Parameter:
    kind = str if row.choices else _TYPES.get(row.kind, str)
    more: dict[str, Any] = {}
    if row.metavar or row.kind in _METAVARS:
        more["metavar"] = row.metavar or _METAVARS[row.kind]
    if row.kind is ValueKind.CHOICE:
        more["autocompletion"] = one_of(*filter(None, row.choices))
    names = (row.option,) if row.kind is ValueKind.YES_NO else ()
    made = setting_option(row.name.removeprefix(PREFIX), *names, **more)
    return inspect.Parameter(
        row.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, made],
    )
