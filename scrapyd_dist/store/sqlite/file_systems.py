"""Finds the kind of file system that a path is on, and refuses those of a network."""

import re
from pathlib import Path

from scrapyd_dist.errors import StoreError

#: file systems that several machines share: locks are slow, late or missing there, and shared
#: memory is none
NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "lustre",
        "glusterfs",
        "beegfs",
        "gpfs",
        "ncpfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.ceph-fuse",
        "fuse.davfs2",
    }
)
#: the table of mounts, and how a character of a path is escaped there
_MOUNTS = Path("/proc/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def check_local(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise `StoreError` when the file is, or would be, on a file system of a network.

    Nothing is raised where the file system is unknown.
    """
    kind = kind_on(path, mounts)
    if kind in NETWORK:
        raise StoreError(
            f"the store {path} would lie on a network file system ({kind}), where SQLite cannot"
            " keep two processes apart and batches could be lost. Name a file on a disk of this"
            " machine, or a Redis server: SDIST_STORE in the environment, or [sdist] store in"
            " scrapy.cfg."
        )


def kind_on(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the kind of the file system that the file is, or would be, on; "" if unknown."""
    try:
        return kind_of(path.absolute().resolve(), mounts.read_text("utf-8", "surrogateescape"))
    except OSError:
        return ""


def kind_of(path: Path, mounts: str) -> str:
    """Return the kind of the file system that the absolute path is on; "" if unknown.

    `mounts` is the text of the table of mounts.
    """
    kind = ""
    depth = -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[1]))
        # Of two at the same place the later one hides the other.
        if path.is_relative_to(place) and len(place.parts) >= depth:
            kind = fields[2]
            depth = len(place.parts)
    return kind
