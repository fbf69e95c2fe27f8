"""Uses Scrapy's engine, as a worker needs it, on every supported version of Scrapy."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import wraps
from inspect import iscoroutinefunction, isgeneratorfunction
from typing import Any

from pydispatch import dispatcher
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import CloseSpider
from scrapy.settings import BaseSettings
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import is_generator_with_return_value, load_object
from scrapy.utils.spider import iterate_spider_output
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapyd_dist.batches import FinishReason, meaning
from scrapyd_dist.errors import ConfigError

from .codec import WAITS, NotLetOut

#: Scrapy's reason of a crawl whose spider's start has failed
_START_ERROR = "start_error"


def spider_loader(settings: BaseSettings) -> Any:
    """Return what finds the project's spiders, as the settings name it."""
    return load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings)


def project_receivers(crawler: Any, signal: object) -> list[Callable[..., Any]]:
    """Return the receivers of a signal of Scrapy that are neither Scrapy's nor this program's."""
    receivers = dispatcher.liveReceivers(dispatcher.getAllReceivers(crawler, signal))
    return [receiver for receiver in receivers if _is_projects(receiver)]


def _is_projects(receiver: Callable[..., Any]) -> bool:
    owner = getattr(receiver, "__self__", None)
    holder = receiver if owner is None else type(owner)
    module = str(getattr(holder, "__module__", ""))
    return not module.startswith(("scrapy.", "scrapyd_dist."))


def read_generators(spider: Spider) -> list[Callable[..., Any]]:
    """Have Scrapy read the source of the spider's generators now.

    It remembers what it found while the returned methods live. Scrapy warns of generators that
    return a value, and reads the source of a callback for that with its first page. By then the
    code may be gone from the node: Scrapyd deletes eggs while jobs of theirs run.
    """
    kind = type(spider)
    # By the class: a property of the same name is not to be called.
    names = [name for name in dir(kind) if isgeneratorfunction(getattr(kind, name, None))]
    methods = [getattr(spider, name) for name in names]
    for method in methods:
        with suppress(Exception):  # Scrapy will say it, with the first page
            is_generator_with_return_value(method)
    return methods


async def each(output: Any) -> AsyncIterator[Any]:
    """Yield what an errback, or a method of the spider, has returned, one by one."""
    if isinstance(output, Deferred):
        output = await maybe_deferred_to_future(output)
    entries = iterate_spider_output(output)
    if isinstance(entries, Deferred):
        entries = await maybe_deferred_to_future(entries)
    async for entry in as_async_generator(entries):
        yield entry


def spider_method(spider: Any, settings: BaseSettings, setting: str) -> Callable[..., Any] | None:
    """Return the method of the spider that a setting names; None if it names none.

    Raises:
        ConfigError: the spider has no such method.
    """
    name = settings.get(setting)
    if not name:
        return None
    method: Callable[..., Any] | None = getattr(spider, str(name), None)
    if not callable(method):
        raise ConfigError(
            f"{setting} names {name!r}, and the spider {spider.name} has no method of that name."
        )
    return method


def is_seen(crawler: Crawler, request: Request) -> bool:
    """Tell whether the engine's own filter of duplicates has seen a request; from now on it has."""
    # Before Scrapy 2.19 nothing else leads to the scheduler.
    slot = crawler.engine._slot  # noqa: SLF001
    assert slot
    scheduler: Any = slot.scheduler
    return bool(scheduler.df.request_seen(request))


def origin_text(url: str) -> str:
    """Return an address up to its path: two that share it have the same scheme, host and port.

    It is as it is written; of an address without a path it is all.
    """
    return url[: url.find("/", len("https://")) + 1] or url


def share_robots_rules(crawler: Crawler) -> None:
    """Hold all requests that wait for a site's robots.txt to it; call once the engine is there.

    Since Scrapy 2.14 only the first of those that wait gets its rules, as it takes the result out
    of the Deferred that all of them have: the others are let through. A plain crawl begins a site
    with one page; a worker with a batch.
    """
    robots = crawler.get_downloader_middleware(RobotsTxtMiddleware)
    if robots is None or not iscoroutinefunction(robots.robot_parser):
        return
    # Nothing else tells that they are under way.
    parsers = robots._parsers  # noqa: SLF001
    usual_parser = robots.robot_parser

    async def robot_parser(request: Request) -> Any:
        """Return the rules of the request's site, when they are there."""
        parser = parsers.get(urlparse_cached(request).netloc)
        if not isinstance(parser, Deferred):
            return await usual_parser(request)
        own: Deferred[Any] = Deferred()

        def pass_on(rules: Any) -> Any:
            own.callback(rules)
            return rules

        parser.addCallback(pass_on)
        return await maybe_deferred_to_future(own)

    robots.robot_parser = robot_parser  # type: ignore[method-assign]  # on this instance only


def close_spider(crawler: Crawler, reason: str) -> None:
    """Finish what is under way, and make no other request."""
    engine = crawler.engine
    spider = crawler.spider
    assert spider
    if hasattr(engine, "close_spider_async"):
        from scrapy.utils.defer import deferred_from_coro

        deferred_from_coro(engine.close_spider_async(reason=reason))
    else:  # Scrapy 2.13
        engine.close_spider(spider, reason)


def watch_idle_reason(crawler: Crawler) -> Callable[[], str]:
    """Return a function that says why Scrapy would close the spider when it has nothing left.

    That is Scrapy's reason, or that of a handler. A handler that keeps the spider open makes Scrapy
    forget the reason that another one gives by `CloseSpider`.
    """
    send = crawler.signals.send_catch_log
    handlers_reason = ""

    def send_and_note(signal: Any = None, **named: Any) -> Any:
        nonlocal handlers_reason
        answers = send(signal, **named)
        if signal is signals.spider_idle:
            handlers_reason = _reason_to_close(answers)
        return answers

    def idle_reason() -> str:
        if handlers_reason:
            return handlers_reason
        # An older Scrapy has no such reason.
        if getattr(crawler.engine, "_start_error", False):
            return _START_ERROR
        return FinishReason.FINISHED.value

    setattr(crawler.signals, "send_catch_log", send_and_note)  # noqa: B010 - on this instance only
    return idle_reason


def _reason_to_close(answers: list[tuple[Any, Any]]) -> str:
    """Return the reason of the first handler that raised `CloseSpider`; "" if none did."""
    for _, answer in answers:
        if isinstance(answer, Failure) and isinstance(answer.value, CloseSpider):
            return answer.value.reason
    return ""


def finish_when_done(crawler: Crawler, is_done: Callable[[], bool], *, is_part: bool) -> None:
    """Let a process that has nothing to do close its spider as `finished`; call with an engine.

    When it is told to end, Scrapy calls that `shutdown`, which is what a spider's `closed` takes
    for the end of a crawl that was broken off. And where the process does a part of a crawl
    (`is_part`), a handler of `spider_idle` that raises `CloseSpider` gives a reason by which it
    means that the whole crawl has nothing left.
    """
    is_idle = False

    def note_idle() -> None:
        nonlocal is_idle
        is_idle = is_part
        asyncio.get_running_loop().call_soon(note_end_of_idle)

    def note_end_of_idle() -> None:
        nonlocal is_idle
        is_idle = False

    engine = crawler.engine
    name = "close_spider_async"
    if not hasattr(engine, name):  # Scrapy 2.13
        name = "close_spider"
    close = getattr(engine, name)

    @wraps(close)
    def close_spider(*arguments: Any, **options: Any) -> Any:
        reason = str(options.get("reason"))
        is_told_to_end = reason == FinishReason.SHUTDOWN.value and is_done()
        if is_told_to_end or (is_idle and meaning(reason).closes_crawl):
            options["reason"] = FinishReason.FINISHED.value
        return close(*arguments, **options)

    setattr(engine, name, close_spider)  # on this instance only
    crawler.signals.connect(note_idle, signals.spider_idle, weak=False)


def guard_downloads(crawler: Crawler, why_not: Callable[[Request], str]) -> None:
    """Call `why_not` before each request leaves, at the last moment.

    What has waited may not be wanted any more. Its answer is the reason why the request must not be
    made; empty when it may.
    """
    handlers = getattr(crawler.engine.downloader, "handlers", None)

    def guarded(download: Callable[..., Any]) -> Callable[..., Any]:
        def download_if_wanted(request: Request, *rest: Any) -> Any:
            if reason := why_not(request):
                raise NotLetOut(reason)
            return download(request, *rest)

        return download_if_wanted

    # Scrapy before 2.14 has only the second.
    for name in ("download_request_async", "download_request"):
        if hasattr(handlers, name):
            setattr(handlers, name, guarded(getattr(handlers, name)))


def call_before_errbacks(crawler: Crawler, function: Callable[[Request], object]) -> None:
    """Call a function with each request whose errback, or the lack of one, is asked for next."""
    scraper: Any = crawler.engine.scraper

    def calling(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_spider(result: Any, request: Request, *rest: Any) -> Any:
            if isinstance(result, Failure):
                function(request)
            return call(result, request, *rest)

        return call_spider

    # The first versions have only the second.
    for name in ("call_spider_async", "call_spider"):
        if hasattr(scraper, name):
            setattr(scraper, name, calling(getattr(scraper, name)))


def is_closing(crawler: Crawler) -> bool:
    """Tell whether the crawl waits for nothing but what is under way."""
    # Before Scrapy 2.19 nothing else tells.
    slot = crawler.engine._slot  # noqa: SLF001
    return slot is None or slot.closing is not None


def under_way(crawler: Crawler) -> bool:
    """Tell whether Scrapy has any request or item left.

    What the spider's start may still bring does not count.
    """
    engine = crawler.engine
    # Before Scrapy 2.19 nothing else leads to the scheduler.
    slot = engine._slot  # noqa: SLF001
    assert engine.scraper.slot
    if slot is None:
        return False
    if engine.downloader.active or not engine.scraper.slot.is_idle():
        return True
    return bool(slot.scheduler.has_pending_requests())


def pages_in_work(crawler: Crawler) -> Iterable[Request]:
    """Return the requests whose page, or failure, Scrapy scrapes now.

    That is its callback, its output, its items.
    """
    slot = crawler.engine.scraper.slot
    if slot is None:
        return ()
    return tuple(slot.active)


def is_held_up(crawler: Crawler) -> bool:
    """Tell whether nothing is fetched now, as what is next waits for its turn.

    It waits for a permit, or for a delay.
    """
    downloader = crawler.engine.downloader
    slots = downloader.slots.values()
    if any(slot.transferring for slot in slots):
        return False
    if any(slot.queue for slot in slots):
        return True
    if any(WAITS in request.meta for request in downloader.active):
        return True
    if downloader.active:
        return False
    return _has_only_pending(crawler)


def _has_only_pending(crawler: Crawler) -> bool:
    """Tell whether the scheduler has requests, and nothing is scraped."""
    # Before Scrapy 2.19 nothing else leads to the scheduler.
    slot = crawler.engine._slot  # noqa: SLF001
    scraper = crawler.engine.scraper.slot
    if slot is None or (scraper and not scraper.is_idle()):
        return False
    return bool(slot.scheduler.has_pending_requests())


def call_every(seconds: float, function: Callable[[], object]) -> Any:
    """Call a function again and again; return the loop, which `stop()` ends."""
    try:
        from scrapy.utils.asyncio import create_looping_call
    except ImportError:  # Scrapy 2.13
        from twisted.internet.task import LoopingCall

        loop: Any = LoopingCall(function)
    else:
        loop = create_looping_call(function)
    loop.start(seconds, now=False)
    return loop
