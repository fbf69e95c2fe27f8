"""Reads items from JSON lines, one at a time, without those of retried requests and duplicates.

Invariants: a line that is not a complete item is counted and never passed on; an item is left out
only if its request had failed and the attempt that retried it is accepted, or as a duplicate if
that was asked for. Memory use does not depend on the number of items.
"""

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from scrapyd_dist.batches import Attempt
from scrapyd_dist.payload import REPLACES
from scrapyd_dist.typed_lines import TYPED, plain_line

#: runs of items in a part or feed, in order: (index of the first item, count)
Runs = list[tuple[int, int]]
#: bytes of a key's digest; the chance of a collision among 1e9 items is below 1e-20
_DIGEST = 16
_encoded = json.JSONEncoder(sort_keys=True).encode


def places(report: Mapping[str, Any]) -> dict[int, Runs | None]:
    """Return the index of each failed request in its batch -> the runs of its items.

    None stands for unknown runs.
    """
    found: dict[int, Runs | None] = {}
    for place, _, runs in report.get("missed_requests") or ():
        if runs is None:
            found[place] = None
        else:
            found[place] = [(first, count) for first, count in runs]
    return found


def left_out(accepted: Iterable[Attempt]) -> dict[int, Runs]:
    """Return batch -> runs of items to leave out of its accepted attempt.

    `accepted` are all accepted attempts of a crawl.
    """
    attempts = {attempt.batch: attempt for attempt in accepted}
    again: dict[int, set[int]] = {}
    for attempt in attempts.values():
        for batch, place in attempt.report.get(REPLACES) or ():
            again.setdefault(batch, set()).add(place)
    found = {}
    for batch in again.keys() & attempts.keys():
        known = places(attempts[batch].report)
        runs: Runs = []
        for place in again[batch]:
            runs += known.get(place) or ()
        if runs:
            found[batch] = sorted(runs)
    return found


def count_items(runs: Iterable[tuple[int, int]]) -> int:
    """Return the number of items in these runs."""
    return sum(count for _, count in runs)


def without_runs(
    lines: Iterator[tuple[int, bytes]], runs: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines except those of items in these runs; a blank line is not an item."""
    rest = iter(runs)
    first, count = next(rest, (None, 0))
    place = -1
    for line in lines:
        if line[1].strip():
            place += 1
            while first is not None and place >= first + count:
                first, count = next(rest, (None, 0))
            if first is not None and place >= first:
                continue
        yield line


@dataclass(kw_only=True)
class FoundItem:
    """Counts of one file."""

    path: Path
    items: int = 0  #: items passed on
    duplicates: int = 0  #: items left out because an earlier item has the same key
    replaced: int = 0  #: items left out because their requests were retried
    torn: int = 0  #: bytes of an incomplete last line, as a killed process leaves it
    bad: int = 0  #: other lines that are not items
    first_bad: int = 0  #: line number of the first bad line, from 1

    @property
    def whole(self) -> int:
        """The number of complete items in the file, passed on or not."""
        return self.items + self.duplicates + self.replaced


class Items:
    """The items of files, in order; may be iterated more than once.

    Args:
        paths: files of JSON lines.
        key: fields that identify an item; later items with the same values are dropped. Items that
            lack one of the fields are always kept. Empty: no item is dropped.
        check: whether to parse every line. Not needed for parts whose hash was verified.
        unverified: the only files of which every line is parsed, if `check` is off.
        skip: runs of items to leave out, by file.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        key: Sequence[str] = (),
        check: bool = False,
        unverified: Collection[Path] = (),
        skip: Mapping[Path, Runs] = MappingProxyType({}),
    ) -> None:
        self._paths = paths
        self._key = tuple(key)
        self._check = check
        self._skip = skip
        self._unverified = frozenset(unverified)
        #: counts of each file in the latest iteration
        self.found: list[FoundItem] = []

    @property
    def paths(self) -> frozenset[str]:
        """The files, as they are called in errors."""
        return frozenset(map(str, self._paths))

    def lines(self) -> Iterator[bytes]:
        """Yield each item as its line, without the line feed."""
        return (line for line, _ in self._pass())

    def typed_lines(self) -> Iterator[bytes]:
        """Yield each item as its line, with its class and typed values if it has them.

        The module `typed_lines` says how they are written.
        """
        return (line for line, _ in self._pass(typed=True))

    def values(self) -> Iterator[dict[str, Any]]:
        """Yield each item as a dict."""
        for line, value in self._pass():
            yield json.loads(line) if value is None else value

    def _pass(self, *, typed: bool = False) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        """Yield the line of each item, and its value if the line had to be parsed."""
        self.found = []
        with closing(_keys_on_disk()) as seen:
            for path in self._paths:
                found = FoundItem(path=path)
                self.found.append(found)
                for line, value in self._items_in(found, typed=typed):
                    if value is not None and self._is_known(value, seen):
                        found.duplicates += 1
                        continue
                    found.items += 1
                    yield line, value

    def _items_in(
        self, found: FoundItem, *, typed: bool
    ) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        """Yield as `_pass` what is in one file, with duplicates; count the rest in `found`."""
        parses_all = self._parses_all(found.path)
        with found.path.open("rb") as file:
            for number_of_line, raw in self._counted_lines(file, found):
                line = raw.rstrip(b"\r\n")
                if TYPED in line and not typed:
                    line = plain_line(line)
                if not line.strip():
                    continue
                ends = raw.endswith(b"\n")
                if ends and not parses_all:
                    yield line, None
                    continue
                value = item_in(line)
                if value is not None:
                    yield line, value
                elif ends:
                    found.bad += 1
                    found.first_bad = found.first_bad or number_of_line
                else:
                    found.torn = len(raw)

    def _parses_all(self, path: Path) -> bool:
        return self._check or bool(self._key) or path in self._unverified

    def _counted_lines(self, file: IO[bytes], found: FoundItem) -> Iterator[tuple[int, bytes]]:
        """Return the numbered lines of a file, without those to leave out."""
        lines = enumerate(file, 1)
        runs = self._skip.get(found.path)
        if not runs:
            return lines
        found.replaced = count_items(runs)
        return without_runs(lines, runs)

    def _is_known(self, value: dict[str, Any], seen: sqlite3.Connection) -> bool:
        """Say whether an earlier item has the same key."""
        if not self._key or not all(name in value for name in self._key):
            return False
        key = _encoded([value[name] for name in self._key]).encode()
        digest = hashlib.blake2b(key, digest_size=_DIGEST).digest()
        return seen.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 0


def item_in(line: bytes) -> dict[str, Any] | None:
    """Return the item on a line, or None if the line is not a JSON object."""
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value


def _keys_on_disk() -> sqlite3.Connection:
    """Open a set of keys in an unnamed SQLite database on disk.

    SQLite deletes it when it is closed.
    """
    database = sqlite3.connect("", isolation_level=None)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA cache_size = -32768")  # KiB
    database.execute("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")
    database.execute("BEGIN")
    return database
