"""Writes numbers with their nouns, so that one of a thing is never many.

Part of the worker half: it imports nothing of ours.
"""

from collections.abc import Sequence


def counted(count: int, singular: str, plural: str = "") -> str:
    """Return `1 item` or `3,000 items`; `plural` is given where an s is not enough."""
    if count == 1:
        return f"{count:,} {singular}"
    return f"{count:,} {plural or singular + 's'}"


def some_of(names: Sequence[str], most: int = 10) -> str:
    """Return names as in `a, b and 3 more`; empty for none."""
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most:,} more"
    return text
