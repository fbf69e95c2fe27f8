"""Builds an egg with the project's setup.py, in a copy of the project, so that no files appear in the user's folder."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError

from .egg import Egg, pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: timeout of setup.py in seconds
BUILD_TIMEOUT = 300

_LEFT_OUT = ("__pycache__", "node_modules", "build", "dist", "*.egg-info", ".sdist", ".git", ".hg", ".svn", ".tox")


def build(
    project_root: Path,
    settings_module: str,
    *,
    key: bytes | None = None,
    requirements: Mapping[str, bytes] | None = None,
) -> Egg:
    """Build an egg with the project's setup.py and add the worker half.

    Args:
        project_root: the folder of scrapy.cfg and setup.py.
        settings_module: used if setup.py has no `[scrapy] settings` entry point.
        key: see `egg.build`.
        requirements: see `egg.build`.

    Raises:
        ConfigError: there is no setup.py, or it builds no egg.
    """
    if not (project_root / "setup.py").is_file():
        raise ConfigError(f"--use-setup-py needs {project_root / 'setup.py'}, which is not there.")
    with tempfile.TemporaryDirectory(prefix="sdist-") as folder:
        copy = Path(folder) / project_root.name
        _copy(project_root, copy)
        path = _run(project_root, copy, Path(folder) / "eggs")
        with zipfile.ZipFile(path) as archive:
            found = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    info = {name: content for name, content in found.items() if name.startswith("EGG-INFO/")}
    names = _without_caches(found.keys() - info.keys())
    settings = _settings_of(info.get("EGG-INFO/entry_points.txt", b"")) or settings_module
    files = {**(requirements or {}), **{name: found[name] for name in names}}
    return pack(files, info, settings, key=key)


def _copy(root: Path, copy: Path) -> None:
    patterns = shutil.ignore_patterns(*_LEFT_OUT)

    def ignored(folder: str, names: list[str]) -> set[str]:
        environments = {name for name in names if (Path(folder) / name / "pyvenv.cfg").exists()}
        return patterns(folder, names) | environments

    try:
        shutil.copytree(root, copy, ignore=ignored, symlinks=True)
    except (OSError, shutil.Error) as error:
        raise ConfigError(f"Cannot copy the project in {root} for its setup.py: {error}.") from error


def _run(root: Path, copy: Path, target: Path) -> Path:
    command = [sys.executable, "setup.py", "--quiet", "bdist_egg", "--dist-dir", str(target)]
    try:
        done = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{root / 'setup.py'} did not end within {BUILD_TIMEOUT} seconds.") from None
    eggs = sorted(target.glob("*.egg"))
    if done.returncode == 0 and len(eggs) == 1 and eggs[0].is_file():
        return eggs[0]
    why = (done.stderr.strip().splitlines() or [f"it made {len(eggs)} eggs"])[-1].rstrip(".")
    raise ConfigError(
        f"{root / 'setup.py'} built no egg: {why}. It was run as `python setup.py bdist_egg`, which needs setuptools "
        "in this environment. Without --use-setup-py no setup.py is needed."
    )


def _without_caches(names: Iterable[str]) -> list[str]:
    # Compiled files differ from build to build, and are not needed.
    return sorted(name for name in names if not name.endswith((".pyc", ".pyo")) and "__pycache__" not in name)


def _settings_of(entry_points: bytes) -> str:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.read_string(entry_points.decode())
    return parser.get("scrapy", "settings", fallback="").strip()
