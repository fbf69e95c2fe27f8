"""Parts of the project that no distributed crawl can work with: its scheduler, its filter of duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import load_object

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

#: Scrapy's own part for each setting that may name another one
OWN = {"SCHEDULER": "scrapy.core.scheduler.Scheduler", "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
#: what was wrong with the parts that were put aside
PUT_ASIDE = "SCRAPYD_DIST_PUT_ASIDE"
#: the package whose filter of duplicates is one for all processes that start in the same second
_SHARED = "scrapy_redis"


def put_aside(settings: BaseSettings) -> None:
    """Let Scrapy's own part stand in for one that cannot work, since that may fail before the crawl can be refused."""
    for name, own in OWN.items():
        if problem := _problem_of(settings, name):
            settings.set(PUT_ASIDE, problem, priority="cmdline")
            settings.set(name, own, priority="cmdline")


def check_parts(settings: BaseSettings) -> None:
    """Refuse what cannot work.

    Raises:
        ConfigError: what, why, and what to do.
    """
    problem = settings.get(PUT_ASIDE) or next(filter(None, (_problem_of(settings, name) for name in OWN)), "")
    if problem:
        raise ConfigError(problem)


def _problem_of(settings: BaseSettings, name: str) -> str:
    """What is wrong with the part that this setting names, in a paragraph; empty if nothing is."""
    part = settings[name]
    text = part if isinstance(part, str) else f"{part.__module__}.{part.__qualname__}"
    try:
        kind = load_object(part)
    except Exception as error:  # noqa: BLE001 - the import of a project's module can fail in any way
        return f"{name} is {text}, which cannot be loaded: {type(error).__name__}: {error}. Correct it in the settings."
    bases = getattr(kind, "__mro__", ())  # not issubclass(): to Scrapy, whatever has the methods is a scheduler
    if name == "SCHEDULER" and Scheduler not in bases:
        return (
            f"SCHEDULER is {text}, which is not Scrapy's own scheduler nor made from it. A distributed crawl keeps its"
            " requests in its own store, and its processes need a scheduler in memory: one that keeps them elsewhere"
            " cannot take them, or mixes those of different jobs. Take SCHEDULER out of the settings (sdist shares the"
            " requests by itself), or crawl without sdist: -s DISTRIBUTED_ENABLED=0 with scrapy crawl."
        )
    if name == "DUPEFILTER_CLASS" and any(base.__module__.split(".")[0] == _SHARED for base in bases):
        return (
            f"DUPEFILTER_CLASS is {text}, which keeps what was seen on a Redis server, in one set for all processes"
            " that start in the same second: jobs would drop each other's requests, and none leaves while that server"
            " is away. Take DUPEFILTER_CLASS out of the settings: sdist sees to it that no page is crawled twice."
        )
    return ""
