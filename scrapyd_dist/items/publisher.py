"""Delivers accepted parts to a sink as they come, with a manifest, in a thread of its own; what fails is tried again.

The rule it keeps: a part is named in the manifest only when it is there as a whole, and a part that was accepted is
named in the end, whatever was killed on the way: what the manifest lacks is delivered by the next process.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import Attempt
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.json_lines import AGAIN, left_out, number
from scrapyd_dist.items.kept_parts import is_whole
from scrapyd_dist.items.merging import sha256_of
from scrapyd_dist.items.sink import Sink
from scrapyd_dist.typed_lines import plain_copy

logger = logging.getLogger(__name__)

#: the manifest's schema
SCHEMA = 1
#: seconds before a failed delivery is tried again; twice as long after each further failure, up to the second number
PAUSE, LONGEST_PAUSE = 1.0, 8.0
#: least seconds between two manifests, and least pause as a multiple of the seconds that writing the last one took
EVERY, REST = 1.0, 10.0
#: bytes per second of a part whose driver, as that of sftp://, does not tell how it moves on; less is a standstill
SLOWEST = 1 << 17
#: seconds that the sink gets to show that it takes files
BEGIN = 120.0
#: seconds between two looks at how long nothing has moved
LOOK = 1.0


@dataclass(frozen=True, kw_only=True)
class AcceptedPart:
    """A part that is home, and is to be delivered."""

    name: str  #: its file's at the sink
    path: Path
    items: int
    attempt: Attempt | None = None  #: None: items of the producer itself


class PartPublisher:
    """Call `begin`, then `start`; `add` for each accepted attempt, `finish` when there are no more, and `close`.

    Files at the sink begin with `home`, the crawl's name and the digits of its creation time, so that no two crawls
    share one. `folder` has the parts that are home.
    """

    def __init__(self, sink: Sink, *, home: str, folder: Path) -> None:
        self._sink, self._home, self._folder = sink, home, folder
        self._manifest = (
            f"_{home}.manifest.json"  # readers of a folder skip what begins so, as Spark does
        )
        self.address = f"{sink.shown}/{self._manifest}"  #: of the manifest, without what is secret
        self._entries: dict[str, dict[str, Any]] = {}  #: by name, in the order of delivery
        self._retries: list[
            Attempt
        ] = []  #: delivered attempts that had failed requests, or have retried some
        self._waiting: deque[AcceptedPart] = deque()
        self._away: list[
            AcceptedPart
        ] = []  #: to be delivered, and not at home: on another machine, or lost
        self._news, self._over, self._complete = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._problem = ""  #: why the last try failed
        self._unwritten = self._last = False
        self._due = self._heard = (
            0.0  #: when the next manifest may be written, and when something was delivered
        )
        self._allowed = 0.0  #: seconds more that the part on its way may take in silence
        self._warn: Callable[[str], object] = logger.warning

    def begin(self, accepted: Sequence[Attempt]) -> None:
        """Read what earlier processes have delivered, and see that the sink takes files; ConfigError if not."""
        problem: list[Exception | None] = [
            TimeoutError(f"it has not answered within {BEGIN:g} seconds")
        ]

        def begin() -> None:
            try:
                self._begin(accepted)
                problem[0] = None
            except Exception as error:
                problem[0] = error

        # A daemon, as in `start`.
        thread = threading.Thread(target=begin, name="sdist-deliver-begin", daemon=True)
        thread.start()
        thread.join(BEGIN)
        error = problem[0]
        if isinstance(error, OSError | ValueError):
            raise ConfigError(
                f"Items cannot be delivered to {self._sink.shown} (--deliver, DISTRIBUTED_DELIVER): {_words(error)}."
                " Nothing was started. Correct it and try again, or name another place."
            ) from error
        if error is not None:
            raise error

    def _begin(self, accepted: Sequence[Attempt]) -> None:
        entries = _entries_in(self._sink.read(self._manifest), self._home)
        self._entries = {entry["name"]: entry for entry in entries}
        for attempt in accepted:
            self.add(attempt)
        self._away = [part for part in self._waiting if not part.path.is_file()]
        self._waiting = deque(part for part in self._waiting if part not in self._away)
        self._write()

    def start(self, warn: Callable[[str], object]) -> None:
        """Deliver from now on; `warn` is called when that fails, from another thread."""
        self._warn = warn
        if self._away:
            warn(f"{self._lacks()}. The crawl goes on, and its manifest does not become complete.")
        # A daemon: a server that never answers must not keep the process.
        threading.Thread(target=self._work, name="sdist-deliver", daemon=True).start()

    def add(self, attempt: Attempt) -> None:
        """This attempt was accepted, and its part is home."""
        name = f"{self._home}.b{attempt.batch}.a{attempt.number}.jl"
        items = int(attempt.report.get("items") or 0)
        part = AcceptedPart(
            name=name, path=self._folder / attempt.part, items=items, attempt=attempt
        )
        if name in self._entries or not (items and attempt.part):
            self._note(part)
        else:
            self._waiting.append(part)
            self._news.set()

    def finish(self, own: Sequence[Path], patience: float) -> str:
        """Deliver the producer's own items as well, and wait until all is there: then the manifest says `complete`.

        Blocking. Gives what is wrong when nothing has moved for `patience` seconds; the rest is for the next process.
        """
        for path in own:
            name, items = f"{self._home}.{path.name}", _lines_of(path)
            if items and name not in self._entries:
                self._waiting.append(AcceptedPart(name=name, path=path, items=items))
        self._waiting += [part for part in self._away if part.path.is_file()]
        self._away = [part for part in self._away if not part.path.is_file()]
        self._heard, self._last = time.monotonic(), True
        self._news.set()
        while not self._complete.wait(min(LOOK, patience)):
            if self._away and not (self._waiting or self._unwritten):
                return f"{self._lacks()}."
            if self._over.is_set() or time.monotonic() - self._heard >= patience + self._allowed:
                left, why = (
                    len(self._waiting) + len(self._away),
                    self._problem or "it does not answer",
                )
                what = f"{left:,} of the crawl's parts are" if left else "The manifest is"
                return f"{what} not delivered to {self._sink.shown}: {why.rstrip('.')}."
        return ""

    def _lacks(self) -> str:
        return (
            f"{len(self._away):,} of the crawl's parts are not delivered to {self._sink.shown}, since they are not in"
            f" {self._folder}: they came home to another machine, and can be delivered from there, or they are lost"
        )

    def close(self) -> None:
        """Begin no other delivery."""
        self._over.set()
        self._news.set()

    # in the thread

    def _work(self) -> None:
        pause = PAUSE
        while not self._over.is_set():
            try:
                self._deliver()
            except Exception as error:
                self._failed(_words(error))
                self._over.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            self._problem, pause = "", PAUSE
            self._news.wait(max(0.0, self._due - time.monotonic()) if self._unwritten else None)
            self._news.clear()

    def _failed(self, why: str) -> None:
        if not self._problem:
            self._warn(
                f"Items are not delivered to {self._sink.shown}: {why.rstrip('.')}. They are kept, and it is tried"
                " again; the crawl goes on."
            )
        self._problem = why

    def _deliver(self) -> None:
        """Deliver what waits, and write the manifest when it is due."""
        try:
            while self._waiting and not self._over.is_set():
                try:
                    self._put(self._waiting[0])
                except Exception:
                    self._waiting.rotate(-1)  # it keeps no other part from being delivered
                    raise
                self._waiting.popleft()
                if time.monotonic() >= self._due:
                    self._write()
        finally:
            ended = self._last and not (self._waiting or self._away or self._complete.is_set())
            if ended or (self._unwritten and (self._last or time.monotonic() >= self._due)):
                self._write(complete=ended)

    def _put(self, part: AcceptedPart) -> None:
        if part.attempt is not None and not is_whole(part.path, part.attempt.report):
            raise ValueError(f"{part.path} is not what its worker wrote")
        path = plain_copy(part.path)
        size, digest = path.stat().st_size, sha256_of(path)
        self._allowed = size / SLOWEST
        try:
            self._sink.put(part.name, path, self._hear)
            self._heard = time.monotonic()
        finally:
            self._allowed = 0.0
            if path != part.path:
                path.unlink()
        self._entries[part.name] = _entry(part.name, part.items, size, digest)
        self._note(part)
        self._unwritten = True

    def _note(self, part: AcceptedPart) -> None:
        attempt = part.attempt
        if attempt is not None and (
            attempt.report.get(AGAIN) or attempt.report.get("missed_requests")
        ):
            self._retries.append(attempt)
            self._unwritten = True

    def _hear(self) -> None:
        self._heard, self._allowed = time.monotonic(), 0.0

    def _write(self, *, complete: bool = False) -> None:
        began = time.monotonic()
        out = left_out(self._retries)
        replaced = {
            f"{self._home}.b{a.batch}.a{a.number}.jl": out[a.batch]
            for a in self._retries
            if a.batch in out
        }
        parts = list(self._entries.values())
        document = {
            "schema": SCHEMA,
            "crawl": self._home,
            "complete": complete,
            "items": sum(part["items"] for part in parts) - sum(map(number, replaced.values())),
            "parts": parts,
            "replaced": replaced,
        }
        self._sink.write(self._manifest, json.dumps(document).encode())
        self._hear()
        self._unwritten = False
        if complete:
            self._complete.set()
        self._due = self._heard + max(EVERY, REST * (self._heard - began))


def _entries_in(manifest: bytes | None, home: str) -> list[dict[str, Any]]:
    """The parts that a manifest names; ValueError if it is not this crawl's."""
    if manifest is None:
        return []
    try:
        document = json.loads(manifest)
        mine = document["schema"] == SCHEMA and document["crawl"] == home
        entries = [
            _entry(one["name"], one["items"], one["bytes"], one["sha256"])
            for one in document["parts"]
        ]
    except (ValueError, ArithmeticError, TypeError, KeyError, RecursionError):
        mine = False
    if not mine:
        raise ValueError(
            "the manifest that is there already is not one of this crawl; move it away"
        )
    return entries


def _entry(name: str, items: int, size: int, digest: str) -> dict[str, Any]:
    return {"name": str(name), "items": int(items), "bytes": int(size), "sha256": str(digest)}


def _words(error: Exception) -> str:
    """What an error says, without the number of the system's."""
    said = isinstance(error, OSError) and error.strerror
    place = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
    return f"{said}{place}" if said else str(error).rstrip(".") or type(error).__name__


def _lines_of(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)
