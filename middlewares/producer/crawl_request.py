"""Hold what a crawl is asked to be: its spider, options, project, and what was given with it."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.nodes import check_project
from scrapyd_dist.scrapyd.jobs import check_args, encode_argument
from scrapyd_dist.settings import SettingReader, limits_in
from scrapyd_dist.store.address import store_address
from scrapyd_dist.transports import AsyncSender

from .producer_options import ProducerOptions


@dataclass(frozen=True, kw_only=True)
class PreparedProject:
    """Says where the project is, and what it is called on the nodes."""

    root: Path  #: the folder of scrapy.cfg, or the current one
    state: Path  #: the state folder
    name: str
    config: config.ProjectConfig | None  #: None without scrapy.cfg
    limits: Mapping[str, str] = field(default_factory=dict)  #: of the time of jobs, by scrapy.cfg


@dataclass(frozen=True, kw_only=True)
class CrawlRequest:
    """Says what a crawl is asked to be, before its store and its nodes are known."""

    spider: str
    options: ProducerOptions
    project: PreparedProject
    args: Mapping[str, str] = field(default_factory=dict)  #: of -a
    given: Mapping[str, str] = field(default_factory=dict)  #: of -s

    @property
    def store(self) -> str:
        """Return the store's URL or absolute path.

        ConfigError if it stands in a variable that is not set.
        """
        project = self.project
        in_file = project.config.options.get("store") if project.config else None
        return store_address(project.root, self.options.store, in_file)


def known_as(spider: Spider) -> str:
    """Return the name by which the project has this spider, which may have given itself another."""
    return str(getattr(type(spider), "name", None) or spider.name)


def find_project(settings: BaseSettings) -> PreparedProject:
    """Return the project of the current folder.

    ConfigError if its scrapy.cfg cannot be read, or has a wrong value.
    """
    root = config.find_root()
    if root is None:
        root = Path.cwd()
        return PreparedProject(
            root=root,
            state=config.state_dir(root),
            name=check_project(str(settings.get("BOT_NAME"))),
            config=None,
        )
    loaded = config.load(root)
    return PreparedProject(
        root=root,
        state=config.state_dir(root),
        name=check_project(str(loaded.project or settings.get("BOT_NAME"))),
        config=loaded,
        limits=limits_in(loaded.options),
    )


def asked_for(settings: BaseSettings) -> tuple[dict[str, str], dict[str, str]]:
    """Return the `-a` and the `-s` of this process, of which Scrapy keeps no list.

    ConfigError if a name or a value cannot be passed on.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", dest="args", action="append", default=[])
    parser.add_argument("-s", "--set", dest="settings", action="append", default=[])
    words, _ = parser.parse_known_args(sys.argv[1:])
    args = _pairs_in(words.args)
    for name, value in SettingReader(settings).value("DISTRIBUTED_SPIDER_ARGS").items():
        args[name] = str(value)
    check_args(args)
    given = _pairs_in(words.settings)
    for name, value in given.items():
        encode_argument(name, value)
    return args, given


def _pairs_in(words: Iterable[str]) -> dict[str, str]:
    """Return the names and values of words NAME=VALUE; other words are left out."""
    return dict(word.split("=", 1) for word in words if "=" in word)


def check_reactor(settings: BaseSettings) -> None:
    """Raise ConfigError if this process runs on another reactor than asyncio's."""
    if not _has_reactor(settings):
        return
    from scrapy.utils.reactor import is_asyncio_reactor_installed

    if not is_asyncio_reactor_installed():
        raise ConfigError(
            f"This project runs on the reactor {settings.get('TWISTED_REACTOR')}, and a distributed"
            " crawl needs Scrapy's default one. Remove TWISTED_REACTOR from the settings, or set it"
            " to twisted.internet.asyncioreactor.AsyncioSelectorReactor."
        )


def loop_sender(settings: BaseSettings) -> AsyncSender:
    """Return the way to the nodes: treq on Scrapy's reactor, or threads without one."""
    if not _has_reactor(settings):
        from scrapyd_dist.transports.requests import ThreadTransport

        return ThreadTransport()
    from scrapyd_dist.transports.treq import TreqTransport

    return TreqTransport()


def _has_reactor(settings: BaseSettings) -> bool:
    return settings.getbool("TWISTED_REACTOR_ENABLED", True)
