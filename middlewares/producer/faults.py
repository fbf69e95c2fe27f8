"""Why a crawl's process ends before its time: a signal, an order of the project, or a fault; told apart, in words."""

from __future__ import annotations

import logging
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import DistError

if TYPE_CHECKING:
    from collections.abc import Callable

#: signals that ask a process to end
ASKING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
#: loggers that tell of one page, or of a handler whose failure stops nothing
_HARMLESS = ("scrapy.core.scraper", "scrapy.utils.signal", "scrapy.downloadermiddlewares", "scrapyd_dist")
#: what Scrapy's engine says when it is closed before it was open: the error before that one is the reason
_NOT_OPEN = ("Engine slot not assigned", "Spider not opened")
#: characters of an exception's text that are told
WORDS = 300


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An exception, without the frames that it would keep alive."""

    kind: str
    text: str
    refusal: int | None = None  #: the exit code of an error of ours, whose text is a whole paragraph

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        while str(error) in _NOT_OPEN and error.__context__ is not None:
            error = error.__context__
        return cls(
            kind=type(error).__name__,
            text=str(error),
            refusal=error.exit_code if isinstance(error, DistError) else None,
        )

    def __str__(self) -> str:
        text = " ".join(self.text.split())[:WORDS]
        return f"{self.kind}: {text}" if text else self.kind


class Faults(logging.Handler):
    """Remembers the last exception in the log that can have ended the process: Scrapy tells of it nowhere else."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last: Fault | None = None

    def listen(self) -> None:
        """From now on; twice is as good as once."""
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember it."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not record.name.startswith(_HARMLESS):
            self.last = Fault.of(error)


class Signals:
    """Whether the process was asked to end."""

    def __init__(self) -> None:
        self.came = False
        self._before: dict[int, Any] = {}

    def look_out(self) -> None:
        """Notice signals, and leave what they do as it is; to be called when Scrapy's own handlers are there."""
        for number in ASKING:
            before = signal.getsignal(number)
            if self._before.get(number) is None and callable(before):
                self._before[number] = before
                with suppress(ValueError):  # not in the main thread, where no signal arrives either
                    signal.signal(number, self._noticing(before))

    def _noticing(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def notice(number: int, frame: Any) -> Any:
            self.came = True
            return before(number, frame)

        return notice


#: one process has one log, and gets one signal
faults = Faults()
signals = Signals()


def ending(reason: str, where: str) -> tuple[str, int]:
    """Why the spider was closed before the crawl was done, in a sentence or two, and the exit code.

    Args:
        reason: Scrapy's word for it.
        where: the log that has the whole traceback.
    """
    if signals.came:
        return f"The crawl was interrupted ({reason}).", 130
    if reason != "shutdown":
        return f"The spider was closed before the crawl was done, by a setting or by CloseSpider: {reason}.", 3
    if faults.last is not None:
        return f"The crawl broke off by a fault: {faults.last}. The whole traceback is in {where}.", 1
    return f"The engine was stopped from within this process, not by a signal; {where} may tell more.", 1
