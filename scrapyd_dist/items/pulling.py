"""Files of items come home from nodes, blocking. Rule: what is here already is not fetched again.

A file that is not whole yet is called `….part`, and has exactly the first bytes of the one on the node: the next pull
goes on behind them. It gets its name when it is whole and, where a worker told its length and hash, is what it told.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import IO, TYPE_CHECKING

from scrapyd_dist.errors import NodeError
from scrapyd_dist.items.collect import sha256_of
from scrapyd_dist.items.lines import item_in
from scrapyd_dist.scrapyd import api

if TYPE_CHECKING:
    from pathlib import Path

    from scrapyd_dist.jobs.outcome import Part
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

#: tries without one more byte, and seconds between two
TRIES, PAUSE = 3, 0.5
#: bytes that are looked at in one go
_BLOCK = 1 << 20


class PullState(str, Enum):
    """What came of one file."""

    WHOLE = "whole"  #: all of it is here now
    PRESENT = "present"  #: all of it was here before
    GROWING = "growing"  #: its job still writes it; what there is, is here
    WAITING = "waiting"  #: its job has written nothing yet
    NONE = "none"  #: there is no such file
    LOST = "lost"  #: it could not be fetched, or is not what its worker wrote


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file of items on a node."""

    node: Node
    path: str  #: below the node's base, not quoted
    target: Path  #: what it shall be called here
    part: Part | None = None  #: what its worker says of it
    over: bool = True  #: whether nobody writes it any more


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What came of it."""

    state: PullState
    file: Path | None = None
    fetched: int = 0  #: bytes that came over the wire now
    items: int = 0
    torn: int = 0  #: bytes of a torn last line, which were dropped
    reason: str = ""
    error: NodeError | None = None  #: why it is lost, where the node or the way to it is the reason

    @property
    def bytes(self) -> int:
        """The size of what is here."""
        return self.file.stat().st_size if self.file is not None else 0


class _Gone(Exception):
    """The node has no such file."""


def pull(sender: Sender, wanted: Wanted, *, silence: float) -> Pulled:
    """Bring one file home, going on behind what is here.

    Args:
        sender: the way to the node.
        wanted: the file.
        silence: seconds without a byte after which a connection is given up.
    """
    if _is_here(wanted):
        return Pulled(state=PullState.PRESENT, file=wanted.target, items=count_lines(wanted.target))
    wanted.target.parent.mkdir(parents=True, exist_ok=True)
    growing = wanted.target.with_name(f"{wanted.target.name}.part")
    before = growing.stat().st_size if growing.exists() else 0
    try:
        fetched = _fetch(sender, wanted, growing, silence)
    except _Gone:
        return _gone(growing)
    except NodeError as error:
        file = growing if growing.exists() else None
        came = _grown(growing, before)
        return Pulled(state=PullState.LOST, file=file, fetched=came, reason=str(error), error=error)
    if wanted.part is not None and sha256_of(growing) != wanted.part.sha256:
        growing.unlink()
        if before:  # what was here was of another file
            return pull(sender, wanted, silence=silence)
        return Pulled(
            state=PullState.LOST, fetched=fetched, reason="it is not what its worker wrote: the hashes differ"
        )
    return _fetched(wanted, growing, fetched)


def _fetched(wanted: Wanted, growing: Path, fetched: int) -> Pulled:
    """All that there is now is here."""
    if not wanted.over:
        return Pulled(state=PullState.GROWING, file=growing, fetched=fetched, items=count_lines(growing))
    torn = 0 if wanted.part is not None else mend(growing)
    growing.replace(wanted.target)
    items = count_lines(wanted.target)
    return Pulled(state=PullState.WHOLE, file=wanted.target, fetched=fetched, items=items, torn=torn)


def _is_here(wanted: Wanted) -> bool:
    """Whether the whole file came home earlier."""
    if not wanted.target.is_file():
        return False
    part = wanted.part
    return part is None or (wanted.target.stat().st_size == part.bytes and sha256_of(wanted.target) == part.sha256)


def _gone(growing: Path) -> Pulled:
    with suppress(FileNotFoundError):
        if not growing.stat().st_size:
            growing.unlink()
    return Pulled(state=PullState.NONE, file=growing if growing.exists() else None)


def _grown(growing: Path, before: int) -> int:
    return max(0, growing.stat().st_size - before) if growing.exists() else 0


def _fetch(sender: Sender, wanted: Wanted, growing: Path, silence: float) -> int:
    """Fetch what is missing; gives the number of bytes that came.

    Raises:
        _Gone: the node has no such file.
        NodeError: tried often enough.
    """
    with growing.open("ab") as file:
        if wanted.part is not None and file.tell() > wanted.part.bytes:
            _begin_anew(file)
        came, tries = 0, 0
        while wanted.part is None or file.tell() < wanted.part.bytes:
            begin = file.tell()
            try:
                more = _fetch_once(sender, wanted, file, silence)
            except NodeError:
                tries = 1 if file.tell() > begin else tries + 1
                if tries >= TRIES:
                    raise
                time.sleep(PAUSE)
                more = True
            came += max(0, file.tell() - begin)
            if not more:
                break
        file.flush()
        os.fsync(file.fileno())
    return came


def _fetch_once(sender: Sender, wanted: Wanted, file: IO[bytes], silence: float) -> bool:
    """One call; whether another one may bring more."""
    begin = file.tell()

    def keep(piece: bytes) -> None:
        file.write(piece)
        file.flush()  # whatever ends this process, what came is not fetched again

    chunk = sender.download(wanted.node, api.fetch(wanted.path, start=begin), keep, silence=silence)
    if chunk is None:
        raise _Gone
    if chunk.total is not None and chunk.total < begin:
        _begin_anew(file)  # another, shorter file has its name now
        return True
    return False


def _begin_anew(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()


def mend(path: Path) -> int:
    """Make a file end with a whole line.

    Returns:
        How many bytes of a torn last line were cut off; 0 where it was whole, and lacked a line feed at most.
    """
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        begin = _last_line(file, size)
        file.seek(begin)
        rest = file.read()
        if not rest:
            return 0
        if item_in(rest) is not None:
            file.write(b"\n")
            return 0
        file.truncate(begin)
        return len(rest)


def _last_line(file: IO[bytes], size: int) -> int:
    """Where the bytes behind the last line feed begin."""
    end = size
    while end:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        at = file.read(end - begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def count_lines(path: Path) -> int:
    """How many lines of a file are whole."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def copy_home(source: Path, target: Path) -> Pulled:
    """The same for a file of this machine: a part that the producer has fetched, or wrote itself."""
    if not source.is_file():
        return Pulled(state=PullState.LOST, reason=f"{source} is not there any more")
    if _same(source, target):
        return Pulled(state=PullState.PRESENT, file=target, items=count_lines(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    growing = target.with_name(f"{target.name}.part")
    shutil.copyfile(source, growing)
    torn = mend(growing)
    growing.replace(target)
    return Pulled(state=PullState.WHOLE, file=target, items=count_lines(target), torn=torn)


def _same(source: Path, target: Path) -> bool:
    """Whether this is a copy made since the source was written."""
    if not target.is_file():
        return False
    old, new = source.stat(), target.stat()
    return old.st_size == new.st_size and old.st_mtime <= new.st_mtime
