"""Finds the address of a store, how that may be shown, and the file system that a file lies on."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from scrapyd_dist.config import STATE_FOLDER
from scrapyd_dist.errors import ConfigError, StoreError
from scrapyd_dist.settings import SETTINGS

#: the file in the state folder, where nothing else was said
STORE_FILE = "store.db"
#: the environment variable with the store's address, which may hold a password; an argument list
#: must not
VARIABLE = SETTINGS["DISTRIBUTED_STORE"].variable
#: a prefix with a hash tag
_TAG = re.compile(r"^[^{]*\{[^}]+\}")
#: options in an address that hold no secret
_SHOWN_OPTIONS = frozenset({"db", "prefix"})
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


def store_address(
    root: Path, *addresses: str | None, environment: Mapping[str, str] = os.environ
) -> str:
    """Return the address of the project's store: the URL of a server, or an absolute path.

    It is what the environment says, else the first of `addresses` that is not empty, else the
    project's own file. A relative path lies below `root`.

    Raises:
        ConfigError: the address stands in a variable that is not set.
    """
    named = ""
    for text in (environment.get(VARIABLE), *addresses):
        named = (text or "").strip()
        if named:
            break
    if not named:
        return str(root / STATE_FOLDER / STORE_FILE)
    if named.startswith("$"):
        # scrapy.cfg's variables are filled in when it is read, those of a setting are not
        named = environment.get(named[1:].strip("{}"), "").strip() or named
    if named.startswith("$"):
        raise ConfigError(
            f"the address of the store is in the variable {named}, which is not in the environment."
            f" Set it, or set {VARIABLE} to the address."
        )
    if is_url(named):
        return named
    return str(root / Path(named.removeprefix("sqlite://")).expanduser())


def is_url(where: str | Path) -> bool:
    """Return whether this is the address of a server, not a file's path."""
    text = str(where)
    return "://" in text and not text.startswith("sqlite://")


def shown(where: str | Path) -> str:
    """Return the address without a password, and without options that may hold one."""
    text = str(where)
    if not is_url(text):
        return text.removeprefix("sqlite://")
    kind, rest = text.split("://", 1)
    kind = kind.rpartition("@")[2]
    place, _, options = rest.rpartition("@")[2].partition("?")
    host, colon, port = place.partition("/")[0].rpartition(":")
    if colon and not port.isdecimal() and not port.endswith("]"):
        # A password whose host was forgotten.
        place = f"{host}:***"
    address = f"{kind}://{place.partition('#')[0]}"
    harmless = []
    for name, value in parse_qsl(options):
        if name not in _SHOWN_OPTIONS:
            continue
        harmless.append(f"{name}={value}")
    if not harmless:
        return address
    return f"{address}?{'&'.join(harmless)}"


def tagged(prefix: str) -> str:
    """Return the prefix with a hash tag, `{…}`, so that a Redis Cluster keeps all keys together.

    One that has a tag of its own stays as it is.
    """
    if _TAG.search(prefix):
        return prefix
    name = prefix.rstrip(":") or prefix
    return f"{{{name}}}{prefix[len(name) :]}"


def without_prefix(url: str) -> tuple[str, str | None]:
    """Return the URL as the client library takes it, and the prefix of keys that it may name."""
    parts = urlsplit(url)
    options = []
    for option in parts.query.split("&"):
        if not option or option.startswith("prefix="):
            continue
        options.append(option)
    prefix = None
    for name, value in parse_qsl(parts.query):
        if name == "prefix":
            prefix = value
    return parts._replace(query="&".join(options)).geturl(), prefix


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
