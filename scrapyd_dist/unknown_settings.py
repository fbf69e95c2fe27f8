"""Says which settings of a process are unknown, and what a misspelt name probably means.

Part of the worker half: imports the standard library only.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .related_names import answers
from .settings_table import INTERNAL, PREFIX, SETTINGS

#: how like one of ours a name is, from 0 to 1, whose beginning is misspelt
MISSPELT = 0.9


def suggest_name(name: str, known: Iterable[str] = SETTINGS, cutoff: float = 0.7) -> str:
    """Return what a misspelt name probably means, as the end of a sentence or paragraph.

    It is empty when no known name is near.
    """
    # The prefix would make any two names alike.
    names_by_end = {full_name.removeprefix(PREFIX): full_name for full_name in known}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), names_by_end, 1, cutoff)
    suggestion = names_by_end[close[0]] if close else ""
    if not suggestion:
        return ""
    shown = repr(suggestion) if " " in suggestion else suggestion
    return f" Did you mean {shown}?"


def describe_unknown(names: Iterable[str], environment: Iterable[str] = ()) -> list[str]:
    """Return a paragraph for each unknown setting and each misspelt variable of the environment.

    A setting is unknown if it begins as ours do, or nearly so: DISTRIBUTE_MAX_JOBS.
    """
    sentences: list[str] = []
    for name, hint in _find_hints(names).items():
        sentences.append(f"The setting {name} is none of scrapyd-dist's, and does nothing.{hint}")
    for row in SETTINGS.values():
        if row.variable:
            sentences += _describe_misspelt_variables(row.variable, environment)
    return sentences


def _find_hints(names: Iterable[str]) -> dict[str, str]:
    """Return what each unknown setting probably means: first those with our prefix, then others."""
    strangers = [name for name in sorted(names) if not _is_known(name)]
    hints: dict[str, str] = {}
    for name in strangers:
        if name.startswith(PREFIX):
            hints[name] = suggest_name(name)
    for name in strangers:
        if name in hints or not name.startswith(PREFIX[:4]):
            continue
        close = difflib.get_close_matches(name, SETTINGS, 1, MISSPELT)
        if close:
            hints[name] = f" Did you mean {close[0]}?"
    return hints


def _is_known(name: str) -> bool:
    internal = (*INTERNAL, f"{PREFIX}START_URLS_")
    return name in SETTINGS or name.startswith(internal)


def _describe_misspelt_variables(variable: str, environment: Iterable[str]) -> Iterator[str]:
    close = difflib.get_close_matches(variable, environment, 3, 0.9)
    for name in sorted(close):
        if not name.startswith(variable):
            yield (
                f"The environment variable {name} is none of scrapyd-dist's, and does nothing."
                f" Did you mean {variable}?"
            )


def find_warnings(
    settings: Mapping[str, Any], arguments: Mapping[str, Any] | None = None
) -> list[str]:
    """Return what to warn of where a process begins.

    These are unknown settings, misspelt variables and names of related systems. `arguments` are
    those of the spider, or its attributes.
    """
    return describe_unknown(settings, os.environ) + answers(settings, arguments or {})
