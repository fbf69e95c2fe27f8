"""Creates and reads the project's key, which encrypts batches and signs rows of the store.

It is kept only in the state folder and inside eggs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

_FILE = "key"


def state_key(state: Path) -> bytes:
    """Return the project's Fernet key, created on first use in a file that only its owner can read."""
    path = state / _FILE
    if not path.exists():
        _make(path)
    return path.read_bytes().strip()


def known_key(state: Path) -> bytes | None:
    """Return the project's key, or None if there is none yet."""
    try:
        return (state / _FILE).read_bytes().strip() or None
    except FileNotFoundError:
        return None


def _make(path: Path) -> None:
    from cryptography.fernet import Fernet  # noqa: PLC0415 - slow to import, and needed once per project

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".key-")
    with os.fdopen(handle, "wb") as file:
        file.write(Fernet.generate_key())
    # Linking is atomic: of two processes, the later one uses the earlier one's key.
    with contextlib.suppress(FileExistsError):
        os.link(name, path)
    Path(name).unlink()
