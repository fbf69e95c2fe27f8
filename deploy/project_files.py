"""Collects the files of a project for its egg: all files in packages, except caches and hidden files.

Packages are found as by `setuptools.find_packages`, in the folder of scrapy.cfg or in its `src`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

#: caches of tools, left out without a message
_CACHES = {"__pycache__", "node_modules", "CVS", "_darcs"}
_CACHE_SUFFIXES = (".pyc", ".pyo", ".egg-info", ".dist-info", "~")
#: output of build tools beside the packages; inside a package these names are ordinary
_BUILD_FOLDERS = {"build", "dist"}
#: modules for tools, not for spiders
_TOOL_MODULES = {"setup.py", "conftest.py"}


@dataclass(frozen=True, kw_only=True)
class ProjectFiles:
    """The files of a project for its egg."""

    #: top-level name of the settings module
    name: str
    #: path inside the egg, with slashes -> content
    files: dict[str, bytes]
    #: paths in the project folder that were left out
    left_out: tuple[str, ...]


def read_project(root: Path, settings_module: str, *, reserved: str | None = None) -> ProjectFiles:
    """Read all packages of a project, including data files.

    Top-level modules are included only if the settings module is one of them.

    Args:
        root: the folder of scrapy.cfg.
        settings_module: dotted name of the settings module.
        reserved: a top-level name that is left out because the egg has its own.

    Raises:
        ConfigError: there is no package or no such settings module, or a file is unreadable.
    """
    parts = settings_module.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(
            f"scrapy.cfg in {root} names {settings_module!r} as its settings module, which is no dotted Python name. "
            "Correct the line below [settings]."
        )
    walk = _Walk(_base(root, parts[0]))
    try:
        walk.top_level(settings_top=parts[0], reserved=reserved)
    except OSError as error:
        raise ConfigError(
            f"Cannot build the egg of the project in {root}: {error}. Make the file readable, or move it out of the "
            "packages."
        ) from error
    if not walk.files:
        raise ConfigError(
            f"There is nothing to deploy in {root}: no folder beside scrapy.cfg is a Python package (has an "
            "__init__.py). Run this in the folder of a Scrapy project, as `scrapy startproject` makes it."
        )
    path = "/".join(parts)
    if not {f"{path}.py", f"{path}/__init__.py"} & walk.files.keys():
        raise ConfigError(
            f"scrapy.cfg in {root} names the settings module {settings_module}, but the packages beside it hold no "
            f"{path}.py. Correct the line below [settings], or put the package beside scrapy.cfg."
        )
    return ProjectFiles(name=parts[0], files=walk.files, left_out=tuple(sorted(walk.left_out)))


def _base(root: Path, top: str) -> Path:
    """Return the folder of the packages: that of scrapy.cfg, or its `src` if only that has the settings module."""
    source = root / "src"
    beside = (root / top).is_dir() or (root / f"{top}.py").is_file()
    return source if not beside and ((source / top).is_dir() or (source / f"{top}.py").is_file()) else root


@dataclass
class _Walk:
    root: Path
    files: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def top_level(self, *, settings_top: str, reserved: str | None) -> None:
        loose_modules = (self.root / f"{settings_top}.py").is_file() and not (self.root / settings_top).is_dir()
        for entry in sorted(self.root.iterdir()):
            name = entry.name
            if entry.is_dir():
                if not (name == settings_top or _is_package(entry)) or name in _BUILD_FOLDERS:
                    continue
                if name == reserved:
                    self.left_out.append(name)
                else:
                    self._take(entry, (self.root.resolve(),))
            elif name.endswith(".py") and name not in _TOOL_MODULES:
                if loose_modules:
                    self._take(entry, ())
                else:
                    self.left_out.append(name)

    def _take(self, entry: Path, inside: tuple[Path, ...]) -> None:
        """Add a file or a folder recursively; `inside` are the real paths of the folders above."""
        name = entry.name
        if name in _CACHES or name.endswith(_CACHE_SUFFIXES):
            return
        if name.startswith(".") or not _is_text(name):
            self.left_out.append(self._relative(entry))
        elif entry.is_dir():
            self._take_folder(entry, inside)
        elif entry.is_file():
            self.files[self._relative(entry)] = entry.read_bytes()
        else:
            # A broken link, a socket, a pipe.
            self.left_out.append(self._relative(entry))

    def _take_folder(self, folder: Path, inside: tuple[Path, ...]) -> None:
        real = folder.resolve()
        # A link to a folder that contains it would recurse endlessly.
        loops = any(above == real or real in above.parents for above in inside)
        if loops or (folder / "pyvenv.cfg").exists():
            self.left_out.append(self._relative(folder))
            return
        for entry in sorted(folder.iterdir()):
            self._take(entry, (*inside, real))

    def _relative(self, entry: Path) -> str:
        return entry.relative_to(self.root).as_posix().encode(errors="backslashreplace").decode()


def _is_package(folder: Path) -> bool:
    return folder.name.isidentifier() and (folder / "__init__.py").is_file()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
