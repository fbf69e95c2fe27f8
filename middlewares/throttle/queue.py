"""Gives the scheduler of a throttled crawl a queue that passes over requests that have to wait.

A request that waits for its permit waits here, and holds nothing that another one needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue, _path_safe

from scrapyd_dist.frontier.slots import site_of

from ..codec import PERMIT
from .domain_queues import DomainQueue, QueueKey
from .gate import Gate
from .throttle_client import PermitQueue


def lane_name(slot: str, kind: QueueKey) -> str:
    """Return the name of a lane.

    A lane has the requests of one slot of the downloader and one domain queue, which differ in
    priority only. Its name is what Scrapy's own queue calls it, so that the two can go on with each
    other's files; else it is JSON.
    """
    if kind == QueueKey(site_of(f"http://{slot}")):
        return slot
    return json.dumps([slot, *kind])


def lane_of(name: str) -> tuple[str, QueueKey]:
    """Return the downloader's slot and the domain queue of the lane with this name."""
    if name.startswith("["):
        with suppress(ValueError, TypeError):
            slot, domain, address, pages = json.loads(name)
            return slot, QueueKey(domain, address, pages)
    return name, QueueKey(site_of(f"http://{name}"))


class ThrottledQueue(PermitQueue, DownloaderAwarePriorityQueue):
    """Gives the next request that may leave, of the domain with the fewest under way.

    It gives None where all have to wait.
    """

    def __init__(self, crawler: Crawler, *args: Any, **kwargs: Any) -> None:
        super().__init__(crawler, *args, **kwargs)
        self._gate = Gate.for_crawler(crawler)
        #: the downloader's slots of its lanes, by their names
        self._slots: dict[DomainQueue, dict[str, str]] = {}
        self._size = 0  #: requests in all lanes
        self._count_lanes()

    def _count_lanes(self) -> None:
        """Count what an earlier process has left, or the queue that was here before."""
        for name, queue in list(self.pqueues.items()):
            if len(queue):
                slot, kind = lane_of(name)
                self._enter(name, slot, kind, len(queue))
            else:
                self.pqueues.pop(name).close()

    def take_over(self, own: DownloaderAwarePriorityQueue | ScrapyPriorityQueue) -> None:
        """Take all that is in a queue of Scrapy's.

        It keeps its order, as far as that is one of a site's requests.
        """
        if isinstance(own, DownloaderAwarePriorityQueue):
            self.pqueues = own.pqueues
            own.pqueues = {}
            self._count_lanes()
            return
        requests = list(iter(own.pop, None))
        for request in reversed(requests):  # the last one in is the first one out
            self.push(request)

    def return_to(self, own: ScrapyPriorityQueue) -> None:
        """Put all that is left into a queue of Scrapy's."""
        for queue in self.pqueues.values():
            requests = list(iter(queue.pop, None))
            for request in reversed(requests):
                own.push(request)

    def push(self, request: Request) -> None:
        """Put a request into its lane, where it waits for its permit."""
        self._gate.forget(request)
        # Its own permit, or one that was copied with the meta of a page before.
        request.meta.pop(PERMIT, None)
        slot = self._downloader_interface.get_slot_key(request)
        kind = self._gate.queue_key(request)
        name = lane_name(slot, kind)
        is_new = name not in self.pqueues
        if is_new:
            self.pqueues[name] = self.pqfactory(name)
        try:
            self.pqueues[name].push(request)
        except BaseException:  # a request that has no form on a disk
            if is_new:
                self.pqueues.pop(name).close()
            raise
        self._enter(name, slot, kind, 1)

    def _enter(self, name: str, slot: str, kind: QueueKey, number: int) -> None:
        self._size += number
        domain = self._gate.queues.enter(kind, slot, number)
        self._slots.setdefault(domain, {})[name] = slot

    def pop(self) -> Request | None:
        """Take out the next request that may leave; None where there is none."""
        if not self._size:
            return None
        chosen = self._choose()
        if chosen is None:
            return None
        domain, name = chosen
        queue = self.pqueues[name]
        request = queue.pop()
        self._size -= 1
        slot = self._slots[domain][name]
        if not len(queue):
            self._close_lane(domain, name)
        self._gate.send(domain, slot, request)
        return request

    def _choose(self) -> tuple[DomainQueue, str] | None:
        """Return the first lane, in turn, of those that have the fewest requests under way.

        None where no request may leave.
        """
        best = None
        fewest = 0
        for domain in self._gate.queues.ready():
            for name, slot in self._slots.get(domain, {}).items():
                if not self._gate.queues.has_room(domain, slot):
                    continue
                active = self._gate.capacity.active(slot)
                if best is None or active < fewest:
                    best = (domain, name)
                    fewest = active
                if not active:
                    return best
        return best

    def _close_lane(self, domain: DomainQueue, name: str) -> None:
        self.pqueues.pop(name).close()
        del self._slots[domain][name]
        if not self._slots[domain]:
            del self._slots[domain]
        if self.key:
            with suppress(OSError):  # its files may be there still
                Path(self.key, _path_safe(name)).rmdir()

    def peek(self) -> Request | None:
        """Return the next request that may leave, and leave it here; None where there is none."""
        if not self._size:
            return None
        chosen = self._choose()
        if chosen is None:
            return None
        _, name = chosen
        return self.pqueues[name].peek()

    def close(self) -> dict[str, list[int]]:
        """Close all lanes; return the priorities that are left, by lane."""
        self._slots.clear()
        self._size = 0
        return super().close()

    def __len__(self) -> int:
        return self._size


class HeedingQueue(PermitQueue):
    """Is Scrapy's own queue until the store has a rule, and the throttled one from then on.

    Until then its methods are those of Scrapy's queue themselves: a crawl without rules pays
    nothing here.
    """

    own: ClassVar[Any] = DownloaderAwarePriorityQueue
    push: Callable[[Request], None]
    pop: Callable[[], Request | None]
    peek: Callable[[], Request | None]

    def __init__(
        self,
        crawler: Crawler,
        downstream_queue_cls: Any,
        key: str,
        startprios: Any = None,
        *,
        start_queue_cls: Any = None,
    ) -> None:
        self._crawler = crawler
        self._lane_class = downstream_queue_cls  #: of the queues below this one
        self._start_class = start_queue_cls  #: likewise, of start requests
        self.key = key  #: the folder of its files; "" without one
        self._own = self.own(
            crawler, downstream_queue_cls, key, startprios or (), start_queue_cls=start_queue_cls
        )
        self._throttled: ThrottledQueue | None = None
        self._use(self._own)
        Gate.for_crawler(crawler).sleeping.add(self)

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> HeedingQueue:
        """Make the queue of this crawler, with Scrapy's other arguments."""
        return cls(crawler, *args, **kwargs)

    def _use(self, queue: Any) -> None:
        self._now = queue
        self.push = queue.push
        self.pop = queue.pop
        self.peek = queue.peek

    def wake(self) -> None:
        """Let what is here wait for its permits from now on, if it does not already."""
        if self._throttled is not None:
            return
        self._throttled = ThrottledQueue(
            self._crawler, self._lane_class, self.key, start_queue_cls=self._start_class
        )
        self._throttled.take_over(self._own)
        self._use(self._throttled)

    def close(self) -> Any:
        """Close the queue; return what Scrapy's own queue returns."""
        if self._throttled is not None and isinstance(self._own, ScrapyPriorityQueue):
            if self.key:  # the next process reads the files of Scrapy's own queue
                self._throttled.return_to(self._own)
            self._throttled.close()
            return self._own.close()
        return self._now.close()

    def __len__(self) -> int:
        return len(self._now)


class HeedingPlainQueue(HeedingQueue):
    """Does the same in the place of the queue that knows no sites."""

    own = ScrapyPriorityQueue
