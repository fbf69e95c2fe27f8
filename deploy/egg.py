"""Builds eggs: the project's packages and the worker half in one zip; the same content gives the same bytes.

Neither the project nor a build tool is run. The project's files are read from its folder, the worker half by import
spec, because an editable install has it elsewhere.
"""

from __future__ import annotations

import configparser
import hashlib
import io
import re
import zipfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files as resource_files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.scrapyd.versions import HASH_DIGITS

from .bytecode import compiled
from .project_files import read_project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from importlib.resources.abc import Traversable

#: All modules of scrapyd_dist that a worker may import, besides the store. Imports cost time at each start of a job, so
#: a job without access to the store does not import it.
WORKER_MODULES = (
    "scrapyd_dist",
    "scrapyd_dist.batches",
    "scrapyd_dist.config",
    "scrapyd_dist.errors",
    "scrapyd_dist.frontier",
    "scrapyd_dist.frontier.intake",
    "scrapyd_dist.frontier.slots",
    "scrapyd_dist.frontier.backlog",
    "scrapyd_dist.middlewares",
    "scrapyd_dist.middlewares.addon",
    "scrapyd_dist.middlewares.assignment",
    "scrapyd_dist.middlewares.classifier",
    "scrapyd_dist.middlewares.codec",
    "scrapyd_dist.middlewares.engine_compat",
    "scrapyd_dist.middlewares.profile",
    "scrapyd_dist.middlewares.pull",
    "scrapyd_dist.middlewares.pull.batch_dupefilter",
    "scrapyd_dist.middlewares.pull.request_tracker",
    "scrapyd_dist.middlewares.pull.request_feeder",
    "scrapyd_dist.middlewares.pull.handshake",
    "scrapyd_dist.middlewares.pull.work_unit",
    "scrapyd_dist.middlewares.pull.lease_client",
    "scrapyd_dist.middlewares.pull.login",
    "scrapyd_dist.middlewares.pull.lease_client",
    "scrapyd_dist.middlewares.pull.pull_worker",
    "scrapyd_dist.middlewares.pull.batch_acker",
    "scrapyd_dist.middlewares.pull.batch_acker",
    "scrapyd_dist.middlewares.pull.part_cleanup",
    "scrapyd_dist.middlewares.setting_reader",
    "scrapyd_dist.middlewares.roles",
    "scrapyd_dist.middlewares.slot_routing",
    "scrapyd_dist.middlewares.store_access",
    "scrapyd_dist.middlewares.targets",
    "scrapyd_dist.middlewares.throttle",
    "scrapyd_dist.middlewares.throttle.timers",
    "scrapyd_dist.middlewares.throttle.timers",
    "scrapyd_dist.middlewares.throttle.budgets",
    "scrapyd_dist.middlewares.throttle.site_feedback",
    "scrapyd_dist.middlewares.throttle.egress",
    "scrapyd_dist.middlewares.throttle.gate",
    "scrapyd_dist.middlewares.throttle.install",
    "scrapyd_dist.middlewares.throttle.domain_queue",
    "scrapyd_dist.middlewares.throttle.timers",
    "scrapyd_dist.middlewares.throttle.permit_store",
    "scrapyd_dist.middlewares.throttle.throttle_options",
    "scrapyd_dist.middlewares.throttle.downloader_capacity",
    "scrapyd_dist.middlewares.throttle.downloader_capacity",
    "scrapyd_dist.middlewares.throttle.queue",
    "scrapyd_dist.middlewares.throttle.site_feedback",
    "scrapyd_dist.middlewares.throttle.downloader_capacity",
    "scrapyd_dist.middlewares.throttle.site_feedback",
    "scrapyd_dist.middlewares.throttle.throttle_client",
    "scrapyd_dist.middlewares.throttle.domain_queues",
    "scrapyd_dist.middlewares.worker",
    "scrapyd_dist.middlewares.worker.request_ledger",
    "scrapyd_dist.middlewares.engine_compat",
    "scrapyd_dist.middlewares.worker.lease_renewer",
    "scrapyd_dist.middlewares.worker.part",
    "scrapyd_dist.middlewares.worker.push_worker",
    "scrapyd_dist.nodes",
    "scrapyd_dist.payload",
    "scrapyd_dist.finish_reasons",
    "scrapyd_dist.sealing",
    "scrapyd_dist.settings",
    "scrapyd_dist.throttle",
    "scrapyd_dist.throttle.domain_status",
    "scrapyd_dist.throttle.permits",
    "scrapyd_dist.throttle.permits",
    "scrapyd_dist.version",
)
#: the package that is included as a whole, and the suffixes of its files
STORE_PACKAGE, STORE_ENDINGS = "scrapyd_dist.store", (".py", ".lua", ".sql")
#: file name of the Fernet key inside an egg: importlib.resources.files("scrapyd_dist") / KEY_NAME
KEY_NAME = "_key.txt"
BOOT_PREFIX = "_sdist_boot_"

_BOOT_SOURCE = "scrapyd_dist.deploy.boot"
#: the earliest date in a zip file
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_MODE_FILE, _MODE_FOLDER = 0o100644 << 16, 0o040755 << 16 | 0x10


@dataclass(frozen=True, kw_only=True)
class Egg:
    """An egg."""

    #: makes the zip file, which is not needed if the nodes have the code already
    make: Callable[[], bytes] = field(repr=False, compare=False)
    #: hash over names and contents, including the key: 12 hexadecimal digits
    content_hash: str
    #: dotted names of all Python modules in it, sorted
    modules: tuple[str, ...]
    #: paths in the project folder that were left out: hidden files, environments, single modules
    left_out: tuple[str, ...]

    @cached_property
    def data(self) -> bytes:
        """The zip file."""
        return self.make()


class _Loader(Protocol):
    def get_data(self, path: str) -> bytes: ...


def build(
    project_root: Path,
    settings_module: str,
    *,
    key: bytes | None = None,
    worker_half: bool = True,
    requirements: Mapping[str, bytes] | None = None,
) -> Egg:
    """Build the egg of the project in a folder.

    Args:
        project_root: the folder of scrapy.cfg.
        settings_module: dotted name of the project's settings module in scrapy.cfg.
        key: the Fernet key with which workers decrypt batches; only with the worker half.
        worker_half: False builds a plain egg with the project only.
        requirements: files of other packages to include: path inside the egg -> content.

    Raises:
        ConfigError: the folder has no package, the settings module is not in it, or a file cannot be read.
    """
    project = read_project(project_root, settings_module, reserved="scrapyd_dist" if worker_half else None)
    files = {**(requirements or {}), **project.files}
    info = {"EGG-INFO/PKG-INFO": _pkg_info(project.name)}
    egg = pack(files, info, settings_module, key=key, worker_half=worker_half)
    return replace(egg, left_out=project.left_out)


def pack(
    files: Mapping[str, bytes],
    info: Mapping[str, bytes],
    settings_module: str,
    *,
    key: bytes | None = None,
    worker_half: bool = True,
) -> Egg:
    """Make an egg from the contents of files.

    Args:
        files: path inside the egg -> content.
        info: path -> content for files below EGG-INFO; PKG-INFO gets the content hash as version.
        settings_module: dotted name of the project's settings module.
        key: see `build`.
        worker_half: see `build`.
    """
    if key is not None and not worker_half:
        raise ValueError("a key travels only with the worker half that reads it")
    files, entry, boot = dict(files), settings_module, b""
    ours = worker_files(key) if worker_half else {}
    files.update(ours)
    if worker_half:
        boot = _module_source(_BOOT_SOURCE)[1] + _boot_call(settings_module)
    sources = {name: content for name, content in files.items() if not name.endswith(".pyc")}
    content_hash = _hash_of({**sources, "": boot + settings_module.encode()})
    if worker_half:
        entry = f"{BOOT_PREFIX}{content_hash}"
        files[f"{entry}.py"] = boot
    modules = _modules_in(files)
    files.update(info)
    files.update(_egg_info(info, entry=entry, content_hash=content_hash, modules=modules))
    return Egg(
        # Without byte code of the project, which may need another Python than this one.
        make=lambda: _zipped({**files, **_byte_code(ours)}),
        content_hash=content_hash,
        modules=modules,
        left_out=(),
    )


def worker_files(key: bytes | None = None) -> dict[str, bytes]:
    """Return the worker half: path inside the egg -> content.

    Raises:
        ConfigError: this installation lacks one of the modules.
    """
    files = dict(_module_source(name) for name in WORKER_MODULES)
    files.update(_all_in(resource_files(STORE_PACKAGE), STORE_PACKAGE.replace(".", "/")))
    if key is not None:
        files[f"scrapyd_dist/{KEY_NAME}"] = key
    return files


def _module_source(name: str) -> tuple[str, bytes]:
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None or spec.loader is None:
        raise ConfigError(
            f"Cannot build the egg: this installation of scrapyd-dist lacks the module {name}, "
            "which the jobs on the nodes need. Install scrapyd-dist again."
        )
    path = name.replace(".", "/") + ("/__init__.py" if spec.submodule_search_locations is not None else ".py")
    return path, cast("_Loader", spec.loader).get_data(spec.origin)


def _all_in(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _all_in(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(STORE_ENDINGS):
            yield f"{path}/{entry.name}", entry.read_bytes()


def _boot_call(settings_module: str) -> bytes:
    call = f"start(settings_module={settings_module!r}, boot=__name__, egg=os.path.dirname(os.path.abspath(__file__)))"
    return f"\n\n{call}\n".encode()


def _hash_of(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            # The length prefix keeps different lists of files from giving the same bytes.
            digest.update(b"%d:" % len(part))
            digest.update(part)
    return digest.hexdigest()[:HASH_DIGITS]


def _modules_in(files: Iterable[str]) -> tuple[str, ...]:
    names = (name.removesuffix(".py").removesuffix("/__init__") for name in files if name.endswith(".py"))
    dotted = (name.split("/") for name in names)
    return tuple(sorted(".".join(parts) for parts in dotted if all(part.isidentifier() for part in parts)))


def _pkg_info(name: str) -> bytes:
    return f"Metadata-Version: 1.1\nName: {name}\nVersion: 0\n".encode()


def _egg_info(
    info: Mapping[str, bytes], *, entry: str, content_hash: str, modules: tuple[str, ...]
) -> dict[str, bytes]:
    top_level = sorted({module.partition(".")[0] for module in modules})
    version = f"Version: 0+{content_hash}".encode()
    return {
        # pkg_resources accepts the file as an egg only with PKG-INFO.
        "EGG-INFO/PKG-INFO": re.sub(rb"(?m)^Version:.*$", version, info["EGG-INFO/PKG-INFO"], count=1),
        "EGG-INFO/entry_points.txt": _entry_points(info.get("EGG-INFO/entry_points.txt", b""), entry),
        "EGG-INFO/top_level.txt": "".join(f"{name}\n" for name in top_level).encode(),
    }


def _entry_points(given: bytes, settings: str) -> bytes:
    """Return the entry points of a setup.py, with `[scrapy] settings` replaced."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # how configparser is told
    parser.read_string(given.decode())
    parser["scrapy"] = {"settings": settings}
    lines = [f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in parser[name].items()) for name in parser]
    return "\n".join(lines[1:]).encode()


def _byte_code(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{name}c": compiled(source, name) for name, source in files.items() if name.endswith(".py")}


def _zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        # zipimport finds a package without __init__.py only if its folder has an entry.
        folders = {f"{parent}/": b"" for name in files for parent in list(Path(name).parents)[:-1]}
        for name, content in sorted({**folders, **files}.items()):
            info = zipfile.ZipInfo(name, date_time=_ZIP_DATE)
            info.create_system = 3
            info.external_attr = _MODE_FOLDER if name.endswith("/") else _MODE_FILE
            archive.writestr(info, content, compress_type=zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
