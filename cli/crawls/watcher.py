"""Watches a crawl by its row in the store until it ends or Ctrl-C is pressed."""

from __future__ import annotations

import codecs
import json
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import DistError
from scrapyd_dist.progress.summary import told

from ..output import ask, can_ask, colourless, complain, on_terminal, put, put_json, say
from ..project_store import existing_store
from . import wording
from .live_view import LiveView
from .producer_process import crawl_folder, interrupt, last_words, lives

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import FrameType

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.store import Store


class CtrlC:
    """Records SIGINT."""

    def __init__(self) -> None:
        self._came = self._pausing = False

    def take(self, _number: int, _frame: FrameType | None) -> None:
        """The handler. A second one breaks off whatever is under way: that may hang."""
        if self._pausing or self._came:
            raise KeyboardInterrupt
        self._came = True

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            KeyboardInterrupt: Ctrl-C came, now or since the last pause.
        """
        self._pausing = True
        try:
            if self._came:
                raise KeyboardInterrupt
            time.sleep(seconds)
        finally:
            self._pausing = False


@contextmanager
def looked_out_for() -> Iterator[CtrlC]:
    """Within this block SIGINT becomes a KeyboardInterrupt of `CtrlC.pause`."""
    found = CtrlC()
    before = signal.signal(signal.SIGINT, found.take)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)


#: seconds between two looks at the store
LOOK = 0.25
#: seconds between two plain lines
LINE_EVERY = 30.0
#: seconds in which a second Ctrl-C asks whether to stop the crawl
SECOND = 3.0
#: seconds between two looks at the process table, which are expensive
ALIVE_EVERY = 2.0
#: seconds for the process of an ended crawl to exit; it may still run --on-finish
LEAVE = 75.0
#: bytes of the producer's log that are shown at once
PIECE = 64 * 1024


class ProducerDied(DistError):
    """The producer's process is gone, and the crawl is not at its end."""


class StillRuns(DistError):
    """The watch was to last no longer."""

    exit_code: ClassVar[int] = 124


class View(Protocol):
    """What shows a crawl that runs."""

    def show(self, crawl: Crawl, now: float) -> None: ...

    def close(self) -> None: ...


class NoView:
    """Shows nothing."""

    def show(self, crawl: Crawl, now: float) -> None: ...

    def close(self) -> None: ...


class PlainView:
    """A line now and then, and at each change of state. A start is told of only when it drags on."""

    def __init__(self, every: float = LINE_EVERY) -> None:
        self._every = every
        self._said: tuple[float, str] | None = None
        self._slow: set[object] = set()
        self._code: set[str] = set()

    def show(self, crawl: Crawl, now: float) -> None:
        here = wording.state_of(told(crawl))
        last, state = self._said = self._said or (now, CrawlState.STARTING.value)
        self._tell_code(crawl.summary)
        if crawl.state.ended or (here == state and now - last < self._every):
            return
        self._said = (now, here)
        say(wording.progress_line(crawl))
        self._name_slow(crawl.summary)

    def _tell_code(self, summary: Mapping[str, Any]) -> None:
        """Which code runs, where that may not be what is expected: once."""
        for note in map(str, summary.get("code") or ()):
            if note not in self._code:
                self._code.add(note)
                say(note)

    def _name_slow(self, summary: Mapping[str, Any]) -> None:
        """Each batch that lags behind is told of once."""
        for one, line in zip(summary.get("stragglers") or (), wording.lagging(summary), strict=True):
            if one.get("job") not in self._slow:
                self._slow.add(one.get("job"))
                say(f"  {line}")

    def close(self) -> None: ...


class LogView:
    """The producer's log as it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, crawl: Crawl, now: float) -> None:  # noqa: ARG002 - the log says it all
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            while piece := file.read(PIECE):
                self._at += len(piece)
                sys.stderr.write(colourless(self._decoder.decode(piece)))
            sys.stderr.flush()

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Display:
    """How a crawl is watched and summed up."""

    as_json: bool = False
    progress: bool = True
    quiet: bool = False
    verbose: bool = False
    timeout: float | None = None  #: seconds

    def view(self, root: Path, crawl: str) -> View:
        if self.verbose:
            return LogView(crawl_folder(root, crawl) / "producer.log")
        if self.quiet or not self.progress:
            return NoView()
        if on_terminal():
            return LiveView()
        return PlainView()


def watch(root: Path, crawl: str, manner: Display, process: subprocess.Popen[bytes] | None = None) -> int:
    """Watch a crawl and sum it up at its end.

    Args:
        root: the project's folder.
        crawl: its id.
        manner: how.
        process: its process, where this one started it.

    Returns:
        The exit code: the crawl's own, or 130 when Ctrl-C ended the watch.

    Raises:
        ProducerDied: with the end of its log.
        StillRuns: after the time-out.
    """
    with closing(existing_store(root)) as store:
        eye = Watcher(root=root, store=store, crawl=crawl, process=process)
        try:
            row = eye.until_ended(manner.view(root, crawl), manner.timeout)
        except KeyboardInterrupt:
            if not _wants_stop(crawl):
                return 130
            interrupt(root, store.crawl(crawl))
            say("Stopping: what is captured is sent first.")
            try:
                row = eye.until_ended(manner.view(root, crawl), None)
            except KeyboardInterrupt:
                say(f"Left. Come back with: sdist watch {crawl}")
                return 130
    if process is not None:
        row = _when_left(root, row, process)
    return sum_up(root, row, manner)


def _when_left(root: Path, row: Crawl, process: subprocess.Popen[bytes]) -> Crawl:
    """Wait until the crawl's process has exited, and return the crawl with the result of --on-finish."""
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(LEAVE)
    with closing(existing_store(root)) as store:
        return store.crawl(row.id)


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """One crawl, looked at again and again."""

    root: Path
    store: Store
    crawl: str
    process: subprocess.Popen[bytes] | None = None

    def until_ended(self, view: View, timeout: float | None) -> Crawl:
        """The crawl at its end."""
        with closing(view), looked_out_for() as ctrl_c:
            deadline = time.monotonic() + timeout if timeout is not None else float("inf")
            look_at_process = time.monotonic()
            while True:
                row, now = self.store.crawl(self.crawl), time.monotonic()
                view.show(row, now)
                if row.state.ended:
                    return row
                if self.process is not None or now >= look_at_process:
                    look_at_process = now + ALIVE_EVERY
                    self._check_alive(row)
                if now >= deadline:
                    raise StillRuns(_still_runs(self.crawl, timeout or 0))
                ctrl_c.pause(LOOK)

    def _check_alive(self, row: Crawl) -> None:
        alive = self.process.poll() is None if self.process is not None else lives(row)
        # It may have come to its end between the two looks.
        if not alive and not self.store.crawl(self.crawl).state.ended:
            raise ProducerDied(died(self.root, row))


def died(root: Path, row: Crawl) -> str:
    """Why a crawl does not go on, and how it can."""
    words_ = last_words(root, row.id)
    log = crawl_folder(root, row.id) / "producer.log"
    said = f"{log} ends with:\n{words_}\n" if words_ else f"Its log {log} is empty. "
    return (
        f"The process of the crawl {row.id} (pid {row.pid}) is gone before the crawl was done. {said}"
        f"Nothing that was sealed is lost; go on with: sdist resume {row.id}"
    )


def _still_runs(crawl: str, timeout: float) -> str:
    return (
        f"The crawl {crawl} still runs after {wording.clock(timeout)} (--timeout), and goes on without this command. "
        f"Come back with: sdist watch {crawl}"
    )


def _wants_stop(crawl: str) -> bool:
    """After Ctrl-C: return whether a second one came and the question was answered with yes."""
    say(f"\nThe crawl {crawl} goes on without this command. Come back with: sdist watch {crawl}")
    if not can_ask():
        return False
    try:
        say(f"Press Ctrl-C again within {SECOND:g} seconds to stop the crawl itself.")
        time.sleep(SECOND)
    except KeyboardInterrupt:
        try:
            return ask(f"\nStop the crawl {crawl}?")
        except KeyboardInterrupt:
            say()
    return False


def sum_up(root: Path, row: Crawl, manner: Display) -> int:
    """Say what came of a crawl that ended; gives its exit code."""
    code = row.exit_code if row.exit_code is not None else 1
    if manner.as_json:
        put_json(told(row))
    never_started = not row.summary
    if never_started or manner.quiet or manner.as_json:
        if row.message and code:
            complain(row.message)
        return code
    for line in wording.closing(row, misses_of(root, row.id)):
        put(line)
    return code


def misses_of(root: Path, crawl: str) -> Iterator[dict[str, Any]]:
    """The rows of the list of misses that can be read."""
    with suppress(OSError), (crawl_folder(root, crawl) / "misses.jsonl").open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row


def alive_state(row: Crawl) -> str:
    """The state of a crawl in a word; `died` when no process stands behind it any more.

    A paused crawl keeps its state here, which scripts read; `wording.state_of` says `paused`.
    """
    return row.state.value if row.state.ended or lives(row) else "died"


def shown_state(row: Crawl) -> str:
    """The same for people: `paused` of one that rests."""
    state = alive_state(row)
    return wording.state_of(told(row)) if state == row.state.value else state
