"""Refuse a spider that no job can run, or that lacks what the settings name; nothing is crawled."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapyd_dist.differences import Trait, by_trait
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.plurals import counted

from ..engine_compat import spider_method
from ..slot_routing import hides_addon

#: settings that name a method of the spider
METHODS = ("DISTRIBUTED_LOGIN", "DISTRIBUTED_REQUEST_HOOK")
#: the spider argument with the job's id
JOB_ARGUMENT = "_job"
#: what Python says of a call that lacks arguments
_LACKS = re.compile(
    r"(?P<kind>[\w.<>]+)\.__init__\(\) missing \d+ required [\w-]+ arguments?: (?P<names>.+)"
)
_NAME = re.compile(r"'(\w+)'")


def check_spider(
    spider: Spider | type[Spider],
    settings: BaseSettings,
    args: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise ConfigError if the spider lacks a method that the settings name, or suits no job.

    A spider whose own settings replace the add-ons would crawl the index in each of its jobs.
    """
    for name in METHODS:
        spider_method(spider, settings, name)
    kind = spider if isinstance(spider, type) else type(spider)
    if not (_takes_job(kind.__init__) and _takes_job(kind.from_crawler)):
        raise _takes_no_job(kind)
    if not all(map(_takes_job, _constructors(kind))):
        own: Any = settings.copy()
        own.frozen = False
        # What else the spider raises is of another crawler, and not of the crawl's own.
        with suppress(AttributeError, KeyError, ValueError, OSError):
            make_as_job(Crawler(kind, own), args)
    if hides_addon(spider.custom_settings or {}):
        raise ConfigError(
            f"The custom_settings of the spider {spider.name} set ADDONS, which hides the add-on"
            ' that a job on a node needs. Add "scrapyd_dist.Addon": 500 to it there.'
        )


def make_as_job(crawler: Crawler, args: Mapping[str, str]) -> Spider:
    """Make the crawler's spider with what Scrapyd gives to that of a job.

    Raises:
        ConfigError: it does not take that, nor does a class that it is made from.
    """
    try:
        return crawler.spidercls.from_crawler(crawler, **{**args, JOB_ARGUMENT: "plan"})
    except TypeError as error:
        if JOB_ARGUMENT in str(error):
            raise _takes_no_job(crawler.spidercls) from error
        raise


def explain_lack(kind: type[Spider], fault: str) -> str:
    """Say which arguments a spider lacks, by what was raised as it was made; empty if none.

    fault: the text of the exception.
    """
    found = _LACKS.match(fault)
    if found is None or found["kind"] not in {base.__qualname__ for base in kind.__mro__}:
        return ""
    names = _NAME.findall(found["names"])
    options = " ".join(f"-a {name}=…" for name in names)
    return (
        f"The spider {getattr(kind, 'name', kind.__name__)} cannot be started: it lacks"
        f" {counted(len(names), 'argument')}. Give it {options}. Nothing was started."
    )


def _takes_no_job(kind: type[Spider]) -> ConfigError:
    row = by_trait(Trait.SPIDER_START)
    name = getattr(kind, "name", kind.__name__)  # its objects may be given one
    return ConfigError(f"The spider {name} takes no argument {JOB_ARGUMENT}. {row.sentence}")


def _constructors(kind: type[Spider]) -> Iterator[Callable[..., Any]]:
    """Yield each `__init__` that may be called on the way to that of Scrapy's Spider."""
    order = kind.__mro__
    for base in order[: order.index(Spider)]:
        if "__init__" in vars(base):
            yield vars(base)["__init__"]


def _takes_job(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called with the argument that Scrapyd adds.

    True where that cannot be told.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    kinds = {parameter.kind for parameter in parameters.values()}
    return JOB_ARGUMENT in parameters or inspect.Parameter.VAR_KEYWORD in kinds
