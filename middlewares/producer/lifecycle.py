"""Keep the life of a process that crawls, fills or consumes: begin, clock, tasks, exit code."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from scrapy import signals as scrapy_signals
from scrapy.crawler import Crawler

from scrapyd_dist.errors import INTERRUPTED, DistError, as_store_error

logger = logging.getLogger(__name__)

#: signals that ask a process to end
ASKING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)
#: loggers that tell of one page, or of a handler whose failure stops nothing
_HARMLESS = (
    "scrapy.core.scraper",
    "scrapy.utils.signal",
    "scrapy.downloadermiddlewares",
    "scrapyd_dist",
)
#: what Scrapy's engine says when it is closed before it was open: the error before that one is the
#: reason
_NOT_OPEN = ("Engine slot not assigned", "Spider not opened")
#: seconds between two looks at the clock
TICK = 0.5
#: characters of an exception's text that are shown
WORDS = 300


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Describes an exception without the frames that it would keep alive."""

    kind: str  #: the name of its class
    text: str
    #: the exit code of an error of ours, whose text is a whole paragraph
    refusal: int | None = None

    @classmethod
    def from_exception(cls, error: BaseException) -> Fault:
        """Return the fault that an exception tells of, or the exception before it."""
        while str(error) in _NOT_OPEN and error.__context__ is not None:
            error = error.__context__
        refusal = error.exit_code if isinstance(error, DistError) else None
        return cls(kind=type(error).__name__, text=str(error), refusal=refusal)

    def __str__(self) -> str:
        text = " ".join(self.text.split())[:WORDS]
        return f"{self.kind}: {text}" if text else self.kind


class Faults(logging.Handler):
    """Remembers the last exception in the log that can have ended the process.

    Scrapy tells of it nowhere else.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last: Fault | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the exception of a record, if it has one that can end the process."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not record.name.startswith(_HARMLESS):
            self.last = Fault.from_exception(error)


class Signals:
    """Notices whether the process was asked to end."""

    came = False

    def look_out(self) -> None:
        """Notice signals, and leave what they do as it is.

        To be called when Scrapy's own handlers are there.
        """
        for number in ASKING:
            before = signal.getsignal(number)
            if callable(before):
                with suppress(ValueError):  # not in the main thread, where no signal arrives either
                    signal.signal(number, partial(self._notice, before))

    def _notice(self, before: Callable[..., Any], number: int, frame: Any) -> Any:
        self.came = True
        return before(number, frame)


#: one process has one log, and gets one signal
faults = Faults()
signals = Signals()


def ending(reason: str, where: str) -> tuple[str, int]:
    """Return why the spider was closed before the crawl was done, and the exit code.

    The first is a sentence or two. `reason` is Scrapy's word for it, and `where` the log that has
    the whole traceback.
    """
    if signals.came:
        return "The crawl was interrupted by a signal, such as that of Ctrl-C.", INTERRUPTED
    if reason != "shutdown":
        return f"The spider was closed before the crawl was done, by a setting: {reason}.", 3
    why = (
        f"The engine was stopped from within this process, not by a signal; {where} may tell more."
    )
    if faults.last is not None:
        why = f"The crawl broke off by a fault: {faults.last}. The whole traceback is in {where}."
    return why, 1


class ProcessExit:
    """Lets this process end with a code, once there is one."""

    code = 0
    refusal = ""  #: why nothing was started, in words

    def set(self, code: int, *, refusal: str = "") -> None:
        """End with this code; the last call counts."""
        if code and not self.code:
            # scrapy.cmdline calls sys.exit(0) by then: only the very end of the process can still
            # say otherwise.
            atexit.register(self._leave)
        self.code = code
        self.refusal = refusal

    def _leave(self) -> None:
        if self.code:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


#: one process has one end
process_exit = ProcessExit()


class TaskGroup:
    """Runs tasks with names, one of each at most, and others, whose end can be waited for.

    `failed` is called with the first error of a task.
    """

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        self._failed = failed
        self._named: dict[str, asyncio.Task[Any]] = {}
        self._others: set[asyncio.Task[Any]] = set()
        self.fault: BaseException | None = None  #: the first error of a task

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Return the task of that name; it is made when there has been none."""
        if name not in self._named:
            self._named[name] = self._new_task(work())
        return self._named[name]

    async def cancel(self, name: str) -> None:
        """End the task of that name, if there is one."""
        if name in self._named:
            self._named[name].cancel()
            await asyncio.gather(self._named[name], return_exceptions=True)

    def add(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start one more task without a name."""
        task = self._new_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def settle(self) -> None:
        """Wait for all tasks without a name; raises the first error that any task has had."""
        while self._others:
            await asyncio.gather(*self._others)
        if self.fault is not None:
            raise self.fault

    def _new_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._notice)
        return task

    def _notice(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self.fault is None:
            self.fault = error
            self._failed(error)


WorkT = TypeVar("WorkT", bound="Lifecycle")


class Lifecycle(ABC):
    """Lives the life of one process: a clock ticks beside its work, and it is closed once.

    The clock ticks each `every` seconds.

    It is made when everything is checked and open; `begin` does that for processes of Scrapy.
    """

    def __init__(self, every: float = TICK) -> None:
        self.tasks = TaskGroup(self.failed)
        self._every = every
        self._over = asyncio.Event()

    @abstractmethod
    async def tick(self) -> None:
        """Do the periodic work."""

    @abstractmethod
    async def finish(self, reason: str) -> None:
        """End the work, and close what is open; Scrapy closes the spider for this `reason`."""

    def failed(self, error: BaseException) -> None:
        """Log the error of the first task that has failed."""
        known = as_store_error(error)
        is_ours = not isinstance(known, DistError)
        logger.error("The crawl cannot go on: %s", known, exc_info=error if is_ours else None)

    def run_clock(self) -> None:
        """Let the clock tick from now on."""
        self.tasks.start("clock", self._clock)

    async def stop_clock(self) -> None:
        """Wait for the tick under way; there is no other one."""
        self._over.set()
        await asyncio.gather(self.tasks.start("clock", self._clock), return_exceptions=True)

    async def close(self, reason: str) -> None:
        """Finish, once, however often it is called."""
        await asyncio.shield(self.tasks.start("finish", partial(self.finish, reason)))

    async def _clock(self) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), self._every)
            if self._over.is_set():
                return
            await self.tick()


class LifecycleMiddleware(Generic[WorkT]):
    """Begins the work of its process as a spider middleware, and closes it with the spider."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._run: WorkT | None = None  #: once it has begun
        crawler.signals.connect(self._closed, scrapy_signals.spider_closed)
        # Again: a signal during a normal close abandons that handler.
        crawler.signals.connect(self._closed, scrapy_signals.engine_stopped)

    @property
    def run(self) -> WorkT:
        """Return the work of this process, which must have begun."""
        assert self._run is not None, "only a process that has begun makes requests"
        return self._run

    async def _closed(self, reason: str = "shutdown") -> None:
        if self._run is not None:
            await self._run.close(reason)


async def begin(
    start: Callable[[], Awaitable[WorkT]],
    refused: Callable[[DistError], Awaitable[None]] | None = None,
) -> WorkT | None:
    """Start the work of this process and its clock; `start` checks and opens everything.

    None when the process may not begin: the log and the exit code say why, and `refused` is called
    with the reason.
    """
    signals.look_out()
    logging.getLogger().addHandler(faults)
    try:
        work = await start()
    except DistError as error:
        refusal = error
    except Exception as error:
        logger.exception("The process cannot begin")
        refusal = DistError(f"scrapyd-dist itself failed: {type(error).__name__}: {error}.")
    else:
        work.run_clock()
        return work
    logger.error("%s", refusal)
    process_exit.set(refusal.exit_code, refusal=str(refusal))
    if refused is not None:
        await refused(refusal)
    return None
