"""Which files of a project go into its egg; rule: what a package holds goes, what a tool or a person hid stays.

Packages are looked for as `setuptools.find_packages` does, below the folder of scrapy.cfg, or below its `src`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

#: rebuilt at will by some tool; not worth telling about
_CACHES = {"__pycache__", "node_modules", "CVS", "_darcs"}
_CACHE_SUFFIXES = (".pyc", ".pyo", ".egg-info", ".dist-info", "~")
#: made by build tools beside the packages; inside a package these names are its own
_BUILD_FOLDERS = {"build", "dist"}
#: modules for tools, not for spiders
_TOOL_MODULES = {"setup.py", "conftest.py"}


@dataclass(frozen=True, kw_only=True)
class ProjectFiles:
    """What of a project travels."""

    #: the top name of the settings module
    name: str
    #: path inside the egg, with slashes -> content
    files: dict[str, bytes]
    #: paths below the project folder
    left_out: tuple[str, ...]


def read_project(root: Path, settings_module: str, *, reserved: str | None = None) -> ProjectFiles:
    """Read all packages of a project, with their data files.

    Top-level single modules come along only where the settings module is one itself.

    Args:
        root: the folder that holds scrapy.cfg.
        settings_module: dotted name.
        reserved: a top-level name that the egg needs for itself.

    Raises:
        ConfigError: no package, no such settings module, or an unreadable file.
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
    """Where the packages are: beside scrapy.cfg, or in `src` there if only that has the settings module."""
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
        """Add a file, or a folder with all that is below it; `inside` are the real paths of the folders above."""
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
        # A link to a folder that contains it never ends.
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
