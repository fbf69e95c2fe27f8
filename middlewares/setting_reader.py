"""Settings read one at a time, each of one kind; what is wrong is told with the setting's name.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

#: kinds of feeds that are written while a job runs
LOCAL_FEEDS = frozenset({"", "file", "stdout"})


class SettingReader:
    """Reads one setting at a time; what is wrong is told with its name."""

    def __init__(self, settings: BaseSettings) -> None:
        self.settings = settings

    def whole(self, name: str, default: int | None) -> Any:
        value = self.settings.get(name)
        if value is None or value == "":
            return default
        if not re.fullmatch(r"-?\d+", str(value).strip()):
            raise ConfigError(f"{name} is {value!r}, and must be a whole number.")
        return int(value)

    def at_least(self, name: str, default: int, least: int) -> int:
        value: int = self.whole(name, default)
        if value < least:
            raise ConfigError(f"{name} is {value}, and must be {least} or more.")
        return value

    def yes_no(self, name: str, default: bool) -> bool:
        if self.settings.get(name) in (None, ""):
            return default
        try:
            return self.settings.getbool(name)
        except ValueError:
            raise ConfigError(f"{name} is {self.settings.get(name)!r}, and must be True or False.") from None

    def seconds(self, name: str, default: float, *, least: float | None = None) -> float:
        """More than 0 seconds; with `least`, at least so many."""
        try:
            value = self.settings.getfloat(name, default)
        except (TypeError, ValueError):
            raise ConfigError(f"{name} is {self.settings.get(name)!r}, and must be a number of seconds.") from None
        if least is None and not value > 0:
            raise ConfigError(f"{name} is {value}, and must be more than 0 seconds.")
        if least is not None and not value >= least:
            raise ConfigError(f"{name} is {value}, and must be {least:g} seconds or more.")
        return value

    def one_of(self, name: str, known: tuple[str, ...]) -> str:
        value = str(self.settings.get(name, known[0]))
        if value not in known:
            raise ConfigError(f"{name} is {value!r}; it can be {' or '.join(known)}.")
        return value


def uploading_feeds(settings: BaseSettings) -> list[str]:
    """The feeds of this process that are stored elsewhere when it closes, without what is secret in their addresses."""
    feeds = (urlsplit(str(uri)) for uri in settings.getdict("FEEDS"))
    return [
        uri._replace(netloc=uri.netloc.rpartition("@")[2]).geturl() for uri in feeds if uri.scheme not in LOCAL_FEEDS
    ]
