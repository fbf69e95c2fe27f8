"""How a crawl's process ends: the cause, the exit code, and `DISTRIBUTED_ON_FINISH`."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import DistError
from scrapyd_dist.progress.completion_policy import (
    CompletionPolicy,
    earlier_items,
    environment,
    is_address,
    shown,
    too_few,
    unusual,
)
from scrapyd_dist.progress.summary import SCHEMA
from scrapyd_dist.version import __version__

from ..setting_reader import SettingReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO

    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from scrapyd_dist.scheduling.job_request import JobRequest

    from .crawl_repository import CrawlRepository

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


class ExitCode:
    """The code that this process ends with, once there is one to tell."""

    def __init__(self) -> None:
        self.code = 0
        self.refusal = ""  #: why nothing was started, in words
        self._registered = False

    def set(self, code: int, *, refusal: str = "") -> None:
        """End with this code; the last call counts."""
        self.code, self.refusal = code, refusal
        if code and not self._registered:
            self._registered = True
            # scrapy.cmdline calls sys.exit(0) by then: only the very end of the process can still say otherwise.
            atexit.register(self._leave)

    def _leave(self) -> None:
        if self.code:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


#: one process has one exit code
exit_code = ExitCode()


#: seconds that the command, or the whole exchange with the address, may take
PATIENCE = 60.0


#: seconds for the connection to the address
CONNECT = 10.0


def read_wishes(settings: BaseSettings) -> CompletionPolicy:
    """What these settings ask of the end.

    Raises:
        ConfigError: a value is not of its kind.
    """
    read = SettingReader(settings).value
    return CompletionPolicy(on_finish=read("DISTRIBUTED_ON_FINISH") or "", min_items=read("DISTRIBUTED_MIN_ITEMS"))


def refusal(crawl: str | None, spider: Spider | None, error: DistError) -> dict[str, Any]:
    """The summary of a crawl that was refused before there was anything to sum up."""
    return {
        "schema": SCHEMA,
        "crawl": crawl or "",
        "spider": spider.name if spider else "",
        "state": CrawlState.REFUSED.value,
        "exit_code": error.exit_code,
        "message": str(error),
        "items": 0,
    }


async def judge_items(
    policy: CompletionPolicy, repository: CrawlRepository, spec: JobRequest, items: int
) -> tuple[list[str], str]:
    """What is to be said of the number of items: warnings, and why they are fewer than were asked for."""
    if repository.limited:  # it says nothing of the site
        return [], too_few(items, policy.min_items)
    earlier = earlier_items(repository.id, spec.args, await repository.all_crawls(), spec.spider)
    said = unusual(items, earlier)
    return [said] if said else [], too_few(items, policy.min_items)


async def tell_of_end(policy: CompletionPolicy, document: Mapping[str, Any]) -> list[str]:
    """Tell whom the person named; gives what went wrong with it."""
    if not policy.on_finish:
        return []
    work = partial(tell, policy.on_finish, document)
    wrong = await asyncio.get_running_loop().run_in_executor(None, work)
    return [wrong] if wrong else []


def tell(on_finish: str, document: Mapping[str, Any], *, patience: float = PATIENCE) -> str:
    """Run the command, or post the summary to the address. Blocking; never raises.

    Args:
        on_finish: one of the two.
        document: the summary of the crawl that has ended.
        patience: seconds until it is given up.

    Returns:
        What went wrong, in a sentence; empty where nothing did.
    """
    data = json.dumps(document).encode()
    try:
        if is_address(on_finish):
            return _post(on_finish.strip(), data, patience)
        return _run(on_finish, data, environment(document), patience)
    except Exception as error:  # noqa: BLE001 - of a crawl that has ended nothing may go wrong any more
        return f"Nobody was told of the end of the crawl (DISTRIBUTED_ON_FINISH): {type(error).__name__}."


def _run(command: str, data: bytes, variables: Mapping[str, str], patience: float) -> str:
    what = "The command to be run at the end (--on-finish)"
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as given:
        given.write(data)
        given.seek(0)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=given, stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"{what} was killed after {patience:g} seconds."
        if not code:
            return ""
        return f"{what} ended with code {code}{_last_words(said)}."


def _last_words(said: IO[bytes]) -> str:
    """The last line, ready to be put behind a sentence."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - 4 * WORDS))
    lines = [line.strip() for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f": {lines[-1][:WORDS].rstrip('.')}" if lines else ""


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what urllib3 logs of this exchange out of the crawl's log: it names the whole path."""
    thread, logger = threading.get_ident(), logging.getLogger("urllib3.connectionpool")

    def is_of_others(repository: logging.LogRecord) -> bool:
        return repository.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


def _post(address: str, data: bytes, patience: float) -> str:
    import requests

    headers = {"Content-Type": "application/json", "User-Agent": f"scrapyd-dist/{__version__}"}
    where = f"{shown(address)} could not be told of the end of the crawl (--on-finish)"
    try:
        with (
            _unlogged(),
            requests.post(
                address, data=data, headers=headers, timeout=(CONNECT, patience), allow_redirects=False, stream=True
            ) as answer,
        ):
            # What it says is not read: its code tells all, and a body might never end.
            return "" if answer.ok and not answer.is_redirect else f"{where}: it answered {answer.status_code}."
    except requests.Timeout:
        return f"{where}: it did not answer in time."
    except requests.RequestException as error:  # whose text has the address in it
        return f"{where}: {type(error).__name__}."
