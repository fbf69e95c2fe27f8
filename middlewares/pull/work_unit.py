"""Units of a pulling worker's work: a leased batch, or pages of the worker's own, until their last request has ended.

A request is open from its start in Scrapy until its page, its failure or its disappearance was noted, and an item until
it has left the pipelines. Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapyd_dist.payload import REPLACES

from ..worker.request_ledger import RequestLedger

if TYPE_CHECKING:
    from scrapyd_dist.frontier.backlog import Leased
    from scrapyd_dist.payload import RequestValue

    from ..classifier import FoundRequests
    from ..worker.part import PartFile

#: request meta: the `UnitMark` of a request that was leased, or followed from one
BATCH = "distributed_batch"
#: request meta: how often it was made again for want of a session
REPEATED = "distributed_repeated"
#: request meta: the number of the session in which it was made
SESSION = "distributed_session"
#: request meta that a callback may have passed on with all of its response's, and that is not for the next request
OURS = (BATCH, REPEATED, SESSION)
#: Scrapy signal, with `key`: nothing of this attempt is in the process any more
attempt_over = object()


class UnitMark(NamedTuple):
    """Which request this is."""

    crawl: str
    batch: int  #: 0 for pages of the worker's own
    attempt: int
    position: int | None  #: which request of the batch; None for one that followed
    serial: int  #: one for each request that was handed to Scrapy
    source: int | None = None  #: which request of the batch it is, or has followed from

    @property
    def key(self) -> tuple[int, int]:
        return self.batch, self.attempt


def mark_of(page: Any) -> UnitMark | None:
    """The mark of a request, of a response, or of a failure that Scrapy told an errback of."""
    meta = getattr(getattr(page, "request", page), "meta", None)
    return meta.get(BATCH) if meta else None


class WorkUnit:
    """Requests that belong together, with all that follows from them."""

    def __init__(self, crawl: str, batch: int, attempt: int, finds: FoundRequests) -> None:
        self.crawl = crawl
        self.key = (batch, attempt)
        self.finds = finds  #: target requests that it led to
        self.making = False  #: more of its requests are about to be made
        self.touched = False  #: a request of it may have left this process
        self._open: set[int] = set()
        self._items = 0
        self._serials = count()

    def begin(self, index: int | None = None, source: int | None = None) -> UnitMark:
        """One more request is open; one that is none of the batch's own has followed from the `source`."""
        mark = UnitMark(self.crawl, *self.key, index, next(self._serials), source if index is None else index)
        self._open.add(mark.serial)
        return mark

    def begin_again(self, mark: UnitMark) -> None:
        """It has ended, and something more comes of it."""
        self._open.add(mark.serial)

    def end(self, mark: UnitMark) -> None:
        """Its page or its failure was handled, or it is gone."""
        self.touched = True
        self._open.discard(mark.serial)

    def forget(self) -> None:
        """Scrapy has nothing of it any more: what is open was lost on the way."""
        self._open.clear()
        self._items = 0

    def item_in(self) -> None:
        """An item enters the pipelines."""
        self._items += 1

    def item_out(self) -> None:
        """An item has left them."""
        self._items = max(0, self._items - 1)

    @property
    def requests(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def busy(self) -> bool:
        """Whether a request is open, or an item in the pipelines."""
        return bool(self._open or self._items)

    @property
    def over(self) -> bool:
        return not self.busy

    def done(self, mark: UnitMark) -> None:
        """Its callback has run to the end."""

    def missed(self, mark: UnitMark, kind: str, reason: str) -> None:
        """It gave no result."""

    def redirected(self, mark: UnitMark, url: str) -> None:
        """It goes on elsewhere."""

    def page(self) -> None:
        """A response has come."""


class OwnPages(WorkUnit):
    """Pages that the worker asks for on its own account: the spider's start requests, or a login."""

    def __init__(self, crawl: str, number: int, finds: FoundRequests) -> None:
        super().__init__(crawl, 0, number, finds)
        self.making = True
        self.failed = ""  #: why the first of them that failed did

    @property
    def over(self) -> bool:
        return not self.making and super().over

    def missed(self, mark: UnitMark, kind: str, reason: str) -> None:
        self.failed = self.failed or reason


class LeasedBatch(WorkUnit):
    """A batch that this worker has a lease on."""

    def __init__(
        self, leased: Leased, crawl: str, values: list[RequestValue], finds: FoundRequests, part: PartFile
    ) -> None:
        super().__init__(crawl, leased.batch.number, leased.attempt, finds)
        self.slot = leased.batch.slot
        self._size = leased.batch.size
        self.values = values
        again = any(REPLACES in value for value in values)
        self.ledger = RequestLedger([value["url"] for value in values], again=again)
        self.part = part
        self.todo = deque(range(len(values)))  #: indices of requests that Scrapy does not have yet
        self.problem = ""  #: what makes its result useless
        self.started = time.time()

    @property
    def left(self) -> int:
        """How many of its requests never had their turn; of a batch that cannot be read, all."""
        return self._size - len(self.values) + len(self.todo)

    @property
    def over(self) -> bool:
        return not self.todo and super().over

    def done(self, mark: UnitMark) -> None:
        if mark.position is not None:
            self.ledger.done(mark.position)

    def missed(self, mark: UnitMark, kind: str, reason: str) -> None:
        if mark.position is not None:
            self.ledger.missed(mark.position, kind, reason)

    def redirected(self, mark: UnitMark, url: str) -> None:
        if mark.position is not None:
            self.ledger.redirected(mark.position, url)

    def page(self) -> None:
        self.ledger.pages += 1

    def item(self, item: Any, mark: UnitMark) -> None:
        """Write an item to the part; one that has no JSON form is lost, and the report says so."""
        try:
            self.part.add(item)
        except (TypeError, ValueError) as error:
            self.problem = self.problem or self.ledger.lost_item(mark.position, error)
        else:
            self.ledger.item(mark.source)
