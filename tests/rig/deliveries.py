"""Reads what was delivered as a reader does that knows nothing but the manifest."""

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import Self

from scrapyd_dist.items.json_lines import without_runs


def manifest_in(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The one manifest among the files of a folder."""
    (name,) = (name for name in files if name.startswith("_"))
    document: dict[str, Any] = json.loads(files[name])
    return document


def delivered(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The items that a manifest leads to, each as often as it is there; each part is checked to be whole."""
    document, items = manifest_in(files), []
    for part in document["parts"]:
        data = files[part["name"]]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part["bytes"], part["sha256"])
        lines = list(enumerate(data.splitlines(keepends=True)))
        assert len(lines) == part["items"]
        runs = document["replaced"].get(part["name"], [])
        items += [json.loads(line) for _, line in without_runs(iter(lines), runs)]
    assert len(items) == document["items"]
    return items


ReaderT = TypeVar("ReaderT", bound="FolderReader")


class FolderReader:
    """Reads each new file of a folder once, as soon as it is there, as a streaming job does."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._read, self._over = folder, set[str](), threading.Event()
        self.items: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(0.02):
            self._look()
        self._look()

    def _look(self) -> None:
        there = {path.name: path for path in self._folder.glob("*") if path.name[0] not in "._"}
        for name in there.keys() - self._read:
            self._read.add(name)
            for line in there[name].read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    self.items.append(json.loads(line))
                else:
                    self.wrong.append(f"{name}: {line!r}")


def files_of(folder: Path) -> dict[str, bytes]:
    """Name -> content of all files of a folder that are not hidden, as those are that grow.

    The manifest is read first: a later one may name files that come meanwhile.
    """
    manifest = {path.name: path.read_bytes() for path in folder.glob("_*")}
    return manifest | {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] not in "._"
    }
