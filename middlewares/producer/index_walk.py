"""Keep account of the walk over a crawl's index: its shards, their pages, and why it ends early."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from scrapyd_dist.batches import FinishReason, Miss, Shard, ShardState, meaning
from scrapyd_dist.shards import ShardTemplate

#: index pages after which it can be guessed what the others will give
KNOWN_PAGES = 5
#: request meta: the shard that an index request belongs to
SHARD = "distributed_shard"
#: request meta: the number of an index request
PAGE = "distributed_page"


class WalkEnd(Enum):
    """Says why a walk ends before its last page."""

    LIMIT = "limit"  #: as many target requests are found as the crawl is limited to
    GOAL = "goal"  #: the crawl is over, and what is not walked is walked when it goes on
    CLOSED = "closed"  #: the project's code has closed the spider
    SETTINGS = "settings"  #: settings have closed the spider, here or in its jobs

    @classmethod
    def from_reason(cls, reason: str) -> "WalkEnd":
        """Return the kind of end that a finish reason stands for."""
        if reason == FinishReason.LIMITED.value:
            return cls.LIMIT
        if reason == FinishReason.GOAL.value:
            return cls.GOAL
        return cls.CLOSED if meaning(reason).closes_crawl else cls.SETTINGS


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
        self._first_urls = {shard.url for shard in shards}
        self._first_pages = {shard.first_page for shard in shards}
        self._last_page = max((shard.last_page or 0 for shard in shards), default=0)
        self.total: int | None = None  #: all index pages of the shards, where they are known
        self.done_before = 0  #: index pages of shards that an earlier process finished
        if template is not None:
            finished = [shard for shard in shards if shard.state is ShardState.FINISHED]
            self.total = _count_pages(shards)
            self.done_before = _count_pages(finished)
        self.misses: list[Miss] = []  #: failed index pages that are not in the store yet
        self.failed = 0  #: index pages that failed for good
        self.walked = False  #: nothing more is found
        self.early_end: WalkEnd | None = None  #: nothing more is walked, though there may be more
        self.early_reason = ""  #: the finish reason of that
        self._number = 0  #: of the last index request
        #: number of a shard -> its pages and found requests in the last news
        self._reported: dict[int, tuple[int, int]] = {}

    @property
    def pages(self) -> int:
        """Return how many index pages have come back to this process."""
        return sum(walk.pages for walk in self.walks.values())

    @property
    def asks_nothing(self) -> bool:
        """Whether there is something to walk, and no index page was requested."""
        return bool(self.unfinished()) and self._number == 0

    def more(self, found: int, room: int | None) -> float | None:
        """Estimate how many target requests the rest of the walk gives, after `found` requests.

        None while that cannot be told. `room` is how many more are wanted at most.
        """
        if self.walked:
            return 0.0
        pages = self.pages + self.done_before
        wanted = float("inf") if room is None else float(room)
        if self.total is not None and pages >= KNOWN_PAGES:
            # Pages beside the index count as well, so that there may be more than its own.
            more = found / pages * max(0, self.total - pages)
            return min(more, wanted)
        if room is None:
            return None
        return wanted

    def end_early(self, reason: str) -> None:
        """Walk no further, for this finish reason; the first one counts."""
        if self.early_end is None:
            self.early_end = WalkEnd.from_reason(reason)
            self.early_reason = reason

    @property
    def goes_on_later(self) -> bool:
        """Whether what is not walked is walked when the crawl goes on."""
        return self.early_end is WalkEnd.GOAL

    def unfinished(self) -> list[Shard]:
        """Return the shards that are not walked to their end."""
        return [walk.shard for walk in self.walks.values() if walk.shard.state is ShardState.OPEN]

    def is_border(self, url: str) -> bool:
        """Return whether this page begins another shard, or lies behind the last one.

        Its own walk fetches it then, if it is any shard's.
        """
        if self._template is None:
            return url in self._first_urls
        page = self._template.page(url)
        if page is None:
            return False
        return page > self._last_page or page in self._first_pages

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

    def dropped(self, shard: int, request: int) -> None:
        """Note that an index page is not requested again, since it was before."""
        self.walks[shard].pending.discard(request)

    def found(self, shard: int) -> None:
        """Count a target request for the fleet on the pages of a shard, if it is one of these."""
        if shard in self.walks:
            self.walks[shard].found += 1

    def recall(self, failed: int) -> None:
        """Take in how many index pages had failed for an earlier process for good."""
        self.failed = failed

    def lost(
        self, shard: int, request: int, url: str, reason: str, *, is_dropped: bool = False
    ) -> str | None:
        """Note that an index page failed for good, unless a component has dropped it.

        Returns the address where the walk goes on, if it is known.
        """
        walk = self.walks[shard]
        if request not in walk.pending:
            return None
        walk.pending.discard(request)
        if not is_dropped:
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

    def close(self) -> tuple[list[str], list[str]]:
        """Count the sure losses as failed, and return what `short` does.

        There are none where the walk was to end early.
        """
        if self.early_end is not None:
            return [], []
        losses, ends = self.short()
        self.failed += len(losses)
        return losses, ends

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
