"""A span of time in words."""


def describe_span(seconds: float) -> str:
    """Return a span of time: `41 s`, `12:05 min`, `1:02:03 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h"
