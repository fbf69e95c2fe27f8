"""Names of versions, and the eggs kept in the state folder; rule: a name sorts by time and tells its content.

Scrapyd replaces what is not A-Za-z0-9_- in a version and sorts the rest as text, so names are made
of nothing else, and the time comes first.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

from .egg import HASH_DIGITS

#: eggs kept for each project
KEPT_EGGS = 10
#: seconds that git may take to look at the work tree
GIT_TIMEOUT = 20

_NAME = re.compile(rf"\d{{8}}T\d{{6}}Z-([0-9a-f]{{{HASH_DIGITS}}})(-dirty)?")


@dataclass(frozen=True, kw_only=True)
class SavedEgg:
    """An egg in the state folder."""

    version: str
    path: Path


def version_name(content_hash: str, now: datetime, *, dirty: bool = False) -> str:
    """`<YYYYMMDDTHHMMSSZ>-<content hash>[-dirty]`; `now` must know its time zone."""
    stamp = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return f"{stamp}-{content_hash}{'-dirty' if dirty else ''}"


def hash_in(version: str) -> str | None:
    """The content hash in a name that `version_name` made, else None."""
    match = _NAME.fullmatch(version)
    return match[1] if match else None


def is_dirty(project_root: Path) -> bool:
    """Whether the git work tree of a project has changes that are not committed; False where git knows nothing."""
    command = ["git", "-C", str(project_root), "status", "--porcelain", "--", "."]
    try:
        status = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT,
            stdin=subprocess.DEVNULL,
            # A look must not take the lock that a commit of the user needs.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return status.returncode == 0 and bool(status.stdout.strip())


def save_egg(state: Path, project: str, version: str, data: bytes) -> Path:
    """Keep an egg in the state folder, as `eggs/<project>/<version>.egg`; the oldest beyond ten go."""
    folder = _folder_of(state, project)
    folder.mkdir(parents=True, exist_ok=True)
    # The egg may hold a key: a temporary file is readable by its owner alone, and a rename keeps that.
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    path = folder / f"{version}.egg"
    Path(temporary).replace(path)
    for old in _saved(state, project)[KEPT_EGGS:]:
        old.path.unlink(missing_ok=True)
    return path


def find_egg(state: Path, project: str, content_hash: str) -> SavedEgg | None:
    """The newest kept egg with this content, else None."""
    return next((egg for egg in _saved(state, project) if hash_in(egg.version) == content_hash), None)


def _saved(state: Path, project: str) -> list[SavedEgg]:
    """All kept eggs of a project, newest first."""
    found = (SavedEgg(version=path.stem, path=path) for path in _folder_of(state, project).glob("*.egg"))
    return sorted((egg for egg in found if hash_in(egg.version)), key=lambda egg: egg.version, reverse=True)


def _folder_of(state: Path, project: str) -> Path:
    # A project's name is free text for Scrapyd, but not a path for us.
    return state / "eggs" / quote(project, safe="").replace(".", "%2E")
