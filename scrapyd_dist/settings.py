"""Reads and checks settings by the registry; all of the registry is imported from here.

Part of the worker half: imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .setting_kinds import LONGEST, MOST, Setting, Travels, ValueKind, read_seconds
from .settings_table import (
    AUTO,
    GROUPS,
    INTERNAL,
    JOB_LIMITS,
    LABELS,
    LONGEST_WINDOW,
    MOST_HITS,
    MOST_SLOTS,
    PREFIX,
    SETTINGS,
)
from .unknown_settings import describe_unknown, find_warnings, suggest_name

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

__all__ = [
    "AUTO",
    "GROUPS",
    "INTERNAL",
    "JOB_LIMITS",
    "LABELS",
    "LONGEST",
    "LONGEST_WINDOW",
    "MOST",
    "MOST_HITS",
    "MOST_SLOTS",
    "PREFIX",
    "SETTINGS",
    "Setting",
    "SettingReader",
    "Travels",
    "ValueKind",
    "check_settings",
    "describe_unknown",
    "find_warnings",
    "limits_in",
    "read_seconds",
    "settings_of_options",
    "suggest_name",
    "travelling",
    "uploading_feeds",
]

#: Scrapy's priority of -s
CMDLINE = 40
#: kinds of feeds that are written while a job runs
LOCAL_FEEDS = frozenset({"", "file", "stdout"})


def travelling(*travels: Travels) -> tuple[str, ...]:
    """Return the names of the settings that travel in one of these ways."""
    return tuple(name for name, row in SETTINGS.items() if row.travels in travels)


def settings_of_options(options: object, command: str = "") -> dict[str, Any]:
    """Return the settings that an object with fields named like options gives values to.

    `command` names the subcommand whose own options count as well.
    """
    # Options of the command itself go last: they replace those of the same name.
    rows = sorted(SETTINGS.values(), key=lambda row: " " in row.option)
    names_by_field: dict[str, str] = {}
    for row in rows:
        owner = row.option.rpartition(" ")[0]
        if row.option and owner in ("", command):
            names_by_field[row.field] = row.name
    given: dict[str, Any] = {}
    for field, name in names_by_field.items():
        value = getattr(options, field, None)
        if value not in (None, []):
            given[name] = value
    return given


def check_settings(settings: Mapping[str, Any] | BaseSettings) -> None:
    """Raise `ConfigError` for the first of our settings with a value of another kind or range."""
    for name, row in SETTINGS.items():
        value = settings.get(name)
        if value not in (None, ""):
            row.judged(value)


class SettingReader:
    """Reads the settings of one process; an error names the setting."""

    def __init__(self, settings: BaseSettings) -> None:
        self.settings = settings

    def given(self, name: str) -> bool:
        """Return whether the setting has a value; an empty text is none."""
        return self.settings.get(name) not in (None, "")

    def on_command_line(self, name: str) -> bool:
        """Return whether -s, or an option of ours, gave the setting the value that it has."""
        return (self.settings.getpriority(name) or 0) >= CMDLINE

    def name(self, name: str) -> str:
        """Return the name that has the value.

        It is this one, or that of Scrapy Cluster if only that is given.
        """
        cluster_name = SETTINGS[name].cluster
        if cluster_name and not self.given(name) and self.given(cluster_name):
            return cluster_name
        return name

    def value(self, name: str) -> Any:
        """Return the value, or the default if none is given.

        Raises:
            ConfigError: it is of another kind, or beyond its limits.
        """
        row = SETTINGS[name]
        given_name = self.name(name)
        if self.given(given_name):
            return row.judged(self.settings.get(given_name), given_name)
        if row.kind in (ValueKind.LIST, ValueKind.FILES):
            return ()
        return row.default

    def values_for(self, cls: Any, prefix: str = PREFIX) -> dict[str, Any]:
        """Return the values for those fields of a dataclass that are named like settings.

        The field `max_jobs` is that of DISTRIBUTED_MAX_JOBS.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = prefix + field.name.upper()
            if name in SETTINGS:
                values[field.name] = self.value(name)
        return values


def limits_in(options: Mapping[str, str]) -> dict[str, str]:
    """Return the limits of jobs that [sdist] of scrapy.cfg sets, as settings.

    Raises:
        ConfigError: one of them is no number of seconds.
    """
    names_by_key = {name.removeprefix(PREFIX).lower(): name for name in JOB_LIMITS}
    limits: dict[str, str] = {}
    for key, value in options.items():
        if key in names_by_key:
            limits[names_by_key[key]] = value
    for name, value in limits.items():
        key = name.removeprefix(PREFIX).lower()
        SETTINGS[name].judged(value, f"{key} in [sdist] of scrapy.cfg")
    return limits


def uploading_feeds(settings: BaseSettings) -> list[str]:
    """Return the addresses of the feeds that this process stores elsewhere when it closes.

    User names and passwords are left out.
    """
    addresses: list[str] = []
    for feed in settings.getdict("FEEDS"):
        uri = urlsplit(str(feed))
        if uri.scheme not in LOCAL_FEEDS:
            host = uri.netloc.rpartition("@")[2]
            addresses.append(uri._replace(netloc=host).geturl())
    return addresses
