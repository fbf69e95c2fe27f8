"""From a spider's target request to a sealed batch: what was sealed before, and the cutter; the `classifier` sorts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from scrapyd_dist.scheduling.fingerprints import FingerprintSet

from ..classifier import Disposition, FrontierFeed, RequestClassifier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapyd_dist.scheduling.batcher import BatchDraft, Batcher, SlotBatcher

    from ..slot_routing import SlotRouting

#: reasons that are told
REASONS = 10


class Capture(FrontierFeed):
    """Sorts target requests, and cuts those for the fleet into batches."""

    def __init__(
        self,
        crawler: Crawler,
        spider: Spider,
        cutter: Batcher | SlotBatcher,
        *,
        key: bytes | None,
        stay: str,
        slotting: SlotRouting | None = None,
        salt: str = "",
    ) -> None:
        sorter = RequestClassifier(crawler, spider, key=key, slotting=slotting, salt=salt)
        super().__init__(sorter, stay=Disposition.LOCAL if stay == "local" else Disposition.REFUSED)
        self._cutter = cutter
        self._seen = FingerprintSet()
        self.room: int | None = None  #: how many more are wanted; None: all that there are
        self._before = FingerprintSet()  #: sealed by an earlier process, and not yet found again

    def remember(self, fingerprints: Iterable[bytes]) -> None:
        """What an earlier process sealed."""
        self._before = fingerprints if isinstance(fingerprints, FingerprintSet) else FingerprintSet(fingerprints)

    def stayed(self) -> list[str]:
        """What became of the requests that cannot travel and why, the most frequent reason first."""
        fate = (
            "are crawled by the producer itself" if self._stay is Disposition.LOCAL else "are refused, and not crawled"
        )
        told = [f"{count} target requests {fate}: {why}" for why, count in self.reasons.most_common(REASONS)]
        lost = self.undelivered.most_common(REASONS)
        return told + [f"{count} requests for another spider are in the list of misses: {why}" for why, count in lost]

    def due(self) -> list[BatchDraft]:
        """Batches that have waited long enough, or that the fleet can use."""
        return self._cutter.due(time.monotonic())

    def rest(self) -> list[BatchDraft]:
        """The last batches."""
        return self._cutter.take()

    @property
    def buffered(self) -> int:
        return len(self._cutter)

    def take(self, request: Request, shard: int) -> tuple[Disposition, BatchDraft | None]:
        """Sort one found request in: its fate, and a batch that it filled."""
        fate, found = self.sort(request, shard)
        if found is None:
            return fate, None
        if self.room is not None:
            self.room -= 1
        return fate, self._cutter.add(found, time.monotonic())

    def _is_known(self, fingerprint: bytes) -> Disposition | None:
        if not self._seen.add(fingerprint):
            return Disposition.DUPLICATE
        return Disposition.SEALED if self._before.discard(fingerprint) else None
