"""Spans and moments of time in words."""

from datetime import datetime, timezone


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


def describe_typed_span(seconds: float) -> str:
    """Return a span of time in the unit in which it is whole: `90 s`, `30 min`, `24 h`."""
    whole = round(seconds)
    if whole and whole % 3600 == 0:
        return f"{whole // 3600:,} h"
    if whole and whole % 60 == 0:
        return f"{whole // 60:,} min"
    return f"{whole:,} s"


def describe_age(seconds: float) -> str:
    """Return how long ago something was, in its largest unit: `41s`, `12m`, `3h`, `5d`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h"
    return f"{whole // 86400:,}d"


def format_moment(at: float | None) -> str | None:
    """Return a moment in seconds since the epoch as ISO 8601, in UTC.

    None for None, and for a moment that no calendar has.
    """
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return None


def describe_moment(at: float) -> str:
    """Return a moment in seconds since the epoch in words, in UTC: `2026-01-02 03:04:05 UTC`."""
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "an unknown time"
