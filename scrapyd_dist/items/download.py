"""Downloads item files from nodes. Blocking.

Invariant: bytes that are already here are not fetched again. An incomplete file is called `….part`
and holds the first bytes of the node's file, where the next pull continues. It is renamed once it
is complete and, if the worker reported length and hash, matches them.
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO

from scrapyd_dist.errors import NodeError
from scrapyd_dist.items.json_lines import item_in
from scrapyd_dist.items.kept_parts import sha256_of
from scrapyd_dist.joblogs.worker_report import PartInfo
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender
from scrapyd_dist.whole_files import open_growing, replacing

#: attempts without progress before giving up
TRIES = 3
#: seconds between two attempts
PAUSE = 0.5
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
        """The size of the file here; 0 if there is none."""
        return self.file.stat().st_size if self.file is not None else 0


def _growing_path(target: Path) -> Path:
    """Return the path of the file that holds what has come so far."""
    return target.with_name(f"{target.name}.part")


def pull(sender: Sender, wanted: WantedFile, *, silence: float) -> DownloadedFile:
    """Download one file, continuing where an earlier pull stopped.

    A connection is dropped after `silence` seconds without data.
    """
    if _is_here(wanted):
        return DownloadedFile(
            state=DownloadState.PRESENT, file=wanted.target, items=count_lines(wanted.target)
        )
    growing = _growing_path(wanted.target)
    before = _size(growing)
    try:
        fetched = _fetch(sender, wanted, growing, silence)
    except NodeError as error:
        return DownloadedFile(
            state=DownloadState.LOST,
            file=growing if growing.exists() else None,
            fetched=max(0, _size(growing) - before),
            reason=str(error),
            error=error,
        )
    if fetched is None:
        return _not_there(growing)
    if wanted.part is None or sha256_of(growing) == wanted.part.sha256:
        return _finished(wanted, growing, fetched)
    growing.unlink()
    if before:  # the earlier bytes were of another file
        return pull(sender, wanted, silence=silence)
    return DownloadedFile(
        state=DownloadState.LOST,
        fetched=fetched,
        reason="it is not what its worker wrote: the hashes differ",
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _not_there(growing: Path) -> DownloadedFile:
    """Return the result of a pull from a node without the file; what came earlier is kept."""
    if growing.stat().st_size > 0:
        return DownloadedFile(state=DownloadState.NONE, file=growing)
    growing.unlink()
    return DownloadedFile(state=DownloadState.NONE)


def _finished(wanted: WantedFile, growing: Path, fetched: int) -> DownloadedFile:
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
    """Say whether an earlier pull has fetched the complete file."""
    target = wanted.target
    if not target.is_file() or target.is_symlink():
        return False
    if wanted.part is None:
        return True
    return target.stat().st_size == wanted.part.bytes and sha256_of(target) == wanted.part.sha256


def _fetch(sender: Sender, wanted: WantedFile, growing: Path, silence: float) -> int | None:
    """Fetch the missing bytes; return how many came, or None if the node has no such file.

    Raises `NodeError` when `TRIES` calls made no progress.
    """
    with open_growing(growing) as file:

        def keep(piece: bytes) -> None:
            file.write(piece)
            file.flush()  # these bytes are kept even if the process is killed

        if wanted.part is not None and file.tell() > wanted.part.bytes:
            _begin_anew(file)
        came = 0
        tries = 0  # calls in a row without progress
        more = True
        while more and _lacks_bytes(wanted, file.tell()):
            begin = file.tell()
            more = False
            try:
                chunk = _fetch_rest(sender, wanted, begin, keep, silence)
            except NodeError:
                tries = 1 if file.tell() > begin else tries + 1
                if tries >= TRIES:
                    raise
                time.sleep(PAUSE)
                more = True
            else:
                if chunk is None:
                    return None
                if _is_shorter(chunk, begin):
                    _begin_anew(file)  # the file was replaced by a shorter one
                    more = True
            came += max(0, file.tell() - begin)
        os.fsync(file.fileno())
    return came


def _lacks_bytes(wanted: WantedFile, size: int) -> bool:
    """Say whether there may be more than this number of bytes."""
    return wanted.part is None or size < wanted.part.bytes


def _fetch_rest(
    sender: Sender,
    wanted: WantedFile,
    begin: int,
    keep: Callable[[bytes], None],
    silence: float,
) -> api.Chunk | None:
    """Fetch the bytes from `begin` on in one call, each piece of them for `keep`."""
    limit = None if wanted.part is None else wanted.part.bytes - begin
    call = api.fetch(wanted.path, start=begin, limit=limit, sink=keep)
    return sender.send(wanted.node, call, timeout=silence)


def _is_shorter(chunk: api.Chunk, begin: int) -> bool:
    """Say whether the node's file ends before the place that was asked for."""
    return chunk.total is not None and chunk.total < begin


def _begin_anew(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()


def mend(file: IO[bytes]) -> int:
    """Make a file that is open for reading and writing end with a complete line.

    Returns the bytes of an incomplete last line that were cut off; 0 if at most a line feed was
    missing.
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
        lines = 0
        while block := file.read(_BLOCK):
            lines += block.count(b"\n")
        return lines


def copy_home(source: Path, target: Path) -> DownloadedFile:
    """Copy a local file, and return the result as that of a pull.

    It may be a part that the producer has fetched or written. A target of the same size that is not
    older than the source is an up-to-date copy.
    """
    if not source.is_file():
        return DownloadedFile(state=DownloadState.LOST, reason=f"{source} is not there any more")
    if target.is_file():
        original = source.stat()
        copied = target.stat()
        if original.st_size == copied.st_size and original.st_mtime <= copied.st_mtime:
            return DownloadedFile(
                state=DownloadState.PRESENT, file=target, items=count_lines(target)
            )
    with replacing(target) as copy:
        with source.open("rb") as file:
            shutil.copyfileobj(file, copy)
        copy.flush()
        torn = mend(copy)
    _growing_path(target).unlink(missing_ok=True)  # what an earlier pull had of it
    return DownloadedFile(
        state=DownloadState.WHOLE, file=target, items=count_lines(target), torn=torn
    )
