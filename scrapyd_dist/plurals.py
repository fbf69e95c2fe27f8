"""Writes numbers with their nouns, so that one of a thing is never many.

Part of the worker half: no imports.
"""


def counted(count: int, singular: str, plural: str = "") -> str:
    """Return `1 item` or `3,000 items`; `plural` is given where an s is not enough."""
    if count == 1:
        return f"{count:,} {singular}"
    return f"{count:,} {plural or singular + 's'}"
