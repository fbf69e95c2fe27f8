"""A project whose spiders always have more to ask for than they may, and tell with which permit each request left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rig.projects import Project

if TYPE_CHECKING:
    from pathlib import Path

SPIDERS = '''
"""Two spiders that are alike, for limits that hold for each of them."""

import asyncio
from pathlib import Path

import scrapy


class EagerSpider(scrapy.Spider):
    name = "eager"
    pages = 2000

    async def start(self):
        folder = Path(self.folder)
        (folder / f"{self.worker}.ready").touch()
        while not (folder / "go").exists():
            await asyncio.sleep(0.02)
        for page in range(self.pages):
            yield scrapy.Request(f"{self.site}/?worker={self.worker}&page={page}")

    def parse(self, response): ...


class OtherSpider(EagerSpider):
    name = "other"
'''
DEPARTURES = '''
"""What left, and with which permit: nearer to the downloader than all else."""

import json
from pathlib import Path

from scrapy import signals
from scrapyd_dist.middlewares.codec import PERMIT


class Departures:
    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        self.crawler, self.used = crawler, []
        crawler.signals.connect(self.closed, signals.spider_closed)
        return self

    def process_request(self, request, spider=None):
        target = request.url.partition("//")[2]
        self.used.append({"target": target[target.index("/"):], "at": request.meta[PERMIT].at})

    def closed(self, spider):
        asks, permits, returned = (
            self.crawler.stats.get_value(f"distributed/throttle/{name}", 0) for name in ("asks", "permits", "returned")
        )
        told = {"used": self.used, "given": permits + returned, "asks": asks, "denied": 0}
        Path(spider.folder, f"{spider.worker}.json").write_text(json.dumps(told), encoding="utf-8")
'''


def project_of(path: Path) -> Project:
    """The project, in a folder that is made here."""
    project = Project.small(
        path,
        "eager",
        {"spiders": SPIDERS},
        {
            "ADDONS": {"scrapyd_dist.Addon": 100},
            "DISTRIBUTED_ENABLED": False,
            "DOWNLOADER_MIDDLEWARES": {"eager.departures.Departures": 1000},
            "HTTPERROR_ALLOW_ALL": True,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
            "LOG_LEVEL": "INFO",
            "TELNETCONSOLE_ENABLED": False,
        },
    )
    project.write("eager/departures.py", DEPARTURES)
    return project
