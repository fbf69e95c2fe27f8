"""Writes items as JSON lines; where a feed needs it, with their classes and the values that JSON lacks.

Part of the worker half: imports Scrapy and the standard library only.
"""

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

from itemadapter import ItemAdapter
from scrapy.exporters import JsonLinesItemExporter

from scrapyd_dist.typed_lines import with_form

from .typed_json import NoJsonForm, item_form, pack


def line_writer(file: BytesIO, *, typed: bool) -> Callable[[Any], None]:
    """Return what writes one item to the file as a line.

    With `typed` the line of an item that is more than a dict of JSON ends with a field for the rest of it. It raises
    TypeError or ValueError for an item that has no JSON form.
    """
    if typed:
        return TypedLines(file).export_item
    return JsonLinesItemExporter(file, encoding="utf-8").export_item


class TypedLines:
    """Writes items with their classes and typed values."""

    def __init__(self, file: BytesIO) -> None:
        self._file, self._line = file, BytesIO()
        self._exporter = JsonLinesItemExporter(self._line, encoding="utf-8")

    def export_item(self, item: Any) -> None:
        self._line.seek(0)
        self._line.truncate()
        self._exporter.export_item(item)
        line = self._line.getvalue()
        form = _form_of(item, line)
        if type(item) is dict and form == item:
            self._file.write(line)
            return
        self._file.write(with_form(line.rstrip(b"\n"), form) + b"\n")


def _form_of(item: Any, line: bytes) -> Any:
    """The whole item as JSON; of a value that cannot come back as it was, what its line has."""
    try:
        return pack(item)
    except NoJsonForm:
        on_line = json.loads(line)
    fields = {}
    for name, value in ItemAdapter(item).items():
        try:
            fields[name] = pack(value)
        except NoJsonForm:
            fields[name] = pack(on_line.get(name))
    return item_form(type(item), fields)
