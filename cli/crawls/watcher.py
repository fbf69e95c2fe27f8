"""Watch a crawl by its row in the store until it ends: drawn, as lines, or as its log."""

import codecs
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from rich.console import Console, RenderableType
from rich.live import Live

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import INTERRUPTED, DistError, NoCrawl, StillRuns, StoreEmptied
from scrapyd_dist.escapes import colourless
from scrapyd_dist.fleet.crawl_files import LOG, crawl_folder
from scrapyd_dist.fleet.live_crawls import lives
from scrapyd_dist.fleet.missing import missing_rows
from scrapyd_dist.progress.crawl_outcome import ended_in_words
from scrapyd_dist.progress.crawl_words import state_of
from scrapyd_dist.progress.summary_document import summary_of
from scrapyd_dist.store import Store
from scrapyd_dist.time_spans import describe_span

from ..options import option, span
from ..output import (
    LINE_EVERY,
    Output,
    ask_yes_or_no,
    can_ask,
    complain,
    on_terminal,
    put_text,
    say,
)
from . import wording
from .crawl_picture import crawl_picture
from .producer_process import interrupt, last_words

#: seconds between two looks at the store
LOOK = 0.25
#: seconds in which a second Ctrl-C asks whether to stop the crawl
SECOND = 3.0
#: seconds between two looks at the process table, which are expensive
ALIVE_EVERY = 2.0
#: seconds for the process of an ended crawl to exit; it may still run --on-finish
LEAVE = 75.0
#: bytes of the producer's log that are shown at once
PIECE = 64 * 1024
#: the panel of the options of watching in the help
WATCHING = "Watching"
#: shows how a crawl, or the document of a fleet, stands at a moment of the monotonic clock
Show = Callable[[Any, float], object]
View = AbstractContextManager[Show]


@contextmanager
def interruptible_pause(
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Callable[[float], None]]:
    """Give a function that waits so many seconds, and raises KeyboardInterrupt if Ctrl-C came.

    That is then, or since the last wait. A second Ctrl-C breaks off whatever is under way: that may
    hang.
    """
    came = False
    pausing = False

    def note_interrupt(_number: int, _frame: FrameType | None) -> None:
        """Note a Ctrl-C; break off where one came before, or in a wait."""
        nonlocal came
        if pausing or came:
            raise KeyboardInterrupt
        came = True

    def pause(seconds: float) -> None:
        """Wait so many seconds; break off where Ctrl-C came."""
        nonlocal pausing
        pausing = True
        try:
            if came:
                raise KeyboardInterrupt
            sleep(seconds)
        finally:
            pausing = False

    before = signal.signal(signal.SIGINT, note_interrupt)
    try:
        yield pause
    finally:
        signal.signal(signal.SIGINT, before)


class ProducerDied(DistError):
    """The producer's process is gone, and the crawl is not at its end."""


class PlainView:
    """A line now and then, and at each change of state; STARTING is shown only when it lasts."""

    def __init__(self) -> None:
        self._last_line: tuple[float, str] | None = None  #: when the last line was, and the state
        self._said_once: set[object] = set()  #: keys of what is said once

    def show(self, subject: Crawl, now: float) -> None:
        """Say what is new of a crawl; now: by the monotonic clock."""
        state = state_of(summary_of(subject))
        if self._last_line is None:
            self._last_line = (now, CrawlState.STARTING.value)
        last, last_state = self._last_line
        for note in wording.notes_at_start(subject.summary):
            self._say_once(note, note)
        if subject.state.ended or (state == last_state and now - last < LINE_EVERY):
            return
        self._last_line = (now, state)
        say(wording.progress_line(subject))
        stragglers = subject.summary.get("stragglers") or ()
        lines = wording.lagging(subject.summary)
        for straggler, line in zip(stragglers, lines, strict=True):
            self._say_once(("job", straggler.get("job")), f"  {line}")

    def _say_once(self, key: object, line: str) -> None:
        if key not in self._said_once:
            self._said_once.add(key)
            say(line)


class LogView:
    """The producer's log as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0  #: bytes that were shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, _subject: Crawl, _now: float) -> None:
        """Print what has come to the log since the last call."""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            while piece := file.read(PIECE):
                self._at += len(piece)
                sys.stderr.write(colourless(self._decoder.decode(piece)))
            sys.stderr.flush()


@contextmanager
def live_view(
    draw: Callable[[Any, int], RenderableType], console: Console | None = None
) -> Iterator[Show]:
    """Draw in place, on standard error; draw: makes the picture of a subject for so many lines."""
    console = console or Console(stderr=True)
    with Live(console=console, refresh_per_second=4, auto_refresh=False, transient=True) as live:
        yield lambda subject, _now: live.update(draw(subject, console.height), refresh=True)


@dataclass(frozen=True, kw_only=True)
class WatchOptions(Output):
    """How a crawl is watched and summed up; a field is a parameter of the command."""

    timeout: Annotated[
        float | None,
        span(
            "--timeout",
            "Watch no longer than this (90, 30m, 2h); the crawl goes on. Exit code 124.",
            panel=WATCHING,
        ),
    ] = None
    no_progress: Annotated[bool, option("Show no progress.", panel=WATCHING)] = False
    quiet: Annotated[bool, option("Say nothing but errors.", "--quiet", "-q", panel=WATCHING)] = (
        False
    )
    verbose: Annotated[
        bool, option("Show the producer's log as it grows.", "--verbose", "-v", panel=WATCHING)
    ] = False

    @property
    def silent(self) -> bool:
        """Return whether no progress is shown."""
        return self.quiet or self.no_progress

    def deadline_from_now(self) -> float:
        """Return when a watch ends that begins now, by `time.monotonic`; infinite for never."""
        if self.timeout is None:
            return float("inf")
        return time.monotonic() + self.timeout

    def view(self, root: Path, crawl: str) -> View:
        """Return what shows how a crawl stands: its log, a picture, lines, or nothing."""
        if self.verbose:
            return nullcontext(LogView(crawl_folder(root, crawl) / LOG).show)
        if self.silent:
            return nullcontext(lambda _crawl, _now: None)
        if on_terminal():
            return live_view(crawl_picture)
        return nullcontext(PlainView().show)


def watch(
    root: Path,
    store: Store,
    crawl: str,
    watched: WatchOptions,
    process: subprocess.Popen[bytes] | None = None,
) -> int:
    """Watch a crawl and sum it up at its end; process: its own, where this one started it.

    Gives the exit code: the crawl's own, or 130 when Ctrl-C ended the watch. `ProducerDied` has the
    end of its log.
    """
    try:
        row = until_ended(root, store, crawl, watched.view(root, crawl), watched.timeout, process)
    except KeyboardInterrupt:
        if not _wants_stop(crawl):
            return INTERRUPTED
        store.want(crawl, "cancel")
        interrupt(root, store.crawl(crawl))
        say("Stopping: what is captured is sent first.")
        try:
            row = until_ended(root, store, crawl, watched.view(root, crawl), None, process)
        except KeyboardInterrupt:
            say(f"Left. Come back with: sdist watch {crawl}")
            return INTERRUPTED
    if process is not None:
        # The process exits after --on-finish, whose result it writes into the row.
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(LEAVE)
        row = _seen_row(root, store, crawl)
    return sum_up(root, store, row, watched)


def until_ended(
    root: Path,
    store: Store,
    crawl: str,
    view: View,
    timeout: float | None,
    process: subprocess.Popen[bytes] | None,
) -> Crawl:
    """Show a crawl until its end, and return its row; StillRuns after so many seconds.

    process: its own, where this one started it.
    """
    sleep = time.sleep if process is None else partial(_until_exit, process)
    with view as show, interruptible_pause(sleep) as pause:
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        for row in watch_row(root, store, crawl, process):
            show(row, time.monotonic())
            if row.state.ended:
                break
            if time.monotonic() >= deadline:
                raise StillRuns(
                    f"The crawl {crawl} still runs after {describe_span(timeout or 0)} "
                    "(--timeout), and goes on without this command. Come back with: "
                    f"sdist watch {crawl}"
                )
            pause(LOOK)
        return row


def watch_row(
    root: Path, store: Store, crawl: str, process: subprocess.Popen[bytes] | None = None
) -> Iterator[Crawl]:
    """Yield a crawl's row, as often as it is asked for.

    ProducerDied if its process is gone before its end.
    """
    look_at_process = time.monotonic()
    row = store.crawl(crawl)
    while True:
        yield row
        now = time.monotonic()
        if process is not None or now >= look_at_process:
            look_at_process = now + ALIVE_EVERY
            alive = process.poll() is None if process is not None else lives(row)
            # It may have come to its end between the two looks.
            if not alive and not _seen_row(root, store, crawl).state.ended:
                raise ProducerDied(describe_death(root, row))
        row = _seen_row(root, store, crawl)


def _seen_row(root: Path, store: Store, crawl: str) -> Crawl:
    """Return the row of a crawl that was there a moment ago."""
    try:
        return store.crawl(crawl)
    except NoCrawl:
        folder = crawl_folder(root, crawl)
        raise StoreEmptied(
            f"The store has lost the crawl {crawl} with all that was in it, so nothing can go on. "
            f"Items that have come home are in {folder / PARTS}; {folder / LOG} tells more."
        ) from None


def _until_exit(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait so many seconds, but not beyond the end of the process."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def describe_death(root: Path, row: Crawl) -> str:
    """Return why a crawl does not go on, and how it can."""
    end = last_words(root, row.id)
    log = crawl_folder(root, row.id) / LOG
    words = f"{log} ends with:\n{end}\n" if end else f"Its log {log} is empty. "
    return (
        f"The process of the crawl {row.id} (pid {row.pid}) is gone before the crawl was done. "
        f"{words}Nothing that was sealed is lost; go on with: sdist resume {row.id}"
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
            return ask_yes_or_no(f"\nStop the crawl {crawl}?")
        except KeyboardInterrupt:
            say()
    return False


def sum_up(root: Path, store: Store, row: Crawl, watched: WatchOptions) -> int:
    """Say what came of a crawl that ended; gives its exit code."""
    code = row.exit_code if row.exit_code is not None else 1
    shown = watched.document(summary_of(row))
    if not row.summary or watched.quiet or shown:  # without a summary it never started
        if code and (row.message or watched.quiet):
            complain(describe_bad_end(row, code))
        return code
    for line in wording.closing(row, missing_rows(store, root, row)):
        put_text(line)
    return code


def describe_bad_end(row: Crawl, code: int) -> str:
    """Return why a crawl ended with this exit code, which is not 0, in a sentence."""
    if row.message:
        return row.message
    ended = ended_in_words(summary_of(row))
    if f"exit code {code}" not in ended:
        ended += f"; exit code {code}"
    return f"The {row.kind} {row.id}: {ended}."
