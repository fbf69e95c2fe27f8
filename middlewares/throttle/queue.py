"""The scheduler's queue of a throttled crawl: it passes over requests that may not leave yet.

The rule it keeps: a request that waits for its permit waits here, and holds nothing that another one needs. Part of the
worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.pqueues import DownloaderAwarePriorityQueue, _path_safe

from scrapyd_dist.frontier.slotting import site_of

from .gate import Gate
from .lines import Kind
from .passes import PERMIT

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from .lines import Line


class Lane(NamedTuple):
    """Requests that differ in nothing but their priority: of one kind, and of one slot of the downloader."""

    slot: str
    kind: Kind

    @property
    def name(self) -> str:
        """What Scrapy's own queue calls it, so that the two can go on with each other's files; else as JSON."""
        if self.kind == Kind(site_of(f"http://{self.slot}")):
            return self.slot
        return json.dumps([self.slot, *self.kind])

    @classmethod
    def named(cls, name: str) -> Lane:
        """The lane of this name."""
        if name.startswith("["):
            with suppress(ValueError, TypeError):
                slot, domain, address, pages = json.loads(name)
                return cls(slot, Kind(domain, address, pages))
        return cls(name, Kind(site_of(f"http://{name}")))


class ThrottledQueue(DownloaderAwarePriorityQueue):
    """Gives the next request that may leave, of the domain with the fewest under way; None where all have to wait."""

    def __init__(self, crawler: Crawler, *args: Any, **kwargs: Any) -> None:
        super().__init__(crawler, *args, **kwargs)
        self._gate = Gate.of(crawler)
        self._lanes: dict[Line, dict[str, Lane]] = {}
        self._size = 0
        for name, queue in list(self.pqueues.items()):  # what an earlier process has left
            if len(queue):
                self._entered(Lane.named(name), name, len(queue))
            else:
                self.pqueues.pop(name).close()

    def push(self, request: Request) -> None:
        self._gate.forget(request)
        request.meta.pop(PERMIT, None)  # its own, or one that was copied with the meta of a page before
        lane = Lane(self._downloader_interface.get_slot_key(request), self._gate.kind_of(request))
        name = lane.name
        is_new = name not in self.pqueues
        if is_new:
            self.pqueues[name] = self.pqfactory(name)
        try:
            self.pqueues[name].push(request)
        except BaseException:  # a request that has no form on a disk
            if is_new:
                self.pqueues.pop(name).close()
            raise
        self._entered(lane, name, 1)

    def _entered(self, lane: Lane, name: str, number: int) -> None:
        self._size += number
        line = self._gate.enter(lane.kind, lane.slot, number)
        self._lanes.setdefault(line, {})[name] = lane

    def pop(self) -> Request | None:
        chosen = self._choose() if self._size else None
        if chosen is None:
            return None
        line, name = chosen
        queue = self.pqueues[name]
        request = queue.pop()
        self._size -= 1
        lane = self._lanes[line][name]
        if not len(queue):
            self._close_lane(line, name)
        self._gate.leave(line, lane.slot, request)
        return request

    def _choose(self) -> tuple[Line, str] | None:
        """The first lane, in turn, of those that have the fewest requests under way."""
        best, fewest = None, 0
        for line in self._gate.ready():
            for name, lane in self._lanes.get(line, {}).items():
                if not self._gate.has_room(line, lane.slot):
                    continue
                active = self._gate.room.active(lane.slot)
                if best is None or active < fewest:
                    best, fewest = (line, name), active
                if not active:
                    return best
        return best

    def _close_lane(self, line: Line, name: str) -> None:
        self.pqueues.pop(name).close()
        del self._lanes[line][name]
        if not self._lanes[line]:
            del self._lanes[line]
        if self.key:
            with suppress(OSError):  # its files may be there still
                Path(self.key, _path_safe(name)).rmdir()

    def peek(self) -> Request | None:
        chosen = self._choose() if self._size else None
        return self.pqueues[chosen[1]].peek() if chosen is not None else None

    def close(self) -> dict[str, list[int]]:
        self._lanes.clear()
        self._size = 0
        return super().close()

    def __len__(self) -> int:
        return self._size
