"""Keep what a crawl finds: target requests in batches, the walk over the index, and its items."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast

from scrapy import Request
from scrapy.crawler import Crawler

from scrapyd_dist.batches import Miss, Shard, ShardState
from scrapyd_dist.items.delivery import OWN, own_parts
from scrapyd_dist.items.download import count_lines
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.batcher import BatchDraft, Batcher, Demand, SlotBatcher
from scrapyd_dist.scheduling.fingerprints import FingerprintSet
from scrapyd_dist.shards import ShardTemplate

from ..classifier import Disposition, FrontierFeed
from ..codec import FINGERPRINT
from ..engine_compat import has_own_filter, is_seen
from ..item_lines import ItemLines, line_writer
from ..slot_routing import SlotRouting
from .producer_options import ProducerOptions

#: reasons that are shown
REASONS = 10
#: index pages after which it can be guessed what the others will give
KNOWN_PAGES = 5
#: request meta: the shard that an index request belongs to
SHARD = "distributed_shard"
#: request meta: the number of an index request
PAGE = "distributed_page"


@dataclass(kw_only=True, eq=False)
class Capture(FrontierFeed):
    """Sorts target requests, and cuts those for the fleet into batches."""

    cutter: Batcher | SlotBatcher
    room: int | None = None  #: how many more are wanted; None: all that there are
    #: of requests that were sealed earlier, and are not found again yet
    before: FingerprintSet = field(default_factory=FingerprintSet)
    #: of requests that this process has found
    _seen: FingerprintSet = field(default_factory=FingerprintSet)

    @cached_property
    def has_filter(self) -> bool:
        """Return whether a filter of duplicates of the project's own judges the requests."""
        return has_own_filter(self.crawler.settings)

    def _is_seen(self, request: Request) -> bool | None:
        is_known_otherwise = request.dont_filter or FINGERPRINT in request.meta
        if self.has_filter and not is_known_otherwise:
            return is_seen(self.crawler, request)
        return None

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
        if self.room is not None:
            self.room -= 1
        return disposition, self.cutter.add(found, time.monotonic())

    def _is_known(self, fingerprint: bytes) -> Disposition | None:
        if not self._seen.add(fingerprint):
            return Disposition.DUPLICATE
        if self.before.discard(fingerprint):
            return Disposition.SEALED
        return None


def new_capture(
    options: ProducerOptions,
    crawler: Crawler,
    demand: Callable[[], Demand],
    *,
    project: str,
    key: bytes | None,
) -> Capture:
    """Make what sorts the target requests of this crawl and cuts them into batches.

    `demand` tells what can be used now.
    """
    kind: type[Batcher | SlotBatcher] = SlotBatcher if options.leases else Batcher
    cutter = kind(
        size=options.batch_size,
        max_age=options.batch_max_age,
        demand=demand if options.batch_adapt else None,
        fair=options.scaling.terms.fair,
    )
    slotting = None
    if options.leases:
        assert crawler.spider
        slotting = SlotRouting.from_settings(
            crawler.settings, project=project, spider=crawler.spider.name
        )
    return Capture(
        crawler=crawler, cutter=cutter, key=key, stay=options.unsendable, slotting=slotting
    )


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


@dataclass(kw_only=True)
class ShardWalk:
    """Tells how far one shard is walked."""

    shard: Shard
    pending: set[int] = field(default_factory=set)  #: numbers of index requests without a result
    pages: int = 0  #: index pages that came back
    furthest: int = -1  #: greatest page number that came back
    found: int = 0  #: target requests for the fleet, on these pages
    begun: float | None = None  #: first asked for, seconds since the epoch
    last_page_at: float = 0.0  #: when its last page came back


class IndexWalk:
    """Keeps account of all walks of a producer."""

    def __init__(self, shards: Sequence[Shard], template: ShardTemplate | None) -> None:
        self._template = template
        self.walks = {shard.number: ShardWalk(shard=shard) for shard in shards}
        self.total: int | None = None  #: all index pages of the shards, where they are known
        self.done_before = 0  #: index pages of shards that an earlier process finished
        if template is not None:
            finished = [shard for shard in shards if shard.state is ShardState.FINISHED]
            self.total = _count_pages(shards)
            self.done_before = _count_pages(finished)
        self.misses: list[Miss] = []  #: failed index pages that are not in the store yet
        self.failed = 0  #: index pages that failed for good
        self.walked = False  #: nothing more is found
        self._number = 0  #: of the last index request
        #: number of a shard -> its pages and found requests in the last news
        self._reported: dict[int, tuple[int, int]] = {}

    @property
    def pages(self) -> int:
        """Return how many index pages have come back to this process."""
        return sum(walk.pages for walk in self.walks.values())

    def more(self, found: int, room: int | None) -> float | None:
        """Estimate how many target requests the rest of the walk gives, after `found` requests.

        None while that cannot be told. `room` is how many more are wanted at most.
        """
        if self.walked:
            return 0.0
        pages = self.pages + self.done_before
        wanted = float("inf") if room is None else float(room)
        if self.total is not None and pages >= KNOWN_PAGES:
            more = found / pages * (self.total - pages)
            return min(more, wanted)
        if room is None:
            return None
        return wanted

    def unfinished(self) -> list[Shard]:
        """Return the shards that are not walked to their end."""
        return [walk.shard for walk in self.walks.values() if walk.shard.state is ShardState.OPEN]

    def is_border(self, url: str) -> bool:
        """Return whether this page begins another shard, or lies behind the last one.

        Its own walk fetches it then, if it is any shard's.
        """
        shards = [walk.shard for walk in self.walks.values()]
        if self._template is None:
            return any(shard.url == url for shard in shards)
        page = self._template.page(url)
        if page is None:
            return False
        last = max(shard.last_page or 0 for shard in shards)
        return page > last or any(shard.first_page == page for shard in shards)

    def asked(self, shard: int) -> int:
        """Note that an index page is about to be requested.

        Returns the number of the request, which travels in its meta.
        """
        self._number += 1
        walk = self.walks[shard]
        walk.begun = walk.begun or time.time()
        walk.pending.add(self._number)
        return self._number

    def came(self, shard: int, request: int, url: str) -> None:
        """Note that an index page came back, and its callback ran to the end."""
        walk = self.walks[shard]
        if request not in walk.pending:
            return  # it failed before, and is counted so
        walk.pending.discard(request)
        walk.pages += 1
        walk.last_page_at = time.time()
        page = self._template.page(url) if self._template else None
        if page is not None:
            walk.furthest = max(walk.furthest, page)

    def lost(self, shard: int, request: int, url: str, reason: str) -> str | None:
        """Note that an index page failed for good.

        Returns the address where the walk goes on, if it is known.
        """
        walk = self.walks[shard]
        if request not in walk.pending:
            return None
        walk.pending.discard(request)
        self.failed += 1
        self.misses.append(Miss(url=url, kind="index", reason=reason))
        if self._template is None:
            return None
        page = self._template.page(url)
        if page is None:
            return None
        walk.furthest = max(walk.furthest, page)
        if page >= (walk.shard.last_page or 0):
            return None
        return self._template.url(page + 1)

    def take_news(self) -> dict[str, list[float]]:
        """Return the walks that went on since the last call, as a sample has them.

        By the number of the shard: pages, found requests, and when the walk began and had its last
        page, in seconds since the epoch.
        """
        news = {}
        for number, walk in self.walks.items():
            done = (walk.pages, walk.found)
            if self._reported.get(number, (0, 0)) != done:
                self._reported[number] = done
                begun = walk.begun or 0.0
                news[str(number)] = [*done, round(begun, 2), round(walk.last_page_at, 2)]
        return news

    def take_misses(self) -> list[Miss]:
        """Return the failed index pages that are not in the store yet, and forget them."""
        misses = self.misses
        self.misses = []
        return misses

    def short(self) -> tuple[list[str], list[str]]:
        """Return the walks that ended before their last page, each as a line.

        First the sure losses; then the last walk, whose end may be the site's.
        """
        losses: list[str] = []
        ends: list[str] = []
        if self._template is None:
            return losses, ends
        last = max(self.walks, default=0)
        for number, walk in self.walks.items():
            shard = walk.shard
            end = shard.last_page
            if end is None or shard.state is ShardState.FINISHED or walk.furthest >= end:
                continue
            page = walk.furthest if walk.furthest >= 0 else shard.first_page
            text = (
                f"shard {number} ended at page {page} of {shard.first_page}-{end}: no link led on"
            )
            if number == last:
                ends.append(text)
            else:
                losses.append(text)
        return losses, ends


def _count_pages(shards: Iterable[Shard]) -> int:
    return sum((shard.last_page or 0) - (shard.first_page or 0) + 1 for shard in shards)
