"""Read what the store knows of a crawl, and write it down.

The rule it keeps: nothing else in this package writes what the store has of a crawl that runs, but
for its batches, which `discovery` seals. A frontier is claimed and filled, and a strategy's links
are moved, by their own processes.
"""

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from socket import gethostname
from typing import Any

from scrapy.settings import BaseSettings

from scrapyd_dist.batches import (
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    Crawl,
    CrawlState,
    Miss,
    Shard,
    ShardState,
    crawl_name,
    home_of,
)
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import ForeignRow, NameTaken, NothingMatched
from scrapyd_dist.items.publisher import PartPublisher
from scrapyd_dist.items.sink import open_sink
from scrapyd_dist.keys import state_key
from scrapyd_dist.payload import PayloadError, decode
from scrapyd_dist.pidfile import note_pid
from scrapyd_dist.progress.samples import is_sample_due
from scrapyd_dist.store import open_store
from scrapyd_dist.store.store_thread import PATIENCE, StoreThread

from .crawl_code import keep
from .crawl_request import CrawlRequest
from .feed_outputs import CrawlOutputs, crawl_outputs, outputs_to_keep
from .preflight import Prepared
from .producer_options import ProducerOptions

#: maximum number of crawls that are named to the workers because their files on the nodes may go
COLLECTED = 20
#: settings of -s that a crawl's row does not keep: the outputs, which it has already, and where the
#: store is
OUTPUT_SETTINGS = frozenset(
    {"FEEDS", "FEED_URI", "FEED_FORMAT", "DISTRIBUTED_OUTPUTS", "DISTRIBUTED_STORE"}
)


#: options of a row that hold for one start only
_ONE_START = ("new_code", "foreign_code")


def open_thread(request: CrawlRequest) -> StoreThread:
    """Open the crawl's store in a thread of its own; StoreError if it cannot be opened."""
    store = open_store(request.store, key=state_key(request.project.state))
    return StoreThread(store, patience=PATIENCE)


async def find_row(thread: StoreThread, request: CrawlRequest) -> Crawl:
    """Return the row of this crawl.

    It is a new one, or the one that a command or an earlier process made.
    """
    options = request.options
    if options.crawl is not None:
        with suppress(NothingMatched):
            return await thread(thread.store.own_crawl, options.crawl)
    while True:
        taken = {crawl.id for crawl in await thread(thread.store.crawls)}
        name = options.crawl or crawl_name(request.spider, datetime.now(timezone.utc), taken)
        kept = _options_to_keep(request, asked_outputs(options, name))
        row = Crawl(
            id=name,
            project=request.project.name,
            spider=request.spider,
            created=time.time(),
            options=kept,
        )
        try:
            await thread(thread.store.add_crawl, row)
        except NameTaken:  # by a crawl that began in the same second
            if options.crawl is not None:
                raise
        else:
            return row


def _options_to_keep(request: CrawlRequest, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the options with which a producer goes on, where no command has kept them."""
    given = dict(request.given)
    for name in OUTPUT_SETTINGS:
        given.pop(name, None)
    return {
        "settings": {"DISTRIBUTED_OUTPUTS": outputs_to_keep(outputs)},
        "spider_settings": given,
        "args": dict(request.args),
        "cwd": str(Path.cwd()),
    }


def asked_outputs(options: ProducerOptions, crawl: str) -> list[dict[str, Any]]:
    """Return the merged files that were asked for, or the usual one.

    That one is written where the items go nowhere else.
    """
    usual = {"path": str(Path.cwd() / f"{crawl}.jl"), "format": "jsonlines", "overwrite": True}
    if options.outputs:
        return list(map(dict, options.outputs))
    if options.target_feed_url or options.deliver:
        return []
    return [usual]


class CrawlRepository:
    """Reads and writes one crawl's row, shards, counts and misses, and reads its batches.

    `row` is as it is when this process takes it up.
    `counted` is called with the account of found requests, part by part, when the store has it.
    """

    def __init__(
        self,
        thread: StoreThread,
        row: Crawl,
        request: CrawlRequest,
        counted: Callable[[Mapping[str, int]], object] = lambda _: None,
    ) -> None:
        self._counted = counted
        self._options = request.options
        self._project = request.project
        self.thread = thread
        self._db = thread.store  #: called in `thread` only
        self.row = row
        self.id = row.id
        self.folder = self._project.state / "crawls" / row.id
        self.parts = self.folder / PARTS
        self.home = home_of(row.id, row.created)  #: the crawl's folder in the nodes' logs
        before = row.summary.get("duration_s")
        self._ran_before = float(before or 0.0)  #: seconds that earlier processes have run
        #: since when this process counts as running, seconds since the epoch
        self._taken_up = row.created if before is None else time.time()
        self.counts: Counter[str] = Counter()  #: found requests, by what became of them
        self._most_sealed = 0  #: requests in batches that the store has had
        self.state = CrawlState.STARTING
        self.earlier_versions = tuple(map(str, row.options.get("earlier_versions") or ()))
        self._misses: list[Miss] = []  #: that are not in the store yet
        self._sampled: float | None = None  #: when the last sample was taken

    @property
    def ran(self) -> float:
        """Seconds that processes of this crawl have run, this one included.

        The time between two of them does not count.
        """
        return self._ran_before + time.time() - self._taken_up

    async def rules(self) -> int:
        """Return how many rules of `sdist throttle` there are."""
        stored = await self.thread(self._db.rules)
        return len(stored.rules)

    async def take_up(self) -> None:
        """Let the crawl's row name this process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        note_pid(self.folder, os.getpid())
        mine = {"pid": os.getpid(), "host": gethostname()}
        await self.update(
            project=self._project.name, **mine, ended=None, exit_code=None, message=""
        )

    async def keep_code(self, prepared: Prepared) -> dict[str, Any]:
        """Keep what the crawl runs now, for the process that goes on with it.

        Returns what is to be written down with the crawl's new state: its version, and those that
        it ran before.
        """
        await self.thread(
            keep,
            prepared.egg,
            prepared.version,
            self.folder,
            self._project.state,
            self._project.name,
        )
        before = self.row.version
        if before is not None and before != prepared.version:
            self.earlier_versions = (*self.earlier_versions, before)
        options = dict(self.row.options)
        for name in _ONE_START:
            options.pop(name, None)
        if self.earlier_versions:
            options["earlier_versions"] = list(self.earlier_versions)
        if prepared.key is None:  # the nodes had other code, and nothing was to be uploaded
            options["foreign_code"] = True
        return {"version": prepared.version, "options": options}

    async def take_shards(self, shards: Sequence[Shard]) -> list[Shard]:
        """Return the shards of this crawl: these when it begins, its own when it goes on."""
        if not await self.thread(self._db.shards, self.id):
            await self.thread(self._db.add_shards, self.id, shards)
        kept = await self.thread(self._db.shards, self.id)
        if any(shard.state is ShardState.OPEN for shard in kept):
            await self.thread(self._db.walk_again, self.id)
        self.counts = Counter(await self.thread(self._db.counts, self.id))
        return kept

    async def missed_before(self) -> Counter[str]:
        """Count the misses that an earlier process had with its own requests, by kind.

        That is where its walk is not repeated.
        """
        misses = await self.thread(self._db.misses, self.id)
        return Counter(miss.kind for miss in misses if not miss.batch)

    async def collected(self) -> tuple[str, ...]:
        """Name the folders of other crawls whose items are home: their files on nodes may go."""
        homes: list[str] = []
        for crawl in await self.thread(self._db.crawls):
            if crawl.state is not CrawlState.FINISHED or crawl.id == self.id:
                continue
            # A frontier may be filled again, and its workers write into the same folder.
            if crawl.kind != "frontier":
                homes.append(home_of(crawl.id, crawl.created))
        return tuple(homes[:COLLECTED])

    async def accepted(self) -> list[Attempt]:
        """Return the attempts whose items count."""
        return await self.thread(self._db.attempts, self.id, {AttemptState.ACCEPTED})

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Take counts of found requests into the account, now that the store has them."""
        self._counted(counts)
        self.counts.update(counts)

    def missed(self, *misses: Miss) -> None:
        """Remember misses until the next `write_down`."""
        self._misses += misses

    async def write_down(self, counts: dict[str, int]) -> None:
        """Write down counts since the last time, and the misses that are not in the store yet."""
        if counts:
            self.add_counts(counts)
            await self.thread(self._db.count, self.id, counts)
        misses = self._misses
        self._misses = []
        if misses:
            await self.thread(self._db.add_misses, self.id, misses)

    async def recount(self) -> None:
        """Take in what workers have counted beside this process."""
        self._note_sealed()
        self.counts = Counter(await self.thread(self._db.counts, self.id))
        self._note_sealed()

    def _note_sealed(self) -> None:
        self._most_sealed = max(self._most_sealed, self.counts["sealed"])

    async def lost_requests(self) -> int:
        """Count the requests that the store had taken, and has lost since with its last steps."""
        await self.recount()
        return self._most_sealed - self.counts["sealed"]

    async def wanted(self) -> str:
        """Return the command of a user to this crawl: `pause`, `cancel`, or nothing."""
        row = await self.read_row()
        return row.wanted

    async def is_mine(self) -> bool:
        """Return whether the crawl's row still names this process."""
        row = await self.read_row()
        return (row.pid, row.host) == (os.getpid(), gethostname())

    async def finish_shards(self, numbers: Collection[int]) -> None:
        """Mark shards as walked to their end, so that they are not walked again."""
        await self.thread(self._db.finish_shards, self.id, numbers)

    async def enter(self, state: CrawlState, summary: dict[str, Any], **changes: Any) -> None:
        """Write the state and the summary down; it is the heartbeat, too."""
        self.state = state
        await self.update(state=state, beat=time.time(), summary=summary, **changes)

    def sample_due(self) -> bool:
        """Return whether it is time for the next sample."""
        return is_sample_due(time.time(), self._sampled, self.row.created)

    async def sample(self, values: dict[str, Any]) -> None:
        """Write a sample down, as of now."""
        self._sampled = time.time()
        await self.thread(self._db.add_sample, self.id, self._sampled, values)

    async def end(
        self, state: CrawlState, *, code: int, message: str, summary: dict[str, Any] | None = None
    ) -> None:
        """Write down that no process works on this crawl any more, and how it ended."""
        self.state = state
        changes: dict[str, Any] = {} if summary is None else {"summary": summary}
        await self.update(
            state=state, ended=time.time(), exit_code=code, message=message, pid=None, **changes
        )

    async def read_row(self) -> Crawl:
        """Return the crawl's row as the store has it now."""
        return await self.thread(self._db.crawl, self.id)

    async def update(self, **changes: Any) -> None:
        """Change fields of the crawl's row."""
        await self.thread(self._db.update_crawl, self.id, **changes)

    async def refuse(self, *, code: int, message: str) -> None:
        """Write down that the producer may not begin.

        A crawl whose name was made by this process leaves nothing behind.
        """
        if self._options.crawl is None:
            await self.thread(self._db.forget, self.id)
            await self.thread(shutil.rmtree, self.folder, ignore_errors=True)
        else:
            await self.end(self.row.when_refused, code=code, message=message)

    async def for_delivery(self, key: bytes | None) -> dict[str, Any]:
        """Return what `delivery.deliver` needs of the store: `attempts` and `misses`."""
        misses = await self.thread(self._db.misses, self.id)
        for batch in await self.thread(self._db.batches, self.id, {BatchState.DEAD}):
            misses += await self._misses_of(batch, key)
        attempts = await self.thread(self._db.attempts, self.id)
        return {"attempts": attempts, "misses": misses}

    async def _misses_of(self, batch: Batch, key: bytes | None) -> list[Miss]:
        """Return a miss for each request of a dead batch."""
        reason = batch.reason
        try:
            payload = await self.thread(self._db.payload, self.id, batch.number)
            urls = [value["url"] for value in decode(payload.get, key=key)]
        except (ForeignRow, PayloadError) as error:
            # One of another key must not keep all others from their file.
            urls = [""]
            reason = f"{reason}; its {batch.size} requests cannot be named: {error}"
        return [Miss(url=url, kind="dead", reason=reason, batch=batch.number) for url in urls]

    async def publisher(self) -> PartPublisher | None:
        """Return what delivers accepted parts, if that was asked for.

        ConfigError if the place does not take them.
        """
        if not self._options.deliver:
            return None
        sink = open_sink(self._options.deliver, self._project.root)
        publisher = PartPublisher(sink, home=self.home, folder=self.parts)
        await asyncio.to_thread(publisher.begin, await self.accepted())
        return publisher

    def outputs(self, settings: BaseSettings, *, wants_exporter: bool = False) -> CrawlOutputs:
        """Return the merged files, and the feeds that Scrapy's exporter writes, by these settings.

        Errors are those of `crawl_outputs`.
        """
        asked = asked_outputs(self._options, self.id)
        return crawl_outputs(asked, settings, wants_exporter=wants_exporter)
