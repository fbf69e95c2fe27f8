"""Names of versions, and the eggs kept in the state folder; rule: a name sorts by time and tells its content.

Scrapyd replaces what is not A-Za-z0-9_- in a version and sorts the rest as text, so names are made
of nothing else, and the time comes first.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from scrapyd_dist.errors import ConfigError

from .egg import HASH_DIGITS

if TYPE_CHECKING:
    from collections.abc import Iterable

#: eggs kept for each project
KEPT_EGGS = 10
#: seconds that git may take to look at the work tree
GIT_TIMEOUT = 20

_STAMP = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(rf"\d{{8}}T\d{{6}}Z-([0-9a-f]{{{HASH_DIGITS}}})(-(git|hg)-[A-Za-z0-9_-]+)?(-dirty)?")
_VERSION_LINE = re.compile(rf"^Version: 0\+([0-9a-f]{{{HASH_DIGITS}}})$", re.MULTILINE)
#: what each of scrapyd-client's two words asks: the commit in words, and if there are none its number; the branch
_COMMANDS = {
    "GIT": (("git", "describe"), ("git", "rev-list", "--count", "HEAD"), ("git", "rev-parse", "--abbrev-ref", "HEAD")),
    "HG": (("hg", "log", "-r", ".", "-T", "r{rev}"), ("hg", "id", "-n"), ("hg", "branch")),
}


@dataclass(frozen=True, kw_only=True)
class SavedEgg:
    """An egg in the state folder."""

    version: str
    path: Path

    @property
    def content_hash(self) -> str | None:
        """Of the name, else of what the egg says about itself; None = it is none of ours."""
        known = hash_in(self.version)
        if known is not None:
            return known
        try:
            with zipfile.ZipFile(self.path) as archive:
                found = _VERSION_LINE.search(archive.read("EGG-INFO/PKG-INFO").decode())
        except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile):
            return None
        return found[1] if found else None

    @property
    def age_key(self) -> str:
        """Sorts by time: that of the name, else that of the file."""
        if hash_in(self.version) is not None:
            return self.version
        return datetime.fromtimestamp(self.path.stat().st_mtime, timezone.utc).strftime(_STAMP)


def version_name(content_hash: str, now: datetime, *, dirty: bool = False, label: str = "") -> str:
    """`<YYYYMMDDTHHMMSSZ>-<content hash>[-<label>][-dirty]`; `now` must know its time zone, `label` is `describe`'s."""
    stamp = now.astimezone(timezone.utc).strftime(_STAMP)
    return f"{stamp}-{content_hash}{f'-{label}' if label else ''}{'-dirty' if dirty else ''}"


def later_than(now: datetime, names: Iterable[str]) -> datetime:
    """`now`, or the first second in which a name of ours sorts behind all of these: two deploys may share one."""
    stamps = [datetime.strptime(name.split("-")[0], _STAMP) for name in names if hash_in(name)]  # noqa: DTZ007 - it ends in Z
    newest = max((stamp.replace(tzinfo=timezone.utc) for stamp in stamps), default=None)
    return now if newest is None else max(now, newest + timedelta(seconds=1))


def hash_in(version: str) -> str | None:
    """The content hash in a name that `version_name` made, else None."""
    match = _NAME.fullmatch(version)
    return match[1] if match else None


def sanitised(version: str) -> str:
    """The name under which Scrapyd keeps and lists a version."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", version)


def describe(project_root: Path, kind: str) -> str:
    """What git or Mercurial calls the commit, as scrapyd-client's `version = GIT` does: `git-v1-2-gabc1234-main`.

    Raises:
        ConfigError: the program is missing, or the project is not under it.
    """
    words, number, branch = _COMMANDS[kind]
    text = _ask(project_root, words)
    if not text:
        count = _ask(project_root, number)
        if not count:
            raise ConfigError(
                f"The version is to be named by {kind}, and {words[0]} knows no commit in {project_root}. Commit the "
                "project, or give the version another name with --version."
            )
        text = f"r{count}"
    return sanitised(f"{words[0]}-{text}-{_ask(project_root, branch) or 'HEAD'}")


def is_dirty(project_root: Path) -> bool:
    """Whether the git work tree of a project has changes that are not committed; False where git knows nothing."""
    return bool(_ask(project_root, ("git", "status", "--porcelain", "--", ".")))


def save_egg(state: Path, project: str, version: str, data: bytes) -> Path:
    """Keep an egg in the state folder, as `eggs/<project>/<version>.egg`; the oldest beyond ten go."""
    folder = _folder_of(state, project)
    folder.mkdir(parents=True, exist_ok=True)
    # The egg may hold a key: a temporary file is readable by its owner alone, and a rename keeps that.
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    path = folder / f"{sanitised(version)}.egg"
    Path(temporary).replace(path)
    for old in kept_eggs(state, project)[KEPT_EGGS:]:
        old.path.unlink(missing_ok=True)
    return path


def find_egg(state: Path, project: str, content_hash: str) -> SavedEgg | None:
    """The newest kept egg with this content, under a name that tells it; else None.

    A name that somebody gave may stand for other content on a node by now.
    """
    return next((egg for egg in kept_eggs(state, project) if hash_in(egg.version) == content_hash), None)


def kept_eggs(state: Path, project: str) -> list[SavedEgg]:
    """All kept eggs of a project, newest first."""
    found = [SavedEgg(version=path.stem, path=path) for path in _folder_of(state, project).glob("*.egg")]
    return sorted(found, key=lambda egg: egg.age_key, reverse=True)


def _ask(project_root: Path, command: tuple[str, ...]) -> str:
    """What a program says about the project; empty where it knows nothing."""
    try:
        done = subprocess.run(
            command,
            cwd=project_root,
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT,
            stdin=subprocess.DEVNULL,
            # A look must not take the lock that a commit of the user needs.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


def _folder_of(state: Path, project: str) -> Path:
    # A project's name is free text for Scrapyd, but not a path for us.
    return state / "eggs" / quote(project, safe="").replace(".", "%2E")
