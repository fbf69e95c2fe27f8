"""The key with which batches are encrypted and rows of the store are signed.

It lives in the state folder and travels inside the egg, nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

_FILE = "key"


def state_key(state: Path) -> bytes:
    """The project's Fernet key, made on first use; readable by its owner only."""
    path = state / _FILE
    if not path.exists():
        _make(path)
    return path.read_bytes().strip()


def known_key(state: Path) -> bytes | None:
    """The project's key; None where none was made yet."""
    try:
        return (state / _FILE).read_bytes().strip() or None
    except FileNotFoundError:
        return None


def _make(path: Path) -> None:
    from cryptography.fernet import Fernet  # noqa: PLC0415 - slow to import, and needed once per project

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".key-")
    with os.fdopen(handle, "wb") as file:
        file.write(Fernet.generate_key())
    # A link is made whole or not at all: of two processes, the later one uses the earlier one's key.
    with contextlib.suppress(FileExistsError):
        os.link(name, path)
    Path(name).unlink()
