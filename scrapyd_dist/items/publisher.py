"""Delivers accepted parts to a sink as they come, with a manifest, in a thread that retries.

The rule it keeps: a part is named in the manifest only when it is there as a whole, and a part that
was accepted is named in the end, whatever was killed on the way: what the manifest lacks is
delivered by the next process.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import Attempt
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.json_lines import count_items, left_out
from scrapyd_dist.items.kept_parts import is_whole, sha256_of
from scrapyd_dist.items.sink import Sink
from scrapyd_dist.payload import REPLACES
from scrapyd_dist.typed_lines import plain_copy

logger = logging.getLogger(__name__)

#: the manifest's schema
SCHEMA = 1
#: seconds before a failed delivery is tried again; twice as long after each further failure
PAUSE = 1.0
#: maximum seconds before a failed delivery is tried again
LONGEST_PAUSE = 8.0
#: least seconds between two manifests
EVERY = 1.0
#: least pause between two manifests, as a multiple of the seconds that writing the last one took
REST = 10.0
#: bytes per second of a part whose driver, as that of sftp://, does not tell how it moves on; less
#: is a standstill
SLOWEST = 1 << 17
#: seconds that the sink gets to show that it takes files
BEGIN = 120.0
#: seconds between two checks of how long nothing has moved
LOOK = 1.0


@dataclass(frozen=True, kw_only=True)
class AcceptedPart:
    """A part that is home, and is to be delivered."""

    name: str  #: its file's at the sink
    path: Path
    items: int
    attempt: Attempt | None = None  #: None: items of the producer itself


class PartPublisher:
    """Delivers the parts of one crawl to a sink.

    Call `begin`, then `start`; `add` for each accepted attempt, `finish` when there are no more,
    and `close`. Files at the sink begin with `home`, the crawl's name and the digits of its
    creation time, so that no two crawls share one. `folder` has the parts that are home.
    """

    def __init__(self, sink: Sink, *, home: str, folder: Path) -> None:
        self._sink = sink
        self._home = home
        self._folder = folder
        # Readers of a folder skip what begins with an underscore, as Spark does.
        self._manifest = f"_{home}.manifest.json"
        self.address = f"{sink.shown}/{self._manifest}"  #: of the manifest, without what is secret
        self._entries: dict[str, dict[str, Any]] = {}  #: by name, in the order of delivery
        #: delivered attempts that had failed requests, or have retried some
        self._retries: list[Attempt] = []
        self._waiting: deque[AcceptedPart] = deque()
        #: to be delivered, and not at home: on another machine, or lost
        self._away: list[AcceptedPart] = []
        self._news = threading.Event()  #: set when there may be work for the thread
        self._closed = threading.Event()
        self._complete = threading.Event()  #: set when the manifest says `complete`
        self._problem = ""  #: why the last try failed
        self._unwritten = False  #: whether the manifest lacks something that was delivered
        self._finishing = False  #: whether all that is to be delivered is known
        self._due = 0.0  #: when the next manifest may be written
        self._last_move = 0.0  #: when something was delivered, or moved on
        self._allowed = 0.0  #: seconds more that the part on its way may take in silence
        self._warn: Callable[[str], object] = logger.warning

    def begin(self, accepted: Sequence[Attempt]) -> None:
        """Read what earlier processes have delivered, and see that the sink takes files.

        Raises `ConfigError` if it does not.
        """
        too_late = TimeoutError(f"it has not answered within {BEGIN:g} seconds")
        problem: list[Exception | None] = [too_late]

        def read_and_write() -> None:
            try:
                self._read_and_write(accepted)
                problem[0] = None
            except Exception as error:  # noqa: BLE001 - raised below
                problem[0] = error

        # A daemon, as in `start`.
        thread = threading.Thread(target=read_and_write, name="sdist-deliver-begin", daemon=True)
        thread.start()
        thread.join(BEGIN)
        error = problem[0]
        if isinstance(error, OSError | ValueError):
            raise ConfigError(
                f"Items cannot be delivered to {self._sink.shown} (--deliver, DISTRIBUTED_DELIVER):"
                f" {_words(error)}. Nothing was started. Correct it and try again, or name another"
                " place."
            ) from error
        if error is not None:
            raise error

    def _read_and_write(self, accepted: Sequence[Attempt]) -> None:
        entries = _entries_in(self._sink.read(self._manifest), self._home)
        self._entries = {entry["name"]: entry for entry in entries}
        for attempt in accepted:
            self.add(attempt)
        here = deque[AcceptedPart]()
        for part in self._waiting:
            if part.path.is_file():
                here.append(part)
            else:
                self._away.append(part)
        self._waiting = here
        self._write()

    def start(self, warn: Callable[[str], object]) -> None:
        """Deliver from now on; `warn` is called when that fails, from another thread."""
        self._warn = warn
        if self._away:
            warn(
                f"{self._missing_parts()}. The crawl goes on, and its manifest does not become"
                " complete."
            )
        # A daemon: a server that never answers must not keep the process.
        threading.Thread(target=self._work, name="sdist-deliver", daemon=True).start()

    def add(self, attempt: Attempt) -> None:
        """Take in an attempt that was accepted, and whose part is home."""
        name = self._part_name(attempt)
        items = int(attempt.report.get("items") or 0)
        path = self._folder / attempt.part
        part = AcceptedPart(name=name, path=path, items=items, attempt=attempt)
        if name in self._entries or not (items and attempt.part):
            self._note_retries(part)
        else:
            self._waiting.append(part)
            self._news.set()

    def _part_name(self, attempt: Attempt) -> str:
        """Return the name of an attempt's part at the sink."""
        return f"{self._home}.b{attempt.batch}.a{attempt.number}.jl"

    def finish(self, own: Sequence[Path], patience: float) -> str:
        """Deliver the producer's own items as well; wait until the manifest says `complete`.

        Blocking. Gives what is wrong when nothing has moved for `patience` seconds; the rest is for
        the next process.
        """
        for path in own:
            self._add_own(path)
        still_away = []
        for part in self._away:
            if part.path.is_file():
                self._waiting.append(part)
            else:
                still_away.append(part)
        self._away = still_away
        self._last_move = time.monotonic()
        self._finishing = True
        self._news.set()
        while not self._complete.wait(min(LOOK, patience)):
            if self._away and not (self._waiting or self._unwritten):
                return f"{self._missing_parts()}."
            silence = time.monotonic() - self._last_move
            if self._closed.is_set() or silence >= patience + self._allowed:
                return self._undelivered()
        return ""

    def _add_own(self, path: Path) -> None:
        """Take in a file of items of the producer itself."""
        name = f"{self._home}.{path.name}"
        items = _lines_of(path)
        if items and name not in self._entries:
            self._waiting.append(AcceptedPart(name=name, path=path, items=items))

    def _undelivered(self) -> str:
        left = len(self._waiting) + len(self._away)
        what = f"{left:,} of the crawl's parts are" if left else "The manifest is"
        why = self._problem or "it does not answer"
        return f"{what} not delivered to {self._sink.shown}: {why.rstrip('.')}."

    def _missing_parts(self) -> str:
        return (
            f"{len(self._away):,} of the crawl's parts are not delivered to {self._sink.shown},"
            f" since they are not in {self._folder}: they came home to another machine, and can be"
            " delivered from there, or they are lost"
        )

    def close(self) -> None:
        """Begin no other delivery."""
        self._closed.set()
        self._news.set()

    # What follows runs in the thread.

    def _work(self) -> None:
        pause = PAUSE
        while not self._closed.is_set():
            try:
                self._deliver()
            except Exception as error:  # noqa: BLE001 - raised below
                self._warn_once(_words(error))
                self._closed.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            self._problem = ""
            pause = PAUSE
            timeout = None
            if self._unwritten:
                timeout = max(0.0, self._due - time.monotonic())
            self._news.wait(timeout)
            self._news.clear()

    def _warn_once(self, why: str) -> None:
        """Warn of the first of several failures in a row."""
        if not self._problem:
            self._warn(
                f"Items are not delivered to {self._sink.shown}: {why.rstrip('.')}. They are kept,"
                " and it is tried again; the crawl goes on."
            )
        self._problem = why

    def _deliver(self) -> None:
        """Deliver what waits, and write the manifest when it is due."""
        try:
            while self._waiting and not self._closed.is_set():
                self._put_first()
                if time.monotonic() >= self._due:
                    self._write()
        finally:
            ended = self._has_delivered_all()
            is_due = self._finishing or time.monotonic() >= self._due
            if ended or (self._unwritten and is_due):
                self._write(complete=ended)

    def _put_first(self) -> None:
        try:
            self._put(self._waiting[0])
        except Exception:
            self._waiting.rotate(-1)  # it keeps no other part from being delivered
            raise
        self._waiting.popleft()

    def _has_delivered_all(self) -> bool:
        """Say whether everything is there, and the manifest does not say so yet."""
        return self._finishing and not (self._waiting or self._away or self._complete.is_set())

    def _put(self, part: AcceptedPart) -> None:
        if part.attempt is not None and not is_whole(part.path, part.attempt.report):
            raise ValueError(f"{part.path} is not what its worker wrote")
        path = plain_copy(part.path)
        size = path.stat().st_size
        digest = sha256_of(path)
        self._allowed = size / SLOWEST
        try:
            self._sink.put(part.name, path, self._note_move)
            self._last_move = time.monotonic()
        finally:
            self._allowed = 0.0
            if path != part.path:
                path.unlink()
        self._entries[part.name] = _entry(part.name, part.items, size, digest)
        self._note_retries(part)
        self._unwritten = True

    def _note_retries(self, part: AcceptedPart) -> None:
        """Keep an attempt of which the manifest has to say what counts no more."""
        attempt = part.attempt
        if attempt is None:
            return
        if attempt.report.get(REPLACES) or attempt.report.get("missed_requests"):
            self._retries.append(attempt)
            self._unwritten = True

    def _note_move(self) -> None:
        """Note that the driver tells how the part moves on: its silence is not excused any more."""
        self._last_move = time.monotonic()
        self._allowed = 0.0

    def _write(self, *, complete: bool = False) -> None:
        began = time.monotonic()
        out = left_out(self._retries)
        replaced = {}
        for attempt in self._retries:
            if attempt.batch in out:
                replaced[self._part_name(attempt)] = out[attempt.batch]
        parts = list(self._entries.values())
        items = sum(part["items"] for part in parts)
        document = {
            "schema": SCHEMA,
            "crawl": self._home,
            "complete": complete,
            "items": items - sum(map(count_items, replaced.values())),
            "parts": parts,
            "replaced": replaced,
        }
        self._sink.write(self._manifest, json.dumps(document).encode())
        self._note_move()
        self._unwritten = False
        if complete:
            self._complete.set()
        took = self._last_move - began
        self._due = self._last_move + max(EVERY, REST * took)


def _entries_in(manifest: bytes | None, home: str) -> list[dict[str, Any]]:
    """Return the entries of the parts in a manifest; ValueError if it is not this crawl's."""
    if manifest is None:
        return []
    with suppress(ValueError, ArithmeticError, TypeError, KeyError, RecursionError):
        document = json.loads(manifest)
        if document["schema"] == SCHEMA and document["crawl"] == home:
            return [
                _entry(part["name"], part["items"], part["bytes"], part["sha256"])
                for part in document["parts"]
            ]
    raise ValueError("the manifest that is there already is not one of this crawl; move it away")


def _entry(name: str, items: int, size: int, digest: str) -> dict[str, Any]:
    return {"name": str(name), "items": int(items), "bytes": int(size), "sha256": str(digest)}


def _words(error: Exception) -> str:
    """Return what an error says, without the number of the system's."""
    if isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{place}"
    return str(error).rstrip(".") or type(error).__name__


def _lines_of(path: Path) -> int:
    lines = 0
    with path.open("rb") as file:
        for _ in file:
            lines += 1
    return lines
