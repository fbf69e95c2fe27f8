"""Scrapy's exporters for merged files: used where FEED_EXPORT_… or FEED_EXPORTERS ask for more than parts have."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scrapy.exporters import CsvItemExporter
from scrapy.utils.misc import build_from_crawler, load_object

from scrapyd_dist.items.merging import FORMATS, cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from scrapyd_dist.items.merging import ItemExporter, MakeExporter

#: options of one feed, and the settings that give their values elsewhere
_OPTIONS = {"fields": "FEED_EXPORT_FIELDS", "encoding": "FEED_EXPORT_ENCODING", "indent": "FEED_EXPORT_INDENT"}
#: options of a feed that its output keeps
KEPT = (*_OPTIONS, "item_export_kwargs")
_UTF8 = {"", "utf8", "utf-8"}


class NestedCsvExporter(CsvItemExporter):
    """Scrapy's, with nested values as JSON text."""

    def serialize_field(self, field: Mapping[str, Any], name: str, value: Any) -> Any:
        return super().serialize_field(field, name, cell(value))


def exporters_of(settings: BaseSettings) -> dict[str, Any]:
    """Format -> exporter, or its path; Scrapy's and the project's."""
    return {name: found for name, found in settings.getwithbase("FEED_EXPORTERS").items() if found}


def with_format(output: Mapping[str, Any]) -> dict[str, Any]:
    """An output of DISTRIBUTED_OUTPUTS with the format that its name tells, where it has none."""
    return {**output, "format": output.get("format") or FORMATS.get(Path(output["path"]).suffix.lower())}


def exporter_for(output: Mapping[str, Any], settings: BaseSettings, crawler: Crawler | None) -> MakeExporter | None:
    """What makes the exporter of a merged file; None where the lines of the parts can be taken as they are.

    Args:
        output: as in DISTRIBUTED_OUTPUTS, with its format.
        settings: the producer's.
        crawler: for exporters that are made from one.

    Raises:
        ImportError, NameError: there is no such exporter.
    """
    kind = output["format"]
    path = exporters_of(settings).get(kind)
    given = {name: output.get(name, settings.get(setting)) for name, setting in _OPTIONS.items()}
    own = kind not in FORMATS.values() or path != settings.getdict("FEED_EXPORTERS_BASE").get(kind)
    indented = kind == "json" and given["indent"]
    plain = str(given["encoding"] or "").lower() in _UTF8 and not (given["fields"] or indented)
    if path is None or (plain and not own and not output.get("item_export_kwargs")):
        return None
    cls = load_object(path)
    fixed = {**given, **(output.get("item_export_kwargs") or {})}
    return partial(_make, NestedCsvExporter if cls is CsvItemExporter else cls, crawler, fixed)


def _make(
    cls: Any,
    crawler: Crawler | None,
    options: Mapping[str, Any],
    file: IO[bytes],
    columns: Sequence[str],
    *,
    head: bool,
) -> ItemExporter:
    options = dict(options)
    fields = options.pop("fields") or columns or None
    if issubclass(cls, CsvItemExporter) and not head:
        options["include_headers_line"] = False
    options["fields_to_export"] = fields
    made: ItemExporter = cls(file, **options) if crawler is None else build_from_crawler(cls, crawler, file, **options)
    return made
