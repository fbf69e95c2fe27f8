"""A kept egg taken apart: the project in it, and an egg of that project with the worker half of today.

The rule it keeps: the worker half is never older than the producer that speaks with it. Where it has not changed, the
egg that comes out has the content of the one that went in.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError

from .egg import BOOT_PREFIX, KEY_NAME, Egg, pack
from .redis_client import CLIENT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_OURS = "scrapyd_dist/"
_INFO = "EGG-INFO/"
#: how the boot module names the project's settings
_SETTINGS = re.compile(r"^start\(settings_module='([\w.]+)'", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """What an egg of ours has of the project."""

    files: Mapping[str, bytes] = field(repr=False)  #: path inside the egg -> content, without what is ours
    info: Mapping[str, bytes] = field(repr=False)  #: the same, of EGG-INFO
    settings_module: str
    key: bytes | None = field(repr=False)

    def pack(self) -> Egg:
        """The egg again, with our part of it as it is today."""
        return pack(self.files, self.info, self.settings_module, key=self.key)

    def write(self, folder: Path) -> None:
        """Put the project's files below a folder, from which they can be imported here."""
        for name, content in self.files.items():
            if name.partition("/")[0] in CLIENT:
                continue
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def unpack(data: bytes) -> Unpacked:
    """Take an egg apart.

    Raises:
        BadZipFile: it is no egg.
        ConfigError: it has no worker half, or names files outside itself.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {entry.filename: archive.read(entry) for entry in archive.infolist() if not entry.is_dir()}
    boots = [name for name in files if name.startswith(BOOT_PREFIX) and name.endswith(".py")]
    named = _SETTINGS.search(files[boots[0]].decode("utf-8", "replace")) if boots else None
    if named is None or any(name.startswith("/") or ".." in name.split("/") for name in files):
        raise ConfigError("The kept egg is none that a crawl can run: it has no worker half.")
    kept = {name: content for name, content in files.items() if not name.startswith((_OURS, _INFO, BOOT_PREFIX))}
    return Unpacked(
        files=kept,
        info={name: content for name, content in files.items() if name.startswith(_INFO)},
        settings_module=named[1],
        key=files.get(f"{_OURS}{KEY_NAME}"),
    )
