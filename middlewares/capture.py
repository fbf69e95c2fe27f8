"""From a spider's target request to a sealed batch: offsite, seen before, can it travel; and the account of it all."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING

from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware

from scrapyd_dist.payload import BATCH_MAX_BYTES, TooLarge, fit, hidden_by

from .codec import CannotTravel, to_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapyd_dist.cutting import Cut, Cutter
    from scrapyd_dist.payload import RequestValue

#: characters from which a single request is weighed before it is taken
LARGE = BATCH_MAX_BYTES // 4
#: reasons that are told
REASONS = 10


class Fate(str, Enum):
    """What became of a found target request. The values are the names of the account's counts."""

    OFFSITE = "offsite"
    DUPLICATE = "duplicate"
    REFUSED = "refused"  #: it cannot travel, and the producer was told not to crawl it either
    LOCAL = "local"  #: the producer crawls it itself
    SEALED = "sealed"  #: it goes to the fleet


class Capture:
    """Sorts target requests, and cuts those for the fleet into batches."""

    def __init__(self, crawler: Crawler, spider: Spider, cutter: Cutter, *, key: bytes | None, stay: str) -> None:
        self._crawler = crawler
        self._spider = spider
        self._cutter = cutter
        self._key = key
        self._stay = Fate.LOCAL if stay == "local" else Fate.REFUSED
        self._seen: set[bytes] = set()
        self._before: set[bytes] = set()  #: sealed by an earlier process, and not yet found again
        self._times: Counter[tuple[bytes, int]] = Counter()  #: of requests with dont_filter
        self._offsite: OffsiteMiddleware | None = None
        self._offsite_known = False
        self.counts: Counter[str] = Counter()  #: since they were last written down; SEALED is counted with its batch
        self.reasons: Counter[str] = Counter()  #: why requests stayed

    def remember(self, fingerprints: Iterable[bytes]) -> None:
        """What an earlier process sealed."""
        self._before.update(fingerprints)

    def take_counts(self) -> dict[str, int]:
        """The account since the last call."""
        counts, self.counts = dict(self.counts), Counter()
        return counts

    def stayed(self) -> list[str]:
        """What became of the requests that cannot travel and why, the most frequent reason first."""
        fate = "are crawled by the producer itself" if self._stay is Fate.LOCAL else "are refused, and not crawled"
        return [f"{count} target requests {fate}: {why}" for why, count in self.reasons.most_common(REASONS)]

    def due(self) -> Cut | None:
        """A batch that has waited long enough."""
        return self._cutter.due(time.monotonic())

    def rest(self) -> Cut | None:
        """The last, partial batch."""
        return self._cutter.take()

    @property
    def buffered(self) -> int:
        return len(self._cutter)

    def take(self, request: Request, shard: int) -> tuple[Fate, Cut | None]:
        """Sort one found request in: its fate, and a batch that it filled."""
        if self._is_offsite(request):
            return self._fate(Fate.OFFSITE), None
        fingerprint = self._fingerprint(request, shard)
        if fingerprint in self._seen:
            return self._fate(Fate.DUPLICATE), None
        self._seen.add(fingerprint)
        if fingerprint in self._before:
            self._before.discard(fingerprint)
            return Fate.SEALED, None  # it is in the account already
        try:
            value = self._travelling(request)
        except CannotTravel as why:
            self.reasons[str(why)] += 1
            return self._fate(self._stay), None
        return Fate.SEALED, self._cutter.add(value, fingerprint, time.monotonic())

    def _fingerprint(self, request: Request, shard: int) -> bytes:
        fingerprint = self._crawler.request_fingerprinter.fingerprint(request)
        if not request.dont_filter:
            return fingerprint
        # Wanted every time it is found. Which time it is makes it known all the same when a shard is walked again.
        self._times[fingerprint, shard] += 1
        return hashlib.sha1(fingerprint + f"{shard}:{self._times[fingerprint, shard]}".encode()).digest()  # noqa: S324 - a fingerprint, as Scrapy's

    def _fate(self, fate: Fate) -> Fate:
        self.counts[fate.value] += 1
        return fate

    def _travelling(self, request: Request) -> RequestValue:
        value = to_value(request, self._spider)
        hidden = None if self._key else hidden_by(value)
        if hidden:
            raise CannotTravel(f"it has {hidden}, and the code on the nodes carries no key to read it with")
        if len(str(value)) > LARGE:
            self._check_size(value)
        return value

    def _check_size(self, value: RequestValue) -> None:
        try:
            fit([value], key=self._key)
        except TooLarge as error:
            raise CannotTravel(f"it is too large for a job's settings ({error})") from error

    def _is_offsite(self, request: Request) -> bool:
        if not self._offsite_known:
            self._offsite = self._crawler.get_downloader_middleware(OffsiteMiddleware)
            self._offsite_known = True
        if self._offsite is None or request.dont_filter or request.meta.get("allow_offsite"):
            return False
        return not self._offsite.should_follow(request, self._spider)
