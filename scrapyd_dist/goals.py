"""Goals of a whole crawl: so many items, pages, requests, errors or seconds over all of its processes. No IO.

What the crawl has of each is counted in the store, in one step with what may leave next. Part of the worker half:
imports the standard library only.
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


@dataclass(frozen=True, kw_only=True)
class Goals:
    """How much a crawl is to do at most; 0 is no limit. Errors are exceptions in the spider's code."""

    items: int = 0
    pages: int = 0
    requests: int = 0
    errors: int = 0
    time: float = 0.0  #: seconds of the process that runs the crawl
    dry_pages: int = 0  #: pages without an item, in a row
    dry_time: float = 0.0  #: likewise, seconds

    @classmethod
    def from_settings(cls, settings: "BaseSettings") -> "Goals":
        """Raises `ConfigError` if a value is not of its kind."""
        reader = SettingReader(settings)
        found = dict[str, Any]()
        if reader.value(CLOSESPIDER) == "crawl":
            given = settings.get(GIVEN) or settings
            found = {
                name: _number(theirs, given.get(theirs) or 0) for name, theirs in SCRAPYS.items()
            }
        found |= {name: reader.value(ours) for name, ours in OURS.items() if reader.given(ours)}
        return cls(
            **{name: value if "time" in name else int(value) for name, value in found.items()}
        )

    @property
    def limits(self) -> dict[str, float]:
        """Those that there are."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name))}


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < LARGEST:
        raise ConfigError(f"{name} is {value!r}, and must be a number, 0 or more.")
    return number


#: goal -> our setting
OURS = {
    one.name: ours
    for one in fields(Goals)
    if (ours := f"DISTRIBUTED_GOAL_{one.name.upper()}") in SETTINGS
}


class Spent(NamedTuple):
    """The store's answer to a process that has counted something, or asks for requests."""

    granted: int  #: requests that may leave
    counts: Mapping[str, int]  #: what the whole crawl has, by the names of goals

    def reached(self, limits: Mapping[str, float]) -> str:
        """The first goal that is reached; empty for none."""
        return next((name for name, most in limits.items() if self.counts.get(name, 0) >= most), "")


def spend(
    limits: Mapping[str, float],
    counts: Mapping[str, int],
    requests: int,
    told: Mapping[str, int],
    *,
    reserve: bool = False,
) -> Spent:
    """Add what a process tells, and grant it as many requests as the goals leave; `reserve`: for later."""
    after = {name: counts.get(name, 0) + told.get(name, 0) for name in {*counts, *told}}
    if told.get("items"):
        after["dry_pages"] = 0
    elif told.get("pages"):
        after["dry_pages"] = after.get("dry_pages", 0) + told["pages"]
    granted = 0
    if not Spent(0, after).reached(limits):
        left = limits.get("requests", 0) - after.get("requests", 0) - after.get("reserved", 0)
        granted = max(0, min(requests, int(left))) if "requests" in limits else requests
    name = "reserved" if reserve else "requests"
    after[name] = after.get(name, 0) + granted
    return Spent(granted, after)


def in_words(name: str, most: float) -> str:
    """A goal for people, such as "100 requests (--max-requests)"."""
    what = {
        "time": "seconds",
        "dry_pages": "pages without an item",
        "dry_time": "seconds without an item",
    }
    source = SETTINGS[OURS[name]].option if name in OURS else SCRAPYS[name]
    return f"{most:,.10g} {what.get(name, name)} ({source})"
