"""The life of one distributed crawl inside its producer: begin, find, wait, close; the one place that knows the order.

The rules it keeps: nothing is requested before the checks are through; the producer ends only when
every batch has ended and the output is closed, or says how to go on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import Crawl, CrawlState, Miss
from scrapyd_dist.collect import Output, merge
from scrapyd_dist.coordinator import Coordinator
from scrapyd_dist.cutting import Cutter
from scrapyd_dist.errors import DistError, NothingMatched
from scrapyd_dist.feeds import read_back
from scrapyd_dist.fleet import Member, Placement
from scrapyd_dist.payload import fit
from scrapyd_dist.store import open_store
from scrapyd_dist.store.worker_thread import StoreThread
from scrapyd_dist.summary import IndexProgress, Snapshot, exit_code, summary

from .asked import asked_for, job_spec, loop_sender, shards_of, template_of
from .capture import Capture
from .exits import exit_code as process_exit
from .index import Index
from .options import Options, read_options
from .own_items import OwnItems
from .preflight import Prepared, Project, find_project, prepare, probe, roll_out
from .targets import Target, find_target

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy.crawler import Crawler

    from scrapyd_dist.cutting import Cut

logger = logging.getLogger(__name__)

#: seconds between two looks at the clock: ages of batches, counts, the summary
TICK = 0.5
#: seconds between two lines in the log
LOG_EVERY = 10.0
STORE_FILE = "store.db"


class Run:
    """One crawl, from the first check to the merged file."""

    options: Options
    target: Target
    index: Index
    capture: Capture

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._begun = False
        self._done = False
        self._refused = False
        self._closing: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._seals: set[asyncio.Task[None]] = set()
        self._started = time.time()
        self._logged = time.monotonic()
        self._state = CrawlState.STARTING
        self._counts: dict[str, int] = {}
        self._local_missed = {"gone": 0, "failed": 0}
        self._local_misses: list[Miss] = []
        self._warnings: list[str] = []
        self._message = ""
        self._batches = 0

    # begin

    async def begin(self) -> bool:
        """Check, deploy, and start the coordinator; False when the crawl is refused (which is said then)."""
        try:
            await self._begin()
        except DistError as error:
            await self._refuse(error)
            return False
        except Exception as error:  # noqa: BLE001 - nothing may be half begun, and nobody may be left waiting
            logger.debug("the crawl cannot begin", exc_info=True)
            await self._refuse(DistError(f"scrapyd-dist itself failed: {type(error).__name__}: {error}."))
            return False
        return True

    async def _begin(self) -> None:
        settings, spider = self._crawler.settings, self._crawler.spider
        assert spider
        self.options = read_options(settings)
        self._sender = loop_sender(settings)
        self.target = find_target(spider, settings)
        asked = asked_for(settings)
        self._project = find_project(settings.get("SETTINGS_MODULE"), settings.get("BOT_NAME"))
        self._store = StoreThread(open_store(self.options.store or self._project.state / STORE_FILE))
        shards = shards_of(self.options, spider)
        await self._take_row(spider.name)
        loop = asyncio.get_running_loop()
        prepared = await loop.run_in_executor(None, partial(prepare, self.options, self._project, spider.name))
        self._prepared = prepared
        self._warnings += prepared.warnings
        db = self._store.store
        if not await self._store(db.shards, self._id):
            await self._store(db.add_shards, self._id, shards)
        self.index = Index(await self._store(db.shards, self._id), template_of(self.options))
        cutter = Cutter(size=self.options.batch_size, max_age=self.options.batch_max_age)
        self.capture = Capture(self._crawler, spider, cutter, key=prepared.key, stay=self.options.stay)
        self.capture.remember(await self._store(lambda: iter(list(db.fingerprints(self._id)))))
        self._counts = await self._store(db.counts, self._id)
        self._own = OwnItems(self._folder / "parts")
        spec = job_spec(asked, self.options, self._id, self._project.name, spider.name, prepared.version, await self._collected())
        self.coordinator = Coordinator(
            spec=spec,
            members=_members(prepared, self.options),
            store=self._store,
            sender=self._sender,
            folder=self._folder / "parts",
            prepare=self._prepare_late,
            limits=self.options.limits,
            placement=Placement(self.options.placement),
        )
        await self.coordinator.recover()
        self._batches = len(await self._store(db.batches, self._id))
        self.coordinator.start()
        self._begun = True
        await self._enter(CrawlState.FINDING, version=prepared.version)
        self._ticking = loop.create_task(self._tick())
        self._say_hello(prepared)

    async def _take_row(self, spider: str) -> None:
        """This crawl's row in the store: its own new one, or the one that a command made for it."""
        db, project = self._store.store, self._project.name
        if self.options.crawl is None:
            self._id = await self._free_id(spider)
            row = Crawl(id=self._id, project=project, spider=spider, created=self._started, pid=_pid())
            await self._store(db.add_crawl, row)
        else:
            self._id = self.options.crawl
            try:
                row = await self._store(db.crawl, self._id)
            except NothingMatched:
                row = Crawl(id=self._id, project=project, spider=spider, created=self._started, pid=_pid())
                await self._store(db.add_crawl, row)
            self._started = row.created
            await self._store(db.update_crawl, self._id, project=project, pid=_pid(), ended=None, exit_code=None, message="")
        self._folder = self._project.state / "crawls" / self._id
        self._folder.mkdir(parents=True, exist_ok=True)

    async def _free_id(self, spider: str) -> str:
        name = "".join(c if c.isalnum() and c.isascii() or c in "_-" else "-" for c in spider)
        base = f"{name}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
        taken = {crawl.id for crawl in await self._store(self._store.store.crawls)}
        return next(name for n in range(1, len(taken) + 2) if (name := f"{base}-{n}" if n > 1 else base) not in taken)

    async def _collected(self) -> tuple[str, ...]:
        """Crawls whose items are home: their files on the nodes may go."""
        crawls = await self._store(self._store.store.crawls)
        return tuple(c.id for c in crawls if c.state is CrawlState.FINISHED and c.id != self._id)[:20]

    async def _prepare_late(self, member: Member) -> str:
        """A node that was down at the start has answered: bring it the crawl's code."""
        loop = asyncio.get_running_loop()
        work = partial(_bring, self.options, self._project, member, self._prepared, self._crawler.spider.name)  # type: ignore[union-attr]
        return await loop.run_in_executor(None, work)

    async def _refuse(self, error: DistError) -> None:
        self._refused = True
        logger.error("%s", error)
        process_exit.set(error.exit_code)
        if hasattr(self, "_id"):
            changes = {"state": CrawlState.REFUSED, "ended": time.time(), "exit_code": error.exit_code, "message": str(error)}
            await self._store(self._store.store.update_crawl, self._id, **changes)
            self._store.close()

    def _say_hello(self, prepared: Prepared) -> None:
        for warning in self._warnings:
            logger.warning(warning)
        logger.info(
            "Crawl %s: %s go to %d nodes in batches of up to %d; version %s%s. State: %s",
            self._id,
            self.target.how,
            len(prepared.probes),
            self.options.batch_size,
            prepared.version,
            f", uploaded to {', '.join(prepared.uploaded)}" if prepared.uploaded else "",
            self._project.state,
        )

    # find

    def seal(self, cut: Cut) -> None:
        """Keep a batch in the store and hand it to the coordinator; done in order, beside the crawl."""
        self._seals.add(task := asyncio.get_running_loop().create_task(self._seal(cut)))
        task.add_done_callback(self._seals.discard)

    async def _seal(self, cut: Cut) -> None:
        start = 0
        for values, payload in fit(cut.values, key=self._prepared.key):
            prints = [print_ for print_ in cut.fingerprints[start : start + len(values)] if print_ is not None]
            start += len(values)
            counts = {"sealed": len(values), **self.capture.take_counts()}
            batch = await self._store(
                self._store.store.seal,
                self._id,
                payload,
                size=len(values),
                fingerprints=prints,
                now=time.time(),
                counts=counts,
            )
            self._add_counts(counts)
            self._batches += 1
            self.coordinator.add(batch)

    def _add_counts(self, counts: dict[str, int]) -> None:
        for name, value in counts.items():
            self._counts[name] = self._counts.get(name, 0) + value

    def own_item(self, item: Any, shard: int) -> None:
        """An item of the producer's own pages."""
        if self._begun:
            self._own.add(item, shard)

    def local_missed(self, url: str, kind: str, reason: str) -> None:
        """A request that the producer crawls itself gave no result."""
        self._local_missed[kind] += 1
        self._local_misses.append(Miss(url=url, kind=kind, reason=reason))

    # wait

    def hold(self) -> bool:
        """The spider is idle: whether it must stay open for the batches that are out."""
        if self._refused or self._done or not self._begun:
            return False
        if self._finishing is None:
            self._finishing = asyncio.get_running_loop().create_task(self._finish())
        return True

    async def _finish(self) -> None:
        """The index is walked: seal the rest, wait for every batch, merge, and let the spider close."""
        try:
            await self._found_all()
            await self.coordinator.ended()
            await self._end(stopped=self.coordinator.stopped)
        except Exception as error:
            logger.exception("The crawl cannot be finished")
            await self._stop(f"scrapyd-dist itself failed: {type(error).__name__}: {error}", 1)
        self._done = True
        self._close_spider()

    async def _found_all(self) -> None:
        if (rest := self.capture.rest()) is not None:
            self.seal(rest)
        await self._sealed()
        losses, ends = self.index.short()
        self.index.misses += [Miss(url="", kind="index", reason=text) for text in losses]
        self.index.failed += len(losses)
        self._warnings += losses + ends
        await self._write_down()
        await self._store(self._store.store.finish_shards, self._id, [shard.number for shard in self.index.unfinished()])
        await self._enter(CrawlState.WORKING)
        self.coordinator.no_more()

    async def _sealed(self) -> None:
        while self._seals:
            await asyncio.gather(*self._seals)

    async def _end(self, *, stopped: str) -> None:
        if stopped:
            await self._stop(stopped, 1 if self.coordinator.fault else 3)
        elif not self.options.limits.wait:
            await self._stop("All batches are sent; nothing waits for them (DISTRIBUTED_WAIT is off).", 0)
        else:
            await self._collect()

    async def _collect(self) -> None:
        await self._enter(CrawlState.COLLECTING)
        self._own.close()
        outputs = self._outputs()
        loop = asyncio.get_running_loop()
        db = self._store.store
        attempts = await self._store(db.attempts, self._id)
        misses = await self._store(db.misses, self._id)
        work = partial(_bring_home, self._folder, self._own.parts(), attempts, misses, outputs, self.options.feed_url)
        count, self._misses, warnings = await loop.run_in_executor(None, work)
        self._warnings += warnings
        self._output = [str(output.path) for output in outputs]
        self._state = CrawlState.FINISHED
        document = self._summary()
        code = exit_code(document, max_failed=self.options.max_failed)
        logger.info("Crawl %s is complete: %d items in %s", self._id, count, ", ".join(self._output) or "their feeds")
        await self._close_row(CrawlState.FINISHED, code)

    _output: list[str] | tuple[()] = ()
    _misses: str | None = None

    def _outputs(self) -> list[Output]:
        outputs = [Output.named(o["path"], overwrite=o["overwrite"], format=o.get("format")) for o in self.options.outputs]
        if not outputs and self.options.feed_url is None:
            outputs = [Output.named(Path.cwd() / f"{self._id}.jl")]
        return outputs

    # close

    async def close(self, reason: str) -> None:
        """The spider closes, for whatever reason; called again when the engine has stopped."""
        if not self._begun:
            return
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(reason))
        await asyncio.shield(self._closing)

    async def _close(self, reason: str) -> None:
        if not self._done:
            if self._finishing is not None:
                self._finishing.cancel()
                await asyncio.gather(self._finishing, return_exceptions=True)
            if (rest := self.capture.rest()) is not None:
                self.seal(rest)
            await self._sealed()
            await self._write_down()
            await self.coordinator.stop(f"The crawl was interrupted ({reason}).")
            self._own.close()
            await self._stop(self.coordinator.stopped, 130)
            self._done = True
        else:
            await self.coordinator.stop("")
        if self._ticking is not None:
            self._ticking.cancel()
        self._sender.close()
        self._store.close()

    async def _stop(self, reason: str, code: int) -> None:
        self._message = f"{reason} What was found is kept; go on with: sdist resume {self._id}"
        logger.warning(self._message)
        await self._close_row(CrawlState.STOPPED, code)

    async def _close_row(self, state: CrawlState, code: int) -> None:
        self._state = state
        process_exit.set(code)
        changes: dict[str, Any] = {"ended": time.time(), "exit_code": code, "message": self._message, "pid": None}
        await self._enter(state, **changes)

    def _close_spider(self) -> None:
        engine = self._crawler.engine
        assert engine
        if hasattr(engine, "close_spider_async"):
            self._spawn(engine.close_spider_async(reason="finished"))
        else:  # Scrapy 2.13
            engine.close_spider(self._crawler.spider, "finished")

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._last = asyncio.get_running_loop().create_task(work)

    # the clock, and what it writes down

    async def _tick(self) -> None:
        while not self._done:
            await asyncio.sleep(TICK)
            if (cut := self.capture.due()) is not None:
                self.seal(cut)
            self._own.flush()
            await self._write_down()
            await self._enter(self._state)
            if time.monotonic() - self._logged >= LOG_EVERY:
                self._logged = time.monotonic()
                self._log_progress()
            if self.coordinator.stopped and self._finishing is None:
                # No node takes work any more: stop finding, too.
                self._finishing = asyncio.get_running_loop().create_task(self._stop_early())

    async def _stop_early(self) -> None:
        if (rest := self.capture.rest()) is not None:
            self.seal(rest)
        await self._sealed()
        await self._write_down()
        await self._end(stopped=self.coordinator.stopped)
        self._done = True
        self._close_spider()

    async def _write_down(self) -> None:
        db = self._store.store
        counts = self.capture.take_counts()
        if counts:
            self._add_counts(counts)
            await self._store(db.count, self._id, counts)
        misses, self._local_misses = self.index.take_misses() + self._local_misses, []
        if misses:
            await self._store(db.add_misses, self._id, misses)

    async def _enter(self, state: CrawlState, **changes: Any) -> None:
        self._state = state
        changes |= {"state": state, "beat": time.time(), "summary": self._summary()}
        await self._store(self._store.store.update_crawl, self._id, **changes)

    def _log_progress(self) -> None:
        now = self._summary()
        logger.info(
            "Crawl %s: %d URLs found, %d of %d batches done, %d items",
            self._id,
            now["urls_found"],
            now["batches"]["done"],
            now["batches"]["total"],
            now["items"],
        )

    def _summary(self) -> dict[str, Any]:
        index = IndexProgress(
            pages=self.index.pages + self.index.done_before, total=self.index.total, failed=self.index.failed
        )
        spec = self.coordinator.spec
        return summary(
            Snapshot(
                crawl=self._id,
                spider=spec.spider,
                project=spec.project,
                version=spec.version,
                state=self._state.value,
                duration=time.time() - self._started,
                counts=self._counts,
                buffered=self.capture.buffered,
                waiting=self.coordinator.waiting,
                batches=self._batches,
                tally=self.coordinator.tally,
                members=self.coordinator.members,
                index=index,
                own_items=self._own.count,
                local_missed=self._local_missed,
                output=self._output,
                misses=self._misses,
                warnings=self._warnings,
                message=self._message,
            )
        )


def _pid() -> int:
    import os

    return os.getpid()


def _members(prepared: Prepared, options: Options) -> list[Member]:
    now = time.time()
    members = []
    for found in prepared.probes:
        member = Member(node=found.node)
        if found.error is not None:
            member.missed(str(found.error), now)
        elif found.node.name in prepared.unready:
            member.unfit = prepared.unready[found.node.name]
        else:
            member.prepared = True
        members.append(member)
    return members


def _bring(options: Options, project: Project, member: Member, prepared: Prepared, spider: str) -> str:
    """Deploy to a node that was not there at the start; why not, when it fails."""
    found = probe([member.node], timeout=options.limits.request_timeout)[0]
    if found.error is not None:
        raise found.error
    if not found.logs and options.feed_url is None:
        return f"{member.node.name} has no log folder, so items have no way home from there"
    try:
        result = roll_out(options, project, [member.node], prepared.egg, spider)
    except DistError as error:
        return str(error)
    if prepared.version and result.version != prepared.version:
        return f"{member.node.name} has the version {result.version}, and this crawl runs {prepared.version}"
    return ""


def _bring_home(
    folder: Path, own: list[Path], attempts: list[Any], misses: list[Miss], outputs: list[Output], feed_url: str | None
) -> tuple[int, str | None, list[str]]:
    """Merge everything accepted; the number of items, the file of misses, and warnings."""
    accepted = sorted((a for a in attempts if a.state.value == "accepted"), key=lambda a: a.batch)
    parts = own + [folder / "parts" / a.part for a in accepted if a.part]
    warnings: list[str] = []
    if feed_url is not None:
        feeds = [uri for attempt in accepted for uri in attempt.report.get("feeds", ())]
        manifest = folder / "manifest.json"
        manifest.write_text(json.dumps({"schema": 1, "feeds": feeds}, indent=1), "utf-8")
        if outputs:
            fetched, warnings = read_back(feeds, feed_url, folder / "feeds")
            parts += fetched
    count = merge(parts, outputs) if outputs else sum(a.report.get("items", 0) for a in accepted)
    if not misses:
        return count, None, warnings
    path = folder / "misses.jsonl"
    rows = ({"url": m.url, "kind": m.kind, "reason": m.reason, "batch": m.batch} for m in misses)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return count, str(path), warnings
