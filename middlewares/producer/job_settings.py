"""Makes the settings that the jobs of a crawl get: by the registry, of what the crawl was given."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scrapy.settings import BaseSettings

from scrapyd_dist.items.sink import password_in
from scrapyd_dist.settings import (
    PREFIX,
    SETTINGS,
    Setting,
    SettingReader,
    Travels,
    travelling,
)

from ..throttle.throttle_options import SWITCH, options_in, options_of

#: settings of Scrapy that are of the producer's process alone
PRODUCERS_SETTINGS = frozenset(
    {"LOG_FILE", "LOG_STDOUT", "FEEDS", "FEED_URI", "FEED_FORMAT", "JOBDIR", "ADDONS"}
)
#: the ways that lead to every job of the crawl's own project
_TO_EVERY_JOB = (Travels.JOBS, Travels.FLEET, Travels.LIMITS)
#: those that lead to workers that lease
_TO_WORKERS = (Travels.LEASING, Travels.SLOTS)


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """What jobs get as settings, besides those in their egg and what each is to do."""

    own: Mapping[str, str]  #: of jobs of the crawl's project
    foreign: Mapping[str, str]  #: of jobs of other projects


def make_job_settings(
    settings: BaseSettings,
    *,
    given: Mapping[str, str],
    limits: Mapping[str, str],
    leases: bool,
) -> JobSettings:
    """Return the settings of all jobs of the crawl with these settings.

    `given` are those of -s, of which the ones that are not ours are passed on; `limits` are those
    of scrapy.cfg, as settings; `leases`: workers lease their batches.

    Raises:
        ConfigError: a value is not of its kind.
    """
    own = {**_pass_on(given), **limits}
    reader = SettingReader(settings)
    for name in travelling(*_TO_EVERY_JOB, *(_TO_WORKERS if leases else ())):
        value = _find_value(SETTINGS[name], reader)
        if value is not None:
            own[name] = _as_text(value)
    foreign = {name: own[name] for name in travelling(Travels.FLEET) if name in own}
    for name in travelling(Travels.SLOTS):
        # Also those without a value: that project's own slots are for its own frontiers.
        foreign[name] = _as_text(settings[name] or "")
    return JobSettings(own=own, foreign={**foreign, **_make_foreign_limits(settings)})


def _pass_on(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of -s that are not ours, nor the affair of the producer's process."""
    others = {name for name in given if not name.startswith(PREFIX)} - PRODUCERS_SETTINGS
    return {name: value for name, value in given.items() if name in others}


def _find_value(row: Setting, reader: SettingReader) -> Any:
    """Return the value that travels with this row; None for none."""
    if reader.on_command_line(row.name):
        return reader.settings[row.name]
    if not row.in_force:
        return None
    value = reader.value(row.name)
    if row.secret and password_in(str(value)):
        return None  # who lists processes would see what only the egg has
    return value or None


def _make_foreign_limits(settings: BaseSettings) -> dict[str, str]:
    """Return the limits of this crawl as settings for jobs of other projects."""
    throttle = options_of(settings)
    if throttle.on:
        return {name: _as_text(value) for name, value in options_in(settings).items()}
    if throttle.heeds:  # a throttle that is not mentioned here is that project's own affair
        return {}
    return {SWITCH: _as_text(False)}


def _as_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))  # as Scrapy reads a list
    return json.dumps(dict(value)) if hasattr(value, "items") else str(value)
