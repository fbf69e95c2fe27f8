"""Reads back the feeds that batches wrote to FTP or to a shared folder."""

from __future__ import annotations

import ftplib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

#: timeout of FTP connections in seconds
FTP_TIMEOUT = 30


def read_back(uris: Sequence[str], template: str, folder: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    """Fetch the accepted feeds.

    Args:
        uris: URIs of the feeds, without passwords.
        template: the project's feed URL, with its password if it has one.
        folder: the folder for copies.

    Returns:
        Pairs of URI and local path in order, and a warning for each feed that could not be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copies, warnings = [], []
    for number, uri in enumerate(uris, 1):
        try:
            parts = urlsplit(uri)
            if not belongs(uri, template):
                warnings.append(f"{uri} is not merged: the project's feed URL does not lead there")
            elif parts.scheme in {"", "file"}:
                copies.append((uri, _local(parts)))
            elif parts.scheme == "ftp":
                copies.append((uri, _ftp(parts, urlsplit(template), folder / f"{number}.jl")))
            else:
                warnings.append(f"{uri} is not merged: feeds of the kind {parts.scheme}:// are not read back")
        except (OSError, EOFError, ValueError, ftplib.Error) as error:
            warnings.append(f"{uri} is not merged: it could not be read back ({error})")
    return copies, warnings


def belongs(uri: str, feed_url: str) -> bool:
    """Whether a URI lies below the feed URL; any other URI is neither opened nor given the password."""
    try:
        parts, template = urlsplit(uri), urlsplit(feed_url)
        places = [(one.scheme or "file", one.hostname, one.port) for one in (parts, template)]
    except ValueError:  # invalid host or port
        return False
    folder, slash, _ = template.path.partition("%(")[0].rpartition("/")  # file names vary by batch
    return places[0] == places[1] and parts.path.startswith(folder + slash) and ".." not in unquote(parts.path)


def _local(parts: SplitResult) -> Path:
    path = Path(unquote(parts.path))
    with path.open("rb"):
        return path


def _ftp(parts: SplitResult, account: SplitResult, copy: Path) -> Path:
    with ftplib.FTP(timeout=FTP_TIMEOUT) as server:  # noqa: S321 - the user's choice of feed storage
        server.connect(parts.hostname or "", parts.port or 21)
        server.login(unquote(account.username or ""), unquote(account.password or ""))
        with copy.open("wb") as file:
            server.retrbinary(f"RETR {unquote(parts.path)}", file.write)
    return copy
