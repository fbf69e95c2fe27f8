"""The eggs kept in the state folder, and what a version control calls a commit; rule: an egg is kept under its version.

What was deployed is kept by project, the last ten of each. What a crawl runs is kept in the crawl's own folder, as long
as there is one: it may have to go on with that code.
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

#: eggs kept for each project
KEPT_EGGS = 10
#: seconds that git may take to look at the work tree
GIT_TIMEOUT = 20

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
    def at(self) -> float:
        """When it was made, by its name, else by the file's time; seconds since the epoch."""
        named = made_at(self.version)
        return self.path.stat().st_mtime if named is None else named


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
    path = write_egg(folder_of(state, project), version, data)
    for old in kept_eggs(state, project)[KEPT_EGGS:]:
        old.path.unlink(missing_ok=True)
    return path


def write_egg(folder: Path, version: str, data: bytes) -> Path:
    """Keep an egg in a folder, which is made if missing, as `<version>.egg`."""
    folder.mkdir(parents=True, exist_ok=True)
    # The egg may hold a key: a temporary file is readable by its owner alone, and a rename keeps that.
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    path = folder / f"{sanitised(version)}.egg"
    Path(temporary).replace(path)
    return path


def find_egg(state: Path, project: str, content_hash: str) -> SavedEgg | None:
    """The newest kept egg with this content, under a name that tells it; else None.

    A name that somebody gave may stand for other content on a node by now.
    """
    return next((egg for egg in kept_eggs(state, project) if hash_in(egg.version) == content_hash), None)


def kept_eggs(state: Path, project: str) -> list[SavedEgg]:
    """The kept eggs of what was deployed of a project, newest first."""
    return _eggs_in([folder_of(state, project)])


def all_eggs(state: Path, project: str) -> list[SavedEgg]:
    """The kept eggs of a project and those of all crawls that have a folder, newest first, each version once."""
    found = _eggs_in([folder_of(state, project), *(state / "crawls").glob("*")])
    return list({egg.version: egg for egg in reversed(found)}.values())[::-1]


def egg_of_version(folders: Sequence[Path], version: str) -> SavedEgg | None:
    """The egg that one of the folders keeps under this name; else None."""
    paths = (folder / f"{sanitised(version)}.egg" for folder in folders)
    return next((SavedEgg(version=path.stem, path=path) for path in paths if path.is_file()), None)


def sent_at(state: Path, project: str) -> dict[str, float]:
    """When versions were sent from here whose names do not tell it: name -> seconds since the epoch."""
    return {egg.version: egg.at for egg in kept_eggs(state, project)}


def _eggs_in(folders: Iterable[Path]) -> list[SavedEgg]:
    found = [SavedEgg(version=path.stem, path=path) for folder in folders for path in folder.glob("*.egg")]
    return sorted(found, key=lambda egg: (egg.at, egg.version), reverse=True)


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


def folder_of(state: Path, project: str) -> Path:
    """Where the deployed eggs of a project are."""
    # A project's name is free text for Scrapyd, but not a path for us.
    return state / "eggs" / quote(project, safe="").replace(".", "%2E")
