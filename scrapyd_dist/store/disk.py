"""What kind of file system a file lies on: SQLite's locks and its log need a disk of this machine."""

from __future__ import annotations

import re
from pathlib import Path

from scrapyd_dist.errors import StoreError

#: file systems that several machines share: locks are slow, late or missing there, and shared memory is none
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "ncpfs"}
    | {f"fuse.{kind}" for kind in ("sshfs", "s3fs", "rclone", "gcsfuse", "glusterfs", "ceph", "ceph-fuse", "davfs2")}
)
_MOUNTS = Path("/proc/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def check_local(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise `StoreError` when the file is, or would be, on a file system of a network; silent where nobody can tell."""
    kind = kind_on(path, mounts)
    if kind in NETWORK:
        raise StoreError(
            f"the store {path} would lie on a network file system ({kind}), where SQLite cannot keep two processes"
            " apart and batches could be lost. Name a file on a disk of this machine, or a Redis server: SDIST_STORE in"
            " the environment, or [sdist] store in scrapy.cfg."
        )


def kind_on(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of the file system that the file is, or would be, on; "" where nobody can tell."""
    try:
        return kind_of(path.absolute().resolve(), mounts.read_text("utf-8", "surrogateescape"))
    except OSError:
        return ""


def kind_of(path: Path, mounts: str) -> str:
    """The kind of the file system that the absolute path is on, by the text of the table of mounts; "" if unknown."""
    kind, longest = "", -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[1]))
        # Of two at the same place the later one hides the other.
        if path.is_relative_to(place) and len(place.parts) >= longest:
            kind, longest = fields[2], len(place.parts)
    return kind
