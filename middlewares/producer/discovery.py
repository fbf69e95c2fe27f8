"""Keep what a crawl's own process finds: target requests, sealed in batches, and its items."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from scrapy import Request

from scrapyd_dist.batches import Batch
from scrapyd_dist.frontier.packing import add_unseen_cuts, make_batches
from scrapyd_dist.items.delivery import OWN, own_parts
from scrapyd_dist.items.download import count_lines
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.batcher import BatchDraft, Batcher, Demand, SlotBatcher, portions
from scrapyd_dist.scheduling.fingerprints import FingerprintSet
from scrapyd_dist.scheduling.scheduler import Scheduler

from ..classifier import Disposition, FrontierFeed, has_own_filter
from ..codec import FINGERPRINT
from ..engine_compat import is_seen
from ..item_lines import ItemLines, line_writer
from .crawl_repository import CrawlRepository
from .index_walk import IndexWalk
from .lifecycle import TaskGroup
from .producer_options import ProducerOptions
from .shared_values import SharedValues

#: reasons that are shown
REASONS = 10


@dataclass
class RequestRoom:
    """Counts down how many more target requests are wanted."""

    left: int | None = None  #: None: all that there are

    @classmethod
    def within(cls, limit: int, sealed: int) -> "RequestRoom":
        """Return what a limit leaves when so many are sealed; without one (0) there is no end."""
        return cls(max(0, limit - sealed) if limit else None)

    @property
    def is_used_up(self) -> bool:
        """Whether no more are wanted."""
        return self.left == 0

    def use(self) -> None:
        """Count one that was found."""
        if self.left is not None:
            self.left -= 1


@dataclass(kw_only=True, eq=False)
class Capture(FrontierFeed):
    """Sorts target requests, and cuts those for the fleet into batches."""

    cutter: Batcher | SlotBatcher
    room: RequestRoom = field(default_factory=RequestRoom)
    #: of requests that were sealed earlier, and are not found again yet
    before: FingerprintSet = field(default_factory=FingerprintSet)
    #: of requests that this process has found
    _seen: FingerprintSet = field(default_factory=FingerprintSet)
    #: of index requests that the filter of duplicates is to know
    _index: FingerprintSet = field(default_factory=FingerprintSet)
    shared: SharedValues = field(init=False)  #: what requests for the fleet have in common

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shared = SharedValues(self.spider)

    @cached_property
    def has_filter(self) -> bool:
        """Return whether a filter of duplicates of the project's own judges the requests."""
        return has_own_filter(self.crawler.settings)

    def _is_seen(self, request: Request) -> bool | None:
        is_known_otherwise = request.dont_filter or FINGERPRINT in request.meta
        if self.has_filter and not is_known_otherwise:
            return is_seen(self.crawler, request)
        return None

    def has_found(self, request: Request) -> bool:
        """Tell whether an index request asks for what was found as a target request before.

        In one process the filter of duplicates drops it then. If not, what it asks for is no target
        from now on.
        """
        if request.dont_filter or self.has_filter:
            return False
        fingerprint = self.crawler.request_fingerprinter.fingerprint(request)
        if fingerprint in self._seen:
            return True
        self._index.add(fingerprint)
        return False

    @property
    def index_pages(self) -> Iterable[bytes]:
        """Return the fingerprints of index requests, without those that no filter may drop."""
        return self._index

    def stayed(self) -> list[str]:
        """Say what became of requests that cannot travel, and why; the most frequent first."""
        what = "are crawled by the producer itself"
        if self.stay == "refuse":
            what = "are refused, and not crawled"
        lines = []
        for why, count in self.reasons.most_common(REASONS):
            line = f"{count} target requests {what}: {why}"
            lines.append(line)
        return lines

    def undeliverable(self) -> list[str]:
        """Say what became of requests for other spiders that none can take, and why.

        The most frequent reason comes first.
        """
        lines = []
        for why, count in self.undelivered.most_common(REASONS):
            requests = counted(
                count, "request for another spider is", "requests for another spider are"
            )
            lines.append(f"{requests} in the list of misses: {why}")
        return lines

    def sort_in(self, request: Request, shard: int) -> tuple[Disposition, BatchDraft | None]:
        """Sort one found request in; return what becomes of it, and a batch that it filled."""
        disposition, found = self.sort(request, shard)
        if found is None:
            return disposition, None
        self.shared.note(request)
        self.room.use()
        return disposition, self.cutter.add(found, time.monotonic())

    def _is_known(self, fingerprint: bytes) -> Disposition | None:
        if not self._seen.add(fingerprint):
            return Disposition.DUPLICATE
        if self.before.count and self.before.discard(fingerprint):
            return Disposition.SEALED
        # The walk has asked for this page.
        return Disposition.DUPLICATE if fingerprint in self._index else None


@dataclass(frozen=True, kw_only=True)
class FleetDemand:
    """Tells how much work the fleet of a crawl can use now."""

    scheduler: Scheduler
    repository: CrawlRepository
    index: IndexWalk
    room: RequestRoom

    def __call__(self, buffered: int) -> Demand:
        """Return the demand while so many found requests are in no batch."""
        found = self.repository.counts["sealed"] + buffered
        return self.scheduler.demand(self.index.more(found, self.room.left))


def new_cutter(options: ProducerOptions, demand: FleetDemand) -> Batcher | SlotBatcher:
    """Return what cuts the requests of a crawl into batches: by slot where workers lease them."""
    kind: type[Batcher | SlotBatcher] = SlotBatcher if options.leases else Batcher
    return kind(
        size=options.batch_size,
        max_age=options.batch_max_age,
        demand=demand if options.batch_adapt else None,
        fair=options.scaling.terms.fair,
    )


@dataclass(kw_only=True)
class BatchSealer:
    """Keeps cuts in the store as batches and hands them to the scheduler.

    That is done in order, and beside the crawl.
    """

    capture: Capture
    repository: CrawlRepository
    scheduler: Scheduler
    tasks: TaskGroup  #: of the run; each portion of cuts is one
    key: bytes | None  #: the key that the nodes have
    leases: bool  #: workers lease the batches; else they are sent

    def seal_due(self) -> None:
        """Seal what is due by now."""
        self.seal(*self.capture.cutter.due(time.monotonic()))

    def seal_rest(self) -> None:
        """Seal all that is in no batch yet."""
        self.seal(*self.capture.cutter.cut_rest())

    def seal(self, *cuts: BatchDraft) -> None:
        """Seal these cuts, many in one step."""
        for portion in portions(cuts):
            self.tasks.add(self._seal(portion))

    async def _seal(self, cuts: Sequence[BatchDraft]) -> None:
        keep = self._keep_for_workers if self.leases else self._keep_to_send
        for batch in await keep(cuts, self.capture.take_counts()):
            self.scheduler.add(batch)

    async def _keep_for_workers(
        self, cuts: Sequence[BatchDraft], counts: dict[str, int]
    ) -> list[Batch]:
        """Keep cuts for workers to lease, in one step.

        What they and other producers have found before is left out.
        """
        thread = self.repository.thread
        add = partial(thread.store.add_batches, self.repository.id)
        batches, counted = await thread(
            partial(add_unseen_cuts, add, cuts, key=self.key, counts=counts)
        )
        self.repository.add_counts(counted)
        return batches

    async def _keep_to_send(
        self, cuts: Sequence[BatchDraft], counts: dict[str, int]
    ) -> list[Batch]:
        """Keep cuts that are sent to nodes, each in as many batches as its encoded size needs."""
        thread = self.repository.thread
        batches = []
        for cut in cuts:
            fingerprints = (request.fingerprint for request in cut)
            values = [request.value for request in cut]
            for new in make_batches(values, key=self.key, sealed_at=time.time()):
                own = list(islice(fingerprints, new.size))
                counted = {**counts, "sealed": new.size}
                batch = await thread(thread.store.seal, self.repository.id, new, own, counted)
                batches.append(batch)
                self.repository.add_counts(counted)
                counts = {}  # the first batch has brought them
        return batches


class OwnItems:
    """Writes the producer's items below the folder of parts.

    With `typed` it writes as a worker's `PartFile` does.
    """

    def __init__(self, folder: Path, *, typed: bool = False) -> None:
        self._folder = folder
        self._typed = typed
        #: number of a shard -> the open file of its items, and what writes them there
        self._files: dict[int, tuple[IO[bytes], ItemLines]] = {}
        self.as_text = set[str]()  #: names of the types of values that were written as text
        self.count = 0

    def recall(self, *, keep: bool) -> None:
        """Take up what an earlier process wrote, or remove it: its pages are walked again."""
        for path in self.parts():
            if keep:
                self.count += count_lines(path)
            else:
                path.unlink()

    def add(self, item: Any, shard: int) -> None:
        """Write an item of a shard's pages; TypeError or ValueError if it has no JSON form."""
        if shard not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = (self._folder / f"{OWN}{shard}.jl").open("wb")
            self._files[shard] = (file, line_writer(cast("BytesIO", file), typed=self._typed))
        lines = self._files[shard][1]
        lines.add(item)
        self.as_text |= lines.as_text
        self.count += 1

    def flush(self) -> None:
        """Hand what is written to the operating system."""
        for file, _ in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close all files; another item opens its shard's file anew."""
        for file, _ in self._files.values():
            file.close()
        self._files.clear()

    def parts(self) -> list[Path]:
        """Return all files of part 0, also of earlier processes, in the order of their shards."""
        return own_parts(self._folder)
