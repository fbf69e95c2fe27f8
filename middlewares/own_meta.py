"""Keeps what this program writes into a request, meta and errback, from the project's code.

Scrapy passes meta on wherever it makes a request from another one, so marks are kept there. While
a callback has its page they are kept here: it may put all of its meta into an item, or make a dict
of its request. Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Request

from .codec import WatchedDict, own_errback
from .engine_compat import each

_hidden: WeakKeyDictionary[Request, dict[str, Any]] = WeakKeyDictionary()
#: our errbacks of requests that have none of the project's
_errbacks: WeakKeyDictionary[Request, WatchedDict] = WeakKeyDictionary()


def hide_marks(request: Request | None, names: Collection[str]) -> None:
    """Take the marks of these names out of the request, until `show_marks`.

    An errback of ours goes as well if the request has no own one. It has to be back when a
    middleware refuses the page before the callback: call `show_marks` before each errback.
    """
    if request is None:
        return
    meta = request.meta
    marks = {name: meta.pop(name) for name in names if name in meta}
    if marks:
        _hidden[request] = marks
    errback = request.errback
    if isinstance(errback, WatchedDict) and own_errback(request) is None:
        _errbacks[request] = errback
        request.errback = None


def show_marks(request: Request | None) -> None:
    """Put back what `hide_marks` has taken, unless the request has something new there."""
    if request is None:
        return
    for name, mark in _hidden.pop(request, {}).items():
        request.meta.setdefault(name, mark)
    errback = _errbacks.pop(request, None)
    if errback is not None and request.errback is None:
        request.errback = errback


async def without_marks(
    outputs: AsyncIterator[Any], request: Request | None, names: Sequence[str]
) -> AsyncIterator[Any]:
    """Yield what the project's code makes of a page or a failure; the marks are hidden from it.

    They are in the request's meta whenever the code beyond has its turn: it may make the request
    again. The first of the `names` tells one marking from another.
    """
    mark = None if request is None else read_mark(request, names[0])
    try:
        async for output in outputs:
            show_marks(request)
            yield output
            # Code that yields this very request has had it marked anew, and it may be on its way.
            if request is not None and read_mark(request, names[0]) == mark:
                hide_marks(request, names)
    finally:
        show_marks(request)


def each_without_marks(
    output: Any, request: Request | None, names: Sequence[str]
) -> AsyncIterator[Any]:
    """Yield what an errback has returned; our marks are hidden from it meanwhile."""

    async def hidden() -> AsyncIterator[Any]:
        hide_marks(request, names)
        async for result in each(output):
            yield result

    return without_marks(hidden(), request, names)


def read_mark(request: Request, name: str, default: Any = None) -> Any:
    """Return a mark of the request, hidden or not."""
    if name in request.meta:
        return request.meta[name]
    if not _hidden:
        return default
    return _hidden.get(request, {}).get(name, default)
