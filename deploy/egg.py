"""Builds eggs: the project's packages and the worker half in one zip.

The same content gives the same bytes. The worker half includes byte code, so that the first job on
a node need not compile it, nor every job where the egg stays a zip file. A node with another Python
version uses the source.
"""

from __future__ import annotations

import configparser
import hashlib
import io
import marshal
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from importlib.resources import files as resource_files
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.keys import EGG_FILE
from scrapyd_dist.scrapyd.versions import HASH_DIGITS
from scrapyd_dist.store.engines import client_folders

from .project_files import INFO, OWN_PACKAGE, ProjectFiles, read_project, run_setup_py

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

#: package -> those of its modules that a worker may import, besides the packages below
WORKER_MODULES = {
    "scrapyd_dist": (
        "__init__",
        "batches",
        "config",
        "errors",
        "escapes",
        "followed_pages",
        "garbage_collection",
        "goals",
        "job_record",
        "keys",
        "near_names",
        "nodes",
        "ownership",
        "payload",
        "plurals",
        "related_names",
        "setting_kinds",
        "settings",
        "settings_table",
        "this_machine",
        "typed_lines",
        "unknown_settings",
        "version",
    ),
    "scrapyd_dist.frontier": ("__init__", "backlog", "intake", "packing", "sealed_intake", "slots"),
    "scrapyd_dist.middlewares": (
        "__init__",
        "addon",
        "aliases",
        "assignment",
        "classifier",
        "codec",
        "contained",
        "engine_compat",
        "feed_place",
        "goal_keeper",
        "item_lines",
        "own_meta",
        "pause_gate",
        "session_cookies",
        "slot_routing",
        "spider_attributes",
        "store_access",
        "targets",
        "typed_json",
        "used_components",
        "watchdog",
    ),
    "scrapyd_dist.strategy": ("__init__", "links"),
    "scrapyd_dist.throttle": ("__init__", "domain_status", "known_rules", "permits"),
}
#: packages that are included as a whole, with these suffixes
WORKER_PACKAGES = (
    "scrapyd_dist.middlewares.throttle",
    "scrapyd_dist.middlewares.worker",
    "scrapyd_dist.store",
)
_SUFFIXES = (".py", ".lua", ".sql")
BOOT_PREFIX = "_sdist_boot_"
#: top-level names of the engines' clients, which travel with byte code and are not unpacked on this
#: machine
STORE_CLIENTS = client_folders()
#: folders whose byte code is included; that of the project may need another Python than this one
_COMPILED = (f"{OWN_PACKAGE}/", BOOT_PREFIX, *(f"{name}/" for name in STORE_CLIENTS))
#: finds the settings module in the boot module
_SETTINGS = re.compile(r"^start\(settings_module='([\w.]+)'", re.MULTILINE)
#: slices are constants since Python 3.14, and only version 5 has them; version 2 does not depend on
#: reference counts
_MARSHAL_VERSION = 2 if sys.version_info < (3, 14) else 5
#: the earliest date in a zip file
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_MODE_FILE = 0o100644 << 16
_MODE_FOLDER = 0o040755 << 16 | 0x10


@dataclass(frozen=True, kw_only=True)
class Egg:
    """Holds an egg that is made when its bytes are needed."""

    #: makes the zip file, which is not needed if the nodes have the code already
    make: Callable[[], bytes] = field(repr=False, compare=False)
    content_hash: str  #: hash over names and contents, including the key: 12 hexadecimal digits
    #: paths in the project folder that were left out: hidden files, environments, single modules
    left_out: tuple[str, ...] = ()

    @cached_property
    def data(self) -> bytes:
        """Return the zip file."""
        return self.make()


def build(
    project_root: Path,
    settings_module: str,
    *,
    key: bytes | None = None,
    requirements: Mapping[str, bytes] | None = None,
    use_setup_py: bool = False,
) -> Egg:
    """Build the egg of the project in the folder of a scrapy.cfg.

    `use_setup_py` lets its setup.py choose the files. `key` is the Fernet key with which workers
    decrypt batches; `requirements` are files of other packages: path inside the egg -> content.
    Raises ConfigError if the folder has no package, the settings module is not in it, a file cannot
    be read, or setup.py fails.
    """
    read = run_setup_py if use_setup_py else read_project
    project = read(project_root, settings_module)
    files = {**(requirements or {}), **project.files}
    return pack(replace(project, files=files, key=key))


def pack(project: ProjectFiles) -> Egg:
    """Make an egg of a project's files and the current worker half."""
    files = {**project.files, **worker_files(project.key)}
    call = f"start(settings_module={project.settings_module!r}, boot=__name__,"
    call += " egg=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))"
    boot = _source("scrapyd_dist.deploy", "boot")[1] + f"\n\n{call}\n".encode()
    egg_folder = _source("scrapyd_dist.deploy", "egg_folder")[1]
    sources = {name: content for name, content in files.items() if not name.endswith(".pyc")}
    content_hash = _hash_of({**sources, "": boot + egg_folder + project.settings_module.encode()})
    entry = f"{BOOT_PREFIX}{content_hash}"
    files[f"{entry}/__init__.py"] = boot
    files[f"{entry}/egg_folder.py"] = egg_folder
    files.update(project.info)
    files.update(_egg_info(project, files, entry=entry, version=f"0+{content_hash}"))
    make = partial(_zipped_with_byte_code, files)
    return Egg(make=make, content_hash=content_hash, left_out=project.left_out)


def _zipped_with_byte_code(files: Mapping[str, bytes]) -> bytes:
    """Return the zip of these files and the byte code of those that every worker loads."""
    contents = dict(files)
    for name, content in files.items():
        if name.startswith(_COMPILED) and name.endswith(".py"):
            contents[f"{name}c"] = _compiled(content, name)
    return _zipped(contents)


def unpack(data: bytes) -> ProjectFiles:
    """Return the project in an egg. Packed again, it has the current worker half.

    Raises BadZipFile, or ConfigError if the egg has no worker half or names files outside itself.
    """
    contents = _unzipped(data)
    settings_module = _settings_module_in(contents)
    if settings_module is None or any(map(_leads_out, contents)):
        raise ConfigError("The kept egg is none that a crawl can run: it has no worker half.")
    files = {}
    info = {}
    for name, content in contents.items():
        if name.startswith(INFO):
            info[name] = content
        elif not _is_added(name):
            files[name] = content
    return ProjectFiles(
        settings_module=settings_module,
        files=files,
        info=info,
        key=contents.get(f"{OWN_PACKAGE}/{EGG_FILE}"),
    )


def _unzipped(data: bytes) -> dict[str, bytes]:
    """Return the files of a zip: path -> content."""
    contents = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            if not entry.is_dir():
                contents[entry.filename] = archive.read(entry)
    return contents


def _settings_module_in(contents: Mapping[str, bytes]) -> str | None:
    """Return the settings module that the boot package of an egg names; None without one."""
    boot = b""
    for name, content in contents.items():
        if name.startswith(BOOT_PREFIX) and name.endswith(".py"):
            boot += content
    match = _SETTINGS.search(boot.decode("utf-8", "replace"))
    return match[1] if match else None


def _leads_out(name: str) -> bool:
    """Whether this name of a file leads out of the egg."""
    return name.startswith("/") or ".." in name.split("/")


def _is_added(name: str) -> bool:
    """Whether `pack` has added the file of this name to the project's own."""
    if name.startswith((f"{OWN_PACKAGE}/", BOOT_PREFIX)):
        return True
    return name.startswith(_COMPILED) and name.endswith(".pyc")


def unpack_to(project: ProjectFiles, folder: Path) -> None:
    """Write a project's files to a folder from which they can be imported here."""
    for name, content in project.files.items():
        if name.partition("/")[0] not in STORE_CLIENTS:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def worker_files(key: bytes | None = None) -> dict[str, bytes]:
    """Return the worker half: path inside the egg -> content.

    Raises ConfigError if this installation lacks a module.
    """
    files = {}
    for package, modules in WORKER_MODULES.items():
        for module in modules:
            path, content = _source(package, module)
            files[path] = content
    for name in WORKER_PACKAGES:
        files.update(package_files(resource_files(name), name.replace(".", "/"), _SUFFIXES))
    if key is not None:
        files[f"{OWN_PACKAGE}/{EGG_FILE}"] = key
    return files


def package_files(
    folder: Traversable, path: str, suffixes: tuple[str, ...]
) -> Iterator[tuple[str, bytes]]:
    """Generate the files of a package with these suffixes: path inside the egg, content."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name.isidentifier() and entry.name != "__pycache__":
            yield from package_files(entry, f"{path}/{entry.name}", suffixes)
        elif entry.name.endswith(suffixes):
            yield f"{path}/{entry.name}", entry.read_bytes()


def _source(package: str, module: str) -> tuple[str, bytes]:
    """Return path inside the egg and content of a module of this installation."""
    try:
        content = resource_files(package).joinpath(f"{module}.py").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise ConfigError(
            "Cannot build the egg: this installation of scrapyd-dist lacks the module "
            f"{package}.{module}, which the jobs on the nodes need. Install scrapyd-dist again."
        ) from None
    return f"{package.replace('.', '/')}/{module}.py", content


def _hash_of(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            # The length prefix keeps different lists of files from giving the same bytes.
            digest.update(b"%d:" % len(part))
            digest.update(part)
    return digest.hexdigest()[:HASH_DIGITS]


def _egg_info(
    project: ProjectFiles, files: Mapping[str, bytes], *, entry: str, version: str
) -> dict[str, bytes]:
    """Return the metadata, with the entry points of a setup.py except its `[scrapy] settings`."""
    about = project.info[f"{INFO}PKG-INFO"]
    version_line = f"Version: {version}".encode()
    return {
        # pkg_resources accepts the file as an egg only with PKG-INFO.
        f"{INFO}PKG-INFO": re.sub(rb"(?m)^Version:.*$", version_line, about, count=1),
        f"{INFO}entry_points.txt": _entry_points(project, entry).encode(),
        f"{INFO}top_level.txt": "\n".join([*_top_levels(files), ""]).encode(),
    }


def _entry_points(project: ProjectFiles, settings: str) -> str:
    """Return the text of the entry points; those of Scrapy name this module as the settings."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # how configparser is told
    parser.read_string(project.info.get(f"{INFO}entry_points.txt", b"").decode())
    parser["scrapy"] = {"settings": settings}
    sections = []
    for name in parser.sections():
        lines = [f"{key} = {value}\n" for key, value in parser[name].items()]
        sections.append(f"[{name}]\n" + "".join(lines))
    return "\n".join(sections)


def _top_levels(files: Iterable[str]) -> list[str]:
    """Return the names of the packages and modules that these files can be imported as, sorted."""
    tops = set()
    for path in files:
        parts = path.removesuffix(".py").split("/")
        if path.endswith(".py") and all(map(str.isidentifier, parts)):
            tops.add(parts[0])
    return sorted(tops)


@cache  # compile the worker half once per process
def _compiled(source: bytes, path: str) -> bytes:
    """Return the content of an unchecked hash-based `.pyc` file.

    `path` is the file name in tracebacks.
    """
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    # The same code gives the same bytes: what is just read has no references from elsewhere.
    packed = marshal.dumps(marshal.loads(marshal.dumps(code, _MARSHAL_VERSION)), _MARSHAL_VERSION)  # noqa: S302 - our own
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source) + packed


def _zipped(files: Mapping[str, bytes]) -> bytes:
    entries = dict(files)
    # zipimport finds a package without __init__.py only if its folder has an entry.
    for name in files:
        for parent in list(Path(name).parents)[:-1]:
            entries.setdefault(f"{parent}/", b"")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(entries.items()):
            info = zipfile.ZipInfo(name, date_time=_ZIP_DATE)
            info.create_system = 3
            info.external_attr = _MODE_FOLDER if name.endswith("/") else _MODE_FILE
            archive.writestr(info, content, compress_type=zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
