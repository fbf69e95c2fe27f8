"""Parts come home and become one item file. A part counts only when its length and hash are what its worker said."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import json
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scrapyd_dist import api
from scrapyd_dist.errors import ConfigError, DistError, NodeError
from scrapyd_dist.outcome import part_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.outcome import Part
    from scrapyd_dist.transports import AsyncSender

#: seconds between two tries at a part
RETRY_PAUSE = 1.0
#: file name ending -> format of the merged file
FORMATS = {".jl": "jsonlines", ".jsonl": "jsonlines", ".jsonlines": "jsonlines", ".json": "json", ".csv": "csv"}


class PartLost(DistError):
    """A part could not be fetched whole."""


async def fetch_part(
    sender: AsyncSender, node: Node, home: str, job: str, part: Part, folder: Path, patience: float
) -> str:
    """Bring one part home, going on where a broken connection left off.

    Args:
        sender: the way to the node.
        node: where the part is.
        home: the crawl's folder on the nodes.
        job: the attempt's job id.
        part: what its worker says of it.
        folder: where parts are kept.
        patience: seconds to keep trying.

    Returns:
        The name of the file below `folder`.

    Raises:
        PartLost: the node was lost, or the file is not what its worker said.
    """
    growing = folder / f"{job}.jl.part"
    deadline = time.monotonic() + patience
    with growing.open("wb") as file:
        while (begin := file.tell()) < part.bytes:
            call = api.fetch(part_path(home, job), start=begin)
            try:
                chunk = await sender.download(node, call, file.write)
            except NodeError as error:
                if time.monotonic() > deadline:
                    raise PartLost(f"the part of {job} could not be fetched: {error}") from error
                await asyncio.sleep(RETRY_PAUSE)
                continue
            if chunk is None or file.tell() == begin:
                raise PartLost(f"the part of {job} on {node.name} is gone, or shorter than its worker said")
        file.flush()
        os.fsync(file.fileno())
    if await asyncio.get_running_loop().run_in_executor(None, _sha256, growing) != part.sha256:
        raise PartLost(f"the part of {job} is not what its worker wrote (its hash differs)")
    growing.replace(folder / f"{job}.jl")
    return f"{job}.jl"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Output:
    """The merged item file that a user asked for."""

    path: Path
    format: str  #: jsonlines, json or csv
    overwrite: bool = True  #: False adds to a file that is there

    @classmethod
    def named(cls, path: str | Path, *, overwrite: bool = True, format: str | None = None) -> Output:  # noqa: A002 - Scrapy's word
        """The output of this name.

        Raises:
            ConfigError: its format is not known.
        """
        found = format or FORMATS.get(Path(path).suffix.lower())
        if found is None or found not in FORMATS.values():
            raise ConfigError(
                f"Items can be merged into .jl, .jsonl, .json and .csv files, and {str(path)!r} is none of them."
            )
        output = cls(path=Path(path), format=found, overwrite=overwrite)
        if found == "json" and not overwrite and output.path.exists():
            raise ConfigError(
                f"{output.path} exists, and nothing can be added to a JSON list: name another file, or use -O."
            )
        return output


def merge(parts: Sequence[Path], outputs: Sequence[Output]) -> int:
    """Write every output from the parts, in their order, each by a file that is renamed when it is whole.

    Returns:
        The number of items.
    """
    count = 0
    for output in outputs:
        count = _merge_one(parts, output)
    return count


def _merge_one(parts: Sequence[Path], output: Output) -> int:
    with _replacing(output) as file:
        if output.format == "csv":
            return _write_csv(parts, file, _header(output))
        if output.format == "json":
            return _write_json(parts, file)
        return _write_lines(parts, file)


@contextmanager
def _replacing(output: Output) -> Iterator[IO[bytes]]:
    output.path.parent.mkdir(parents=True, exist_ok=True)
    growing = output.path.with_name(f".{output.path.name}.part")
    try:
        if output.overwrite or not output.path.exists():
            growing.write_bytes(b"")
        else:
            shutil.copyfile(output.path, growing)
        with growing.open("ab") as file:
            if not _ends_with_line(growing):
                file.write(b"\n")
            yield file
            file.flush()
            os.fsync(file.fileno())
        growing.replace(output.path)
    finally:
        growing.unlink(missing_ok=True)


def _ends_with_line(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _header(output: Output) -> list[str]:
    """The columns of a CSV file that is added to."""
    if output.overwrite or not output.path.exists():
        return []
    with output.path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def _write_lines(parts: Sequence[Path], file: IO[bytes]) -> int:
    count = 0
    for part in parts:
        with part.open("rb") as source:
            while block := source.read(1 << 20):
                count += block.count(b"\n")
                file.write(block)
    return count


def _items(parts: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for part in parts:
        with part.open("rb") as source:
            for line in source:
                yield json.loads(line)


def _write_json(parts: Sequence[Path], file: IO[bytes]) -> int:
    count = 0
    file.write(b"[")
    for part in parts:
        with part.open("rb") as source:
            for line in source:
                file.write(b",\n" if count else b"\n")
                file.write(line.rstrip(b"\n"))
                count += 1
    file.write(b"\n]\n")
    return count


def _write_csv(parts: Sequence[Path], file: IO[bytes], header: Sequence[str]) -> int:
    columns = dict.fromkeys(header)
    for item in _items(parts):
        columns.update(dict.fromkeys(item))
    text = _Utf8(file)
    writer = csv.DictWriter(text, columns, restval="")
    if not header:
        writer.writeheader()
    count = 0
    for item in _items(parts):
        writer.writerow({name: _cell(value) for name, value in item.items()})
        count += 1
    return count


def _cell(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return ",".join(value)  # as Scrapy's own CSV exporter joins them
    return json.dumps(value) if isinstance(value, (dict, list)) else value


class _Utf8:
    """A binary file that takes text."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode())
