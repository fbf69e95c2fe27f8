"""Settings read and checked one at a time, by their rows in the registry.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.settings import SETTINGS, Setting, ValueKind

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

#: kinds of feeds that are written while a job runs
LOCAL_FEEDS = frozenset({"", "file", "stdout"})


class SettingReader:
    """Reads the settings of one process; an error names the setting."""

    def __init__(self, settings: BaseSettings) -> None:
        self.settings = settings

    def given(self, name: str) -> bool:
        """Whether the setting has a value; an empty text is none."""
        return self.settings.get(name) not in (None, "")

    def name(self, name: str) -> str:
        """The name that has the value: this one, or that of Scrapy Cluster if only that is given."""
        theirs = SETTINGS[name].cluster
        return theirs if theirs and not self.given(name) and self.given(theirs) else name

    def value(self, name: str) -> Any:
        """The value, of its kind; the default if none is given.

        Raises:
            ConfigError: the value is of another kind, or beyond its limits.
        """
        row, name = SETTINGS[name], self.name(name)
        if not self.given(name):
            return () if row.kind is ValueKind.LIST else row.default
        value = self.settings.get(name)
        if row.kind is ValueKind.CHOICE:
            if str(value) not in row.choices:
                raise ConfigError(f"{name} is {str(value)!r}; it can be {' or '.join(filter(None, row.choices))}.")
            return str(value)
        try:
            read = self._read(row.kind, name, row.choices)
        except (TypeError, ValueError):
            read = None
        if read is None or (row.kind is ValueKind.NUMBER and not _is_within(row, read)):
            raise ConfigError(f"{name} is {value!r}, and must be {row.must_be or row.kind.value}.")
        if row.kind in (ValueKind.WHOLE, ValueKind.SECONDS) and read not in row.choices and not _is_within(row, read):
            raise ConfigError(f"{name} is {read}, and must be {_limit(row, read)}.")
        return read

    def _read(self, kind: ValueKind, name: str, words: tuple[str, ...]) -> Any:
        value = self.settings.get(name)
        if kind is ValueKind.YES_NO:
            return self.settings.getbool(name)
        if kind is ValueKind.LIST:
            return tuple(self.settings.getlist(name))
        if kind is ValueKind.MAPPING:
            return dict(self.settings.getdict(name))
        if kind is ValueKind.TEXT or value in words:
            return str(value)
        if kind is not ValueKind.WHOLE:
            return float(value)
        return int(value) if re.fullmatch(r"\s*-?\d+(\.0)?\s*", str(value)) else None


def _is_within(row: Setting, value: float) -> bool:
    if row.least is not None and not value >= row.least:
        return False
    if row.least is None and row.kind is not ValueKind.WHOLE and not value > 0:
        return False
    return row.most is None or value <= row.most


def _limit(row: Setting, value: float) -> str:
    unit = " seconds" if row.kind is ValueKind.SECONDS else ""
    if row.most is not None and value > row.most:
        return f"{row.most:.0f}{unit} ({row.most / 86400:.0f} days) or less"
    return "more than 0 seconds" if row.least is None else f"{row.least:g}{unit} or more"


def uploading_feeds(settings: BaseSettings) -> list[str]:
    """The feeds of this process that are stored elsewhere when it closes, without what is secret in their addresses."""
    feeds = (urlsplit(str(uri)) for uri in settings.getdict("FEEDS"))
    return [
        uri._replace(netloc=uri.netloc.rpartition("@")[2]).geturl() for uri in feeds if uri.scheme not in LOCAL_FEEDS
    ]
