"""Write what the process of a spider finds into a frontier, beside its crawl and in order.

The rule it keeps: what was taken stays here until the store has it; a store that is away is waited
for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import uuid4

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response

from scrapyd_dist.batches import Miss, check_crawl_name
from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.frontier.intake import FrontierProducer
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.keys import state_key
from scrapyd_dist.scheduling.batcher import PORTION, BatchDraft, SlotBatcher
from scrapyd_dist.settings import find_warnings
from scrapyd_dist.store.store_thread import StoreThread

from ..classifier import Disposition, count_found
from ..codec import mark_start
from ..slot_routing import SlotRouting
from ..targets import Target, find_target
from .crawl_findings import shared_values
from .crawl_repository import open_thread
from .crawl_request import CrawlRequest, asked_for, find_project, known_as
from .discovery import Capture
from .lifecycle import Lifecycle, LifecycleMiddleware, begin, process_exit
from .producer_options import read_options
from .scrapy_parts import check_parts
from .start_pages import shards_of

logger = logging.getLogger(__name__)
#: requests that may wait for the store; more wait in Scrapy
ROOM = 10_000
#: seconds between two looks at what is to be written
TICK = 1.0
#: seconds after which a batch is written though it is not full, where no setting says otherwise
MAX_AGE = 5.0
#: seconds that the end waits for a store that is away
LAST_PATIENCE = 60.0


class FrontierWriter:
    """Holds what one producer has found until it is written."""

    def __init__(self, producer: FrontierProducer, thread: StoreThread) -> None:
        self.producer = producer
        self.thread = thread
        self.waiting: list[FrontierIntake] = []  #: requests that are not in the store
        self._counts: Counter[str] = Counter()  #: the account since the last `write`
        self._misses: list[Miss] = []  #: that are not in the store
        self.room = asyncio.Event()  #: not too much waits for the store
        self.room.set()
        self.totals: Counter[str] = Counter()  #: the account, as it is in the store
        self.fault = ""  #: why the store did not take what was last brought to it

    def remember(
        self,
        found: Iterable[FrontierIntake],
        counts: Mapping[str, int],
        misses: Iterable[Miss] = (),
    ) -> None:
        """Remember this until the next `write`."""
        self.waiting += found
        self._misses += misses
        self._counts.update(counts)
        if len(self.waiting) >= ROOM:
            self.room.clear()

    async def write(self) -> None:
        """Bring all that waits into the store, and say that this producer is alive.

        `fault` says what did not work.
        """
        try:
            await self.thread(self.producer.renew)
            while self.waiting or self._counts or self._misses:
                await self._write_portion()
        except DistError as error:  # all is kept for the next time
            self.fault = str(error)
        except Exception as error:  # whatever it was, all is kept for the next time
            if not self.fault:
                logger.exception("The frontier cannot be written")
            self.fault = f"{type(error).__name__}: {error}."
        else:
            self.fault = ""

    async def _write_portion(self) -> None:
        found = self.waiting[:PORTION]
        counts = self._counts.copy()
        misses = list(self._misses)
        kept = await self.thread(self.producer.keep, found, dict(counts), misses)
        # What came in meanwhile stands behind what was kept.
        self.waiting = self.waiting[len(found) :]
        self._misses = self._misses[len(misses) :]
        self._counts -= counts
        self.totals.update(kept)
        if len(self.waiting) < ROOM:
            self.room.set()


@dataclass(frozen=True, kw_only=True)
class CheckedFilling:
    """Says which frontier a spider's process is to fill, and with which of its requests."""

    frontier: str
    request: CrawlRequest
    target: Target


class Filler(LifecycleMiddleware["FillerRun"]):
    """Takes what a spider yields into a frontier: the spider middleware of its producer."""

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield what stays of the spider's own start; nothing without a way to the frontier."""
        self._run = await begin(self._begin)
        if self._run is None:
            return
        async for output in start:
            if not isinstance(output, Request):
                yield output
                continue
            mark_start(output)
            if await self._run.stays(output, start=True):
                yield output

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        """Yield what a callback gives, without what goes into the frontier."""
        async for output in result:
            if not isinstance(output, Request) or await self.run.stays(output):
                yield output

    async def _begin(self) -> FillerRun:
        """Check everything, and open the frontier; DistError if that cannot be."""
        checked = self._check()
        key = await asyncio.to_thread(state_key, checked.request.project.state)
        capture = self._new_capture(checked, key)
        writer = await self._open(checked, key)
        logger.info(
            "Target requests (%s) go into the frontier %s", checked.target.how, checked.frontier
        )
        return FillerRun(self._crawler, checked.target, capture, writer)

    def _check(self) -> CheckedFilling:
        """Return what is asked for; ConfigError if the process cannot do that."""
        settings = self._crawler.settings
        spider = self._crawler.spider
        frontier = str(settings.get("DISTRIBUTED_FRONTIER"))
        assert spider
        check_crawl_name(frontier, "frontier")
        options = read_options(settings)
        check_parts(settings)
        for warning in find_warnings(settings, vars(spider)):
            logger.warning("%s", warning)
        if options.crawl is not None:
            raise ConfigError(
                "DISTRIBUTED_FRONTIER makes a process that only fills a frontier, and `sdist crawl`"
                " starts one that crawls. Fill it with `scrapy crawl`, or leave the setting out."
            )
        if options.sharded:
            raise ConfigError(
                "A process that fills a frontier (DISTRIBUTED_FRONTIER) walks its spider's own"
                " start; DISTRIBUTED_INDEX and DISTRIBUTED_START_URLS_FILE are for crawls."
            )
        target = find_target(spider, settings)
        shards_of(options, spider)
        request = CrawlRequest(
            spider=known_as(spider), options=options, project=find_project(settings)
        )
        return CheckedFilling(frontier=frontier, request=request, target=target)

    def _new_capture(self, checked: CheckedFilling, key: bytes) -> Capture:
        """Return what sorts target requests, and cuts them into portions for the store."""
        settings = self._crawler.settings
        options = checked.request.options
        terms = options.scaling.terms
        age = options.batch_max_age if settings.get("DISTRIBUTED_BATCH_MAX_AGE") else MAX_AGE
        return Capture(
            crawler=self._crawler,
            cutter=SlotBatcher(size=terms.batch_size, max_age=age, fair=terms.fair),
            key=key,
            stay=options.unsendable,
            slotting=SlotRouting.from_settings(settings, project=checked.request.project.name),
            salt=uuid4().hex,
        )

    async def _open(self, checked: CheckedFilling, key: bytes) -> FrontierWriter:
        """Register this process at the frontier; StoreError if it cannot be opened."""
        args, _ = asked_for(self._crawler.settings)
        request = checked.request
        thread = await asyncio.to_thread(open_thread, request)
        producer = FrontierProducer(
            store=thread.store,
            frontier=checked.frontier,
            project=request.project.name,
            work=f"{request.spider}{_digest_of(args)}",
            size=request.options.scaling.terms.batch_size,
            key=key,
        )
        try:
            await thread(producer.begin)
        except BaseException:
            thread.close()
            raise
        return FrontierWriter(producer, thread)


def _digest_of(args: Mapping[str, str]) -> str:
    """Return what tells producers of the same spider apart by their arguments; empty without."""
    if not args:
        return ""
    text = "".join(f"{name}={value}\0" for name, value in sorted(args.items()))
    return f".{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class FillerRun(Lifecycle):
    """Does the work of a process that fills a frontier."""

    def __init__(
        self,
        crawler: Crawler,
        target: Target,
        capture: Capture,
        writer: FrontierWriter,
    ) -> None:
        super().__init__(TICK)
        self._crawler = crawler
        self._target = target
        self._capture = capture
        self._writer = writer

    async def stays(self, request: Request, *, start: bool = False) -> bool:
        """Return whether this process crawls the request itself."""
        assert self._crawler.spider
        if not self._target.takes(request, self._crawler.spider, start=start):
            return True
        disposition, cut = self._capture.sort_in(request, 0)
        if cut is not None:
            self._writer.remember(cut, {})
            await self._writer.room.wait()
        return disposition is Disposition.LOCAL

    async def tick(self) -> None:
        """Write the batches that are due."""
        await self._write(self._capture.cutter.due(time.monotonic()))

    async def _write(self, cuts: Iterable[BatchDraft] = ()) -> None:
        writer = self._writer
        writer.remember(chain(*cuts), self._capture.take_counts(), self._capture.take_misses())
        totals_before = writer.totals.copy()
        fault_before = writer.fault
        await writer.write()
        if writer.fault and not fault_before:
            logger.warning(
                "The frontier %s cannot be written now: %s", writer.producer.frontier, writer.fault
            )
        elif fault_before and not writer.fault:
            logger.info("The frontier %s can be written again", writer.producer.frontier)
        count_found(self._crawler, writer.totals - totals_before)

    async def finish(self, reason: str) -> None:
        """Write all that is left; wait for a store that is away, for some time."""
        await self.stop_clock()
        writer = self._writer
        frontier = writer.producer.frontier
        deadline = time.monotonic() + LAST_PATIENCE
        await self._write(self._capture.cutter.cut_rest())
        while writer.fault and time.monotonic() < deadline:
            await asyncio.sleep(TICK)
            await self._write()
        capture = self._capture
        for line in (*capture.stayed(), *capture.undeliverable(), *shared_values(capture)):
            logger.warning("%s", line)
        if writer.waiting:
            process_exit.set(1)
            logger.error(
                "%d requests did not get into the frontier %s: %s Run this again: what is there is"
                " not added twice.",
                len(writer.waiting),
                frontier,
                writer.fault,
            )
        elif reason != "shutdown":
            # An interrupted process has more to add, which its registration tells consumers.
            await writer.thread(writer.producer.sign_off)
        others = ""
        for name, number in writer.totals.items():
            if name != "sealed":
                others += f", {number} {name}"
        logger.info("Frontier %s: %d requests added%s", frontier, writer.totals["sealed"], others)
        writer.thread.close()
