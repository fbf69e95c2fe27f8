"""Ordinary crawls under the throttle: a spider of numbered pages, its processes, and what the site's own log says."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rig.rolling_window import most_in_window

from .commands import Command
from .crawls import ADDON
from .projects import Project
from .sites import SiteProcess

#: seconds by which a moment may differ for no other reason than how it is written down
TINY = 1e-5
#: seconds by which the clock of the site's log and that of the store may drift apart in a test
CLOCKS = 0.05
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
        permit = response.meta.get("distributed_permit")
        yield {"url": response.url, "at": permit and permit.at}


class Others(Pages):
    name = "others"
"""


class Throttled:
    """Starts plain `scrapy crawl` processes of a project with `SPIDERS`, which share one store and these settings.

    The site listens on all addresses of this machine: each 127.x.y.z is a domain of its own.
    """

    def __init__(
        self,
        project: Project,
        site: SiteProcess,
        start: Callable[..., Command],
        settings: Mapping[str, Any],
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
        self,
        host: str,
        first: int,
        last: int,
        *,
        spider: str = "pages",
        addresses: str = "",
        output: str = "",
        **settings: Any,
    ) -> Command:
        """A process that crawls these pages of the site under one host name; `output`: the file of its items."""
        base = f"http://{host}:{self._port}"
        given = {"base": base, "first": first, "last": last, "addresses": addresses}
        words = [word for name, value in given.items() for word in ("-a", f"{name}={value}")]
        words += ["-O", output] if output else []
        for name, value in {**self._settings, **settings}.items():
            words += ["-s", f"{name}={json.dumps(value) if isinstance(value, dict) else value}"]
        return self._start(self.project, "crawl", spider, *words)

    def hits(self, host: str) -> list[dict[str, Any]]:
        """What came to the site under this name, in order."""
        return [row for row in self._site.log() if row["host"] == f"{host}:{self._port}"]

    def permits(self, host: str, *names: str) -> list[float]:
        """The moments of the permits of `hits`, as the items in these files tell them; likewise."""
        rows = [item for name in names for item in self.project.items(name)]
        return permits_of([f"http://{row['host']}{row['target']}" for row in self.hits(host)], rows)

    def times(self, host: str) -> list[float]:
        """When it came: time.monotonic() of this machine."""
        return [row["time"] for row in self.hits(host)]


def permits_of(urls: Iterable[str], items: Iterable[Mapping[str, Any]]) -> list[float]:
    """The moments of the permits of these requests, by time.monotonic(); items have `url`, and the permit as `at`."""
    apart = time.time() - time.monotonic()
    at = {item["url"]: item["at"] - apart for item in items}
    return [at[url] for url in urls]


def assert_limit(
    permits: Sequence[float], arrivals: Sequence[float], hits: int, window: float
) -> int:
    """No window of the permits has more than the limit, and none at the site that is shorter by the longest way there.

    The moments of the permits are by the store's clock, those of the arrivals, in the same order, by the site's log.
    Returns the most permits in any window of so many seconds.
    """
    ways = [arrival - permit for permit, arrival in zip(permits, arrivals, strict=True)]
    seen = f"from permit to site {min(ways):.4f} to {max(ways):.4f} s"
    assert min(ways) > -CLOCKS, seen
    assert max(ways) < window / 2, seen
    assert most_in_window(arrivals, window - max(ways) - CLOCKS) <= hits, seen
    most = most_in_window(permits, window - TINY)
    assert most <= hits, seen
    return most


def mean_gap(times: list[float]) -> float:
    """Seconds between two that follow each other, on the average: one that is late on a busy machine changes little."""
    return (times[-1] - times[0]) / (len(times) - 1)


def empty_throttle_tables(store: Path) -> None:
    """Take all that an SQLite store knows of the throttle out of it."""
    with closing(sqlite3.connect(store, timeout=60)) as database, database:
        for table in ("grants", "throttle_keys", "throttle_domains", "throttle_rules"):
            database.execute(f"DELETE FROM {table}")  # noqa: S608 - names of our own
        database.execute("DELETE FROM throttle_changes")
        database.execute("UPDATE throttle SET version = 0")
