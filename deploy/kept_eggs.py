"""Keeps eggs in the state folder, under their versions, and finds the one to deploy again.

The last ten deployed eggs of each project are kept. The egg of a crawl is kept in the crawl's
folder, as long as that exists, so that the crawl can be resumed with the same code.
"""

import hashlib
import io
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from scrapyd_dist.config import write_file
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.scrapyd.versions import (
    HASH_DIGITS,
    ambiguous_version,
    hash_in,
    made_at,
    match_versions,
    sanitised,
)

from .egg import Egg

#: deployed eggs kept per project
KEPT_EGGS = 10
_VERSION_LINE = re.compile(rf"^Version: 0\+([0-9a-f]{{{HASH_DIGITS}}})$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class SavedEgg:
    """Names an egg in the state folder, and reads it."""

    version: str
    path: Path

    @property
    def content_hash(self) -> str | None:
        """Return the content hash in the name or in the egg's metadata.

        It is None if this program did not build the egg.
        """
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
        """Return the creation time by its name, else the file's modification time.

        It is in seconds since the epoch.
        """
        named = made_at(self.version)
        return self.path.stat().st_mtime if named is None else named

    def read(self) -> Egg:
        """Read the egg; NothingMatched if the file was not built by this program."""
        content_hash = self.content_hash
        if content_hash is None:
            raise NothingMatched(
                f"{self.path} is no egg that this program has built, so it is not sent. "
                "Deploy anew."
            )
        data = self.path.read_bytes()
        return Egg(make=lambda: data, content_hash=content_hash)


def read_egg(path: Path) -> Egg:
    """Read an egg that this program or another has built.

    Raises:
        ConfigError: it is no egg that Scrapyd takes.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        names = []
    if not {"EGG-INFO/PKG-INFO", "EGG-INFO/entry_points.txt"} <= {*names}:
        raise ConfigError(
            f"{path} is no egg with Scrapy's settings among its entry points, "
            "so Scrapyd cannot use it."
        )
    content_hash = SavedEgg(version="", path=path).content_hash
    if not content_hash:
        content_hash = hashlib.sha256(data).hexdigest()[:HASH_DIGITS]
    return Egg(make=lambda: data, content_hash=content_hash)


def folder_of(state: Path, project: str) -> Path:
    """Return the folder of a project's deployed eggs.

    The project's name may be any text, which must not act as a path here.
    """
    return state / "eggs" / quote(project, safe="").replace(".", "%2E")


def save_egg(state: Path, project: str, version: str, data: bytes) -> Path:
    """Save an egg as `eggs/<project>/<version>.egg` in the state folder.

    The oldest eggs beyond `KEPT_EGGS` are deleted.
    """
    path = write_egg(folder_of(state, project), version, data)
    for old in kept_eggs(state, project)[KEPT_EGGS:]:
        old.path.unlink(missing_ok=True)
    return path


def write_egg(folder: Path, version: str, data: bytes) -> Path:
    """Save an egg as `<version>.egg` in a folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sanitised(version)}.egg"
    write_file(path, data)  # for its owner only: it may contain a key
    return path


def kept_eggs(state: Path, project: str) -> list[SavedEgg]:
    """Return the kept eggs of a project's deployments, newest first."""
    return _eggs_in([folder_of(state, project)])


def sent_times(
    state: Path, projects: Iterable[str], *, but_of: str | None = None
) -> dict[str, float]:
    """Return when the kept versions were sent from here, by their names.

    Times are in seconds since the epoch. `projects` are the names that the project has on nodes;
    `but_of` is a content hash whose versions are left out.
    """
    times = {}
    for name in projects:
        for egg in kept_eggs(state, name):
            if but_of is None or egg.content_hash != but_of:
                times[egg.version] = egg.at
    return times


def all_eggs(state: Path, *projects: str) -> list[SavedEgg]:
    """Return the kept eggs of deployments and of all crawls, newest first, each version once.

    `projects` are the names that the project has on nodes.
    """
    folders = [folder_of(state, name) for name in dict.fromkeys(projects)]
    folders.extend((state / "crawls").glob("*"))
    # of two eggs of the same version, the newer one stands for both, at the place of the older one
    by_version: dict[str, SavedEgg] = {}
    for egg in reversed(_eggs_in(folders)):
        by_version[egg.version] = egg
    return list(reversed(by_version.values()))


def egg_of_version(folders: Sequence[Path], version: str) -> SavedEgg | None:
    """Return the egg with this name in one of the folders, else None."""
    for folder in folders:
        path = folder / f"{sanitised(version)}.egg"
        if path.is_file():
            return SavedEgg(version=path.stem, path=path)
    return None


def find_egg(state: Path, project: str, content_hash: str) -> SavedEgg | None:
    """Return the newest kept egg with this content hash in its name, else None.

    A custom name may mean other content on a node by now.
    """
    for egg in kept_eggs(state, project):
        if hash_in(egg.version) == content_hash:
            return egg
    return None


def _eggs_in(folders: Iterable[Path]) -> list[SavedEgg]:
    """Return the eggs in these folders, newest first."""
    paths: list[Path] = []
    for folder in folders:
        paths.extend(folder.glob("*.egg"))
    eggs = [SavedEgg(version=path.stem, path=path) for path in paths]
    return sorted(eggs, key=lambda egg: (egg.at, egg.version), reverse=True)


def first_name(kept: Sequence[SavedEgg], version: str) -> str | None:
    """Return the name under which the code of this version was sent from here before it.

    It is that of the oldest of the kept eggs, which are newest first; None if none has that code,
    or it is not known when or of what the version was made.
    """
    content = hash_in(version)
    made = made_at(version)
    if content is None or made is None:
        return None
    for egg in reversed(kept):
        if egg.version != version and egg.at < made and egg.content_hash == content:
            return egg.version
    return None


def choose(
    kept: Sequence[SavedEgg], wanted: str | None, current: str | None, *, folder: Path
) -> SavedEgg:
    """Return the egg to deploy again, out of the kept ones, newest first.

    `wanted` is a version's name, or a prefix of it or of its content hash; None means the version
    before the current one, which counts as the project's code on most nodes. Error messages name
    `folder` as that of the kept eggs. Raises NothingMatched if no kept egg matches, or several do.
    """
    if wanted is None:
        return _before(kept, current, folder)
    names = match_versions(wanted, [egg.version for egg in kept])
    matches = [egg for egg in kept if egg.version in names]
    if not matches:
        raise NothingMatched(
            f"The egg of the version {sanitised(wanted)} is not kept in {folder}, and Scrapyd "
            f"gives no egg back. Kept are {_names(kept)}. Name one of these, or check that "
            "version's code out and deploy it: sdist deploy --all."
        )
    if len({egg.content_hash for egg in matches}) > 1:
        raise ambiguous_version(wanted, names)
    return matches[0]


def _before(kept: Sequence[SavedEgg], current: str | None, folder: Path) -> SavedEgg:
    """Return the newest egg with other code that was made before the current version.

    If there is none that is older, it is the newest egg with other code.
    """
    current_hash = None
    current_time = None
    if current is not None:
        current_hash = hash_in(current) or _hash_of_version(kept, current)
        current_time = made_at(current)
    newest_other = None
    for egg in kept:
        if egg.content_hash in {None, current_hash}:
            continue
        if current_time is None or egg.at < current_time:
            return egg
        newest_other = newest_other or egg
    if newest_other is None:
        raise NothingMatched(
            f"No earlier version can be brought back: {folder} keeps {_names(kept)}, and the nodes "
            f"run {current or 'no version'}. Check the earlier code out and deploy it: "
            "sdist deploy --all."
        )
    return newest_other


def list_same_code(kept: Sequence[SavedEgg], chosen: SavedEgg, current: str | None) -> list[str]:
    """Return the kept versions between the current one and the chosen one that have its code, too.

    `kept` are newest first.
    """
    if current is None:
        return []
    current_hash = hash_in(current) or _hash_of_version(kept, current)
    names = []
    for egg in kept:
        if egg == chosen:
            break
        if egg.version != current and egg.content_hash == current_hash is not None:
            names.append(egg.version)
    return names


def _hash_of_version(kept: Sequence[SavedEgg], version: str) -> str | None:
    for egg in kept:
        if egg.version == version:
            return egg.content_hash
    return None


def _names(kept: Sequence[SavedEgg]) -> str:
    return ", ".join(egg.version for egg in kept) or "none"
