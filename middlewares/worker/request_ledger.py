"""What became of each request of a batch: done, gone, failed or dead; what has not ended is told, too.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import logging
from array import array
from typing import TYPE_CHECKING, Any

from scrapy.spidermiddlewares.httperror import HttpError

from ..codec import PagesUsedUp

if TYPE_CHECKING:
    from twisted.python.failure import Failure

logger = logging.getLogger(__name__)

#: 4xx that say "not now" instead of "not there"
NOT_NOW = frozenset({408, 429})


class RequestLedger:
    """What became of each request of the batch."""

    def __init__(self, urls: list[str], *, again: bool = False) -> None:
        """Nothing has ended.

        Args:
            urls: of the requests.
            again: whether some of them were made in an earlier batch, and failed there.
        """
        self._urls = urls
        self._again = again
        self._items: dict[int, array[int]] = {}  #: request -> first, end, first, end, … of its items
        self.located = True  #: whether the items are where they are counted, one behind the other
        self._done: set[int] = set()
        self._missed: dict[int, tuple[str, str]] = {}
        self._redirected: dict[int, str] = {}
        self.pages = 0
        self.items = 0
        self.rest = ("unended", "nothing was heard of it")  #: kind and reason of requests that have not ended

    def done(self, index: int) -> None:
        if index not in self._missed:
            self._done.add(index)

    def missed(self, index: int, kind: str, reason: str) -> None:
        self._done.discard(index)
        self._missed.setdefault(index, (kind, reason))

    def redirected(self, index: int, url: str) -> None:
        self._redirected[index] = url

    def item(self, index: int | None) -> None:
        """One more item was written; it came of this request, or of one that followed from it."""
        place = self.items
        self.items += 1
        if index is None:
            return
        places = self._items.get(index)
        if places is None:
            self._items[index] = array("Q", (place, place + 1))
        elif places[-1] == place:
            places[-1] += 1
        else:
            places.extend((place, place + 1))

    def lost_item(self, index: int | None, error: Exception) -> str:
        """Note an item without a JSON form: its request has failed, or else the batch has a problem."""
        reason = f"its item cannot be written as JSON: {type(error).__name__}: {str(error)[:200]}"
        logger.error(reason)
        if index is None:
            return f"An item was lost: {reason}."
        self.missed(index, "failed", reason)
        return ""

    def progress(self) -> dict[str, int]:
        return {
            "requests": len(self._urls),
            "done": len(self._done),
            "missed": len(self._missed),
            "errors": sum(kind != "gone" for kind, _ in list(self._missed.values())),  # a thread reports
            "pages": self.pages,
            "items": self.items,
        }

    def close(self) -> dict[str, Any]:
        """The account at the end; `unended` are requests that nothing was heard of."""
        kinds: dict[str, list[dict[str, str]]] = {"gone": [], "failed": [], "dead": [], "unended": []}
        for index, (kind, reason) in sorted(self._missed.items()):
            kinds[kind].append({"url": self._urls[index], "reason": reason})
        unended: list[int] = []
        for index, url in enumerate(self._urls):
            if index in self._done or index in self._missed:
                continue
            if index in self._redirected:
                reason = f"redirected to {self._redirected[index]}, which was filtered"
                kinds["gone"].append({"url": url, "reason": reason})
            else:
                kind, reason = self.rest
                kinds[kind].append({"url": url, "reason": reason})
                if kind != "gone":
                    unended.append(index)
        found = [[index, kind, self._places(index)] for index, (kind, _) in self._missed.items() if kind != "gone"]
        found += [[index, "failed", self._places(index)] for index in unended]
        return {**self.progress(), **kinds, "missed_requests": sorted(found, key=_first), "replaces": self._again}

    def _places(self, index: int) -> list[list[int]] | None:
        """Where the items of a request are: the number of the first, from 0, and how many follow without a gap."""
        places = self._items.get(index, ())
        if places and not self.located:
            return None
        return [[first, end - first] for first, end in zip(places[::2], places[1::2], strict=True)]


def _first(row: list[Any]) -> int:
    index: int = row[0]
    return index


def judge(failure: Failure) -> tuple[str, str]:
    """Whether a failed request is gone (the site said so, or it was not wanted) or failed, and why in one line."""
    error = failure.value
    if isinstance(error, PagesUsedUp):
        return "gone", str(error)
    if isinstance(error, HttpError):
        status = error.response.status
        gone = 400 <= status < 500 and status not in NOT_NOW
        return ("gone" if gone else "failed"), f"HTTP {status}"
    text = str(error).strip().splitlines()
    return "failed", f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
