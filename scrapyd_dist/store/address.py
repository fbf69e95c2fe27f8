"""Where a store is: the address that a person gives, how it may be shown, and the file system that a file lies on."""

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
#: the environment variable with the store's address; it may hold a password, an argument list must not
VARIABLE = SETTINGS["DISTRIBUTED_STORE"].variable
_TAG = re.compile(r"^[^{]*\{[^}]+\}")


def chosen(root: Path, *said: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The store of the project in `root`: what the environment says, else the first of `said`, else its own file.

    It is the URL of a server, or an absolute path; one that was given as relative lies below `root`. Raises
    `ConfigError` when it stands in a variable that is not set.
    """
    named = next(
        (text.strip() for text in (environment.get(VARIABLE), *said) if text and text.strip()), None
    )
    if named is None:
        return str(root / STATE_FOLDER / STORE_FILE)
    if named.startswith("$"):
        # scrapy.cfg's variables are filled in when it is read, those of a setting are not
        named = environment.get(named[1:].strip("{}"), "").strip() or named
    if named.startswith("$"):
        raise ConfigError(
            f"the address of the store is in the variable {named}, which is not in the environment. Set it, or set"
            f" {VARIABLE} to the address."
        )
    if is_url(named):
        return named
    return str(root / Path(named.removeprefix("sqlite://")).expanduser())


def is_url(where: str | Path) -> bool:
    """Whether it is the address of a server, not a file's path."""
    text = str(where)
    return "://" in text and not text.startswith("sqlite://")


def shown(where: str | Path) -> str:
    """The address as it may be told: without a password, and without the options that may hold one."""
    text = str(where)
    if not is_url(text):
        return text.removeprefix("sqlite://")
    kind, rest = text.split("://", 1)
    kind = kind.rpartition("@")[2]
    place, _, options = rest.rpartition("@")[2].partition("?")
    host, colon, port = place.partition("/")[0].rpartition(":")
    if (
        colon and not port.isdecimal() and not port.endswith("]")
    ):  # a password whose host was forgotten
        place = f"{host}:***"
    told = [f"{name}={value}" for name, value in parse_qsl(options) if name in {"db", "prefix"}]
    return f"{kind}://{place.partition('#')[0]}{'?' if told else ''}{'&'.join(told)}"


def tagged(prefix: str) -> str:
    """The prefix with a hash tag, `{…}`: a Redis Cluster keeps all keys that begin with it on one node.

    One that has a tag of its own stays as it is.
    """
    if _TAG.search(prefix):
        return prefix
    name = prefix.rstrip(":") or prefix
    return f"{{{name}}}{prefix[len(name) :]}"


def without_prefix(url: str) -> tuple[str, str | None]:
    """The url as the client library takes it, and the prefix of the keys that it may name."""
    parts = urlsplit(url)
    options = [pair for pair in parts.query.split("&") if pair]
    prefixes = [value for name, value in parse_qsl(parts.query) if name == "prefix"]
    query = "&".join(pair for pair in options if not pair.startswith("prefix="))
    return parts._replace(query=query).geturl(), prefixes[-1] if prefixes else None


#: file systems that several machines share: locks are slow, late or missing there, and shared memory is none
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
    }
    | {
        f"fuse.{kind}"
        for kind in (
            "sshfs",
            "s3fs",
            "rclone",
            "gcsfuse",
            "glusterfs",
            "ceph",
            "ceph-fuse",
            "davfs2",
        )
    }
)
_MOUNTS = Path("/proc/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def check_local(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise `StoreError` when the file is, or would be, on a file system of a network; silent where that is unknown."""
    kind = kind_on(path, mounts)
    if kind in NETWORK:
        raise StoreError(
            f"the store {path} would lie on a network file system ({kind}), where SQLite cannot keep two processes"
            " apart and batches could be lost. Name a file on a disk of this machine, or a Redis server: SDIST_STORE in"
            " the environment, or [sdist] store in scrapy.cfg."
        )


def kind_on(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of the file system that the file is, or would be, on; "" where it cannot be told."""
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
