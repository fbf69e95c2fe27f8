"""Which code a crawl runs: what it began with, what was asked for, or today's; and how its producer runs that, too.

The rule it keeps: index and jobs are crawled by the same code. Where that is not the working tree's, its kept egg is
unpacked into the crawl's folder, and the producer's process imports the project from there.
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
from scrapyd_dist.deploy.kept_eggs import all_eggs, egg_of_version, folder_of, write_egg
from scrapyd_dist.deploy.project_files import ProjectFiles
from scrapyd_dist.deploy.requirements import redis_client

from scrapyd_dist import config
from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.keys import state_key
from scrapyd_dist.scrapyd.versions import hash_in

#: where a crawl's folder has the unpacked project of an egg
UNPACKED = "code"


@dataclass(frozen=True, kw_only=True)
class CrawlCode:
    """The code of a crawl, as far as it is settled before its start; by default it is the working tree's."""

    version: str | None = None  #: its name on the nodes; None: by content, or a new one
    egg: Egg | None = None  #: None: that of the working tree
    files: ProjectFiles | None = (
        None  #: the project in that egg, and the key with which its workers read
    )
    before: str | None = None  #: the version that the crawl has run so far
    new: bool = False  #: today's was asked for in place of that
    note: str = ""  #: a remark on it

    def folder(self, crawl: Path) -> Path | None:
        """Where a producer of this crawl finds the project; None: in the working tree."""
        return crawl / UNPACKED / self.egg.content_hash if self.egg is not None else None


#: what the working tree has
TODAYS = CrawlCode()


def code_of(row: Crawl, crawl: Path, root: Path, store: str) -> CrawlCode:
    """The code that a crawl has to run, from its row and its folder; `root` is the project's, `store` the address.

    ConfigError if it is neither kept nor in the working tree.
    """
    if row.options.get("new_code"):
        return CrawlCode(before=row.version, new=True)
    version = row.version or row.options.get("version")
    if version is None:
        return TODAYS
    before = row.version
    if row.options.get("foreign_code"):  # what the nodes had, of which nothing is known here
        return CrawlCode(version=version, before=before)
    saved = egg_of_version([crawl, folder_of(root / config.STATE_FOLDER, row.project)], version)
    content = hash_in(version) or (saved.content_hash if saved is not None else None)
    name = version if hash_in(version) is not None else None
    today = None
    with suppress(ConfigError):  # the working tree cannot be deployed
        settings, key = config.load(root).settings_module, state_key(config.state_dir(root))
        today = eggs.build(root, settings, key=key, requirements=redis_client(store)).content_hash
    if today is not None and today == content:
        return CrawlCode(version=name, before=before)
    kept = None
    if saved is not None:
        with suppress(OSError, zipfile.BadZipFile, ConfigError):
            kept = eggs.unpack(saved.path.read_bytes())
    if kept is None and before is not None:
        raise ConfigError(
            f"The crawl {row.id} runs the version {version}, and that code is gone: the working tree has other code,"
            f" and its egg is not in {crawl}. Nothing was started. Check that code out, or go on with today's:"
            f" sdist resume {row.id} --new-code (or sdist crawls retry, with the same option)."
        )
    if kept is None:
        raise ConfigError(
            f"The version {version} was asked for, and its egg is not kept here. Scrapyd gives no egg back, and the"
            " working tree has other code, so the index could not be walked with the code that the jobs would run."
            " Nothing was started. Check that code out and leave --version out, or name a version that was deployed"
            " from here."
        )
    egg = eggs.pack(kept)
    if egg.content_hash != content:  # our own part of it is of another scrapyd-dist
        name = None
    if egg.content_hash == today:
        return CrawlCode(before=before)
    note = (
        f"This crawl goes on with the code that it began with, {version}; the working tree has other code now, which"
        f" --new-code takes (sdist resume {row.id} --new-code)."
        if before is not None
        else f"This crawl runs {version}, as asked; the working tree has other code."
    )
    return CrawlCode(version=name, egg=egg, files=kept, before=before, note=note)


class WorkingTree(MetaPathFinder):
    """Finds the project's packages in its folder, also where others of their names are installed.

    The nodes run what is in that folder, and so does this process. All else is looked for there last, as with `scrapy`.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._top = str(root), config.load(root).settings_module.partition(".")[0]

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self._root], target) if name == self._top else None

    @classmethod
    def leave(cls) -> None:
        """An egg of the project is used."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, cls)]


def import_code(row: Crawl, crawl: Path, root: Path, store: str) -> CrawlCode:
    """Let this process import the project as the crawl has to run it; arguments and errors as of `code_of`.

    Nothing of the project was imported so far. A kept egg is unpacked, and takes the place of the project's folder on
    the path. Loose files beside the project's packages are found in the working tree, as ever.
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
    places = {"", str(root), str(root.resolve())}
    sys.path[:] = [str(folder), *(place for place in sys.path if place not in places), str(root)]
    os.environ["SCRAPY_SETTINGS_MODULE"] = code.files.settings_module
    return code


def note_on_process(code: CrawlCode, row: Crawl, crawl: Path) -> list[str]:
    """A warning where this process imported the project before it was known which code the crawl runs."""
    folder = code.folder(crawl)
    if folder is None or str(folder) in sys.path:
        return []
    why = "This process, which sdist did not start, walks the index with the working tree's code all the same."
    return [f"{why} sdist resume {row.id} runs one code for both."]


def keep(egg: Egg | None, version: str | None, crawl: Path, state: Path, project: str) -> None:
    """Keep the egg that the crawl runs in its folder: its code may change before it is at its end. Blocking."""
    if (
        egg is None
        or version is None
        or hash_in(version) != egg.content_hash
        or egg_of_version([crawl], version)
    ):
        return
    crawl.mkdir(parents=True, exist_ok=True)
    for saved in all_eggs(state, project):
        if saved.version == version:
            with suppress(OSError):
                os.link(saved.path, crawl / saved.path.name)
                return
    write_egg(crawl, version, egg.data)
