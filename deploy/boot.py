"""Replaces the project's settings module inside an egg, and enables the add-on there.

Standard library only. The egg builder copies this file and `egg_folder` into the egg as a package,
and appends a call of `start`. Scrapyd appends an egg to `sys.path`, so a package of the same name
that is installed on the node, or that lies in the folder in which Scrapyd was started, would be
found first: the finder prevents that.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from .egg_folder import NotUnpacked, unpack_egg

PACKAGE = "scrapyd_dist"
ADDON = f"{PACKAGE}.Addon"
#: the add-on's priority in the documentation
ADDON_PRIORITY = 500
#: why the egg could not be unpacked; the add-on writes it to the log, which does not exist yet
ZIPPED = "SCRAPYD_DIST_ZIPPED"
#: Scrapy's command that Scrapyd runs for the names of a version's spiders
LIST = "list"
#: the oldest Python of a node; older ones read this module and `egg_folder`, too, to say so
OLDEST_PYTHON = (3, 10)
#: the oldest packages of a node, by their names in an environment
OLDEST_PACKAGES = (("Scrapy", (2, 13)), ("Scrapyd", (1, 4)))


class EggFinder:
    """Finds the packages of one egg or its folder there.

    It fails for submodules of `scrapyd_dist` that the egg lacks. If such a submodule was left to
    the next finder, it could come from an installed copy of another version.
    """

    def __init__(self, egg: str, packages: Collection[str] = ()) -> None:
        self.egg = egg
        self._packages = packages  #: names of its other top-level packages and modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of the egg is; None for those of others.

        Raises:
            ModuleNotFoundError: the egg lacks this module of `scrapyd_dist`.
        """
        if fullname in self._packages:
            return PathFinder.find_spec(fullname, [self.egg], target)
        if fullname == PACKAGE:
            path = [self.egg]
        elif not fullname.startswith(f"{PACKAGE}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r} in the egg {self.egg}", name=fullname
            )
        return spec


def start(*, settings_module: str, boot: str, egg: str) -> None:
    """Import the project's settings module in place of this one, and add the add-on to it.

    A job with a batch becomes a worker; any other job is unaffected. `boot` is the name of this
    module in `sys.modules`, `egg` the path of the egg, zipped or unpacked. A zipped one is
    unpacked, if possible, and its folder is used in its place.

    Raises:
        ImportError: the node's Python, Scrapy or Scrapyd is too old for the worker half.
    """
    _check_python()
    _check_packages()
    if sys.argv[1:2] == [LIST]:
        keep_output_for_names()
    folder = egg
    problem = ""
    try:
        folder = str(unpack_egg(Path(egg)))
    except NotUnpacked as error:
        problem = str(error)
    _find_first(folder, egg, settings_module.partition(".")[0])
    settings = import_module(settings_module)
    _add_addon(settings)
    # The egg lacks the producer's half: a job without a batch is an ordinary crawl.
    settings.DISTRIBUTED_ENABLED = False  # type: ignore[attr-defined]  # any module
    if problem:
        setattr(settings, ZIPPED, problem)
    if os.environ.get("SCRAPY_SETTINGS_MODULE") == boot:
        # Scrapy copies the variable into the setting SETTINGS_MODULE, which projects read.
        os.environ["SCRAPY_SETTINGS_MODULE"] = settings_module
    sys.modules[boot] = settings


def _check_python() -> None:
    if sys.version_info < OLDEST_PYTHON:
        found = "{}.{}".format(*sys.version_info[:2])
        oldest = "{}.{}".format(*OLDEST_PYTHON)
        raise ImportError(f"Python {found} is too old for scrapyd-dist; it needs {oldest}")


def _check_packages() -> None:
    # Python 3.7 has no such module, and is refused before.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - see above

    for package, oldest in OLDEST_PACKAGES:
        try:
            numbers = re.findall(r"\d+", version(package.lower()))
        except PackageNotFoundError:
            continue  # it runs all the same, from a path
        if tuple(map(int, numbers[:2])) < oldest:
            found = ".".join(numbers[:2])
            needed = "{}.{}".format(*oldest)
            raise ImportError(f"{package} {found} is too old for scrapyd-dist; it needs {needed}")


def _find_first(folder: str, egg: str, project: str) -> None:
    """Let Python find the modules in this folder of the egg before all others of the same names.

    `project` is the top-level package of the settings module.
    """
    for index, path in enumerate(sys.path):
        if path and Path(path).absolute() == Path(egg):
            sys.path[index] = folder
    sys.meta_path.insert(0, EggFinder(folder, find_packages(folder) | {project}))
    # A .pth file or a plugin may have imported the node's installed copy already.
    for name in list(sys.modules):
        if name.partition(".")[0] in {PACKAGE, project}:
            del sys.modules[name]


def _add_addon(settings: ModuleType) -> None:
    """Add the add-on to a settings module, unless it names a component of ours already."""
    addons = _as_mapping(getattr(settings, "ADDONS", None))
    middlewares = _as_mapping(getattr(settings, "SPIDER_MIDDLEWARES", None))
    if not _names_ours(addons, "Addon") and not _names_ours(middlewares, "Distributed"):
        all_addons = {**addons, ADDON: ADDON_PRIORITY}
        settings.ADDONS = all_addons  # type: ignore[attr-defined]  # any module


def keep_output_for_names() -> None:
    """Let nothing but the names of spiders reach standard output in this process.

    The rest goes to standard error. Scrapyd takes each line for a spider's name, also one that the
    project, or a program that it starts, has printed.
    """
    names = os.dup(1)
    os.dup2(2, 1)
    load_object = import_module("scrapy.utils.misc").load_object

    def run(command: Any, *_: Any) -> None:
        """Write the names of the project's spiders, one per line."""
        settings = command.settings
        loader = load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())
        with os.fdopen(names, "w", encoding="utf-8") as output:
            for name in sorted(loader.list()):
                output.write(f"{name}\n")

    import_module("scrapy.commands.list").Command.run = run


def find_packages(egg: str) -> set[str]:
    """Return the names of the top-level packages and modules of an egg, zipped or unpacked.

    These are the ones that it may stand in for, so those of Python itself are left out. A folder
    without `__init__.py` is not named: parts of such a package may be elsewhere.
    """
    found = {module.name for module in iter_modules([egg])}
    return found - {PACKAGE} - getattr(sys, "stdlib_module_names", frozenset())


def _names_ours(components: Iterable[Any], name: str) -> bool:
    """Whether one of these, each a class or a dotted path, is this class of our package."""
    for component in components:
        path = component
        if not isinstance(component, str):
            path = f"{component.__module__}.{component.__qualname__}"
        if path.startswith(f"{PACKAGE}.") and path.rpartition(".")[2] == name:
            return True
    return False


def _as_mapping(value: Any) -> Mapping[Any, Any]:
    # Scrapy accepts these settings as JSON text, too.
    mapping: Mapping[Any, Any] = json.loads(value) if isinstance(value, str) else value
    return mapping or {}
