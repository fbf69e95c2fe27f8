"""Finds out who can change a file: only its owner and root may, where this program acts on it.

The rule it keeps: a store, a key and the state folder are believed if they belong to this user or
to root, and no other user can write to them or to their folder; OpenSSH does the same. Part of the
worker half: imports the standard library.
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

#: an attribute of a file with an access list: the bits of its group are then those of all that the
#: list names
_ACCESS_LIST = "system.posix_acl_access"
#: what SQLite reads beside a file
COMPANIONS = ("-wal", "-shm", "-journal")
#: why it matters
STAKES = (
    "What is in it starts commands and sends code and passwords, so nobody but you and root may"
    " write there."
)


def fault_of_file(path: Path) -> str:
    """Return why others could write what is read from this file, with the remedy.

    It is empty if they cannot. A file that is not there is judged by its folder, and a folder that
    is not there has no fault.
    """
    companions = [path.with_name(path.name + suffix) for suffix in COMPANIONS]
    return _find_fault([*_follow(path.parent), *_follow(path), *companions])


def fault_of_folder(path: Path) -> str:
    """Return why others could write to this folder, with the remedy; empty if they cannot."""
    return _find_fault(_follow(path))


def _find_fault(paths: Iterable[Path]) -> str:
    for path in paths:
        if fault := _describe_fault(path):
            return fault
    return ""


def read_regular(path: Path) -> bytes:
    """Read a file; OSError if it is none: a pipe would be waited for without end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        return file.read()


def _follow(path: Path) -> Iterator[Path]:
    """Yield a path, and where it leads if it is a link: others must have made neither."""
    yield path
    if path.is_symlink():
        target = path.resolve()
        yield target.parent
        yield target


def _describe_fault(path: Path) -> str:
    try:
        status = path.lstat()
    except OSError:
        return ""  # the attempt to open it says why that fails
    kind = _name_kind(status)
    if status.st_uid not in {os.geteuid(), 0}:
        user = _name_user(os.geteuid())
        return (
            f"the {kind} {path} belongs to {_name_user(status.st_uid)}, and this is run by {user}."
            f" {STAKES} Run this as that user, or name a place of your own; only if you trust all"
            f" that is in it: chown {user} {path}"
        )
    if kind != "link" and _others_write(path, status):
        mode = stat.S_IMODE(status.st_mode)
        return (
            f"others may write to the {kind} {path} (its mode is {mode:o})."
            f" {STAKES} {_find_remedy(path, status)}"
        )
    return ""


def _name_kind(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    if stat.S_ISLNK(status.st_mode):
        return "link"
    return "file"


def _find_remedy(path: Path, status: os.stat_result) -> str:
    # A folder such as /tmp is meant for all.
    is_shared = bool(status.st_mode & stat.S_ISVTX) or status.st_uid != os.geteuid()
    if is_shared:
        return "Name a place in a folder of your own."
    return f"Forbid it: chmod go-w {path}"


def _others_write(path: Path, status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    return _has_access_list(path) or not _is_private(status.st_gid)


def _has_access_list(path: Path) -> bool:
    try:
        return _ACCESS_LIST in os.listxattr(path)
    except (OSError, AttributeError):  # the file system has none, or this is no Linux
        return False


def _is_private(group: int) -> bool:
    """Return whether no other user is in this group.

    Then it has the user's name, as many systems make it, or it has no name.
    """
    user = _name_user(os.geteuid())
    try:
        entry = grp.getgrgid(group)
    except KeyError:
        entry = None
    if entry is not None:
        has_others = not set(entry.gr_mem) <= {user}
        if entry.gr_name != user or has_others:
            return False
    return all(login.pw_uid == os.geteuid() for login in pwd.getpwall() if login.pw_gid == group)


def _name_user(number: int) -> str:
    """Return the name of a user, or the number of a user without a name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
