"""Reads a project for its egg: its packages, or what its setup.py builds; and names its commit.

Packages are found as by `setuptools.find_packages`, in the folder of scrapy.cfg or in its `src`.
setup.py runs in a copy, so that no files appear in the user's folder.
"""

import configparser
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.scrapyd.versions import sanitised

#: folder of the worker half in an egg; a project's own copy is left out
OWN_PACKAGE = "scrapyd_dist"
#: folder of an egg's metadata
INFO = "EGG-INFO/"
#: timeout of setup.py, in seconds
SETUP_TIMEOUT = 300
#: timeout of git and hg, in seconds
COMMIT_TIMEOUT = 20
#: what tools keep in a project: version control, caches, editors' files
_TOOL_FILES = {
    "__pycache__",
    "node_modules",
    "CVS",
    "_darcs",
    ".git",
    ".gitignore",
    ".gitattributes",
    ".hg",
    ".hgignore",
    ".svn",
    ".bzr",
    ".fslckout",
    ".jj",
    ".tox",
    ".nox",
    ".eggs",
    ".cache",
    ".hypothesis",
    ".ipynb_checkpoints",
    ".idea",
    ".vscode",
    ".DS_Store",
    ".scrapy",
    ".sdist",
}
_TOOL_SUFFIXES = (".pyc", ".pyo", ".egg-info", ".dist-info", "~")
#: only of hidden ones: `.mypy_cache`, `.settings.py.swp`; a folder `price_cache` may be the
#: project's own
_HIDDEN_SUFFIXES = (*_TOOL_SUFFIXES, "_cache", ".swp")
#: output of build tools beside the packages; inside a package these names are ordinary
_BUILD_FOLDERS = {"build", "dist"}
#: modules for tools, not for spiders
_TOOL_MODULES = {"setup.py", "conftest.py"}
#: not copied for setup.py
_NOT_COPIED = (
    "__pycache__",
    "node_modules",
    "build",
    "dist",
    "*.egg-info",
    ".sdist",
    ".git",
    ".hg",
    ".svn",
    ".tox",
)
#: commands for each of scrapyd-client's keywords: description of the commit, number of commits as a
#: fallback, branch
_COMMANDS = {
    "GIT": (
        ("git", "describe"),
        ("git", "rev-list", "--count", "HEAD"),
        ("git", "rev-parse", "--abbrev-ref", "HEAD"),
    ),
    "HG": (("hg", "log", "-r", ".", "-T", "r{rev}"), ("hg", "id", "-n"), ("hg", "branch")),
}


@dataclass(frozen=True, kw_only=True)
class ProjectFiles:
    """Holds all that an egg has of a project and its requirements."""

    settings_module: str  #: dotted name
    files: Mapping[str, bytes] = field(repr=False)  #: path inside the egg, with slashes -> content
    info: Mapping[str, bytes] = field(repr=False)  #: path -> content of the files below EGG-INFO
    #: the Fernet key with which workers decrypt batches
    key: bytes | None = field(default=None, repr=False)
    left_out: tuple[str, ...] = ()  #: paths in the project folder that were left out


def read_project(root: Path, settings_module: str) -> ProjectFiles:
    """Read all packages of a project, including data files, hidden ones too.

    `root` is the folder of scrapy.cfg. Top-level modules are included only if the settings module
    is one of them. Raises ConfigError if there is no package or no such settings module, or a file
    is unreadable.
    """
    parts = settings_module.split(".")
    if not all(map(str.isidentifier, parts)):
        raise ConfigError(
            f"scrapy.cfg in {root} names {settings_module!r} as its settings module, which is no "
            "dotted Python name. Correct the line below [settings]."
        )
    try:
        found = dict(_top_level(_base(root, parts[0]), parts[0]))
    except OSError as error:
        raise ConfigError(
            f"Cannot build the egg of the project in {root}: {error}. Make the file readable, or "
            "move it out of the packages."
        ) from error
    files = {path: content for path, content in found.items() if content is not None}
    if not files:
        raise ConfigError(
            f"There is nothing to deploy in {root}: no folder beside scrapy.cfg is a Python "
            "package (has an __init__.py). Run this in the folder of a Scrapy project, as "
            "`scrapy startproject` makes it."
        )
    path = "/".join(parts)
    if not {f"{path}.py", f"{path}/__init__.py"} & files.keys():
        raise ConfigError(
            f"scrapy.cfg in {root} names the settings module {settings_module}, but the packages "
            f"beside it hold no {path}.py. Correct the line below [settings], or put the package "
            "beside scrapy.cfg."
        )
    info = {f"{INFO}PKG-INFO": f"Metadata-Version: 1.1\nName: {parts[0]}\nVersion: 0\n".encode()}
    left_out = tuple(sorted(found.keys() - files.keys()))
    return ProjectFiles(settings_module=settings_module, files=files, info=info, left_out=left_out)


def _base(root: Path, top: str) -> Path:
    """Return the folder of the packages.

    It is that of scrapy.cfg, or its `src` if only that has the settings module.
    """
    source = root / "src"
    if not _has_module(root, top) and _has_module(source, top):
        return source
    return root


def _has_module(folder: Path, name: str) -> bool:
    """Whether a folder has a module or a folder of this name."""
    return (folder / name).is_dir() or (folder / f"{name}.py").is_file()


def _top_level(root: Path, settings_top: str) -> Iterator[tuple[str, bytes | None]]:
    """Generate path and content of each file of the packages.

    The content is None for what is left out.
    """
    loose_modules = (root / f"{settings_top}.py").is_file() and not (root / settings_top).is_dir()
    for entry in sorted(root.iterdir()):
        name = entry.name
        if entry.is_dir():
            if name.isidentifier() and name not in _BUILD_FOLDERS:
                yield from _top_folder(entry, root, settings_top)
        elif name.endswith(".py") and name not in _TOOL_MODULES:
            if loose_modules:
                yield from _files(entry, root, ())
            else:
                yield name, None


def _top_folder(folder: Path, root: Path, settings_top: str) -> Iterator[tuple[str, bytes | None]]:
    """Generate the files of a package, or its name alone if it is left out."""
    name = folder.name
    is_package = name == settings_top or (folder / "__init__.py").is_file()
    if is_package and name != OWN_PACKAGE:
        yield from _files(folder, root, (root.resolve(),))
    elif name == OWN_PACKAGE or any(folder.glob("*.py")):
        yield name, None


def _files(entry: Path, root: Path, inside: tuple[Path, ...]) -> Iterator[tuple[str, bytes | None]]:
    """Generate a file, or those of a folder; `inside` are the real paths of the folders above."""
    name = entry.name
    if _is_of_tool(name):
        return
    path = entry.relative_to(root).as_posix().encode(errors="backslashreplace").decode()
    if not path.endswith(name):  # a name that is no UTF-8 was replaced
        yield path, None
    elif entry.is_file():
        yield path, entry.read_bytes()
    elif entry.is_dir() and not _is_endless(entry, inside) and not _is_environment(entry):
        for child in sorted(entry.iterdir()):
            yield from _files(child, root, (*inside, entry.resolve()))
    else:  # broken links, sockets and pipes, too
        yield path, None


def _is_endless(folder: Path, inside: tuple[Path, ...]) -> bool:
    """Whether this is a link to a folder above, which would recurse endlessly."""
    return any(above.is_relative_to(folder.resolve()) for above in inside)


def _is_of_tool(name: str) -> bool:
    suffixes = _HIDDEN_SUFFIXES if name.startswith(".") else _TOOL_SUFFIXES
    return name in _TOOL_FILES or name.endswith(suffixes)


def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").exists()


def run_setup_py(root: Path, settings_module: str) -> ProjectFiles:
    """Build an egg with the project's setup.py, and return what is in it.

    The settings module is that of setup.py's entry point `[scrapy] settings`, if it has one. Raises
    ConfigError if there is no setup.py, or it builds no egg.
    """
    if not (root / "setup.py").is_file():
        raise ConfigError(f"--use-setup-py needs {root / 'setup.py'}, which is not there.")
    with tempfile.TemporaryDirectory(prefix="sdist-") as folder:
        copy = Path(folder) / root.name
        _copy(root, copy)
        egg = _run(root, copy, Path(folder) / "eggs")
        files, info = _read_built(egg)
    entry_points = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    entry_points.read_string(info.get(f"{INFO}entry_points.txt", b"").decode())
    named = entry_points.get("scrapy", "settings", fallback="").strip()
    return ProjectFiles(settings_module=named or settings_module, files=files, info=info)


def _read_built(egg: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the files of an egg, and those of its metadata: path -> content."""
    files = {}
    info = {}
    with zipfile.ZipFile(egg) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith("/"):
                continue
            content = archive.read(name)
            if name.startswith(INFO):
                info[name] = content
            # Compiled files differ from build to build, and are not needed.
            elif not name.endswith((".pyc", ".pyo")) and "__pycache__" not in name:
                files[name] = content
    return files, info


def _copy(root: Path, copy: Path) -> None:
    """Copy a project without what tools keep in it, and without environments."""
    patterns = shutil.ignore_patterns(*_NOT_COPIED)

    def ignored(folder: str, names: list[str]) -> set[str]:
        """Return the names in a folder that are not copied."""
        environments = {name for name in names if _is_environment(Path(folder) / name)}
        return patterns(folder, names) | environments

    try:
        shutil.copytree(root, copy, ignore=ignored, symlinks=True)
    except (OSError, shutil.Error) as error:
        raise ConfigError(
            f"Cannot copy the project in {root} for its setup.py: {error}."
        ) from error


def _run(root: Path, copy: Path, target: Path) -> Path:
    """Run the setup.py of a copied project, and return the egg that it has built in this folder."""
    command = [sys.executable, "setup.py", "--quiet", "bdist_egg", "--dist-dir", str(target)]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
            timeout=SETUP_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{root / 'setup.py'} did not end within {SETUP_TIMEOUT} seconds."
        ) from None
    eggs = sorted(target.glob("*.egg"))
    if done.returncode == 0 and len(eggs) == 1 and eggs[0].is_file():
        return eggs[0]
    lines = done.stderr.strip().splitlines() or [f"it made {len(eggs)} eggs"]
    why = lines[-1].rstrip(".")
    raise ConfigError(
        f"{root / 'setup.py'} built no egg: {why}. It was run as `python setup.py bdist_egg`, "
        "which needs setuptools in this environment. Without --use-setup-py no setup.py is needed."
    )


def describe(project_root: Path, kind: str) -> str:
    """Name the current commit as scrapyd-client's `version = GIT` does: `git-v1-2-gabc1234-main`.

    Raises ConfigError if git or Mercurial is not installed, or knows no commit of the project.
    """
    words, number, branch = _COMMANDS[kind]
    text = _output_of(project_root, words)
    if not text:
        count = _output_of(project_root, number)
        if not count:
            raise ConfigError(
                f"The version is to be named by {kind}, and {words[0]} knows no commit in "
                f"{project_root}. Commit the project, or give the version another name with "
                "--version."
            )
        text = f"r{count}"
    return sanitised(f"{words[0]}-{text}-{_output_of(project_root, branch) or 'HEAD'}")


def is_dirty(project_root: Path) -> bool:
    """Return whether the project's git work tree has uncommitted changes; False without git."""
    return bool(_output_of(project_root, ("git", "status", "--porcelain", "--", ".")))


def _output_of(project_root: Path, command: tuple[str, ...]) -> str:
    """Run a command in the project and return its output; empty if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=project_root,
            capture_output=True,
            check=False,
            timeout=COMMIT_TIMEOUT,
            stdin=subprocess.DEVNULL,
            # A read must not take the lock that a commit needs.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode != 0:
        return ""
    return done.stdout.decode(errors="replace").strip()
