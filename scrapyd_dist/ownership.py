"""Who can change a file: only its owner and root may, where what it says makes this program act.

The rule it keeps: a store, a key and the state folder are believed if they belong to this user or to root, and nobody
else can write to them or to their folder; so has OpenSSH it. Part of the worker half: imports the standard library.
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

_GROUP_WRITES, _ALL_WRITE = stat.S_IWGRP, stat.S_IWOTH
#: an attribute of a file with an access list: the bits of its group are then those of all that the list names
_ACCESS_LIST = "system.posix_acl_access"
#: what SQLite reads beside a file
COMPANIONS = ("-wal", "-shm", "-journal")
#: why it matters
STAKES = "What is in it starts commands and sends code and passwords, so nobody but you and root may write there."


def fault_of_file(path: Path) -> str:
    """Why others could write what is read from this file, with the remedy; empty if they cannot.

    A file that is not there is judged by its folder, and so is a folder that is not there by nothing.
    """
    with_companions = (path.with_name(path.name + suffix) for suffix in COMPANIONS)
    return next(
        filter(None, map(_fault_of, (*_both(path.parent), *_both(path), *with_companions))), ""
    )


def fault_of_folder(path: Path) -> str:
    """Likewise of a folder with all that is in it."""
    return next(filter(None, map(_fault_of, _both(path))), "")


def read_regular(path: Path) -> bytes:
    """Read a file; OSError if it is none: a pipe would be waited for without end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        return file.read()


def _both(path: Path) -> Iterator[Path]:
    """A path, and where it leads if it is a link: others must have made neither."""
    yield path
    if path.is_symlink():
        target = path.resolve()
        yield target.parent
        yield target


def _fault_of(path: Path) -> str:
    try:
        there = path.lstat()
    except OSError:
        return ""  # whoever opens it says why that fails
    what = (
        "folder"
        if stat.S_ISDIR(there.st_mode)
        else "link"
        if stat.S_ISLNK(there.st_mode)
        else "file"
    )
    if there.st_uid not in {os.geteuid(), 0}:
        return (
            f"the {what} {path} belongs to {_user(there.st_uid)}, and this is run by {_user(os.geteuid())}. {STAKES}"
            " Run this as that user, or name a place of your own; only if you trust all that is in it:"
            f" chown {_user(os.geteuid())} {path}"
        )
    if what != "link" and _others_write(path, there):
        mode = stat.S_IMODE(there.st_mode)
        return f"others may write to the {what} {path} (its mode is {mode:o}). {STAKES} {_remedy(path, there)}"
    return ""


def _remedy(path: Path, there: os.stat_result) -> str:
    # One such as /tmp is meant for all.
    is_shared = bool(there.st_mode & stat.S_ISVTX) or there.st_uid != os.geteuid()
    return "Name a place in a folder of your own." if is_shared else f"Forbid it: chmod go-w {path}"


def _others_write(path: Path, there: os.stat_result) -> bool:
    if there.st_mode & _ALL_WRITE:
        return True
    return bool(there.st_mode & _GROUP_WRITES) and (
        _has_access_list(path) or not _is_private(there.st_gid)
    )


def _has_access_list(path: Path) -> bool:
    try:
        return _ACCESS_LIST in os.listxattr(path)
    except (OSError, AttributeError):  # the file system has none, or this is no Linux
        return False


def _is_private(group: int) -> bool:
    """Whether nobody else is in this group: it has the user's name, as many systems make it, or it has no name."""
    user = _user(os.geteuid())
    try:
        entry = grp.getgrgid(group)
    except KeyError:
        entry = None
    if entry is not None and (entry.gr_name != user or not {user} >= {*entry.gr_mem}):
        return False
    return all(one.pw_uid == os.geteuid() for one in pwd.getpwall() if one.pw_gid == group)


def _user(number: int) -> str:
    """The name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
