"""Reads the text of a store's address: its scheme, the file in it, and how it may be shown."""

from pathlib import Path
from urllib.parse import parse_qsl

#: the scheme of a file's path, where one is written at all
FILE_SCHEME = "sqlite"
#: options in an address that hold no secret
_SHOWN_OPTIONS = frozenset({"db", "prefix"})


def scheme_of(where: str | Path) -> str:
    """Return what stands before `://` in the address; empty for a path."""
    scheme, separator, _ = str(where).partition("://")
    return scheme if separator else ""


def file_of(where: str | Path) -> Path | None:
    """Return the file that has the store; None for the address of a server."""
    if scheme_of(where) not in {"", FILE_SCHEME}:
        return None
    return Path(_path_text(where))


def shown(where: str | Path) -> str:
    """Return the address without a password, and without options that may hold one."""
    if file_of(where) is not None:
        return _path_text(where)
    kind, rest = str(where).split("://", 1)
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


def _path_text(where: str | Path) -> str:
    return str(where).removeprefix(f"{FILE_SCHEME}://")
