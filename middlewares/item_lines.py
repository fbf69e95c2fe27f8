"""Writes items as JSON lines.

Where a feed needs it, these have their classes and the values that JSON lacks.
Part of the worker half: imports Scrapy and the standard library only.
"""

import json
from io import BytesIO
from typing import Any

from itemadapter import ItemAdapter
from scrapy.exporters import JsonLinesItemExporter
from scrapy.utils.serialize import ScrapyJSONEncoder

from scrapyd_dist.typed_lines import with_form

from .typed_json import NoJsonForm, item_form, pack


class _TextEncoder(ScrapyJSONEncoder):
    """Encodes as Scrapy does, and each value for which that has no form as its text.

    `types` gets the names of the types of such values.
    """

    def __init__(self, types: set[str]) -> None:
        super().__init__(ensure_ascii=False)
        self._types = types

    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            self._types.add(type(o).__name__)
            return _text_of(o)


class _ExporterEncoder(_TextEncoder):
    """Encodes what an exporter makes into bytes, which it cannot make of half a surrogate pair."""

    def encode(self, o: Any) -> str:
        return line_bytes(super().encode(o)).decode()


def line_bytes(text: str) -> bytes:
    """Return JSON in UTF-8; halves of surrogate pairs, which that lacks, are JSON's escapes."""
    return text.encode("utf-8", "backslashreplace")


def _text_of(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a project's class may do anything
        return object.__repr__(value)


class ItemLines:
    """Writes items as lines of JSON to a file; a value that JSON cannot have becomes its text."""

    def __init__(self, file: BytesIO) -> None:
        self.as_text = set[str]()  #: names of the types of values that have become text
        self._encoder = _TextEncoder(self.as_text)
        self._exporter = self._exporter_to(file, self.as_text)

    @staticmethod
    def _exporter_to(file: BytesIO, types: set[str]) -> JsonLinesItemExporter:
        exporter = JsonLinesItemExporter(file, encoding="utf-8")
        exporter.encoder = _ExporterEncoder(types)
        return exporter

    def add(self, item: Any) -> None:
        """Write an item.

        Raises:
            TypeError, ValueError: it contains itself, or the keys of a dict in it are no text.
        """
        exporter = self._exporter
        if type(item) is dict and all(type(name) is str for name in item):
            # The exporter would make a copy, field by field, with the same result.
            exporter.file.write(line_bytes(f"{self._encoder.encode(item)}\n"))
        else:
            exporter.export_item(item)


class TypedLines(ItemLines):
    """Writes items so that they come back as they were.

    The line of an item that is more than a dict of JSON ends with a field for the rest of it.
    """

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self._file = file
        self._line = BytesIO()  #: the line of one item, before its form is added
        # What became text on the line is whole in its form: its type is no matter.
        types = set[str]()
        self._encoder = _TextEncoder(types)
        self._exporter = self._exporter_to(self._line, types)

    def add(self, item: Any) -> None:
        """Write an item, as `ItemLines.add` does, with its form."""
        self._line.seek(0)
        self._line.truncate()
        super().add(item)
        line = self._line.getvalue()
        form = self._pack(item, line)
        if type(item) is dict and form == item:
            self._file.write(line)
            return
        self._file.write(with_form(line.rstrip(b"\n"), form) + b"\n")

    def _pack(self, item: Any, line: bytes) -> Any:
        """Return the whole item as JSON.

        Of a value that cannot come back as it was, it has what the line has.
        """
        try:
            return pack(item)
        except NoJsonForm:
            on_line = json.loads(line)
        fields = {}
        for name, value in ItemAdapter(item).items():
            try:
                fields[name] = pack(value)
            except NoJsonForm as error:
                self.as_text.add(str(error))
                fields[name] = pack(on_line.get(name))
        return item_form(type(item), fields)


def line_writer(file: BytesIO, *, typed: bool) -> ItemLines:
    """Return what writes items to the file as lines; with `typed`, with what JSON lacks of them."""
    if typed:
        return TypedLines(file)
    return ItemLines(file)
