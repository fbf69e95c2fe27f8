"""The merged files of a crawl: the producer's local feeds become them, with Scrapy's exporters where needed."""

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exporters import CsvItemExporter
from scrapy.settings import BaseSettings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapyd_dist.items.merging import FORMATS, ItemExporter, ItemOutput, MakeExporter

logger = logging.getLogger(__name__)
#: options of one feed, and the settings that give their values elsewhere
_OPTIONS = {"fields": "FEED_EXPORT_FIELDS", "encoding": "FEED_EXPORT_ENCODING", "indent": "FEED_EXPORT_INDENT"}
#: options of a feed that its output keeps
KEPT = (*_OPTIONS, "item_export_kwargs")
_UTF8 = {"", "utf8", "utf-8"}


def exporters_of(settings: BaseSettings) -> dict[str, Any]:
    """Format -> exporter, or its path; Scrapy's and the project's."""
    return {name: found for name, found in settings.getwithbase("FEED_EXPORTERS").items() if found}


def with_format(output: Mapping[str, Any]) -> dict[str, Any]:
    """An output of DISTRIBUTED_OUTPUTS with the format that its name tells, where it has none."""
    return {**output, "format": output.get("format") or FORMATS.get(Path(output["path"]).suffix.lower())}


def exporter_for(output: Mapping[str, Any], settings: BaseSettings, crawler: Crawler | None) -> MakeExporter | None:
    """What makes the exporter of an output (with its format); None where the parts' lines are taken as they are.

    It is used where FEED_EXPORT_… or FEED_EXPORTERS ask for more than parts have. ImportError or NameError if there is
    no such exporter.
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
    return partial(_make, cls, crawler, fixed)


def item_outputs(
    outputs: Iterable[Mapping[str, Any]], settings: BaseSettings, crawler: Crawler | None
) -> list[ItemOutput]:
    """These merged files of DISTRIBUTED_OUTPUTS; ConfigError if one cannot be written."""
    return [
        ItemOutput.named(
            one["path"],
            overwrite=bool(one.get("overwrite")),
            format=one.get("format"),
            exporter=exporter_for(with_format(one), settings, crawler),
        )
        for one in outputs
    ]


def _make(
    cls: Any,
    crawler: Crawler | None,
    fixed: Mapping[str, Any],
    file: IO[bytes],
    columns: Sequence[str],
    header: Sequence[str],
) -> ItemExporter:
    options = {name: value for name, value in fixed.items() if name != "fields"}
    options["fields_to_export"] = fixed["fields"] or columns or None
    if issubclass(cls, CsvItemExporter) and header:
        options["include_headers_line"] = False
    made: ItemExporter = cls(file, **options) if crawler is None else build_from_crawler(cls, crawler, file, **options)
    return made


def take_outputs(settings: BaseSettings, spider: Spider | type[Spider] | None) -> None:
    """Make the producer's own local feeds the merged output: `scrapy crawl SPIDER -o FILE` then has every item.

    The settings lose these feeds, whose addresses may name attributes of the spider, as in Scrapy.
    """
    outputs = [dict(output) for output in settings.getlist("DISTRIBUTED_OUTPUTS")]
    instead = bool(outputs) and settings.getpriority("FEEDS") != 40  # -o and -O replace the feeds of settings.py
    feeds, formats = settings.getdict("FEEDS"), exporters_of(settings)
    left = {}
    for uri, feed in feeds.items():
        output = _as_output(str(uri), feed, spider, formats)
        if output is None:
            left[uri], parts = feed, urlsplit(str(uri))
            shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            logger.warning("FEEDS: %s gets the producer's own items only; workers write their own feeds.", shown)
        elif not instead:
            outputs.append(output)
    for output in outputs:
        exporter_for(with_format(output), settings, None)  # one that cannot be imported is said before the crawl
    settings.set("DISTRIBUTED_OUTPUTS", outputs, priority="cmdline")
    settings.set("FEEDS", json.dumps(left), priority="cmdline")


def _as_output(uri: str, feed: dict[str, Any], spider: Any, formats: Mapping[str, Any]) -> dict[str, Any] | None:
    parts = urlsplit(uri)
    if parts.scheme not in {"", "file"}:
        return None
    path = unquote(parts.path) if parts.scheme else uri
    kind = feed.get("format") or FORMATS.get(Path(path).suffix.lower())
    kind = "jsonlines" if kind in {"jl", "jsonl"} else kind
    if kind not in formats:
        return None
    path = path.replace("%(time)s", time.strftime("%Y-%m-%dT%H-%M-%S+00-00", time.gmtime()))  # as Scrapy writes it
    path = re.sub(r"%\((\w+)\)s", lambda found: str(getattr(spider, found[1], found[0])), path)
    kept = {name: feed[name] for name in KEPT if name in feed}
    return {"path": str(Path(path).absolute()), "format": kind, "overwrite": bool(feed.get("overwrite")), **kept}
