"""Adds a crawl's items to local files, and remembers where, so that they stand there once.

A crawl writes its file anew when it is resumed or tried again, and where it was killed before it
had noted that its file is written.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import IO

from scrapyd_dist.config import write_file
from scrapyd_dist.whole_files import FreshFile, check_link, copy_range, locked_folder

#: the file in a crawl's folder that says what it has added, and where
ADDED = "added.json"
#: bytes that are read at a time; of longer lines, each such piece counts as one
_BLOCK = 1 << 20
#: lines like the first one of a range that are tried where others have moved it
_MOST_TRIED = 100


@dataclass(frozen=True)
class AddedRange:
    """The bytes of a file that a crawl has added."""

    start: int  #: bytes before it
    end: int
    digest: str  #: SHA-256 of the bytes, in hexadecimal digits
    first_line: str  #: the same of its first line


class AddedRanges:
    """Remembers which bytes of local files are a crawl's own, in a file of the crawl's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ADDED

    def find(self, path: Path) -> AddedRange | None:
        """Return what the crawl has added to a file; None if that is not there as it was.

        Others may have moved it, as they have written anew what stands before it.
        """
        if not path.exists():
            return None
        check_link(path)
        with path.open("rb") as file:
            for known in reversed(self._read().get(_name_of(path), [])):
                start = _find_start(file, known)
                if start is not None:
                    return replace(known, start=start, end=start + known.end - known.start)
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

    What the crawl has added before makes way for them, and what others add meanwhile stays.
    """

    def __init__(self, path: Path, ranges: AddedRanges | None) -> None:
        self._path = path
        self._ranges = ranges
        self._begins_line = False  #: whether the items begin with a line of their own
        self._open()
        self.file: IO[bytes] = self._fresh.file

    def begin_line(self) -> None:
        """End the line that stands before the items, if it has no end; call it before the first."""
        self._begins_line = True
        file = self._fresh.file
        if self.start and not _ends_with_line(file):
            file.write(b"\n")
            self.start += 1

    def _open(self) -> None:
        """Open a fresh file, and copy what stands before the items."""
        self._seen = _stamp_of(self._path)
        self._earlier = None if self._ranges is None else self._ranges.find(self._path)
        self._fresh = FreshFile(self._path)
        try:
            if self._seen is not None:
                end = None if self._earlier is None else self._earlier.start
                copy_range(self._fresh.file, self._path, 0, end)
            self.start = self._fresh.file.tell()  #: bytes that stand before the items
        except BaseException:
            self.drop()
            raise

    def finish(self) -> None:
        """Put the file in its place."""
        self._fresh.reopen()
        with locked_folder(self._path.parent):
            if _stamp_of(self._path) != self._seen:
                self._open_again()
            file = self._fresh.file
            end = file.seek(0, os.SEEK_END)
            digest = digest_of(file, self.start, end)
            first_line = _digest_of_line(file, self.start)
            file.seek(0, os.SEEK_END)
            if self._earlier is not None:
                copy_range(file, self._path, self._earlier.end, None)
            if self._ranges is not None:
                added = AddedRange(self.start, end, digest, first_line)
                self._ranges.note(self._path, self._earlier, added)
            self._fresh.finish()

    def _open_again(self) -> None:
        """Move the items into another fresh file, as others have changed the one at `path`."""
        written = self._fresh
        start = self.start
        try:
            self._open()
            if self._begins_line:
                self.begin_line()
            written.file.seek(start)
            shutil.copyfileobj(written.file, self._fresh.file)
        finally:
            written.drop()

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


def _digest_of_line(file: IO[bytes], start: int) -> str:
    file.seek(start)
    return hashlib.sha256(file.readline(_BLOCK)).hexdigest()


def _find_start(file: IO[bytes], known: AddedRange) -> int | None:
    """Return where the bytes of a range stand in a file; None if they do not."""
    length = known.end - known.start
    if not length:
        return None
    if digest_of(file, known.start, known.end) == known.digest:
        return known.start
    for start in _find_lines(file, known.first_line):
        if digest_of(file, start, start + length) == known.digest:
            return start
    return None


def _find_lines(file: IO[bytes], digest: str) -> list[int]:
    """Return where lines with this SHA-256 begin, of many the first ones."""
    found = []
    start = 0
    file.seek(0)
    while line := file.readline(_BLOCK):
        if hashlib.sha256(line).hexdigest() == digest:
            found.append(start)
            if len(found) == _MOST_TRIED:
                break
        start += len(line)
    return found


def _ends_with_line(file: IO[bytes]) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read() == b"\n"


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with a file; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _name_of(path: Path) -> str:
    return str(path.absolute())
