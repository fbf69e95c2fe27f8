"""A fair worker whose items go slowly: what it asks for, and what it holds in memory."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rig.commands import Command
from rig.fixtures import MakeProject, StartCommand, StartSite
from rig.projects import Project
from rig.pullers import Frontier, values_of
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.frontier.backlog import SPREAD

#: one item for each page, which are stored one at a time
SPIDER = """
    import asyncio
    import scrapy


    class Slow:
        def __init__(self):
            self.turn = asyncio.Lock()

        async def process_item(self, item, spider=None):  # Scrapy 2.13 names it, later ones do not
            async with self.turn:
                await asyncio.sleep(0.02)
            with open("stored", "ab") as file:
                file.write(b".")
            return item


    class Large(scrapy.Spider):
        name = "large"

        def parse_page(self, response):
            yield {"url": response.url}
"""
#: pages, and bytes of each
PAGES, BYTES = 300, 400_000
AT_ONCE = 8
LATENCY = 0.1  #: seconds for which each request is under way at least
#: bytes of pages whose items are not stored yet, from which on Scrapy downloads nothing more
SCRAPY_HOLDS = 5_000_000


@pytest.mark.black_box
def test_slow_items_hold_the_downloads_back_and_memory_stays_as_it_is(
    project: MakeProject, site: StartSite, frontier: Callable[..., Frontier], start_scrapy: StartCommand
) -> None:
    """B8: the worker has all requests at once, and pages come faster than their items go."""
    web = site(PAGES, "--host=0.0.0.0", f"--latency={LATENCY}")
    web.behave({"/properties/*": "says:" + "x" * BYTES})
    settings = {"CONCURRENT_REQUESTS": AT_ONCE, "ITEM_PIPELINES": {"small.spiders.large.Slow": 1}}
    queue = frontier(project(spiders={"large": SPIDER}, settings=settings), "large")
    for host in (2, 3):
        urls = _pages(host, web)
        queue.add(values_of(urls, callback="parse_page"), size=len(urls), slot=f"site{host}")
    worker = start_scrapy(queue.project, *queue.arguments(1, fair=SPREAD))
    ahead, memory = [], []
    for number in range(PAGES // 6, PAGES, PAGES // 6):
        stored = wait_for(partial(_stored, queue.project, number), 90, f"{number} items")
        ahead.append(len(web.log()) - stored)
        memory.append(_resident(worker))
    wait_for(lambda: queue.acked() == 2, 60, "the end of both batches")
    queue.accept()
    assert worker.wait(60).code == 0
    assert Counter(item["url"] for item in queue.items) == Counter(_pages(2, web) + _pages(3, web)), queue.log(1)
    times = [hit["time"] for hit in web.log()]
    assert max(sum(first <= time < first + LATENCY for time in times) for first in times) <= AT_ONCE
    assert max(ahead) * BYTES < 2 * SCRAPY_HOLDS, ahead
    assert max(memory) - memory[0] < 4 * SCRAPY_HOLDS, memory


def _pages(host: int, site: SiteProcess) -> list[str]:
    port, half = urlsplit(site.url).port, PAGES // 2
    numbers = range((host - 2) * half, (host - 1) * half)
    return [f"http://127.0.0.{host}:{port}{site.site.detail_path(number)}" for number in numbers]


def _stored(project: Project, least: int) -> int:
    """Items that are stored, once there are so many."""
    size = (project.path / "stored").stat().st_size
    return size if size >= least else 0


def _resident(process: Command) -> int:
    """Bytes of memory that a process has."""
    found = re.search(r"VmRSS:\s+([0-9]+) kB", Path(f"/proc/{process.pid}/status").read_text("ascii"))
    assert found
    return int(found[1]) * 1024
