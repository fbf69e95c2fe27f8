"""Refuse parts of Scrapy that a project has replaced by others with which no crawl can be spread.

The add-on puts Scrapy's own in their place first, so that the crawl can be refused in words.
"""

from typing import Any

from scrapy.core.scheduler import Scheduler
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from scrapyd_dist.differences import DIFFERENCES
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.settings import check_settings

#: Scrapy's own part for each setting that may name another one
OWN = {
    "SCHEDULER": "scrapy.core.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
}
#: the setting that says what was wrong with the parts that were put aside
PUT_ASIDE = "SCRAPYD_DIST_PUT_ASIDE"
#: the package whose filter of duplicates is one for all processes that start in the same second
_SHARED = "scrapy_redis"


def put_aside(settings: BaseSettings) -> bool:
    """Let Scrapy's own part stand in for one that cannot work.

    That one may fail before the crawl can be refused. Returns whether the values of our settings
    can be read.
    """
    for name, own in OWN.items():
        problem = _problem_of(settings, name)
        if problem:
            settings.set(PUT_ASIDE, problem, priority="cmdline")
            settings.set(name, own, priority="cmdline")
    try:
        check_settings(settings)
    except ConfigError as error:
        settings.set(PUT_ASIDE, str(error), priority="cmdline")
        return False
    return True


def check_parts(settings: BaseSettings) -> None:
    """Raise ConfigError if a part of Scrapy was replaced by one that cannot work here."""
    if settings.get(PUT_ASIDE):
        raise ConfigError(settings.get(PUT_ASIDE))
    for name in OWN:
        problem = _problem_of(settings, name)
        if problem:
            raise ConfigError(problem)


def _problem_of(settings: BaseSettings, name: str) -> str:
    """Say what is wrong with the part that this setting names; empty if nothing is."""
    part = settings[name]
    path = import_path(part)
    try:
        kind = load_object(part)
    except Exception as error:  # noqa: BLE001  (an import may raise anything)
        return (
            f"{name} is {path}, which cannot be loaded: {type(error).__name__}: {error}. Correct it"
            " in the settings."
        )
    # Not issubclass(): to Scrapy, whatever has the methods is a scheduler.
    bases = getattr(kind, "__mro__", ())
    if name == "SCHEDULER" and Scheduler not in bases:
        return (
            f"SCHEDULER is {path}, which is not Scrapy's own scheduler nor made from it."
            f" {DIFFERENCES['SCHEDULER'].sentence}"
        )
    packages = {base.__module__.split(".")[0] for base in bases}
    if name == "DUPEFILTER_CLASS" and _SHARED in packages:
        sentence = DIFFERENCES["duplicate filter of scrapy-redis"].sentence
        return f"DUPEFILTER_CLASS is {path}. {sentence}"
    return ""


def import_path(part: Any) -> str:
    """Return the import path of a part that a setting names, or is."""
    return part if isinstance(part, str) else f"{part.__module__}.{part.__qualname__}"
