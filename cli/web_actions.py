"""Starts crawls and jobs that were asked for over HTTP, as the commands do."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.jobs.job_posts import JobOrder, name_each_spider, place_jobs

from .context import Context
from .crawls import producer_process
from .crawls.crawl import describe_begun
from .crawls.crawl_options import CrawlOptions, JobLimits, refuse_secrets, settings_in
from .jobs.schedule import describe_posted, post_placed, settle_fleet, with_limits
from .options import checked_labels

#: names in a request for a crawl -> of which kind each is
_OF_CRAWL = {
    "spider": str,
    "name": str,
    "args": dict,
    "settings": dict,
    "output": list,
    "overwrite_output": list,
    "labels": list,
}
#: the same for jobs
_OF_JOBS = {
    "spider": str,
    "project": str,
    "args": dict,
    "settings": dict,
    "node": str,
    "labels": list,
    "version": str,
}
#: seconds that a node gets; the first job of a version makes it import the project
_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class WebActions:
    """What may be started in the project of a folder."""

    root: Path

    def start_crawl(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a crawl, and return what `sdist crawl --detach --json` gives.

        Raises:
            ConfigError: what is asked for cannot be.
        """
        _check(asked, _OF_CRAWL)
        with closing(Context(self.root)) as context:
            options = CrawlOptions(
                spider=asked["spider"],
                arg=_pairs(asked, "args"),
                setting=_pairs(asked, "settings"),
                add_to=_texts(asked, "output"),
                overwrite=_texts(asked, "overwrite_output"),
                label=_texts(asked, "labels"),
            )
            order = options.order(context.root)
            refuse_secrets(order.spider_settings)
            crawl, process = producer_process.begin(
                context.root, context.new_store, order, asked.get("name")
            )
        # A process that has ended seems to run until its parent has noticed that.
        Thread(target=process.wait, daemon=True).start()
        return describe_begun(crawl, process.pid)

    def start_jobs(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Start plain jobs, and return what `sdist jobs schedule --json` gives.

        Raises:
            ConfigError: what is asked for cannot be.
            NoNodeReachable: no node answers.
            NothingMatched: there is no such spider, version or node.
        """
        _check(asked, _OF_JOBS)
        settings = settings_in(_pairs(asked, "settings"))
        with closing(Context(self.root)) as context:
            order = JobOrder(
                spider=asked["spider"],
                node=asked.get("node"),
                args=dict(asked.get("args") or {}),
                settings=with_limits(context, settings, JobLimits()),
                labels=checked_labels(_texts(asked, "labels")),
            )
            settled = settle_fleet(
                context,
                None,
                project=asked.get("project"),
                version=asked.get("version"),
                only=asked.get("node"),
                timeout=_TIMEOUT,
            )
            fleet = settled.fleet
            placed = place_jobs(name_each_spider([order], fleet), fleet, context.job_site.store)
            return describe_posted(post_placed(context, placed, fleet), fleet.version)


def _check(asked: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Refuse names that mean nothing here, values of another kind, and a request for no spider."""
    for name, value in asked.items():
        if name not in kinds:
            raise ConfigError(f"{name!r} means nothing here. There are: {', '.join(kinds)}.")
        if not isinstance(value, kinds[name]):
            raise ConfigError(f"{name!r} has to be a {kinds[name].__name__}.")
        parts: Any = value
        if isinstance(parts, dict):
            parts = parts.values()
        if not all(isinstance(part, str) for part in parts):
            raise ConfigError(f"{name!r} has a value that is no text.")
    if not asked.get("spider"):
        raise ConfigError("The name of a spider is needed, as `spider`.")


def _pairs(asked: Mapping[str, Any], name: str) -> list[str]:
    return [f"{key}={value}" for key, value in (asked.get(name) or {}).items()]


def _texts(asked: Mapping[str, Any], name: str) -> list[str]:
    return [*(asked.get(name) or ())]
