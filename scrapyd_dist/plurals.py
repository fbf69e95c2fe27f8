"""Numbers with their nouns, so that one of a thing is never many. Part of the worker half: no imports."""


def counted(count: int, one: str, many: str = "") -> str:
    """Return `1 item` or `3,000 items`; `many` is the other form, where an s is not enough."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
