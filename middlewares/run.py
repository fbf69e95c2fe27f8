"""The life of one distributed crawl inside its producer: begin, find, wait, close; the one place that knows the order.

The rules it keeps: nothing is requested before the checks are through; the producer ends only when
every batch has ended and the output is closed, or says how to go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from scrapyd_dist.batches import CrawlState, Miss
from scrapyd_dist.coordinator import Coordinator
from scrapyd_dist.cutting import Cutter
from scrapyd_dist.delivery import deliver
from scrapyd_dist.errors import DistError, StoreError
from scrapyd_dist.fleet import Placement
from scrapyd_dist.posting import JobSpec
from scrapyd_dist.summary import IndexProgress, Snapshot, exit_code, summary

from .asked import Asked, asked_for, check_spider, job_settings, loop_sender, shards_of, template_of
from .capture import Capture
from .exits import exit_code as process_exit
from .index import Index
from .options import Options, read_options
from .own_items import OwnItems
from .preflight import Prepared, bring, find_project, members_of, prepare
from .record import Record
from .targets import Target, find_target

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from scrapy.crawler import Crawler

    from scrapyd_dist.cutting import Cut
    from scrapyd_dist.fleet import Member

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: seconds between two looks at the clock: ages of batches, counts, the summary
TICK = 0.5
#: seconds between two lines in the log
LOG_EVERY = 10.0
#: a signal ended it; `sdist resume` goes on
INTERRUPTED = 130


class Run:
    """One crawl, from the first check to the merged file."""

    options: Options
    target: Target
    record: Record
    index: Index
    capture: Capture
    coordinator: Coordinator

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._begun = self._done = False
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._seals: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None  #: the first error of ours, which nothing here could handle
        self._logged = time.monotonic()
        self._local_missed = {"gone": 0, "failed": 0}
        self._warnings: list[str] = []
        self._message = ""
        self._output: tuple[str, ...] = ()
        self._misses: str | None = None

    # begin

    async def begin(self) -> bool:
        """Check, deploy, and start the coordinator; False when the crawl is refused (which is said then)."""
        try:
            await self._begin()
        except DistError as error:
            await self._refuse(error)
        except Exception as error:  # nothing may be half begun, and nobody may be left waiting
            logger.debug("the crawl cannot begin", exc_info=True)
            await self._refuse(DistError(f"scrapyd-dist itself failed: {type(error).__name__}: {error}."))
        return self._begun

    async def _begin(self) -> None:
        settings, spider = self._crawler.settings, self._crawler.spider
        assert spider
        self.options = options = read_options(settings)
        self._sender = loop_sender(settings)
        check_spider(spider)
        self.target = find_target(spider, settings)
        asked = asked_for(settings)
        self._project = project = find_project(settings.get("SETTINGS_MODULE"), settings.get("BOT_NAME"))
        shards = shards_of(options, spider)
        self.record = record = Record(options, project)
        await record.take_row(spider.name, asked)
        self._prepared = prepared = await _in_thread(partial(prepare, options, project, spider.name))
        self.index = Index(await record.take_shards(shards), template_of(options))
        cutter = Cutter(size=options.batch_size, max_age=options.batch_max_age)
        self.capture = Capture(self._crawler, spider, cutter, key=prepared.key, stay=options.stay)
        self.capture.remember(await record.fingerprints())
        self._own = OwnItems(record.parts)
        self._own.recall(keep=not self.index.unfinished())
        await self._recall_misses()
        self.coordinator = Coordinator(
            spec=await self._spec(asked, prepared),
            members=members_of(prepared),
            store=record.thread,
            sender=self._sender,
            folder=record.parts,
            prepare=self._prepare_late,
            limits=options.limits,
            placement=Placement(options.placement),
        )
        await self.coordinator.recover()
        self.coordinator.start()
        self._begun = True
        await self._enter(CrawlState.FINDING, version=prepared.version)
        self._start("tick", self._tick())
        self._say_hello(prepared)

    async def _recall_misses(self) -> None:
        before = await self.record.missed_before()
        self.index.failed = before["index"]
        for kind in self._local_missed:
            self._local_missed[kind] = before[kind]

    async def _spec(self, asked: Asked, prepared: Prepared) -> JobSpec:
        assert self._crawler.spider
        return JobSpec(
            crawl=self.record.id,
            home=self.record.home,
            project=self._project.name,
            spider=self._crawler.spider.name,
            version=prepared.version,
            settings=job_settings(asked, self.options),
            args=asked.args,
            feed=self.options.feed_url is not None,
            collected=await self.record.collected(),
        )

    async def _prepare_late(self, member: Member) -> str:
        """A node that was not there at the start answers now: bring it the crawl's code, or say why not."""
        assert self._crawler.spider
        work = partial(bring, self.options, self._project, member.node, self._prepared, self._crawler.spider.name)
        return await _in_thread(work)

    async def _refuse(self, error: DistError) -> None:
        logger.error("%s", error)
        process_exit.set(error.exit_code, refusal=str(error))
        if hasattr(self, "record") and hasattr(self.record, "id"):
            await self.record.refuse(code=error.exit_code, message=str(error))
            self.record.close()

    def _say_hello(self, prepared: Prepared) -> None:
        self._warn(*prepared.warnings)
        logger.info(
            "Crawl %s: target requests (%s) go to %d nodes in batches of up to %d; version %s%s; state in %s",
            self.record.id,
            self.target.how,
            len(prepared.probes),
            self.options.batch_size,
            prepared.version,
            f", uploaded to {', '.join(prepared.uploaded)}" if prepared.uploaded else "",
            self._project.state,
        )

    def _warn(self, *warnings: str) -> None:
        self._warnings += warnings
        for warning in warnings:
            logger.warning("%s", warning)

    # find

    def seal(self, cut: Cut | None) -> None:
        """Keep a cut in the store and hand it to the coordinator; in order, beside the crawl."""
        if cut is None:
            return
        task = asyncio.get_running_loop().create_task(self._seal(cut))
        self._seals.add(task)
        task.add_done_callback(self._seals.discard)
        task.add_done_callback(self._notice)

    async def _seal(self, cut: Cut) -> None:
        for batch in await self.record.seal(cut, self._prepared.key, self.capture.take_counts()):
            self.coordinator.add(batch)

    def own_item(self, item: Any, shard: int, url: str) -> None:
        """An item of the producer's own pages."""
        if not self._begun:
            return
        try:
            self._own.add(item, shard)
        except (TypeError, ValueError) as error:
            reason = f"an item of it has no JSON form: {error}"
            self.local_missed(url, "failed", reason)

    def local_missed(self, url: str, kind: str, reason: str) -> None:
        """A request that the producer crawls itself gave no result."""
        self._local_missed[kind] += 1
        self.record.missed(Miss(url=url, kind=kind, reason=reason))

    # wait

    def hold(self) -> bool:
        """The spider is idle: whether it must stay open for the batches that are out."""
        if self._done or not self._begun:
            return False
        if "finish" not in self._tasks:
            self._start("finish", self._finish())
        return True

    async def _finish(self) -> None:
        """The index is walked, or no node takes work any more: wait for the batches, merge, let the spider close."""
        try:
            await self._seal_rest()
            if not self.coordinator.stopped:
                await self._found_all()
                await self.coordinator.ended()
            await self._end()
        except Exception as error:
            logger.exception("The crawl cannot be finished")
            with suppress(StoreError):  # the store may be what failed; the exit code is set by then
                await self._stop(f"scrapyd-dist itself failed: {type(error).__name__}: {error}.", 1)
        self._done = True
        self._close_spider()

    async def _seal_rest(self) -> None:
        self.seal(self.capture.rest())
        while self._seals:
            await asyncio.gather(*self._seals)
        if self._fault is not None:  # what could not be sealed is found again: its shard stays unfinished
            raise self._fault
        await self._write_down()

    async def _found_all(self) -> None:
        losses, ends = self.index.short()
        self.index.failed += len(losses)
        self.record.missed(*(Miss(url="", kind="index", reason=text) for text in losses))
        self._warn(*self.capture.stayed(), *losses, *ends)
        await self._write_down()
        await self.record.finish_shards([shard.number for shard in self.index.unfinished()])
        await self._enter(CrawlState.WORKING)
        self.coordinator.no_more()

    async def _end(self) -> None:
        if self.coordinator.stopped:
            await self._stop(self.coordinator.stopped, 1 if self.coordinator.fault else 3)
        elif not self.options.limits.wait:
            await self._stop("All batches are sent, and nothing waits for them (DISTRIBUTED_WAIT is off).", 0)
        else:
            await self._collect()

    async def _collect(self) -> None:
        await self._enter(CrawlState.COLLECTING)
        self._own.close()
        stored, outputs = await self.record.for_delivery(self._prepared.key), self.record.outputs()
        feed_url = self.options.feed_url
        work = partial(deliver, self.record.folder, own=self._own.parts(), outputs=outputs, feed_url=feed_url, **stored)
        delivered = await _in_thread(work)
        self._output, self._misses = delivered.outputs, delivered.misses
        self._warn(*delivered.warnings)
        where = ", ".join(delivered.outputs) or "the feeds that its manifest lists"
        logger.info("Crawl %s is complete: %d items in %s", self.record.id, delivered.items, where)
        document = self._summary(CrawlState.FINISHED)
        await self._close_row(CrawlState.FINISHED, exit_code(document, max_failed=self.options.max_failed))

    # close

    async def close(self, reason: str) -> None:
        """The spider closes, for whatever reason; called again when the engine has stopped."""
        if not self._begun:
            return
        if "close" not in self._tasks:
            self._start("close", self._close(reason))
        await asyncio.shield(self._tasks["close"])

    async def _close(self, reason: str) -> None:
        if not self._done:
            process_exit.set(INTERRUPTED)  # a second signal may end the process at any of the waits below
            if "finish" in self._tasks:
                self._tasks["finish"].cancel()
                await asyncio.gather(self._tasks["finish"], return_exceptions=True)
            try:
                await self._seal_rest()
            except Exception:
                logger.exception("Not everything that was found could be kept; it will be found again")
            await self.coordinator.stop(f"The crawl was interrupted ({reason}).")
            self._own.close()
            await self._stop(self.coordinator.stopped, INTERRUPTED)
            self._done = True
        else:
            await self.coordinator.stop("")
        self._tasks["tick"].cancel()
        self._sender.close()
        self.record.close()

    async def _stop(self, reason: str, code: int) -> None:
        self._message = f"{reason} What was found is kept; go on with: sdist resume {self.record.id}"
        logger.warning(self._message)
        await self._close_row(CrawlState.STOPPED, code)

    async def _close_row(self, state: CrawlState, code: int) -> None:
        process_exit.set(code)
        await self.record.end(state, code=code, message=self._message, summary=self._summary(state))

    def _close_spider(self) -> None:
        engine, spider = self._crawler.engine, self._crawler.spider
        assert spider
        if hasattr(engine, "close_spider_async"):
            self._start("close spider", engine.close_spider_async(reason="finished"))
        else:  # Scrapy 2.13
            engine.close_spider(spider, "finished")

    def _start(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks[name] = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._notice)

    def _notice(self, task: asyncio.Task[Any]) -> None:
        """An error in a task that nobody awaits must not go unseen, nor leave the crawl waiting."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._fault is None:
            self._fault = error
            logger.error("The crawl cannot go on: %s", error, exc_info=error)
            self.hold()

    # the clock, and what it writes down

    async def _tick(self) -> None:
        while not self._done:
            await asyncio.sleep(TICK)
            self.seal(self.capture.due())
            self._own.flush()
            await self._write_down()
            if not self._done:
                await self._enter(self.record.state)
            if time.monotonic() - self._logged >= LOG_EVERY:
                self._logged = time.monotonic()
                self._log_progress()
            if self.coordinator.stopped:
                self.hold()

    async def _write_down(self) -> None:
        self.record.missed(*self.index.take_misses())
        await self.record.write_down(self.capture.take_counts())

    async def _enter(self, state: CrawlState, **changes: Any) -> None:
        await self.record.enter(state, self._summary(state), **changes)

    def _log_progress(self) -> None:
        now = self._summary(self.record.state)
        done, total = now["batches"]["done"], now["batches"]["total"]
        found, items = now["urls_found"], now["items"]
        logger.info(
            "Crawl %s: %d URLs found, %d of %d batches done, %d items", self.record.id, found, done, total, items
        )

    def _summary(self, state: CrawlState) -> dict[str, Any]:
        spec, index = self.coordinator.spec, self.index
        return summary(
            Snapshot(
                crawl=self.record.id,
                spider=spec.spider,
                project=spec.project,
                version=spec.version,
                state=state.value,
                duration=time.time() - self.record.started,
                counts=self.record.counts,
                buffered=self.capture.buffered,
                waiting=self.coordinator.waiting,
                batches=self.record.batches,
                tally=self.coordinator.tally,
                members=self.coordinator.members,
                index=IndexProgress(pages=index.pages + index.done_before, total=index.total, failed=index.failed),
                own_items=self._own.count,
                local_missed=self._local_missed,
                output=self._output,
                misses=self._misses,
                warnings=self._warnings,
                message=self._message,
            )
        )


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
