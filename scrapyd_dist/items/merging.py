"""Merges parts into the item files that a user asked for: which formats there are, and where."""

from __future__ import annotations

import csv
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path, PureWindowsPath
from typing import IO, Any
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.items.added_items import AddedRanges, adding_to
from scrapyd_dist.items.json_lines import Items, item_in
from scrapyd_dist.plurals import counted
from scrapyd_dist.whole_files import replacing

#: gives the fields of each item
ItemValues = Callable[[Items], Iterator[Mapping[str, Any]]]
#: file name ending -> format of the merged file
FORMATS = {
    ".jl": "jsonlines",
    ".jsonl": "jsonlines",
    ".jsonlines": "jsonlines",
    ".json": "json",
    ".csv": "csv",
}
#: Scrapy's names of the formats -> ours
_NAMES = {
    "jsonlines": "jsonlines",
    "jl": "jsonlines",
    "jsonl": "jsonlines",
    "json": "json",
    "csv": "csv",
}


def scheme_of(place: str) -> str:
    """Return the scheme by which Scrapy finds the storage of a feed; empty for a mere path."""
    before_host, _, _ = place.partition("//")  # what follows may be no host, which is an error
    return urlsplit(before_host).scheme


def is_elsewhere(place: str) -> bool:
    """Say whether an output is no file of this machine: an address, or standard output.

    By Scrapy's rule: an address needs no //, and one letter and a colon begin a path.
    """
    return scheme_of(place) not in {"", "file"} and not PureWindowsPath(place).drive


class OutputNotWritten(DistError):
    """A merged file cannot be written; the items are all home."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class ItemOutput:
    """The merged item file that a user asked for."""

    path: Path
    format: str  #: jsonlines, json or csv
    overwrite: bool = True  #: False adds to a file that is there
    #: whether UTF-8 was asked for, which has no half of a surrogate pair, nor JSON's escape of one
    only_utf8: bool = False

    @classmethod
    def named(
        cls,
        path: str | Path,
        *,
        overwrite: bool = True,
        format: str | None = None,  # noqa: A002 - Scrapy's word
        only_utf8: bool = False,
    ) -> ItemOutput:
        """Return the output of this name.

        Raises `ConfigError` when its format is not known, or no file can be made there.
        """
        known = _format_of(path, format)
        if known is None:
            raise ConfigError(
                "Items can be merged into .jl, .jsonl, .json and .csv files, and"
                f" {str(path)!r} is none of them."
            )
        output = cls(path=Path(path), format=known, overwrite=overwrite, only_utf8=only_utf8)
        output._check_place()
        return output

    def _check_place(self) -> None:
        """Raise `ConfigError` when what is at the path cannot be replaced or added to."""
        try:
            is_folder = self.path.is_dir()
            is_there = self.path.exists()
        except OSError as error:  # its name is too long, or a folder above cannot be read
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}.") from error
        if is_folder:
            raise ConfigError(f"{self.path} is a folder; name the file in it that the items go to.")
        if is_there and not self.path.is_file():  # as /dev/stdout, which a rename would replace
            raise ConfigError(
                f"{self.path} is not a regular file, so no finished file can take its place."
            )
        if self.format == "json" and not self.overwrite and is_there:
            raise ConfigError(
                f"{self.path} exists, and nothing can be added to a JSON list: name another file,"
                " or use -O."
            )


@dataclass
class UnwrittenItems:
    """Counts the items that an output cannot have: Scrapy's exporter would only log an error."""

    by_reason: Counter[tuple[str, str]] = field(default_factory=Counter)  #: by path, and why

    def note(self, output: ItemOutput, error: UnicodeEncodeError) -> None:
        """Count an item of which this output cannot have a text."""
        half = error.object[error.start : error.end]
        why = f"{half!a} is half of a surrogate pair, which UTF-8 does not have"
        self.by_reason[str(output.path), why] += 1

    def total(self) -> int:
        """Return how many items are not in an output."""
        return self.by_reason.total()

    def sentences(self) -> list[str]:
        """Say how many are not in which output, and why."""
        items = Counter[str]()
        reasons: dict[str, str] = {}
        for (path, why), number in self.by_reason.items():
            items[path] += number
            reasons.setdefault(path, why)
        sentences = []
        for path, number in items.items():
            lost = counted(number, "item")
            sentences.append(f"{lost} could not be written to {path}: {reasons[path]}.")
        return sentences


def _format_of(path: str | Path, named: str | None) -> str | None:
    """Return our name of the named format, or else of the format of a file; None if unknown."""
    if named:
        return _NAMES.get(named)
    return FORMATS.get(Path(path).suffix.lower())


def is_list(path: str, format: str | None) -> bool:  # noqa: A002 - Scrapy's word
    """Tell whether a file of this name, or in this format, holds one JSON list."""
    return _format_of(path, format) == "json"


def check_folder(folder: Path) -> None:
    """Raise ConfigError if no file can be made in this folder, or the folder cannot be made."""
    nearest = _nearest_that_exists(folder)
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(
            f"No file can be made in {nearest}: {error.strerror}. Name a file in another folder for"
            " the items."
        ) from error


def _nearest_that_exists(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    parents = iter(folder.absolute().parents)
    while not folder.exists():
        folder = next(parents)
    return folder


def merge(
    items: Items,
    outputs: Sequence[ItemOutput],
    fields: Sequence[str] = (),
    values: ItemValues = Items.values,
    ranges: AddedRanges | None = None,
    unwritten: UnwrittenItems | None = None,
) -> int:
    """Write every output from the items, in their order, and return the number of items.

    Each is written as another file that is renamed when it is whole. `fields` are the first columns
    of a CSV file, whether an item has them or not; `values` gives the items for it. What `ranges`
    says was added before is replaced, and `unwritten` gets what an output cannot have. Raises
    `OutputNotWritten`.
    """
    if unwritten is None:
        unwritten = UnwrittenItems()
    for output in outputs:
        try:
            with _opened(output, ranges) as (file, header):
                if output.format == "csv":
                    table = _Table(output=output, header=header, fields=fields, values=values)
                    table.write(items, file, unwritten)
                else:
                    _write_lines(items, output, file, unwritten)
        except OSError as error:
            if str(error.filename) in items.paths:
                raise  # a part cannot be read
            place = ""
            if error.filename not in {None, str(output.path)}:
                place = f" ({error.filename})"
            raise OutputNotWritten(
                f"The items cannot be written to {output.path}: {error.strerror or error}{place}."
                " They are all home: mend that, or write them to another file by"
                " `sdist items merge CRAWL -O FILE`."
            ) from error
    return sum(file.items for file in items.found)


def _write_lines(
    items: Items, output: ItemOutput, file: IO[bytes], unwritten: UnwrittenItems
) -> None:
    """Write the items as lines, or as a list of them."""
    lines = items.lines()
    if output.only_utf8:
        lines = _lines_in_utf8(lines, output, unwritten)
    if output.format == "json":
        _write_json(lines, file)
    else:
        file.writelines(line + b"\n" for line in lines)


def _lines_in_utf8(
    lines: Iterable[bytes], output: ItemOutput, unwritten: UnwrittenItems
) -> Iterator[bytes]:
    """Yield the lines without those of items that have half of a surrogate pair."""
    for line in lines:
        error = None
        if b"\\ud" in line:  # as the escapes of such halves begin
            error = _find_half(line)
        if error is None:
            yield line
        else:
            unwritten.note(output, error)


def _find_half(line: bytes) -> UnicodeEncodeError | None:
    """Return the error that an encoder raises of an item with half of a surrogate pair."""
    try:
        json.dumps(item_in(line), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return error
    return None


@contextmanager
def _opened(
    output: ItemOutput, ranges: AddedRanges | None
) -> Iterator[tuple[IO[bytes], list[str]]]:
    """Open an output, and give the columns of a CSV file that is added to."""
    if output.overwrite:
        with replacing(output.path) as file:
            yield file, []
        return
    with adding_to(output.path, ranges) as added:
        added.begin_line()
        yield added.file, header_of(output.path) if added.start else []


def header_of(path: Path) -> list[str]:
    """Return the columns of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def _columns(items: Items, first: Sequence[str]) -> dict[str, None]:
    """Return the columns of a CSV file in order: the first ones, then the others of all items."""
    columns = dict.fromkeys(first)
    for item in items.values():  # once more through the items: no number of them is kept in memory
        columns.update(dict.fromkeys(item))
    return columns


def _write_json(lines: Iterable[bytes], file: IO[bytes]) -> None:
    file.write(b"[")
    separator = b"\n"
    for line in lines:
        file.write(separator)
        file.write(line)
        separator = b",\n"
    file.write(b"\n]\n")


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A CSV file of items."""

    output: ItemOutput
    header: Sequence[str]  #: the columns that it has already
    fields: Sequence[str]  #: the first columns that it gets
    values: ItemValues

    def write(self, items: Items, file: IO[bytes], unwritten: UnwrittenItems) -> None:
        """Write the items as rows."""
        text = TextIOWrapper(file, "utf-8", newline="", write_through=True)
        columns = _columns(items, [*self.header, *self.fields])
        writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
        if not self.header:
            writer.writerow(dict(zip(columns, map(_heading, columns), strict=True)))
        for item in self.values(items):
            cells = {name: _cell(value) for name, value in item.items()}
            try:
                writer.writerow(cells)
            except UnicodeEncodeError as error:  # nothing of the row is written then
                unwritten.note(self.output, error)
        text.detach()  # the file is closed by its owner


def _heading(name: str) -> str:
    """Return the name of a column as UTF-8 can have it."""
    return name.encode("utf-8", "backslashreplace").decode()


def _cell(value: Any) -> Any:
    """Return a value as Scrapy's CSV exporter writes it: the texts of a list joined, bytes as text.

    The csv module makes a text of any other value.
    """
    if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
        return ",".join(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value
