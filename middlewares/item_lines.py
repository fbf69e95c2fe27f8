"""Writes items as JSON lines; where a feed needs it, with their classes and the values that JSON lacks.

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
    """Scrapy's, with the text of each value for which that has no form; `types` gets the names of their types."""

    def __init__(self, types: set[str]) -> None:
        super().__init__(ensure_ascii=False)
        self._types = types

    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            self._types.add(type(o).__name__)
            return _text_of(o)


def _text_of(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    try:
        return str(value)
    except Exception:
        return object.__repr__(value)


class ItemLines:
    """Writes items as lines of JSON to a file; a value that JSON cannot have becomes its text."""

    def __init__(self, file: BytesIO) -> None:
        self.as_text = set[str]()  #: names of the types of values that have become text
        self._exporter = self._exporter_to(file, self.as_text)

    @staticmethod
    def _exporter_to(file: BytesIO, types: set[str]) -> JsonLinesItemExporter:
        exporter = JsonLinesItemExporter(file, encoding="utf-8")
        exporter.encoder = _TextEncoder(types)
        return exporter

    def add(self, item: Any) -> None:
        """Write an item; TypeError or ValueError if it contains itself, or the keys of a dict in it are no text."""
        self._exporter.export_item(item)


class TypedLines(ItemLines):
    """The same; the line of an item that is more than a dict of JSON ends with a field for the rest of it."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self._file, self._line = file, BytesIO()
        self._exporter = self._exporter_to(
            self._line, set()
        )  # what became text on the line is whole in its form

    def add(self, item: Any) -> None:
        self._line.seek(0)
        self._line.truncate()
        super().add(item)
        line = self._line.getvalue()
        form = self._form_of(item, line)
        if type(item) is dict and form == item:
            self._file.write(line)
            return
        self._file.write(with_form(line.rstrip(b"\n"), form) + b"\n")

    def _form_of(self, item: Any, line: bytes) -> Any:
        """The whole item as JSON; of a value that cannot come back as it was, what its line has."""
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
    return TypedLines(file) if typed else ItemLines(file)
