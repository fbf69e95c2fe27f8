"""Holds the goals of a whole crawl: items, pages, requests, errors, seconds of all its processes.

What the crawl has of each is counted in the store, in one step with what may leave next. No IO.
Part of the worker half: imports the standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import ConfigError
from .settings import SETTINGS, SettingReader

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

#: what is more is no goal
LARGEST = 1e15
#: what the store's counts that goals are compared with begin with
COUNTED = "goal."
#: takes the CLOSESPIDER_… settings of a project for the whole crawl
CLOSESPIDER = "DISTRIBUTED_CLOSESPIDER"
#: the setting that has those of Scrapy as the project gives them, once they count for the whole
GIVEN = "SCRAPYD_DIST_CLOSESPIDER"
#: DEPTH_LIMIT for the whole crawl: the depth of a request travels with it, as all its meta
DEPTH = "DISTRIBUTED_GOAL_DEPTH"
#: goal -> the setting of Scrapy that says the same of one process
SCRAPYS = {
    "items": "CLOSESPIDER_ITEMCOUNT",
    "pages": "CLOSESPIDER_PAGECOUNT",
    "errors": "CLOSESPIDER_ERRORCOUNT",
    "time": "CLOSESPIDER_TIMEOUT",
    "dry_pages": "CLOSESPIDER_PAGECOUNT_NO_ITEM",
    "dry_time": "CLOSESPIDER_TIMEOUT_NO_ITEM",
}
#: goal -> what it counts, where its name does not say it
_UNITS = {
    "time": "seconds",
    "dry_pages": "pages without an item",
    "dry_time": "seconds without an item",
}


@dataclass(frozen=True, kw_only=True)
class Goals:
    """How much a crawl is to do at most; 0 is no limit.

    Errors are exceptions in the spider's code.
    """

    items: int = 0
    pages: int = 0
    requests: int = 0
    errors: int = 0
    time: float = 0.0  #: seconds of the process that runs the crawl
    dry_pages: int = 0  #: pages without an item, in a row
    dry_time: float = 0.0  #: likewise, seconds

    @classmethod
    def from_settings(cls, settings: "BaseSettings") -> "Goals":
        """Return the goals that settings give; `ConfigError` if a value is not of its kind."""
        reader = SettingReader(settings)
        values: dict[str, float] = {}
        if reader.value(CLOSESPIDER) == "crawl":
            given = settings.get(GIVEN) or settings
            for goal, setting in SCRAPYS.items():
                values[goal] = _read_number(setting, given.get(setting) or 0)
        for goal, setting in OURS.items():
            if reader.given(setting):
                values[goal] = reader.value(setting)
        for goal, value in values.items():
            if "time" not in goal:
                values[goal] = int(value)
        return cls(**values)  # type: ignore[arg-type]  # whole numbers but for the times

    @property
    def limits(self) -> dict[str, float]:
        """The goals that are set, by name."""
        goals = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: most for name, most in goals.items() if most}


def _read_number(setting: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < LARGEST:
        raise ConfigError(f"{setting} is {value!r}, and must be a number, 0 or more.")
    return number


def _find_our_settings() -> dict[str, str]:
    settings: dict[str, str] = {}
    for field in fields(Goals):
        setting = f"DISTRIBUTED_GOAL_{field.name.upper()}"
        if setting in SETTINGS:
            settings[field.name] = setting
    return settings


#: goal -> our setting
OURS = _find_our_settings()


class Spent(NamedTuple):
    """The store's answer to a process that has counted something, or asks for requests."""

    granted: int  #: requests that may leave
    counts: Mapping[str, int]  #: what the whole crawl has, by the names of goals

    def reached(self, limits: Mapping[str, float]) -> str:
        """Return the first goal that is reached; empty for none."""
        for name, most in limits.items():
            if self.counts.get(name, 0) >= most:
                return name
        return ""


def spend(
    limits: Mapping[str, float],
    counts: Mapping[str, int],
    requests: int,
    added: Mapping[str, int],
    *,
    reserve: bool = False,
) -> Spent:
    """Add what a process has counted, and grant it as many requests as the goals leave.

    `added`: what the process adds to the counts; `reserve`: the requests are for later.
    """
    after = {name: counts.get(name, 0) + added.get(name, 0) for name in {*counts, *added}}
    if added.get("items"):
        after["dry_pages"] = 0
    elif added.get("pages"):
        after["dry_pages"] = after.get("dry_pages", 0) + added["pages"]
    granted = 0
    if not Spent(0, after).reached(limits):
        granted = requests
        if "requests" in limits:
            left = limits["requests"] - after.get("requests", 0) - after.get("reserved", 0)
            granted = max(0, min(requests, int(left)))
    name = "reserved" if reserve else "requests"
    after[name] = after.get(name, 0) + granted
    return Spent(granted, after)


def in_words(name: str, most: float) -> str:
    """Return a goal for people, such as "100 requests (--max-requests)"."""
    unit = _UNITS.get(name, name)
    source = SETTINGS[OURS[name]].option if name in OURS else SCRAPYS[name]
    return f"{most:,.10g} {unit} ({source})"
