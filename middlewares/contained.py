"""Lets what a project raises that is no `Exception` cost its page, and not the crawl.

Scrapy handles each `Exception` of a project's code. With `asyncio.CancelledError` or
`GeneratorExit` the page that was in work never ends, so its crawl waits for ever;
`KeyboardInterrupt` and `SystemExit` end the process on the spot. The rule kept here: where Scrapy
calls the project's code, an `Exception` of the same name takes their place.
Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from types import CoroutineType
from typing import Any

import scrapy
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.utils import signal as signal_tools
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure


class StandIn(Exception):
    """Stands for something that is no `Exception`.

    Each is of a class that has the other one's name.
    """


def stand_in(error: BaseException) -> Exception:
    """Return an `Exception` of the same name and text."""
    kind = type(type(error).__name__, (StandIn,), {"__module__": type(error).__module__})
    stand_in_for_error = kind(str(error))
    assert isinstance(stand_in_for_error, Exception)
    return stand_in_for_error


#: how the names of files begin whose coroutines let nothing of the project's out: Scrapy's, and
#: this one
_CONTAINED_FILES = (f"{Path(scrapy.__file__).parent}/", stand_in.__code__.co_filename)


def contain_errors(crawler: Crawler) -> None:
    """Let no error of the project's code cost more than its page.

    Call it while the crawler makes its components.
    """
    tools: Any = signal_tools
    if not hasattr(tools.robustApply, "contains"):
        tools.robustApply = _contained(tools.robustApply)

    def contain() -> None:
        _contain_in_tasks()
        engine = crawler.engine
        scraper = engine.scraper
        _put_around(scraper, "call_spider_async", _with_contained_output)
        _put_around(scraper.spidermw, "_process_spider_input", _contained)
        for name in ("scrape_response", "scrape_response_async"):
            _put_around(scraper.spidermw, name, _with_contained_output)
        # Scrapy 2.13 takes care of it itself.
        if iscoroutinefunction(scraper._scrape):  # noqa: SLF001
            _put_around(scraper, "_scrape", _contained)
        downloader = engine.downloader
        for name in ("process_item", "process_item_async"):
            _put_around(scraper.itemproc, name, _contained)
        for name in ("download", "download_async"):
            _put_around(downloader.middleware, name, _contained)
        # Scrapy downloads in a task of its own, for which the middleware waits.
        handlers = getattr(downloader, "handlers", None)
        for name in ("download_request", "download_request_async"):
            _put_around(handlers, name, _contained)

    crawler.signals.connect(contain, signals.spider_opened, weak=False)


def _contain_in_tasks() -> None:
    """Let no task end the process, such as that of a coroutine callback, pipeline or handler."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # of another reactor, which this program refuses, or has no tasks
        return
    if loop.get_task_factory() is None:
        loop.set_task_factory(_make_task)


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    # Scrapy makes as many tasks for a page as CONCURRENT_ITEMS says; what its own code calls there
    # is contained.
    file = work.cr_code.co_filename if isinstance(work, CoroutineType) else ""
    if not file.startswith(_CONTAINED_FILES):
        work = _without_exit(work)
    return asyncio.Task(work, loop=loop, **options)


async def _without_exit(work: Any) -> Any:
    own = asyncio.current_task()
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        raise stand_in(error) from error
    except GeneratorExit as error:
        if not _is_running(own):  # its caller has gone, and the work is thrown away
            raise
        raise stand_in(error) from error


def _is_running(task: asyncio.Task[Any] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # the event loop has ended
        return False


def _put_around(
    owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Change this method on this instance only; older Scrapys lack some."""
    if hasattr(owner, name):
        setattr(owner, name, around(getattr(owner, name)))


def _contained(function: Callable[..., Any]) -> Callable[..., Any]:
    if iscoroutinefunction(function):
        return _contained_coroutine(function)

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            result = function(*arguments, **named)
        except Exception:
            raise
        except BaseException as error:
            raise stand_in(error) from error
        if result is None:  # as of most handlers of signals
            return None
        if isinstance(result, Deferred):
            return result.addErrback(_stand_in_of_failure)
        if isawaitable(result):
            return _awaited(result)
        return result

    call.contains = True  # type: ignore[attr-defined]  # so that it is put around once
    return call


def _contained_coroutine(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    # Each page passes some of these: a coroutine for each, and no more than that.
    @wraps(function)
    async def call(*arguments: Any, **named: Any) -> Any:
        try:
            return await function(*arguments, **named)
        except Exception:
            raise
        except BaseException as error:
            raise stand_in(error) from error

    return call


def _stand_in_of_failure(failure: Failure) -> Failure:
    error = failure.value
    if error is None or isinstance(error, Exception):
        return failure
    return Failure(stand_in(error))  # type: ignore[no-untyped-call]  # Twisted's


async def _awaited(result: Any) -> Any:
    try:
        return await result
    except Exception:
        raise
    except BaseException as error:
        raise stand_in(error) from error


def _with_contained_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """Contain a function that gives the output of a callback, and the reading of that output."""
    call_contained = _contained(function)
    if iscoroutinefunction(call_contained):

        @wraps(function)
        async def call_coroutine(*arguments: Any, **named: Any) -> Any:
            return _contained_output(await call_contained(*arguments, **named))

        return call_coroutine

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        result = call_contained(*arguments, **named)
        if isinstance(result, Deferred):
            return result.addCallback(_contained_output)
        return _output_of(result)

    return call


async def _output_of(result: Awaitable[Any]) -> Iterator[Any] | AsyncIterator[Any]:
    return _contained_output(await result)


def _contained_output(output: Any) -> Iterator[Any] | AsyncIterator[Any]:
    if isinstance(output, AsyncIterator):
        return contained_stream(output)
    return _contained_iterator(iter(output))


async def contained_start(crawler: Crawler, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield what a spider starts with, likewise.

    An engine that stops cancels what waits there: then the error itself is raised.
    """
    try:
        async for entry in contained_stream(start):
            yield entry
    except StandIn as error:
        if crawler.engine.running:
            raise
        raise error.__cause__ or error from None


async def contained_stream(output: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the same output, and raise stand-ins of what is raised in making it."""
    is_read = False  # what is raised while an entry is with the reader comes from there
    try:
        async for entry in output:
            is_read = True
            yield entry
            is_read = False
    except Exception:
        raise
    except BaseException as error:
        if is_read:
            raise
        raise stand_in(error) from error


def _contained_iterator(output: Iterator[Any]) -> Iterator[Any]:
    is_read = False
    try:
        for entry in output:
            is_read = True
            yield entry
            is_read = False
    except Exception:
        raise
    except BaseException as error:
        if is_read:
            raise
        raise stand_in(error) from error
