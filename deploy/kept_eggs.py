"""Keeps eggs in the state folder, under their versions, and names commits of git and Mercurial.

The last ten deployed eggs of each project are kept. The egg of a crawl is kept in the crawl's folder, as long as that
exists, so that the crawl can be resumed with the same code.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.scrapyd.versions import HASH_DIGITS, hash_in, made_at, sanitised

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: deployed eggs kept per project
KEPT_EGGS = 10
#: timeout of git and hg in seconds
GIT_TIMEOUT = 20

_VERSION_LINE = re.compile(rf"^Version: 0\+([0-9a-f]{{{HASH_DIGITS}}})$", re.MULTILINE)
#: commands for each of scrapyd-client's keywords: description of the commit, number of commits as a fallback, branch
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
        """The content hash in the name or in the egg's metadata; None if this program did not build it."""
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
    def at(self) -> float:
        """The creation time by its name, else the file's modification time; seconds since the epoch."""
        named = made_at(self.version)
        return self.path.stat().st_mtime if named is None else named


def describe(project_root: Path, kind: str) -> str:
    """Name the current commit as scrapyd-client's `version = GIT` does: `git-v1-2-gabc1234-main`.

    Raises:
        ConfigError: git or Mercurial is not installed, or knows no commit of the project.
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
    """Whether the project's git work tree has uncommitted changes; False without git."""
    return bool(_ask(project_root, ("git", "status", "--porcelain", "--", ".")))


def save_egg(state: Path, project: str, version: str, data: bytes) -> Path:
    """Save an egg as `eggs/<project>/<version>.egg` in the state folder, and delete the oldest beyond `KEPT_EGGS`."""
    path = write_egg(folder_of(state, project), version, data)
    for old in kept_eggs(state, project)[KEPT_EGGS:]:
        old.path.unlink(missing_ok=True)
    return path


def write_egg(folder: Path, version: str, data: bytes) -> Path:
    """Save an egg as `<version>.egg` in a folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    # The egg may contain a key: a temporary file is readable by its owner only, and keeps its mode when renamed.
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    path = folder / f"{sanitised(version)}.egg"
    Path(temporary).replace(path)
    return path


def find_egg(state: Path, project: str, content_hash: str) -> SavedEgg | None:
    """Return the newest kept egg with this content hash in its name, else None.

    A custom name may mean other content on a node by now.
    """
    return next((egg for egg in kept_eggs(state, project) if hash_in(egg.version) == content_hash), None)


def kept_eggs(state: Path, project: str) -> list[SavedEgg]:
    """Return the kept eggs of a project's deployments, newest first."""
    return _eggs_in([folder_of(state, project)])


def all_eggs(state: Path, project: str) -> list[SavedEgg]:
    """Return the kept eggs of a project's deployments and of all crawls, newest first, each version once."""
    found = _eggs_in([folder_of(state, project), *(state / "crawls").glob("*")])
    return list({egg.version: egg for egg in reversed(found)}.values())[::-1]


def egg_of_version(folders: Sequence[Path], version: str) -> SavedEgg | None:
    """Return the egg with this name in one of the folders, else None."""
    paths = (folder / f"{sanitised(version)}.egg" for folder in folders)
    return next((SavedEgg(version=path.stem, path=path) for path in paths if path.is_file()), None)


def sent_at(state: Path, project: str) -> dict[str, float]:
    """Return the times of the kept eggs: version -> seconds since the epoch."""
    return {egg.version: egg.at for egg in kept_eggs(state, project)}


def _eggs_in(folders: Iterable[Path]) -> list[SavedEgg]:
    found = [SavedEgg(version=path.stem, path=path) for folder in folders for path in folder.glob("*.egg")]
    return sorted(found, key=lambda egg: (egg.at, egg.version), reverse=True)


def _ask(project_root: Path, command: tuple[str, ...]) -> str:
    """Run a command in the project and return its output; empty if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=project_root,
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT,
            stdin=subprocess.DEVNULL,
            # A read must not take the lock that a commit needs.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


def folder_of(state: Path, project: str) -> Path:
    """Return the folder of a project's deployed eggs."""
    # Scrapyd allows any text as a project's name; it must not act as a path here.
    return state / "eggs" / quote(project, safe="").replace(".", "%2E")
