"""What this program writes into meta is out of it while the project's code has the page, and there for Scrapy."""

import gc
from collections.abc import AsyncIterator
from typing import Any

from rig.scheduling import run
from scrapy import Request, Spider
from scrapyd_dist.middlewares.codec import WatchedDict
from scrapyd_dist.middlewares.own_meta import hide_marks, read_mark, show_marks, without_marks

NAMES = ("mark", "other")


def marked() -> Request:
    return Request("http://web/", meta={"mark": 1, "own": "x"})


def test_a_hidden_mark_is_read_and_comes_back() -> None:
    request = marked()
    hide_marks(request, NAMES)
    assert request.meta == {"own": "x"}
    assert [read_mark(request, name) for name in ("mark", "other", "own")] == [1, None, "x"]
    show_marks(request)
    assert request.meta == {"mark": 1, "own": "x"}
    assert read_mark(Request("http://web/"), "mark", 5) == 5


def test_a_new_mark_is_not_replaced_by_the_old_one() -> None:
    request = marked()
    hide_marks(request, NAMES)
    request.meta["mark"] = 2
    show_marks(request)
    assert request.meta["mark"] == 2


class Shop(Spider):
    name = "shop"

    def note(self, failure: Any) -> None: ...


def test_an_errback_of_ours_is_hidden_or_has_the_name_of_the_own_one() -> None:
    spider = Shop()
    request = marked()
    request.errback = WatchedDict(repr, None)
    hide_marks(request, NAMES)
    assert request.to_dict(spider=spider)["errback"] is None
    show_marks(request)
    assert isinstance(request.errback, WatchedDict)
    hide_marks(request, NAMES)
    request.errback = repr
    show_marks(request)
    assert request.errback is repr
    request.errback = WatchedDict(repr, WatchedDict(repr, spider.note))
    hide_marks(request, NAMES)
    assert request.to_dict(spider=spider)["errback"] == "note"


def collect(request: Request, *, marks_anew: bool = False) -> tuple[list[Any], list[Any]]:
    """What the project's code sees of the mark, and what the code beyond does."""
    inside: list[Any] = []
    beyond: list[Any] = []

    async def outputs() -> AsyncIterator[int]:
        for number in range(2):
            inside.append(request.meta.get("mark"))
            yield number

    async def read() -> None:
        async for _ in without_marks(outputs(), request, NAMES):
            beyond.append(request.meta.get("mark"))
            if marks_anew:
                request.meta["mark"] = 7

    run(read())
    return inside, beyond


def test_marks_are_there_for_the_code_beyond_and_when_all_is_read() -> None:
    request = marked()
    hide_marks(request, NAMES)
    assert collect(request) == ([None, None], [1, 1])
    assert request.meta["mark"] == 1


def test_a_request_that_was_marked_anew_keeps_its_mark_on_the_way() -> None:
    request = marked()
    hide_marks(request, NAMES)
    assert collect(request, marks_anew=True) == ([None, 7], [1, 7])


def test_nothing_is_kept_of_a_request_that_is_gone() -> None:
    from scrapyd_dist.middlewares import own_meta

    request = marked()
    hide_marks(request, NAMES)
    before = len(own_meta._hidden)
    del request
    gc.collect()
    assert len(own_meta._hidden) == before - 1
