"""Adds a crawl's items to local files, and remembers where, so that they stand there once.

A crawl writes its file anew when it is resumed or tried again, and where it was killed before it
had noted that its file is written.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO

from scrapyd_dist.config import write_file
from scrapyd_dist.whole_files import FreshFile, check_link, copy_range

#: the file in a crawl's folder that says what it has added, and where
ADDED = "added.json"
#: bytes that are read at a time
_BLOCK = 1 << 20


@dataclass(frozen=True)
class AddedRange:
    """The bytes of a file that a crawl has added."""

    start: int  #: bytes before it
    end: int
    digest: str  #: SHA-256 of the bytes, in hexadecimal digits


class AddedRanges:
    """Remembers which bytes of local files are a crawl's own, in a file of the crawl's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ADDED

    def find(self, path: Path) -> AddedRange | None:
        """Return what the crawl has added to a file; None if that is not there as it was."""
        if not path.exists():
            return None
        check_link(path)
        with path.open("rb") as file:
            for known in reversed(self._read().get(_name_of(path), [])):
                if digest_of(file, known.start, known.end) == known.digest:
                    return known
        return None

    def note(self, path: Path, earlier: AddedRange | None, added: AddedRange) -> None:
        """Remember what a file is about to have; call it before the file has its name.

        earlier: what the file has until then, as `find` gives it.
        """
        known = self._read()
        known[_name_of(path)] = [added] if earlier is None else [earlier, added]
        files = {name: list(map(astuple, ranges)) for name, ranges in known.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self._path, json.dumps({"schema": 1, "files": files}).encode())

    def _read(self) -> dict[str, list[AddedRange]]:
        try:
            files = json.loads(self._path.read_text("utf-8"))["files"]
            return {name: [AddedRange(*row) for row in rows] for name, rows in files.items()}
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return {}  # then what was added stays where it is


class AddedFile:
    """A fresh file with what others have in `path`, to take its place with a crawl's items.

    What the crawl has added before makes way for them.
    """

    def __init__(self, path: Path, ranges: AddedRanges | None) -> None:
        self._path = path
        self._ranges = ranges
        self._earlier = None if ranges is None else ranges.find(path)
        self._fresh = FreshFile(path)
        self.file: IO[bytes] = self._fresh.file
        try:
            self.start = self._copy_before()  #: bytes that stand before the items
        except BaseException:
            self.drop()
            raise

    def _copy_before(self) -> int:
        if self._path.exists():
            end = None if self._earlier is None else self._earlier.start
            copy_range(self.file, self._path, 0, end)
        return self.file.tell()

    def finish(self) -> None:
        """Add what others have added since, and put the file in its place."""
        self._fresh.reopen()
        file = self._fresh.file
        file.flush()
        end = file.seek(0, os.SEEK_END)
        digest = digest_of(file, self.start, end)
        file.seek(0, os.SEEK_END)
        if self._earlier is not None:
            copy_range(file, self._path, self._earlier.end, None)
        if self._ranges is not None:
            added = AddedRange(self.start, end, digest)
            self._ranges.note(self._path, self._earlier, added)
        self._fresh.finish()

    def drop(self) -> None:
        """Leave what was there before."""
        self._fresh.drop()


@contextmanager
def adding_to(path: Path, ranges: AddedRanges | None) -> Iterator[AddedFile]:
    """Open a file to add items to it; it changes when the block has ended without an error."""
    added = AddedFile(path, ranges)
    try:
        yield added
        added.finish()
    except BaseException:
        added.drop()
        raise


def digest_of(file: IO[bytes], start: int, end: int) -> str:
    """Return the SHA-256 of these bytes of a file, in hexadecimal digits.

    It is empty if the file has fewer.
    """
    if end > file.seek(0, os.SEEK_END):
        return ""
    file.seek(start)
    digest = hashlib.sha256()
    left = end - start
    while left > 0:
        block = file.read(min(left, _BLOCK))
        if not block:
            return ""
        digest.update(block)
        left -= len(block)
    return digest.hexdigest()


def _name_of(path: Path) -> str:
    return str(path.absolute())
