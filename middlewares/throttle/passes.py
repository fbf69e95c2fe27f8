"""The permits of requests that have left the queue, and not yet for their sites.

The rule it keeps: each of them is used once, or handed back. Part of the worker half: imports Scrapy and the standard
library only.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from ..codec import AGAIN

if TYPE_CHECKING:
    from scrapy import Request

    from scrapyd_dist.throttle.values import Permit

    from .lines import Held, Line
    from .room import Room

#: the number of a pass that needs no permit, and of one whose budget of pages is used up
FREE, OVER = 0, -1
#: seconds for which a request may come and ask where its permit has gone
REMEMBERED = 600.0


def sent_back(request: Request) -> Request:
    """The request as it goes into the queue again, past the duplicate filter."""
    return request.replace(meta={**request.meta, AGAIN: request.dont_filter}, dont_filter=True)


class Pass(NamedTuple):
    """What a request leaves the queue with, in its meta."""

    key: str
    at: float  #: the moment of its permit, by the store's clock
    number: int


class _Out(NamedTuple):
    held: Held
    slot: str
    line: Line


class Passes:
    """The passes of one process."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._out: dict[int, _Out] = {}
        self._lost: dict[int, float] = {}  #: those whose permit was given up or lent, and when
        self._numbers = itertools.count(1)

    def give(self, held: Held, slot: str, line: Line) -> Pass:
        """A request of this slot leaves the queue with this permit."""
        number = next(self._numbers)
        self._out[number] = _Out(held, slot, line)
        self._room.comes(slot)
        return Pass(held.permit.key, held.permit.at, number)

    def take(self, number: int) -> Held | None:
        """The permit of a pass; None when it was used, lent or given up, or was never here."""
        out = self._out.pop(number, None)
        if out is None:
            return None
        self._room.came(out.slot, wanted=out.slot in out.line.slots)
        return out.held

    def was_lost(self, number: int) -> bool:
        """Whether this pass has lost its permit to another request, or to time; true once."""
        return self._lost.pop(number, None) is not None

    def lend(self, key: str, now: float) -> Held | None:
        """A permit of this key, good now, that counts no page; its own request has to get another one."""
        for number, (held, _, _) in self._out.items():
            if held.permit.key == key and not held.permit.page_of and held.fresh(now):
                self._lost[number] = now
                return self.take(number)
        return None

    def sweep(self, now: float) -> list[Permit]:
        """The permits that have become too old; who lost one long ago is forgotten."""
        old = [number for number, out in self._out.items() if not out.held.fresh(now)]
        self._lost = {number: since for number, since in self._lost.items() if now - since < REMEMBERED}
        self._lost.update(dict.fromkeys(old, now))
        return [held.permit for number in old if (held := self.take(number))]

    def close(self) -> list[Permit]:
        """All that were not used."""
        return [held.permit for number in list(self._out) if (held := self.take(number))]
