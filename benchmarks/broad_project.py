"""The project of the broad crawl: a spider of plain pages, hosts that are all this machine, and a queue in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rig.projects import Project

if TYPE_CHECKING:
    from pathlib import Path

SPIDERS = '''
"""One item for each page."""

import scrapy


class PagesSpider(scrapy.Spider):
    name = "pages"
    async def start(self):
        yield scrapy.Request(self.site, callback=self.find)  # in a crawl that sends batches

    def find(self, response):
        with open(self.links, encoding="utf-8") as file:
            for line in file:
                yield scrapy.Request(line.strip(), callback=self.parse)

    def parse(self, response):
        yield {"url": response.url, "title": response.css("title::text").get()}
'''
RESOLVER = '''
"""All names lead to this machine."""

from scrapy.resolver import CachingThreadedResolver
from twisted.internet import defer


class Loopback(CachingThreadedResolver):
    def getHostByName(self, name, timeout=()):
        return defer.succeed("127.0.0.1")
'''
TURNS = '''
"""A queue that takes from its hosts in turn, whatever the downloader has of them."""

from collections import deque
from urllib.parse import urlsplit


class RoundRobin:
    @classmethod
    def from_crawler(cls, crawler, downstream_queue_cls, key, startprios=(), **kwargs):
        return cls()

    def __init__(self):
        self.hosts, self.turns = {}, deque()

    def push(self, request):
        host = urlsplit(request.url).netloc
        if host not in self.hosts:
            self.hosts[host] = deque()
            self.turns.append(host)
        self.hosts[host].append(request)

    def pop(self):
        if not self.turns:
            return None
        host = self.turns.popleft()
        request = self.hosts[host].popleft()
        if self.hosts[host]:
            self.turns.append(host)
        else:
            del self.hosts[host]
        return request

    def peek(self):
        return self.hosts[self.turns[0]][0] if self.turns else None

    def close(self):
        return []

    def __len__(self):
        return sum(map(len, self.hosts.values()))
'''


def project_of(path: Path) -> Project:
    """The project, in a folder that is made here. Its settings are scrapy-bench's, but for AutoThrottle."""
    project = Project.small(
        path,
        "broad",
        {"pages": SPIDERS},
        {
            "ADDONS": {"scrapyd_dist.Addon": 100},
            "RETRY_ENABLED": False,
            "COOKIES_ENABLED": False,
            "DNS_RESOLVER": "broad.resolver.Loopback",
            "LOG_LEVEL": "INFO",
        },
    )
    project.write("broad/resolver.py", RESOLVER)
    project.write("broad/turns.py", TURNS)
    return project
