"""Unpacks a kept egg and packs its project again with the current worker half.

Invariant: the worker half is never older than the producer. If the worker half has not changed, neither has the egg's
content.
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
#: finds the settings module in the boot module
_SETTINGS = re.compile(r"^start\(settings_module='([\w.]+)'", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """The project in an egg."""

    files: Mapping[str, bytes] = field(repr=False)  #: path inside the egg -> content, without the worker half
    info: Mapping[str, bytes] = field(repr=False)  #: path -> content of the files below EGG-INFO
    settings_module: str
    key: bytes | None = field(repr=False)

    def pack(self) -> Egg:
        """Make an egg of the project with the current worker half."""
        return pack(self.files, self.info, self.settings_module, key=self.key)

    def write(self, folder: Path) -> None:
        """Write the project's files to a folder from which they can be imported here."""
        for name, content in self.files.items():
            if name.partition("/")[0] in CLIENT:
                continue
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def unpack(data: bytes) -> Unpacked:
    """Unpack an egg.

    Raises:
        BadZipFile: the data is not a zip file.
        ConfigError: the egg has no worker half, or names files outside itself.
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
