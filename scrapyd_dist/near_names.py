"""Says which known name a wrong one probably means. No IO.

Part of the worker half: imports the standard library only.
"""

import difflib
from collections.abc import Iterable

#: how like a known name a wrong one is, from 0 to 1
NEAR = 0.6


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the first known name that begins so, else the one most like it; None for neither."""
    names = list(known)
    for other in names:
        if name and other.startswith(name):
            return other
    close = difflib.get_close_matches(name, names, 1, NEAR)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question after a sentence about a wrong name: ` Did you mean web1?`.

    It is empty where no known name is near.
    """
    return ask_about(nearest(name, known))


def ask_about(*names: str | None) -> str:
    """Return the question whether these were meant: ` Did you mean a, b or c?`.

    It is empty where there are none.
    """
    shown = [name for name in names if name]
    if not shown:
        return ""
    *others, last = shown
    words = f"{', '.join(others)} or {last}" if others else last
    return f" Did you mean {words}?"
