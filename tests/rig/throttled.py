"""Ordinary crawls under the throttle: a spider of numbered pages, its processes, and what the site's own log says."""

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from .commands import Command
from .crawls import ADDON
from .projects import Project
from .sites import SiteProcess

#: two spiders of the same pages: `first` to `last` of the site at `base`, in turn from each of the `addresses`
SPIDERS = """
import scrapy


class Pages(scrapy.Spider):
    name = "pages"
    addresses = ""

    async def start(self):
        for number in range(int(self.first), int(self.last)):
            url = f"{self.base}/properties/property_{number:06d}.html?by={self.name}"
            for address in self.addresses.split(",") if self.addresses else [""]:
                meta = {"bindaddress": (address, 0)} if address else {}
                yield scrapy.Request(url, meta=meta, dont_filter=True)

    def parse(self, response):
        yield {"url": response.url}


class Others(Pages):
    name = "others"
"""


class Throttled:
    """Starts plain `scrapy crawl` processes that share one store.

    Args:
        project: one with `SPIDERS`.
        site: one that listens on all addresses of this machine: each 127.x.y.z is a domain of its own.
        start: the fixture `start_scrapy`.
        settings: of all processes.
    """

    def __init__(
        self, project: Project, site: SiteProcess, start: Callable[..., Command], settings: Mapping[str, Any]
    ) -> None:
        self.project, self._site, self._start = project, site, start
        #: the address of the store
        self.store = str(project.path / "throttle.db")
        self._settings = {
            "ADDONS": ADDON, "DISTRIBUTED_ENABLED": False, "DISTRIBUTED_THROTTLE": True,
            "DISTRIBUTED_STORE": self.store, **settings,
        }  # fmt: skip
        self._port = urlsplit(site.url).port

    def crawl(
        self, host: str, first: int, last: int, *, spider: str = "pages", addresses: str = "", **settings: Any
    ) -> Command:
        """A process that crawls these pages of the site under the name of one host."""
        base = f"http://{host}:{self._port}"
        given = {"base": base, "first": first, "last": last, "addresses": addresses}
        words = [word for name, value in given.items() for word in ("-a", f"{name}={value}")]
        for name, value in {**self._settings, **settings}.items():
            words += ["-s", f"{name}={json.dumps(value) if isinstance(value, dict) else value}"]
        return self._start(self.project, "crawl", spider, *words)

    def hits(self, host: str) -> list[dict[str, Any]]:
        """What came to the site under this name, in order."""
        return [row for row in self._site.log() if row["host"] == f"{host}:{self._port}"]

    def times(self, host: str) -> list[float]:
        """When it came: time.monotonic() of this machine."""
        return [row["time"] for row in self.hits(host)]


def mean_gap(times: list[float]) -> float:
    """Seconds between two that follow each other, on the average: one that is late on a busy machine changes little."""
    return (times[-1] - times[0]) / (len(times) - 1)
