"""Items out of files of JSON lines, one at a time. Rule: what is no whole item is never passed on, and is told.

Memory is the same for any number of items, also where duplicates are dropped.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from scrapyd_dist.items.replaced import number, without

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.items.replaced import Runs

#: bytes of a key's digest; two keys are taken for one with less than 1e-20 of a chance in 1e9 items
_DIGEST = 16

_encoded = json.JSONEncoder(sort_keys=True).encode


@dataclass(kw_only=True)
class Found:
    """What one file gave."""

    path: Path
    items: int = 0  #: passed on
    duplicates: int = 0  #: items that were left out, since an earlier one has their key
    replaced: int = 0  #: items that were left out, since their requests were tried again
    torn: int = 0  #: bytes of a last line that is no whole item, as a killed process leaves it
    bad: int = 0  #: other lines that are no item
    first_bad: int = 0  #: the number of the first of these, from 1

    @property
    def whole(self) -> int:
        """Items that are in the file, passed on or not."""
        return self.items + self.duplicates + self.replaced


class Items:
    """The items of files, in their order; they can be gone through more than once.

    Args:
        paths: files of JSON lines.
        key: fields which together tell one item from another; of several with the same values the first counts. An
            item that lacks one of the fields is always kept. Empty: nothing is left out.
        check: whether every line is looked into. Parts whose hash was right need not be.
        skip: of some of the files, runs of items that are left out.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        key: Sequence[str] = (),
        check: bool = False,
        skip: Mapping[Path, Runs] = MappingProxyType({}),
    ) -> None:
        self._paths, self._key, self._check, self._skip = paths, tuple(key), check, skip
        #: what each file gave when they were gone through the last time
        self.found: list[Found] = []

    def lines(self) -> Iterator[bytes]:
        """Each item as its line, without the line feed."""
        return (line for line, _ in self._pass())

    def values(self) -> Iterator[dict[str, Any]]:
        """Each item."""
        for line, value in self._pass():
            yield json.loads(line) if value is None else value

    def _pass(self) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        self.found = []
        with closing(_Seen()) as seen:
            for path in self._paths:
                found = Found(path=path)
                self.found.append(found)
                for line, value in self._of_file(found):
                    if value is not None and self._known(value, seen):
                        found.duplicates += 1
                        continue
                    found.items += 1
                    yield line, value

    def _of_file(self, found: Found) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        look = self._check or bool(self._key)
        with found.path.open("rb") as file:
            lines: Iterator[tuple[int, bytes]] = enumerate(file, 1)
            if runs := self._skip.get(found.path):
                lines = without(lines, runs)
                found.replaced = number(runs)
            for at, raw in lines:
                line = raw.rstrip(b"\r\n")
                if not line.strip():
                    continue
                ends = raw.endswith(b"\n")
                value = item_in(line) if look or not ends else None
                if value is not None or (ends and not look):
                    yield line, value
                elif not ends:
                    found.torn = len(raw)
                else:
                    found.bad += 1
                    found.first_bad = found.first_bad or at

    def _known(self, value: dict[str, Any], seen: _Seen) -> bool:
        if not self._key or not all(name in value for name in self._key):
            return False
        return not seen.add(_encoded([value[name] for name in self._key]).encode())


def item_in(line: bytes) -> dict[str, Any] | None:
    """The item that a line is, or None when it is none."""
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _Seen:
    """A set of keys that does not grow in memory: a database without a name, which the system removes by itself."""

    def __init__(self) -> None:
        self._db: sqlite3.Connection | None = None

    def add(self, key: bytes) -> bool:
        """Whether it is new."""
        if self._db is None:
            self._db = sqlite3.connect("", isolation_level=None)
            self._db.execute("PRAGMA journal_mode = OFF")
            self._db.execute("PRAGMA cache_size = -32768")  # KiB
            self._db.execute("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")
            self._db.execute("BEGIN")
        digest = hashlib.blake2b(key, digest_size=_DIGEST).digest()
        return self._db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 1

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
