"""What a crawl finds: target requests, sorted and cut into batches; the walk over the index pages, and their items."""

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
#: request meta: the shard that an index request belongs to, and the number of the request itself
SHARD, PAGE = "distributed_shard", "distributed_page"


@dataclass(kw_only=True, eq=False)
class Capture(FrontierFeed):
    """Sorts target requests, and cuts those for the fleet into batches."""

    cutter: Batcher | SlotBatcher
    room: int | None = None  #: how many more are wanted; None: all that there are
    before: FingerprintSet = field(
        default_factory=FingerprintSet
    )  #: sealed earlier, and not found again yet
    _seen: FingerprintSet = field(default_factory=FingerprintSet)

    @cached_property
    def has_filter(self) -> bool:
        """Whether a filter of duplicates of the project's own judges the requests."""
        return has_own_filter(self.crawler.settings)

    def _is_seen(self, request: Request) -> bool | None:
        is_known_otherwise = request.dont_filter or FINGERPRINT in request.meta
        return (
            is_seen(self.crawler, request) if self.has_filter and not is_known_otherwise else None
        )

    def stayed(self) -> list[str]:
        """What became of the requests that cannot travel and why, the most frequent reason first."""
        fate = (
            "are refused, and not crawled"
            if self.stay == "refuse"
            else "are crawled by the producer itself"
        )
        return [
            f"{count} target requests {fate}: {why}"
            for why, count in self.reasons.most_common(REASONS)
        ]

    def undeliverable(self) -> list[str]:
        """What became of the requests for other spiders that none can take and why, the most frequent reason first."""
        lost = self.undelivered.most_common(REASONS)
        return [
            f"{counted(count, 'request for another spider is', 'requests for another spider are')} in the list"
            f" of misses: {why}"
            for why, count in lost
        ]

    def take(self, request: Request, shard: int) -> tuple[Disposition, BatchDraft | None]:
        """Sort one found request in: its fate, and a batch that it filled."""
        fate, found = self.sort(request, shard)
        if found is None:
            return fate, None
        if self.room is not None:
            self.room -= 1
        return fate, self.cutter.add(found, time.monotonic())

    def _is_known(self, fingerprint: bytes) -> Disposition | None:
        if not self._seen.add(fingerprint):
            return Disposition.DUPLICATE
        return Disposition.SEALED if self.before.discard(fingerprint) else None


def new_capture(
    options: ProducerOptions,
    crawler: Crawler,
    demand: Callable[[], Demand],
    *,
    project: str,
    key: bytes | None,
) -> Capture:
    """What sorts the target requests of this crawl and cuts them into batches; `demand` tells what can be used now."""
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
    """Writes the producer's items below the folder of parts; with `typed` as a worker's `PartFile` does."""

    def __init__(self, folder: Path, *, typed: bool = False) -> None:
        self._folder, self._typed = folder, typed
        self._files: dict[int, tuple[IO[bytes], ItemLines]] = {}
        self.as_text = set[str]()  #: names of the types of values that were written as text
        self.count = 0

    def recall(self, *, keep: bool) -> None:
        """Take up what an earlier process wrote, or remove it because its pages are walked again."""
        for path in self.parts():
            if keep:
                self.count += count_lines(path)
            else:
                path.unlink()

    def add(self, item: Any, shard: int) -> None:
        if shard not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = (self._folder / f"{OWN}{shard}.jl").open("wb")
            self._files[shard] = (file, line_writer(cast("BytesIO", file), typed=self._typed))
        lines = self._files[shard][1]
        lines.add(item)
        self.as_text |= lines.as_text
        self.count += 1

    def flush(self) -> None:
        for file, _ in self._files.values():
            file.flush()

    def close(self) -> None:
        for file, _ in self._files.values():
            file.close()
        self._files.clear()

    def parts(self) -> list[Path]:
        """All files of part 0, those of earlier processes too, in the order of their shards."""
        return own_parts(self._folder)


@dataclass(kw_only=True)
class ShardWalk:
    """One shard as it is walked."""

    shard: Shard
    pending: set[int] = field(default_factory=set)
    pages: int = 0
    furthest: int = -1  #: greatest page number that came back
    found: int = 0  #: target requests for the fleet, on these pages
    begun: float | None = None  #: first asked for, seconds since the epoch
    heard: float = 0.0  #: when its last page came back


class IndexWalk:
    """All walks of a producer."""

    def __init__(self, shards: Sequence[Shard], template: ShardTemplate | None) -> None:
        self._template = template
        self.walks = {shard.number: ShardWalk(shard=shard) for shard in shards}
        finished = [shard for shard in shards if shard.state is ShardState.FINISHED]
        #: all index pages of the shards, where they are known; and those of shards that an earlier process finished
        self.total = None if template is None else _pages_of(shards)
        self.done_before = 0 if template is None else _pages_of(finished)
        self.misses: list[Miss] = []  #: failed index pages that are not in the store yet
        self.failed = 0
        self.walked = False  #: nothing more is found
        self._next = 0
        self._told: dict[int, tuple[int, int]] = {}

    @property
    def pages(self) -> int:
        return sum(walk.pages for walk in self.walks.values())

    def more(self, found: int, room: int | None) -> float | None:
        """How many target requests the rest of the walk may give, after so many; None while that cannot be told.

        `room` is how many more are wanted at most.
        """
        if self.walked:
            return 0.0
        pages, total = self.pages + self.done_before, self.total
        more = (
            found / pages * (total - pages) if total is not None and pages >= KNOWN_PAGES else None
        )
        if room is not None:
            more = float(room) if more is None else min(more, room)
        return more

    def unfinished(self) -> list[Shard]:
        return [walk.shard for walk in self.walks.values() if walk.shard.state is ShardState.OPEN]

    def is_border(self, url: str) -> bool:
        """Whether this page begins another shard, or lies behind the last one: its own walk fetches it."""
        if self._template is None:
            return any(walk.shard.url == url for walk in self.walks.values())
        page = self._template.page(url)
        if page is None:
            return False
        last = max(walk.shard.last_page or 0 for walk in self.walks.values())
        return page > last or any(walk.shard.first_page == page for walk in self.walks.values())

    def asked(self, shard: int) -> int:
        """An index page is about to be requested: its number, which travels in the request's meta."""
        self._next += 1
        walk = self.walks[shard]
        walk.begun = walk.begun or time.time()
        walk.pending.add(self._next)
        return self._next

    def came(self, shard: int, request: int, url: str) -> None:
        """An index page came back and its callback ran to the end."""
        walk = self.walks[shard]
        if request not in walk.pending:
            return  # it failed before, and is counted so
        walk.pending.discard(request)
        walk.pages += 1
        walk.heard = time.time()
        page = self._template.page(url) if self._template else None
        walk.furthest = max(walk.furthest, -1 if page is None else page)

    def lost(self, shard: int, request: int, url: str, reason: str) -> str | None:
        """An index page failed for good: the address where the walk goes on, if it is known."""
        walk = self.walks[shard]
        if request not in walk.pending:
            return None
        walk.pending.discard(request)
        self.failed += 1
        self.misses.append(Miss(url=url, kind="index", reason=reason))
        page = self._template.page(url) if self._template else None
        if page is None or self._template is None:
            return None
        walk.furthest = max(walk.furthest, page)
        return None if page >= (walk.shard.last_page or 0) else self._template.url(page + 1)

    def take_news(self) -> dict[str, list[float]]:
        """The walks that went on since the last call, as a sample has them: pages, found, begun, last heard of."""
        news = {
            n: walk
            for n, walk in self.walks.items()
            if self._told.get(n, (0, 0)) != (walk.pages, walk.found)
        }
        self._told.update({number: (walk.pages, walk.found) for number, walk in news.items()})
        return {
            str(number): [walk.pages, walk.found, round(walk.begun or 0.0, 2), round(walk.heard, 2)]
            for number, walk in news.items()
        }

    def take_misses(self) -> list[Miss]:
        misses, self.misses = self.misses, []
        return misses

    def short(self) -> tuple[list[str], list[str]]:
        """Walks that ended before their last page: sure losses, and the last walk, which may be the site's end."""
        losses: list[str] = []
        ends: list[str] = []
        last = max(self.walks, default=0)
        for number, walk in self.walks.items():
            end = walk.shard.last_page
            if (
                self._template is None
                or end is None
                or walk.shard.state is ShardState.FINISHED
                or walk.furthest >= end
            ):
                continue
            page = walk.furthest if walk.furthest >= 0 else walk.shard.first_page
            text = f"shard {number} ended at page {page} of {walk.shard.first_page}-{end}: no link led on"
            (ends if number == last else losses).append(text)
        return losses, ends


def _pages_of(shards: Iterable[Shard]) -> int:
    return sum((shard.last_page or 0) - (shard.first_page or 0) + 1 for shard in shards)
