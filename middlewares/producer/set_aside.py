"""Take settings out of a producer that it must not have, and remember what they were.

The add-on does so before the components are made: what is told of a project rests on the values
that the project gave.
"""

from typing import Any

from scrapy.settings import BaseSettings

#: the setting that keeps the values
SET_ASIDE = "SCRAPYD_DIST_SET_ASIDE"
#: what a producer must not have: its queue and the pages that were seen are in the store
UNUSED = ("JOBDIR",)


def set_aside(settings: BaseSettings) -> None:
    """Take out the settings that a producer must not have.

    To be called before the crawl's components are made.
    """
    values = {}
    for name in UNUSED:
        if settings[name]:
            values[name] = settings[name]
    if values:
        settings.set(SET_ASIDE, values, priority="cmdline")
    for name in values:
        settings.set(name, None, priority="cmdline")


def setting_given(settings: BaseSettings, name: str) -> Any:
    """Return the value of a setting as the project, the spider or the command line gave it."""
    kept = settings.get(SET_ASIDE) or {}
    return kept.get(name, settings.get(name))
