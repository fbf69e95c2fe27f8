"""Puts files into sinks: a folder, a server or a bucket. Blocking.

Each file is there as a whole or not at all.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.whole_files import replacing

#: kinds of addresses where an object appears as a whole
_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"})
#: kinds where a file grows, and is renamed when it is whole
_FILES = frozenset({"ftp", "sftp", "ssh"})
#: bytes that are copied in one step
_BLOCK = 1 << 20
#: called when a file that is on its way has moved on
Moved = Callable[[], object]

#: what --deliver takes
TAKEN = (
    "--deliver (DISTRIBUTED_DELIVER) takes a folder, or an address such as file:///folder,"
    " s3://bucket/path, gs://bucket/path, abfs://container/path, sftp://host/path or ftp://host/path"
)
#: why a password on the command line is refused
REVEALED = (
    "The address of --deliver (DISTRIBUTED_DELIVER) has a password, and every user of this machine"
    " could read it in the process list. Put DISTRIBUTED_DELIVER into the project's settings.py,"
    " and leave it out here."
)


def password_in(address: str) -> bool:
    """Say whether an address has a password.

    It has none if it cannot be read: then `open_sink` says what is wrong.
    """
    try:
        return urlsplit(address).password is not None
    except ValueError:
        return False


class Sink(Protocol):
    """A place where files are put."""

    shown: str  #: its address, without what is secret

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None when it is not there."""

    def write(self, name: str, content: bytes) -> None:
        """Put a file there, in place of one of that name."""

    def put(self, name: str, path: Path, moved: Moved) -> None:
        """Put the content of a local file there, which may be large; call `moved` on the way."""


def split(address: str, what: str) -> SplitResult:
    """Return the parts of an address; ConfigError if it cannot be read.

    `what` is the name of the address in the error.
    """
    try:
        parts = urlsplit(address)
        _ = parts.port  # reading it is what fails
    except ValueError:
        # The address itself is not shown: what looks like a bad port may be half a password.
        raise ConfigError(
            f"{what} cannot be read: its host or port is none. In a user name or a password, write"
            " : as %3A, @ as %40 and / as %2F."
        ) from None
    return parts


def open_sink(address: str, folder: Path) -> Sink:
    """Return the sink at an address; relative folders are below `folder`. Nothing is opened yet.

    Raises `ConfigError` for an address of a kind that is not known, or that cannot be read.
    """
    parts = split(address, "The address of --deliver (DISTRIBUTED_DELIVER)")
    if "://" not in address:
        return FolderSink(folder / os.path.expanduser(address))  # noqa: PTH111 - a ~ that is no user's is a name
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return FolderSink(Path(unquote(parts.path)))
    if parts.scheme not in _OBJECTS | _FILES:
        raise ConfigError(f"{TAKEN}; this one begins with {parts.scheme}://.")
    if not parts.netloc:
        raise ConfigError(f"{TAKEN}; this one names no bucket or host behind {parts.scheme}://.")
    return RemoteSink(parts)


class FolderSink:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.shown = str(self._folder)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None when it is not there."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Put a file there, in place of one of that name."""
        self._replace(name, [content])

    def put(self, name: str, path: Path, moved: Moved) -> None:
        """Put the content of a local file there; call `moved` after each block."""
        with path.open("rb") as file:
            self._replace(name, iter(lambda: file.read(_BLOCK), b""), moved)

    def _replace(self, name: str, blocks: Iterable[bytes], moved: Moved = lambda: None) -> None:
        with replacing(self._folder / name) as file:
            for block in blocks:
                file.write(block)
                moved()


class RemoteSink:
    """A server or a bucket, by fsspec and its driver for that kind of address.

    It is connected anew after an error.
    """

    def __init__(self, parts: SplitResult) -> None:
        host = parts.netloc.rpartition("@")[2]
        self.shown = parts._replace(netloc=host, query="", fragment="").geturl().rstrip("/")
        self._renames = parts.scheme in _FILES
        self._login: dict[str, str] = {}
        if parts.username is not None:
            self._login["username"] = unquote(parts.username)
        if parts.password is not None:
            self._login["password"] = unquote(parts.password)
        self._fs: Any = None  #: None while it is not connected
        self._root = ""  #: the path at the server, once it is connected

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None when it is not there."""
        content: bytes | None = self._call(lambda fs: _content(fs, self._path(name)))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Put a file there, in place of one of that name."""
        self._call(lambda fs: self._replace(fs, name, lambda path: fs.pipe_file(path, content)))

    def put(self, name: str, path: Path, moved: Moved) -> None:
        """Put the content of a local file there; call `moved` when the driver tells of progress."""

        def store(fs: Any, target: str) -> None:
            from fsspec.callbacks import Callback  # noqa: PLC0415 - an extra

            progress = Callback(hooks={"moved": lambda *_args, **_more: moved()})
            fs.put_file(str(path), target, callback=progress)

        self._call(lambda fs: self._replace(fs, name, lambda target: store(fs, target)))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _replace(self, fs: Any, name: str, store: Callable[[str], object]) -> None:
        """Let `store` write the file: an object at once, a file by another name, then renamed."""
        if not self._renames:
            store(self._path(name))
            return
        growing = self._path(_growing_name(name))
        store(growing)
        fs.mv(growing, self._path(name))

    def _call(self, work: Callable[[Any], Any]) -> Any:
        """Return what `work` gives for the file system; OSError for any error of a driver."""
        reused = self._fs is not None
        try:
            if self._fs is None:
                self._fs = self._connect()
            return work(self._fs)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a driver may raise anything
            self._fs = None
            if reused:  # the server may have closed a connection that was idle
                return self._call(work)
            text = f"{type(error).__name__}: {error}"
            # a driver's error may have the address in it
            raise OSError(text.replace(self._login.get("password") or "\0", "…")) from None

    def _connect(self) -> Any:
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra

            # A connection of an earlier call may be stale.
            fs, self._root = url_to_fs(self.shown, skip_instance_cache=True, **self._login)
        except ImportError as error:  # of fsspec, or of its driver, which it names
            raise ConfigError(
                f"Items are delivered to {self.shown} by fsspec and its driver, and one of them is"
                f' not installed ({error}): pip install "scrapyd-dist[deliver]" for both, or fsspec'
                " with the driver that is named."
            ) from None
        if self._renames:
            fs.makedirs(self._root, exist_ok=True)
        return fs


def _growing_name(name: str) -> str:
    """Return the name of a file that is not whole: readers of a folder skip it, as it is hidden."""
    return f".{name}.part"


def _content(fs: Any, path: str) -> bytes | None:
    try:
        return bytes(fs.cat_file(path))
    except Exception:  # not always FileNotFoundError: it depends on the driver
        if fs.exists(path):
            raise
        return None
