"""Hold what a crawl is asked to be: its spider, options, project, and what was given with it."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapy.settings import BaseSettings

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.goals import DEPTH
from scrapyd_dist.nodes import check_project
from scrapyd_dist.scheduling.job_request import passed_on
from scrapyd_dist.scrapyd.jobs import check_args
from scrapyd_dist.settings import (
    LABELS,
    SettingReader,
    Travels,
    limits_in,
    travelling,
)
from scrapyd_dist.store.address import store_address
from scrapyd_dist.transports import AsyncSender

from ..throttle.throttle_options import SWITCH, options_of
from ..throttle.throttle_options import options_in as throttle_given
from .producer_options import CMDLINE, ProducerOptions


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

    ConfigError if a name cannot be passed on.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", dest="args", action="append", default=[])
    parser.add_argument("-s", "--set", dest="settings", action="append", default=[])
    words, _ = parser.parse_known_args(sys.argv[1:])
    args = _pairs_in(words.args)
    for name, value in SettingReader(settings).value("DISTRIBUTED_SPIDER_ARGS").items():
        args[name] = str(value)
    check_args(args)
    return args, _pairs_in(words.settings)


def _pairs_in(words: Iterable[str]) -> dict[str, str]:
    """Return the names and values of words NAME=VALUE; other words are left out."""
    return dict(word.split("=", 1) for word in words if "=" in word)


def job_settings(given: Mapping[str, str], options: ProducerOptions) -> dict[str, str]:
    """Return the settings that all jobs of the crawl get besides their batch.

    `given` are those of -s.
    """
    settings = {**passed_on(given), "DISTRIBUTED_PROFILE": options.profile}
    if options.labels:
        settings[LABELS] = ",".join(options.labels)
    if options.target_feed_url is not None and options.send_feed_url:
        settings["DISTRIBUTED_TARGET_FEED_URL"] = options.target_feed_url
    if options.goal_depth:
        settings[DEPTH] = str(options.goal_depth)
    return settings


def worker_settings(options: ProducerOptions, settings: BaseSettings) -> dict[str, str]:
    """Return, of the settings given on the command line, those of ours that workers need."""
    kinds = (Travels.LEASING, Travels.SLOTS) if options.leases else ()
    needed = {}
    for name in travelling(Travels.FLEET, *kinds):
        is_given = (settings.getpriority(name) or 0) >= CMDLINE
        if is_given and settings[name] is not None:
            needed[name] = _as_text(settings[name])
    return needed


def shared_settings(settings: BaseSettings) -> dict[str, str]:
    """Return the settings for workers of another project, too.

    They say where requests lie, and the limits of this crawl.
    """
    shared = {}
    for name in travelling(Travels.SLOTS):
        # Also those without a value: that project's own slots are for its own frontiers.
        shared[name] = _as_text(settings[name] or "")
    throttle = options_of(settings)
    if throttle.on:
        for name, value in throttle_given(settings).items():
            shared[name] = _as_text(value)
    elif not throttle.heeds:
        # A throttle that these settings do not mention is that project's own affair.
        shared[SWITCH] = _as_text(False)
    return shared


def _as_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))  # as Scrapy reads a list
    return json.dumps(dict(value)) if hasattr(value, "items") else str(value)


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
