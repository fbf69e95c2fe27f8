"""Writes files that get their name when they are whole, also where other users can write.

The rule it keeps: what is written into was made here and just now, and no link that another user
may have planted is followed, neither in the place of a file nor in that of its folder.
"""

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

#: tries to find a name that no file has
_TRIES = 20
#: modes of a new file, less the umask
_MODE = 0o666
#: bytes that are copied at a time
_BLOCK = 1 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def replacing(path: Path, mode: int = _MODE) -> Iterator[IO[bytes]]:
    """Open a fresh file that takes the place of `path` when the block has ended without an error.

    Its folder is made if it is not there. OSError if nothing can be written there, or a link of
    another user leads there.
    """
    fresh = FreshFile(path, mode)
    try:
        yield fresh.file
        fresh.finish()
    except BaseException:
        fresh.drop()
        raise


class FreshFile:
    """A file that was made just now, to take the place of `path` when it is whole.

    `replacing` has more.
    """

    def __init__(self, path: Path, mode: int = _MODE) -> None:
        make_folder(path.parent)
        self._path = path
        handle, self._growing = _make_hidden(path, mode)
        self.file: IO[bytes] = os.fdopen(handle, "w+b")

    def reopen(self) -> None:
        """Open the file again where its writer has closed it."""
        if self.file.closed:
            self.file = self._growing.open("r+b")

    def finish(self) -> None:
        """Close the file, and put it in its place."""
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
        self._growing.replace(self._path)
        self.file.close()

    def drop(self) -> None:
        """Leave what was there before."""
        with suppress(OSError):
            self._growing.unlink(missing_ok=True)
        with suppress(OSError):
            self.file.close()


def make_folder(folder: Path) -> None:
    """Make a folder that is not there; OSError if a link of another user leads there."""
    absolute = folder.absolute()
    steps = [*reversed(absolute.parents), absolute]
    for step in steps:  # before anything is made behind a link
        if os.path.lexists(step):
            check_link(step)
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        check_link(step)


def check_link(path: Path) -> None:
    """Raise OSError if this is a link that another user may have planted.

    It may be planted if it is theirs, where others can write.
    """
    status = path.lstat()
    if not stat.S_ISLNK(status.st_mode) or status.st_uid in {os.geteuid(), 0}:
        return
    if path.parent.stat().st_mode & _OTHERS_WRITE:
        raise OSError(errno.ELOOP, "it is a link that another user has made", str(path))


def copy_range(file: IO[bytes], path: Path, start: int, end: int | None) -> None:
    """Add these bytes of another file; end: None = all that follow.

    OSError if that is a link of another user.
    """
    check_link(path)
    with path.open("rb") as other:
        other.seek(start)
        if end is None:
            shutil.copyfileobj(other, file)
            return
        left = end - start
        while left > 0 and (block := other.read(min(left, _BLOCK))):
            file.write(block)
            left -= len(block)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Let one process at a time change files of this folder, of those that ask for it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def open_growing(path: Path) -> IO[bytes]:
    """Open a file to add to it, from where an earlier process has left it.

    It is made anew if it cannot have been ours.
    """
    make_folder(path.parent)
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except OSError:
        return os.fdopen(_make_anew(path), "a+b")
    status = os.fstat(handle)
    # A file of ours with two names may be another one that we own.
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1:
        return os.fdopen(handle, "a+b")
    os.close(handle)
    return os.fdopen(_make_anew(path), "a+b")


def _make_anew(path: Path) -> int:
    path.unlink(missing_ok=True)
    return _make_file(path, _MODE, os.O_APPEND)


def _make_hidden(path: Path, mode: int) -> tuple[int, Path]:
    """Make a hidden file beside this one, and return its descriptor and its path."""
    usual = path.with_name(f".{path.name}.part")
    _remove_leftover(usual)
    growing = usual
    for _ in range(1 + _TRIES):
        with suppress(FileExistsError):
            handle = _make_file(growing, mode)
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Without a name, another process took it for a leftover, just before it was locked.
            if os.fstat(handle).st_nlink:
                return handle, growing
            os.close(handle)
        growing = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(usual))


def _make_file(path: Path, mode: int, more_flags: int = 0) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags | more_flags, mode)


def _remove_leftover(path: Path) -> None:
    """Remove what a process left that was killed.

    What is locked is being written: then another name will do.
    """
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(handle)
