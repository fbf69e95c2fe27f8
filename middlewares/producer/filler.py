"""How the process of a spider writes into a frontier, beside its crawl and in order.

The rule it keeps: what was taken stays here until the store has it; a store that is away is waited for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from contextlib import suppress
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from scrapy import Request, signals
from scrapyd_dist.deploy.key import state_key

from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.frontier.intake import check_frontier_name
from scrapyd_dist.frontier.producer_registration import FrontierProducer
from scrapyd_dist.scheduling.batcher import SlotBatcher
from scrapyd_dist.settings import complaints
from scrapyd_dist.store import open_store
from scrapyd_dist.store.worker_thread import StoreThread

from ..classifier import Disposition, count_found
from ..slot_routing import SlotHome, SlotRouting
from ..targets import find_target
from .crawl_end import exit_code as process_exit
from .crawl_request import asked_for, check_parts, shards_of
from .discovery import Capture
from .preflight import find_project, store_address
from .producer_options import read_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapyd_dist.batches import Miss
    from scrapyd_dist.frontier.intake import FrontierIntake

    from ..targets import Target
    from .preflight import PreparedProject
    from .producer_options import ProducerOptions

logger = logging.getLogger(__name__)


#: requests that may wait for the store; more wait in Scrapy
ROOM = 10_000


#: requests in one step of the store, at most
STEP = 2_000


class FrontierWriter:
    """What one producer has found and not written yet."""

    def __init__(self, producer: FrontierProducer, thread: StoreThread) -> None:
        self._producer = producer
        self._thread = thread
        self._waiting: list[FrontierIntake] = []
        self._counts: dict[str, int] = {}
        self._misses: list[Miss] = []
        self._room = asyncio.Event()
        self._room.set()
        self.totals: dict[str, int] = {}  #: the account, as it is in the store
        self.fault = ""  #: why the store did not take what was last brought to it

    @property
    def waiting(self) -> int:
        """Requests that are not in the store."""
        return len(self._waiting)

    def take(self, found: Sequence[FrontierIntake], counts: Mapping[str, int], misses: Sequence[Miss] = ()) -> None:
        """Remember this until the next `write`."""
        self._waiting += found
        self._misses += misses
        for name, number in counts.items():
            self._counts[name] = self._counts.get(name, 0) + number
        if len(self._waiting) >= ROOM:
            self._room.clear()

    async def room(self) -> None:
        """Wait while too much waits for the store."""
        await self._room.wait()

    async def write(self) -> None:
        """Bring all that waits into the store, and say that this producer is alive; `fault` says what did not work."""
        try:
            await self._thread(self._producer.renew)
            while self._waiting or self._counts or self._misses:
                await self._step()
        except Exception as error:  # whatever it was, all is kept for the next time
            if not isinstance(error, DistError) and not self.fault:
                logger.exception("The frontier cannot be written")
            self.fault = str(error) if isinstance(error, DistError) else f"{type(error).__name__}: {error}."
        else:
            self.fault = ""

    async def _step(self) -> None:
        found, counts, misses = self._waiting[:STEP], dict(self._counts), list(self._misses)
        kept = await self._thread(partial(self._producer.keep, found, counts, misses))
        # What came in meanwhile stands behind what was kept.
        self._waiting = self._waiting[len(found) :]
        self._misses = self._misses[len(misses) :]
        self._counts = {name: left for name, n in self._counts.items() if (left := n - counts.get(name, 0))}
        for name, number in kept.items():
            self.totals[name] = self.totals.get(name, 0) + number
        if len(self._waiting) < ROOM:
            self._room.set()


#: seconds between two looks at what is to be written
TICK = 1.0


#: seconds after which a batch is written though it is not full, where nobody says otherwise
MAX_AGE = 5.0


#: seconds that the end waits for a store that is away
LAST_PATIENCE = 60.0


class Filler:
    """The spider middleware of a producer of a frontier."""

    _target: Target
    _capture: Capture
    _producer: FrontierProducer
    _writer: FrontierWriter
    _thread: StoreThread

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._frontier = str(crawler.settings.get("DISTRIBUTED_FRONTIER"))
        self._begun = False
        self._enough = asyncio.Event()  #: nothing more is found
        self._ticking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Filler:
        filler = cls(crawler)
        crawler.signals.connect(filler._closed, signals.spider_closed)
        crawler.signals.connect(filler._stopped, signals.engine_stopped)
        return filler

    # what goes in and comes out

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The spider's own start; nothing at all when there is no way to the frontier."""
        if not await self._begin():
            return
        async for output in start:
            if not isinstance(output, Request) or await self._stays(output, start=True):
                yield output

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        async for output in result:
            if not isinstance(output, Request) or await self._stays(output):
                yield output

    async def _stays(self, request: Request, *, start: bool = False) -> bool:
        """Whether this process crawls the request itself."""
        assert self._crawler.spider
        if not self._target.takes(request, self._crawler.spider, start=start):
            return True
        fate, cut = self._capture.take(request, 0)
        if cut is not None:
            self._writer.take(cut.found, {})
            await self._writer.room()
        return fate is Disposition.LOCAL

    # begin

    async def _begin(self) -> bool:
        try:
            await self._prepare()
        except DistError as error:
            self._refuse(error)
        except Exception as error:  # nothing may be half begun
            logger.exception("The frontier cannot be filled")
            self._refuse(DistError(f"scrapyd-dist itself failed: {type(error).__name__}: {error}."))
        return self._begun

    async def _prepare(self) -> None:
        settings, spider = self._crawler.settings, self._crawler.spider
        assert spider
        check_frontier_name(self._frontier)
        options = read_options(settings)
        check_parts(settings)
        for warning in complaints(settings):
            logger.warning("%s", warning)
        self._check(options)
        self._target = find_target(spider, settings)
        shards_of(options, spider)
        project = find_project(settings.get("SETTINGS_MODULE"), settings.get("BOT_NAME"))
        size = options.scaling.terms.batch_size
        age = options.batch_max_age if settings.get("DISTRIBUTED_BATCH_MAX_AGE") else MAX_AGE
        key = await asyncio.to_thread(state_key, project.state)
        self._capture = Capture(
            self._crawler,
            spider,
            SlotBatcher(size=size, max_age=age, many_slots=bool(options.fair)),
            key=key,
            stay=options.stay,
            slotting=SlotRouting.from_settings(settings, home=SlotHome(project=project.name)),
            salt=uuid4().hex,
        )
        where = store_address(options, project)
        self._thread = StoreThread(await asyncio.to_thread(partial(open_store, where, key=key)))
        self._producer = self._new_producer(project, size, key)
        await self._thread(self._producer.begin)
        self._writer = FrontierWriter(self._producer, self._thread)
        self._begun = True
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        logger.info("Target requests (%s) go into the frontier %s", self._target.how, self._frontier)

    def _check(self, options: ProducerOptions) -> None:
        if options.crawl is not None:
            raise ConfigError(
                "DISTRIBUTED_FRONTIER makes a process that only fills a frontier, and `sdist crawl` starts one that"
                " crawls. Fill it with `scrapy crawl`, or leave the setting out."
            )
        if options.sharded:
            raise ConfigError(
                "A process that fills a frontier (DISTRIBUTED_FRONTIER) walks its spider's own start; DISTRIBUTED_INDEX"
                " and DISTRIBUTED_START_URLS_FILE are for crawls."
            )

    def _new_producer(self, project: PreparedProject, size: int, key: bytes) -> FrontierProducer:
        assert self._crawler.spider
        args = "".join(f"{name}={value}\0" for name, value in sorted(asked_for(self._crawler.settings).args.items()))
        digest = f".{hashlib.sha256(args.encode()).hexdigest()[:8]}" if args else ""
        return FrontierProducer(
            store=self._thread.store,
            frontier=self._frontier,
            project=project.name,
            work=f"{self._crawler.spider.name}{digest}",
            process=f"{gethostname()}.{os.getpid()}",
            size=size,
            key=key,
        )

    def _refuse(self, error: DistError) -> None:
        logger.error("%s", error)
        process_exit.set(error.exit_code, refusal=str(error))
        if hasattr(self, "_thread"):
            self._thread.close()

    # the clock

    async def _tick(self) -> None:
        while not self._enough.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._enough.wait(), TICK)
            for cut in self._capture.due():
                self._writer.take(cut.found, {})
            await self._write()

    async def _write(self) -> None:
        self._writer.take((), self._capture.take_counts(), self._capture.take_misses())
        before, was = dict(self._writer.totals), self._writer.fault
        await self._writer.write()
        if self._writer.fault and not was:
            logger.warning("The frontier %s cannot be written now: %s", self._frontier, self._writer.fault)
        elif was and not self._writer.fault:
            logger.info("The frontier %s can be written again", self._frontier)
        kept = {name: total - before.get(name, 0) for name, total in self._writer.totals.items()}
        count_found(self._crawler, kept)

    # end

    async def _closed(self, reason: str) -> None:
        if self._begun and self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._finish(reason))
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _stopped(self) -> None:
        # Again, because a signal during a normal close abandons the handlers of spider_closed.
        await self._closed("shutdown")

    async def _finish(self, reason: str) -> None:
        assert self._ticking
        self._enough.set()
        await self._ticking
        for cut in self._capture.rest():
            self._writer.take(cut.found, {})
        await self._write_rest()
        for line in self._capture.stayed():
            logger.warning("%s", line)
        lost = self._writer.waiting
        if lost:
            process_exit.set(1)
            logger.error(
                "%d requests did not get into the frontier %s: %s Run this again: what is there is not added twice.",
                lost, self._frontier, self._writer.fault,
            )  # fmt: skip
        elif reason != "shutdown":  # one that was interrupted has more to add: who works on the frontier hears of it
            await self._thread(self._producer.sign_off)
        self._tell()
        self._thread.close()

    async def _write_rest(self) -> None:
        give_up = time.monotonic() + LAST_PATIENCE
        await self._write()
        while self._writer.fault and time.monotonic() < give_up:
            await asyncio.sleep(TICK)
            await self._write()

    def _tell(self) -> None:
        totals = dict(self._writer.totals)
        added = totals.pop(Disposition.SEALED.value, 0)
        others = "".join(f", {number} {name}" for name, number in totals.items())
        logger.info("Frontier %s: %d requests added%s", self._frontier, added, others)
