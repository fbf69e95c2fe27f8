"""Find which code a crawl runs (what it began with, what was asked for, or today's), and import it.

The rule it keeps: index and jobs are crawled by the same code. Where that is not the working
tree's, its kept egg is unpacked into the crawl's folder, and the producer's process imports the
project from there.
"""

import os
import shutil
import sys
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from scrapyd_dist.deploy import egg as eggs
from scrapyd_dist.deploy.egg import Egg
from scrapyd_dist.deploy.kept_eggs import SavedEgg, all_eggs, egg_of_version, folder_of, write_egg
from scrapyd_dist.deploy.project_files import ProjectFiles
from scrapyd_dist.deploy.requirements import store_client

from scrapyd_dist import config
from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.keys import state_key
from scrapyd_dist.scrapyd.versions import hash_in

#: where a crawl's folder has the unpacked project of an egg
UNPACKED = "code"


@dataclass(frozen=True, kw_only=True)
class CrawlCode:
    """Names the code of a crawl, as far as it is settled before its start; by default today's."""

    version: str | None = None  #: its name on the nodes; None: by content, or a new one
    egg: Egg | None = None  #: None: that of the working tree
    #: the project in that egg, and the key with which its workers read
    files: ProjectFiles | None = None
    before: str | None = None  #: the version that the crawl has run so far
    new: bool = False  #: today's was asked for in place of that
    note: str = ""  #: a remark on it

    def folder(self, crawl: Path) -> Path | None:
        """Return where a producer of this crawl finds the project; None: in the working tree."""
        if self.egg is None:
            return None
        return crawl / UNPACKED / self.egg.content_hash


#: what the working tree has
TODAYS = CrawlCode()


def code_of(row: Crawl, crawl: Path, root: Path, store: str) -> CrawlCode:
    """Return the code that a crawl has to run, from its row and its folder.

    `root` is the project's, `store` the address. ConfigError if the code is neither kept nor in the
    working tree.
    """
    before = row.version
    if row.options.get("new_code"):
        return CrawlCode(before=before, new=True)
    version = before or row.options.get("version")
    if version is None:
        return TODAYS
    if row.options.get("foreign_code"):  # what the nodes had, of which nothing is known here
        return CrawlCode(version=version, before=before)
    saved = egg_of_version([crawl, folder_of(root / config.STATE_FOLDER, row.project)], version)
    content = _content_of(version, saved)
    name = _name_by_content(version)
    today = _todays_hash(root, store)
    if today is not None and today == content:
        return CrawlCode(version=name, before=before)
    files = _unpack(saved)
    if files is None:
        raise _code_gone(row, crawl, version)
    egg = eggs.pack(files)
    if egg.content_hash == today:
        return CrawlCode(before=before)
    if egg.content_hash != content:  # our own part of it is of another scrapyd-dist
        name = None
    note = _note_on_kept(row, version)
    return CrawlCode(version=name, egg=egg, files=files, before=before, note=note)


def has_other_code_here(row: Crawl, crawl: Path, root: Path, store: str) -> bool:
    """Return whether the working tree has other code than the crawl has run, as far as known.

    Arguments are those of `code_of`.
    """
    if row.version is None or row.options.get("foreign_code"):
        return False
    saved = egg_of_version([crawl, folder_of(root / config.STATE_FOLDER, row.project)], row.version)
    content = _content_of(row.version, saved)
    today = _todays_hash(root, store)
    return content is not None and today is not None and today != content


def _content_of(version: str, saved: SavedEgg | None) -> str | None:
    """Return the content hash of a version, by its name or its kept egg."""
    content = hash_in(version)
    if content is None and saved is not None:
        return saved.content_hash
    return content


def _name_by_content(version: str) -> str | None:
    """Return the version if it is a name that this program has made from the content."""
    return version if hash_in(version) is not None else None


def _note_on_kept(row: Crawl, version: str) -> str:
    """Say that the crawl runs other code than the working tree's."""
    if row.version is None:
        return f"This crawl runs {version}, as asked; the working tree has other code."
    return (
        f"This crawl goes on with the code that it began with, {version}; the working tree has"
        f" other code now, which --new-code takes: sdist resume {row.id} --new-code once it is"
        f" stopped, sdist retry {row.id} --failed-urls --new-code once it is finished."
    )


def _todays_hash(root: Path, store: str) -> str | None:
    """Return the content hash of the working tree's egg; None if it cannot be deployed."""
    with suppress(ConfigError):
        settings = config.load(root).settings_module
        key = state_key(config.state_dir(root))
        egg = eggs.build(root, settings, key=key, requirements=store_client(store))
        return egg.content_hash
    return None


def _unpack(saved: SavedEgg | None) -> ProjectFiles | None:
    """Return the project in a kept egg; None if there is none, or it cannot be read."""
    if saved is None:
        return None
    with suppress(OSError, zipfile.BadZipFile, ConfigError):
        return eggs.unpack(saved.path.read_bytes())
    return None


def _code_gone(row: Crawl, crawl: Path, version: str) -> ConfigError:
    """Return the error of a crawl whose code is neither kept nor in the working tree."""
    if row.version is not None:
        return ConfigError(
            f"The crawl {row.id} runs the version {version}, and that code is gone: the working"
            f" tree has other code, and its egg is not in {crawl}. Nothing was started. Check that"
            f" code out, or go on with today's: sdist resume {row.id} --new-code (or sdist crawls"
            " retry, with the same option)."
        )
    return ConfigError(
        f"The version {version} was asked for, and its egg is not kept here. Scrapyd gives no egg"
        " back, and the working tree has other code, so the index could not be walked with the code"
        " that the jobs would run. Nothing was started. Check that code out and leave --version"
        " out, or name a version that was deployed from here."
    )


class WorkingTree(MetaPathFinder):
    """Finds the project's packages in its folder, also where others of their names are installed.

    The nodes run what is in that folder, and so does this process. All else is looked for there
    last, as with `scrapy`.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._top, _, _ = config.load(root).settings_module.partition(".")

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the topmost package of the project; None for all else."""
        if name != self._top:
            return None
        return PathFinder.find_spec(name, [self._root], target)

    @classmethod
    def leave(cls) -> None:
        """Take every finder of this kind away: an egg of the project is used."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, cls)]


def import_code(row: Crawl, crawl: Path, root: Path, store: str) -> CrawlCode:
    """Let this process import the project as the crawl has to run it.

    Arguments and errors are those of `code_of`. Nothing of the project was imported so far. A kept
    egg is unpacked, and takes the place of the project's folder on the path. Loose files beside the
    project's packages are found in the working tree, as ever.
    """
    code = code_of(row, crawl, root, store)
    folder = code.folder(crawl)
    if folder is None:
        return code
    assert code.files is not None
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        growing = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
        eggs.unpack_to(code.files, growing)
        try:
            growing.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(growing, ignore_errors=True)
    WorkingTree.leave()
    working_tree = {"", str(root), str(root.resolve())}
    others = [place for place in sys.path if place not in working_tree]
    sys.path[:] = [str(folder), *others, str(root)]
    os.environ["SCRAPY_SETTINGS_MODULE"] = code.files.settings_module
    return code


def note_on_process(code: CrawlCode, row: Crawl, crawl: Path) -> list[str]:
    """Warn if this process imported the project before it was known which code the crawl runs."""
    folder = code.folder(crawl)
    if folder is None or str(folder) in sys.path:
        return []
    warning = (
        "This process, which sdist did not start, walks the index with the working tree's code all"
        f" the same. sdist resume {row.id} runs one code for both."
    )
    return [warning]


def keep(egg: Egg | None, version: str | None, crawl: Path, state: Path, project: str) -> None:
    """Keep the egg that the crawl runs in its folder.

    The project's code may change before the crawl is at its end. Blocking.
    """
    if egg is None or version is None:
        return
    if hash_in(version) != egg.content_hash or egg_of_version([crawl], version):
        return
    crawl.mkdir(parents=True, exist_ok=True)
    for saved in all_eggs(state, project):
        if saved.version == version:
            with suppress(OSError):
                os.link(saved.path, crawl / saved.path.name)
                return
    write_egg(crawl, version, egg.data)
