"""From leases to batches: the next batch is leased while requests of the last one are still being made.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from scrapyd_dist.payload import PayloadError, decode

from .files import PartFile
from .lease_client import is_suspect
from .request_builder import RequestBuilder
from .work_unit import BatchUnit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapyd_dist.frontier.backlog import Leased
    from scrapyd_dist.payload import RequestValue

    from ..assignment import Assignment
    from ..classifier import FoundRequests
    from .batch_acker import BatchAcker
    from .lease_client import LeaseClient, Notifier
    from .request_tracker import RequestTracker

logger = logging.getLogger(__name__)
#: seconds between two calls for work: few at first, since a crawl begins and ends with short waits
SOON, POLL = 0.05, 0.5
#: unreadable batches after which a worker that could read none ends
UNREADABLE = 3
#: batches that a worker has at one time, about: each has a file open
MOST_HELD = 400
#: requests that are made at one time, where the project sets no limit
UNLIMITED = 100


class RequestFeeder:
    """Gives Scrapy the requests of one batch after the other.

    Args:
        folder: where parts are written.
        key: of the crawl, whose batches may be encrypted.
        finds: makes room for what a batch leads to.
        broken: is told why no batch can be read.
    """

    def __init__(
        self,
        crawler: Crawler,
        job: Assignment,
        folder: Path,
        *,
        key: bytes | None,
        lease_client: LeaseClient,
        tracker: RequestTracker,
        acker: BatchAcker,
        notifier: Notifier,
        finds: Callable[[str], FoundRequests],
        broken: Callable[[str], object],
    ) -> None:
        self._crawler, self._job, self._folder, self._key = crawler, job, folder, key
        self._builder = RequestBuilder(crawler, key, tracker=tracker, notifier=notifier)
        self._lease_client, self._tracker, self._acker, self._notifier = lease_client, tracker, acker, notifier
        self._finds, self._broken = finds, broken
        self._ready = (crawler.settings.getint("CONCURRENT_REQUESTS") or UNLIMITED) * (1 + max(0, job.ahead))
        self._of_a_site = of_a_site(crawler) if job.fair else sys.maxsize
        self._enough = max(self._of_a_site, most_of_a_site(crawler))
        self._worked, self._pause = time.monotonic(), SOON
        #: requests that a batch is thought to have, as far as they can be made
        self._size = min(self._ready, job.batch_size, self._of_a_site) if job.fair else self._ready
        self._unread: int | None = 0  #: batches that could not be read; None when one could
        self.stopped = False  #: nothing more is leased

    @property
    def room(self) -> int:
        """How many requests Scrapy should have beyond those that it has, and can make."""
        return self._ready - sum(min(number, self._of_a_site) for number in self._of_sites().values())

    def _of_sites(self) -> Counter[str]:
        """Slot -> requests of it that Scrapy has; where slots are not shared fairly, all as if they were of one."""
        of_sites: Counter[str] = Counter()
        for batch in self._acker.held.values():
            of_sites[batch.slot if self._job.fair else ""] += batch.requests
        return of_sites

    async def requests(self) -> AsyncIterator[Request]:
        """All that this worker makes; ends when the last batch of it is settled."""
        while not self.stopped and not self._lease_client.limit:
            # Items that a component swallows keep batches open without requests, until Scrapy has run dry once.
            if self.room <= 0 or len(self._acker.held) > min(2 * self._ready, MOST_HELD):
                await self._notifier.wait()
                continue
            enough = {slot for slot, number in self._of_sites().items() if number > self._enough}
            leased = await self._lease_client.next(-(-self.room // self._size), enough)
            # Opened all at once: a worker that ends gives back each.
            for one, batch in [(one, self._open(one)) for one in leased]:
                if is_suspect(one):
                    await self._until_settled(besides=batch)
                async for request in self._builder.requests(batch):
                    yield request
                if is_suspect(one):
                    await self._until_settled()
            if not leased and await self._no_more():
                break
        await self._until_settled()

    async def _until_settled(self, besides: BatchUnit | None = None) -> None:
        """Wait until this worker has no other batch."""
        while not self.stopped and any(batch is not besides for batch in self._acker.held.values()):
            await self._notifier.wait()

    async def _no_more(self) -> bool:
        """Wait a moment for work; whether none will come."""
        if self._acker.held:
            self._worked = time.monotonic()
        elif await self._lease_client.no_more() or self._idled():
            return True
        await self._notifier.wait(self._pause)
        self._pause = min(2 * self._pause, POLL)
        return False

    def _idled(self) -> bool:
        return bool(self._job.idle) and time.monotonic() - self._worked >= self._job.idle

    def _open(self, leased: Leased) -> BatchUnit:
        self._worked, self._pause = time.monotonic(), SOON
        number = leased.batch.number
        values, problem = _values(leased, self._key)
        # One small batch among large ones must not make this worker take all the rest.
        self._size = max(1, min(len(values), self._of_a_site), self._size // 2)
        part = PartFile(self._folder, f"{self._job.crawl}.b{number}.a{leased.attempt}")
        batch = BatchUnit(
            self._job.crawl, number, leased.attempt, values, part, finds=self._finds(f"b{number}:"),
            slot=leased.batch.slot, size=leased.batch.size,
        )  # fmt: skip
        self._acker.held[batch.key] = batch
        self._tracker.enter(batch)
        self._count("batches_leased")
        self._count("requests_leased", leased.batch.size)
        self._note(number, problem)
        if problem:
            batch.problem = problem
            self._acker.changed(batch)
        return batch

    def _note(self, number: int, problem: str) -> None:
        """A worker that can read no batch ends: the fault is its own, not the batches'."""
        if not problem:
            self._unread = None
        elif self._unread is not None:
            self._unread += 1
            if self._unread >= UNREADABLE:
                self._broken(f"Batch {number} cannot be crawled, and none before it could be: {problem}.")

    def _count(self, name: str, number: int = 1) -> None:
        self._crawler.stats.inc_value(f"distributed/{name}", number)


def of_a_site(crawler: Crawler) -> int:
    """How many requests of one site keep this process busy: one, where there are pauses between them.

    A worker that shares slots fairly takes work of so many sites that its downloader is busy all the same.
    """
    settings = crawler.settings
    pause = getattr(crawler.spider, "download_delay", None) or settings.getfloat("DOWNLOAD_DELAY")
    if pause or settings.getbool("AUTOTHROTTLE_ENABLED") or settings.getbool("DISTRIBUTED_THROTTLE"):
        return 1
    return most_of_a_site(crawler)


def most_of_a_site(crawler: Crawler) -> int:
    """How many requests of one site may be under way in this process."""
    most = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
    return most if most > 0 else UNLIMITED


def _values(leased: Leased, key: bytes | None) -> tuple[list[RequestValue], str]:
    if leased.fault:
        return [], leased.fault
    try:
        return decode(leased.payload.get, key=key), ""
    except PayloadError as error:
        return [], str(error)
