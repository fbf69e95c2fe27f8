"""Writes a worker's files in its node's log folder: the part with its items, and its report.

They are written while the disk has room.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, cast

from scrapy import Item

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.version import PACKAGE_FILE, __version__

from ..item_lines import line_writer

logger = logging.getLogger(__name__)

#: the folder of ours beside the nodes' own logs
FOLDER = "_sdist"
#: seconds after which items are flushed and the report is renewed
TICK = 1.0
#: seconds between two checks of the folder with the part, and of the disk
LOOK = 2.0


def crawl_folder(log_file: str | None, home: str) -> Path | None:
    """Return `<logs_dir>/_sdist/<home>`, given `<logs_dir>/<project>/<spider>/<job>.log`.

    None stands for no log file.
    """
    if not log_file:
        return None
    return Path(log_file).resolve().parents[2] / FOLDER / home


class FilesFolder:
    """The crawl's folder as it was when its worker began.

    From one that is removed under the worker, nothing comes home. At least so many bytes must be
    free on its disk.
    """

    def __init__(self, path: Path, least: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._least = least
        # As long as it is open, no other folder gets its number.
        self._handle = os.open(path, os.O_RDONLY)

    def trouble(self) -> tuple[FinishReason, str] | None:
        """Return why a worker cannot go on writing here; None when it can.

        It is said in words, too, where the reason does not say it.
        """
        if not _is_there(self._handle, self.path):
            return FinishReason.FILES_LOST, (
                f"The folder {FOLDER}/{self.path.name} in this node's logs was removed while this"
                " worker wrote its items there; what was not fetched from it yet is crawled again."
            )
        if shutil.disk_usage(self.path).free < self._least:
            return FinishReason.DISK_FULL, ""
        return None


def _is_there(handle: int, path: Path) -> bool:
    """Say whether what is open still has its name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


class PartFile:
    """The file with the items of one attempt, one JSON line each.

    It is called `<job>.jl.part` while it grows, and `<job>.jl` when it is whole. With `typed` a
    line also has what JSON lacks of its item.
    """

    def __init__(self, folder: Path, name: str, *, typed: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.jl"
        self._growing = folder / f"{name}.jl.part"
        self._file = self._growing.open("wb")
        self._hash = hashlib.sha256()
        self._lines = line_writer(cast("BytesIO", self), typed=typed)
        self.items = 0
        self._bytes = 0
        self._fields: dict[str, None] = {}  #: that items declare, filled or not
        self._kinds: set[type] = set()  #: classes of the items

    def add(self, item: Any) -> None:
        """Write one item."""
        self._lines.add(item)
        self.items += 1
        kind = type(item)
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._fields.update(dict.fromkeys(kind.fields if issubclass(kind, Item) else ()))

    def write(self, data: bytes) -> int:
        """Write bytes; the exporter calls it, to which this is a file."""
        self._hash.update(data)
        self._bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Write to disk what is still in memory."""
        with contextlib.suppress(ValueError):  # it was closed meanwhile: a thread reports
            self._file.flush()

    def close(self) -> dict[str, Any]:
        """Make it whole, and return what the report says about it.

        Raises:
            OSError: it cannot be written, or was removed.
        """
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            is_there = _is_there(self._file.fileno(), self._growing)
        if not is_there:
            raise FileNotFoundError(
                errno.ENOENT, "it was removed while it was written", str(self._growing)
            )
        self._growing.replace(self.path)
        about = {
            "file": self.path.name,
            "items": self.items,
            "bytes": self._bytes,
            "sha256": self._hash.hexdigest(),
        }
        return {**about, "fields": list(self._fields), "as_text": sorted(self._lines.as_text)}

    def discard(self) -> None:
        """Leave no file, whole or not, as it counts for nothing."""
        self._file.close()
        for path in (self._growing, self.path):
            path.unlink(missing_ok=True)


class ReportFile:
    """The file `<job>.json`, which a thread of its own replaces every second.

    So a slow site does not look like death. `make_report` gives its content. `turned` gives when
    the event loop has turned last, in seconds since the epoch: one that stands still, in a callback
    that never returns, must not look like life.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        make_report: Callable[[], dict[str, Any]],
        turned: Callable[[], float] = time.time,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.json"
        self._make_report = make_report
        self._turned = turned
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sdist-report", daemon=True)
        self._write(make_report())
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(TICK):
            try:
                self._write({**self._make_report(), "updated": self._turned()})
            except OSError as error:
                logger.warning("the report cannot be renewed: %s", error)

    def finish(self, report: dict[str, Any]) -> None:
        """Write the last report; nothing follows it."""
        self._end.set()
        self._thread.join()
        self._path.parent.mkdir(parents=True, exist_ok=True)  # it may have been removed
        self._write(report)

    def _write(self, report: dict[str, Any]) -> None:
        growing = self._path.with_suffix(".json.part")
        with growing.open("w", encoding="utf-8") as file:
            json.dump(report, file)
        growing.replace(self._path)


def remove_old(folder: Path, collected: Iterable[str], keep_days: float) -> None:
    """Remove folders beside this crawl's own: `collected` ones, and any untouched for `keep_days`.

    Collected are those of crawls whose parts were all fetched and checked; the others may still be
    wanted.
    """
    done = set(collected)
    oldest = time.time() - keep_days * 86_400
    with contextlib.suppress(OSError):
        for other in folder.parent.iterdir():
            with contextlib.suppress(OSError):
                if not other.is_dir() or other == folder:
                    continue
                if other.name in done or other.stat().st_mtime < oldest:
                    shutil.rmtree(other, ignore_errors=True)


def report_head(
    state: str, crawl: str, version: str, started: float, **more: object
) -> dict[str, Any]:
    """Return what every report of a `running` or `ended` worker, or of its batches, begins with."""
    return {
        "schema": 1,
        "state": state,
        "crawl": crawl,
        **more,
        "pid": os.getpid(),
        "started": started,
        "updated": time.time(),
        "code": {"version": __version__, "file": PACKAGE_FILE, "egg": version},
    }


def plain_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of Scrapy's statistics that have a JSON form."""
    return {name: value for name, value in stats.items() if isinstance(value, (int, float, str))}
