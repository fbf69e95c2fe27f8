"""What a process pays that has said nothing of the throttle, as long as the store has no rule: microseconds of CPU.

    python benchmarks/throttle_unset.py

The same steps of Scrapy's own, with the add-on's middlewares and queue and with DISTRIBUTED_THROTTLE = False, hundreds
of times in turn in one process: a crawl as a whole differs by more from run to run than by what is looked for. What a
whole page costs is measured by `throttle_cost.py --ways off,unset --hosts 20 --each 75`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from report import machine
from scrapy import Request, Spider
from scrapy.core.downloader.middleware import DownloaderMiddlewareManager
from scrapy.http import HtmlResponse
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import install_reactor
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.throttle.gate import Gate

from scrapyd_dist.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

#: requests in one turn
EACH = 200
#: looks at the rules in one turn
LOOKS = 50


class Side:
    """A crawler's middlewares and its queue, without an engine.

    Args:
        store: the address of a store without rules.
        settings: of the throttle.
    """

    def __init__(self, store: Path, **settings: Any) -> None:
        given = {
            "ADDONS": {"scrapyd_dist.Addon": 500},
            "DISTRIBUTED_ENABLED": False,
            "DISTRIBUTED_STORE": str(store),
        }
        made: Any = get_crawler(Spider, {**given, **settings})
        self.crawler = made
        self.crawler.spider = self.crawler._create_spider("s")  # noqa: SLF001 - as Scrapy's own tests make one
        self.crawler.engine = self
        self.downloader = self
        self.slots: dict[str, Any] = {}
        self.active: set[Request] = set()
        self.total_concurrency = 16
        self.middlewares = DownloaderMiddlewareManager.from_crawler(self.crawler)
        kind: Any = load_object(self.crawler.settings["SCHEDULER_PRIORITY_QUEUE"])
        memory = load_object(self.crawler.settings["SCHEDULER_MEMORY_QUEUE"])
        self.queue = kind.from_crawler(self.crawler, memory, "")

    def get_slot_key(self, request: Request) -> str:
        return request.url.split("/")[2]

    async def turn(self) -> None:
        """Requests through the queue and all middlewares, and their answers back."""
        requests = [Request(f"http://a.example/{number}") for number in range(EACH)]

        async def download(request: Request) -> HtmlResponse:
            return HtmlResponse(request.url, body=b"<html></html>", request=request)

        for request in requests:
            self.queue.push(request)
        for _ in requests:
            await self.middlewares.download_async(download, self.queue.pop())


async def microseconds(work: Callable[[], Coroutine[Any, Any, object]], each: int) -> float:
    """CPU of this process and all of its threads, of each of so many."""
    begun = time.process_time()
    await work()
    return (time.process_time() - begun) / each * 1e6


async def compare(folder: Path, rounds: int) -> tuple[float, float, float]:
    """What the steps of a page cost when switched off, and how much more when nothing was said; and a look."""
    place = folder / "store.db"
    open_store(place).close()
    off, unset = Side(place, DISTRIBUTED_THROTTLE=False), Side(place)
    base, more = [], []
    for number in range(rounds):
        order = (off, unset) if number % 2 else (unset, off)
        took = {side: await microseconds(side.turn, EACH) for side in order}
        base.append(took[off])
        more.append(took[unset] - took[off])
    return median(base), median(more), await a_look(place, rounds)


async def a_look(place: Path, rounds: int) -> float:
    """One look at the version of the rules, as each process takes it once a second."""
    with closing(open_store(place, durable=False)) as store:
        gate = Gate.for_crawler(Side(place).crawler)
        gate.open(store)
        client: Any = gate._client  # noqa: SLF001 - nothing else looks when it is told to

        async def looks() -> None:
            for _ in range(LOOKS):
                client.look()
                await client._talking  # noqa: SLF001 - likewise

        took = [await microseconds(looks, LOOKS) for _ in range(max(3, rounds // 10))]
        await client.end(1.0)
    return median(took)


def main() -> int:
    """Run the program; 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300, help="how often each side has its turn")
    given = parser.parse_args()
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    with TemporaryDirectory(prefix="sdist-bench-") as folder:
        base, more, look = asyncio.get_event_loop().run_until_complete(
            compare(Path(folder), given.rounds)
        )
    about = machine()
    print(f"the same steps without the throttle: {base:.1f} us of CPU for a page")
    print(f"with nothing said of it: {more:+.1f} us for a page, and {look:.0f} us once a second")
    print(
        f"{about['date']}, {about['cores']} cores ({about['processor']}), Scrapy {about['scrapy']}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
