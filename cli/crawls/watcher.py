"""Watches a crawl by its row in the store until it ends or Ctrl-C is pressed."""

import codecs
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, ClassVar, Optional

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.errors import DistError
from scrapyd_dist.progress import told
from scrapyd_dist.store import Store

from ..options import in_panel, span
from ..output import LINE_EVERY, Json, ask, can_ask, colourless, complain, on_terminal, put, put_json, say
from . import wording
from .live_view import View, crawl_picture, live_view
from .producer_process import crawl_folder, interrupt, last_words, lives


@contextmanager
def looked_out_for(sleep: Callable[[float], None] = time.sleep) -> Iterator[Callable[[float], None]]:
    """Gives a pause of so many seconds that raises KeyboardInterrupt if Ctrl-C came, then or since the last one.

    A second Ctrl-C breaks off whatever is under way: that may hang.
    """
    came = pausing = False

    def take(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if pausing or came:
            raise KeyboardInterrupt
        came = True

    def pause(seconds: float) -> None:
        nonlocal pausing
        pausing = True
        try:
            if came:
                raise KeyboardInterrupt
            sleep(seconds)
        finally:
            pausing = False

    before = signal.signal(signal.SIGINT, take)
    try:
        yield pause
    finally:
        signal.signal(signal.SIGINT, before)


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


class ProducerDied(DistError):
    """The producer's process is gone, and the crawl is not at its end."""


class StillRuns(DistError):
    """The watch was to last no longer."""

    exit_code: ClassVar[int] = 124


class PlainView:
    """A line now and then, and at each change of state; STARTING is shown only when it lasts long."""

    def __init__(self) -> None:
        self._said: tuple[float, str] | None = None
        self._once: set[object] = set()

    def show(self, subject: Crawl, now: float) -> None:
        here = wording.state_of(told(subject))
        last, state = self._said = self._said or (now, CrawlState.STARTING.value)
        for note in map(str, subject.summary.get("code") or ()):
            self._say_once(note, note)
        if subject.state.ended or (here == state and now - last < LINE_EVERY):
            return
        self._said = (now, here)
        say(wording.progress_line(subject))
        for one, line in zip(subject.summary.get("stragglers") or (), wording.lagging(subject.summary), strict=True):
            self._say_once(("job", one.get("job")), f"  {line}")

    def _say_once(self, key: object, line: str) -> None:
        if key not in self._once:
            self._once.add(key)
            say(line)


class LogView:
    """The producer's log as it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, subject: Crawl, now: float) -> None:  # noqa: ARG002 - the log says it all
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            while piece := file.read(PIECE):
                self._at += len(piece)
                sys.stderr.write(colourless(self._decoder.decode(piece)))
            sys.stderr.flush()


#: the panel of these options in the help
WATCHING = "Watching"


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How a crawl is watched and summed up; a field is a parameter of the command."""

    timeout: Annotated[
        Optional[float],
        span(
            "--timeout", "Watch no longer than this (90, 30m, 2h); the crawl goes on. Exit code 124.",
            rich_help_panel=WATCHING,
        ),
    ] = None  # fmt: skip
    as_json: Json = False
    no_progress: Annotated[bool, in_panel(WATCHING, "Show no progress.", "--no-progress")] = False
    quiet: Annotated[bool, in_panel(WATCHING, "Say nothing but errors.", "--quiet", "-q")] = False
    verbose: Annotated[bool, in_panel(WATCHING, "Show the producer's log as it grows.", "--verbose", "-v")] = False

    @property
    def silent(self) -> bool:
        return self.quiet or self.no_progress

    def view(self, root: Path, crawl: str) -> View:
        if self.verbose:
            return nullcontext(LogView(crawl_folder(root, crawl) / "producer.log").show)
        if self.silent:
            return nullcontext(lambda _crawl, _now: None)
        return live_view(crawl_picture) if on_terminal() else nullcontext(PlainView().show)


def watch(
    root: Path, store: Store, crawl: str, watched: WatchOptions, process: subprocess.Popen[bytes] | None = None
) -> int:
    """Watch a crawl and sum it up at its end; process: its own, where this one started it.

    Gives the exit code: the crawl's own, or 130 when Ctrl-C ended the watch. `ProducerDied` has the end of its log.
    """
    try:
        row = until_ended(root, store, crawl, watched.view(root, crawl), watched.timeout, process)
    except KeyboardInterrupt:
        if not _wants_stop(crawl):
            return 130
        interrupt(root, store.crawl(crawl))
        say("Stopping: what is captured is sent first.")
        try:
            row = until_ended(root, store, crawl, watched.view(root, crawl), None, process)
        except KeyboardInterrupt:
            say(f"Left. Come back with: sdist watch {crawl}")
            return 130
    if process is not None:
        # The process exits after --on-finish, whose result it writes into the row.
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(LEAVE)
        row = store.crawl(crawl)
    return sum_up(root, row, watched)


def until_ended(
    root: Path, store: Store, crawl: str, view: View, timeout: float | None, process: subprocess.Popen[bytes] | None
) -> Crawl:
    sleep = time.sleep if process is None else partial(_until_exit, process)
    with view as show, looked_out_for(sleep) as pause:
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        for row in looks(root, store, crawl, process):
            show(row, time.monotonic())
            if row.state.ended:
                break
            if time.monotonic() >= deadline:
                raise StillRuns(
                    f"The crawl {crawl} still runs after {wording.clock(timeout or 0)} (--timeout), and goes on without"
                    f" this command. Come back with: sdist watch {crawl}"
                )
            pause(LOOK)
        return row


def looks(root: Path, store: Store, crawl: str, process: subprocess.Popen[bytes] | None = None) -> Iterator[Crawl]:
    """A crawl's row, as often as it is asked for; ProducerDied if its process is gone before its end."""
    look_at_process = time.monotonic()
    while True:
        row = store.crawl(crawl)
        yield row
        now = time.monotonic()
        if process is not None or now >= look_at_process:
            look_at_process = now + ALIVE_EVERY
            alive = process.poll() is None if process is not None else lives(row)
            # It may have come to its end between the two looks.
            if not alive and not store.crawl(crawl).state.ended:
                raise ProducerDied(died(root, row))


def _until_exit(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait so many seconds, but not beyond the end of the process."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def died(root: Path, row: Crawl) -> str:
    """Why a crawl does not go on, and how it can."""
    end, log = last_words(root, row.id), crawl_folder(root, row.id) / "producer.log"
    said = f"{log} ends with:\n{end}\n" if end else f"Its log {log} is empty. "
    return (
        f"The process of the crawl {row.id} (pid {row.pid}) is gone before the crawl was done. {said}"
        f"Nothing that was sealed is lost; go on with: sdist resume {row.id}"
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


def sum_up(root: Path, row: Crawl, watched: WatchOptions) -> int:
    """Say what came of a crawl that ended; gives its exit code."""
    code = row.exit_code if row.exit_code is not None else 1
    if watched.as_json:
        put_json(told(row))
    if not row.summary or watched.quiet or watched.as_json:  # without a summary it never started
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

    A paused crawl keeps its state here, which scripts read; people see `wording.state_of`.
    """
    return row.state.value if row.state.ended or lives(row) else "died"
