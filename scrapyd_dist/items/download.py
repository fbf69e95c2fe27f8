"""Downloads item files from nodes. Blocking.

Invariant: bytes that are already here are not fetched again. An incomplete file is called `….part` and holds the first
bytes of the node's file, where the next pull continues. It is renamed once it is complete and, if the worker reported
length and hash, matches them.
"""

import os
import shutil
import time
from dataclasses import dataclass
from enum import Enum
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO

from scrapyd_dist.errors import NodeError
from scrapyd_dist.items.json_lines import item_in
from scrapyd_dist.items.merging import sha256_of
from scrapyd_dist.joblogs.worker_report import PartInfo
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender
from scrapyd_dist.whole_files import open_growing, replacing

#: attempts without progress before giving up, and seconds between them
TRIES, PAUSE = 3, 0.5
#: bytes per read of a local file
_BLOCK = 1 << 20


class DownloadState(str, Enum):
    """The result of pulling one file."""

    WHOLE = "whole"  #: fetched completely
    PRESENT = "present"  #: was complete before the pull
    GROWING = "growing"  #: its job still writes it; everything written so far is here
    WAITING = "waiting"  #: its job has written nothing yet
    NONE = "none"  #: the node has no such file
    LOST = "lost"  #: could not be fetched, or does not match the worker's hash


@dataclass(frozen=True, kw_only=True)
class WantedFile:
    """An item file on a node."""

    node: Node
    path: str  #: relative to the node's base, not quoted
    target: Path  #: local path of the complete file
    part: PartInfo | None = None  #: length and hash as reported by the worker
    over: bool = True  #: whether its job has ended


@dataclass(frozen=True, kw_only=True)
class DownloadedFile:
    """The result of pulling one file, with counts."""

    state: DownloadState
    file: Path | None = None
    fetched: int = 0  #: bytes downloaded by this pull
    items: int = 0
    torn: int = 0  #: bytes cut off an incomplete last line
    reason: str = ""
    error: NodeError | None = None  #: the failed call, if the file is lost because of one

    @property
    def bytes(self) -> int:
        return self.file.stat().st_size if self.file is not None else 0


def _growing(target: Path) -> Path:
    """The file that holds what has come so far."""
    return target.with_name(f"{target.name}.part")


def pull(sender: Sender, wanted: WantedFile, *, silence: float) -> DownloadedFile:
    """Download one file, continuing where an earlier pull stopped.

    A connection is dropped after `silence` seconds without data.
    """
    if _is_here(wanted):
        return DownloadedFile(
            state=DownloadState.PRESENT, file=wanted.target, items=count_lines(wanted.target)
        )
    growing = _growing(wanted.target)
    before = growing.stat().st_size if growing.exists() else 0
    try:
        fetched = _fetch(sender, wanted, growing, silence)
    except NodeError as error:
        file = growing if growing.exists() else None
        came = max(0, growing.stat().st_size - before) if file else 0
        return DownloadedFile(
            state=DownloadState.LOST, file=file, fetched=came, reason=str(error), error=error
        )
    if fetched is None:
        begun = growing.stat().st_size > 0
        if not begun:
            growing.unlink()
        return DownloadedFile(state=DownloadState.NONE, file=growing if begun else None)
    if wanted.part is not None and sha256_of(growing) != wanted.part.sha256:
        growing.unlink()
        if before:  # the earlier bytes were of another file
            return pull(sender, wanted, silence=silence)
        return DownloadedFile(
            state=DownloadState.LOST,
            fetched=fetched,
            reason="it is not what its worker wrote: the hashes differ",
        )
    return _fetched(wanted, growing, fetched)


def _fetched(wanted: WantedFile, growing: Path, fetched: int) -> DownloadedFile:
    """Finish a pull after everything on the node was fetched."""
    if not wanted.over:
        return DownloadedFile(
            state=DownloadState.GROWING, file=growing, fetched=fetched, items=count_lines(growing)
        )
    torn = 0
    if wanted.part is None:
        with open_growing(growing) as file:
            torn = mend(file)
    growing.replace(wanted.target)
    items = count_lines(wanted.target)
    return DownloadedFile(
        state=DownloadState.WHOLE, file=wanted.target, fetched=fetched, items=items, torn=torn
    )


def _is_here(wanted: WantedFile) -> bool:
    """Whether an earlier pull has fetched the complete file."""
    if not wanted.target.is_file() or wanted.target.is_symlink():
        return False
    part = wanted.part
    return part is None or (
        wanted.target.stat().st_size == part.bytes and sha256_of(wanted.target) == part.sha256
    )


def _fetch(sender: Sender, wanted: WantedFile, growing: Path, silence: float) -> int | None:
    """Fetch the missing bytes; returns how many came, or None if the node has no such file.

    Raises `NodeError` when `TRIES` calls made no progress.
    """
    with open_growing(growing) as file:

        def keep(piece: bytes) -> None:
            file.write(piece)
            file.flush()  # these bytes are kept even if the process is killed

        if wanted.part is not None and file.tell() > wanted.part.bytes:
            _begin_anew(file)
        came, tries, more = 0, 0, True
        while more and (wanted.part is None or file.tell() < wanted.part.bytes):
            begin, more = file.tell(), False
            limit = None if wanted.part is None else wanted.part.bytes - begin
            try:
                call = api.fetch(wanted.path, start=begin, limit=limit, sink=keep)
                chunk = sender.send(wanted.node, call, timeout=silence)
            except NodeError:
                tries = 1 if file.tell() > begin else tries + 1
                if tries >= TRIES:
                    raise
                time.sleep(PAUSE)
                more = True
            else:
                if chunk is None:
                    return None
                if chunk.total is not None and chunk.total < begin:
                    _begin_anew(file)  # the file was replaced by a shorter one
                    more = True
            came += max(0, file.tell() - begin)
        os.fsync(file.fileno())
    return came


def _begin_anew(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()


def mend(file: IO[bytes]) -> int:
    """Make a file that is open for reading and writing end with a complete line.

    Returns the bytes of an incomplete last line that were cut off; 0 if at most a line feed was missing.
    """
    if not os.fstat(file.fileno()).st_size:
        return 0
    with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        begin = data.rfind(b"\n") + 1
    file.seek(begin)
    rest = file.read()
    if not rest:
        return 0
    if item_in(rest) is not None:
        file.write(b"\n")
        return 0
    file.truncate(begin)
    return len(rest)


def count_lines(path: Path) -> int:
    """Return the number of complete lines in a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def copy_home(source: Path, target: Path) -> DownloadedFile:
    """Copy a local file, such as a part that the producer has fetched or written, with the result of a pull.

    A target of the same size that is not older than the source is an up-to-date copy.
    """
    if not source.is_file():
        return DownloadedFile(state=DownloadState.LOST, reason=f"{source} is not there any more")
    if target.is_file():
        old, new = source.stat(), target.stat()
        if old.st_size == new.st_size and old.st_mtime <= new.st_mtime:
            return DownloadedFile(
                state=DownloadState.PRESENT, file=target, items=count_lines(target)
            )
    with replacing(target) as copy:
        with source.open("rb") as file:
            shutil.copyfileobj(file, copy)
        copy.flush()
        torn = mend(copy)
    _growing(target).unlink(missing_ok=True)  # what an earlier pull had of it
    return DownloadedFile(
        state=DownloadState.WHOLE, file=target, items=count_lines(target), torn=torn
    )
