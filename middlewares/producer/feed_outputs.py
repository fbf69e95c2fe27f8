"""What a crawl writes its items to: files made of the parts' lines as they are, and feeds of Scrapy's exporter."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from scrapy import Spider, signals
from scrapy.extensions import feedexport
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import BaseSettings
from scrapy.utils.conf import feed_complete_default_values_from_settings
from scrapy.utils.misc import load_object

from scrapyd_dist.items.merging import FORMATS, ItemOutput, is_elsewhere
from scrapyd_dist.items.sink import password_in

from ..engine_compat import project_receivers
from ..typed_json import NoJsonForm, pack, unpack

logger = logging.getLogger(__name__)
#: what the exporter tells of a feed, and of all
FEED_SIGNALS = (signals.feed_slot_closed, signals.feed_exporter_closed)
#: Scrapy's priorities of settings: of settings.py, and of -s, -o and -O
_PROJECT, _CMDLINE = 20, 40
_UTF8 = {"", "utf8", "utf-8"}
#: fields of an output that are no options of a feed; `feed` is the key in FEEDS that it was made of
_OWN = frozenset({"path", "feed"})
#: options of a feed that files of the parts' lines have, too, and those that they have at these values only
_KNOWN = frozenset({"format", "overwrite", "encoding", "uri_params"})
_AT_DEFAULT: Mapping[str, Any] = {"store_empty": True, "indent": 0}


@dataclass(frozen=True, kw_only=True)
class CrawlOutputs:
    """Where the items of a crawl go at its end."""

    files: tuple[ItemOutput, ...] = ()  #: local, made of the parts' lines
    feeds: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  #: URI -> options, as in FEEDS

    @property
    def typed(self) -> bool:
        """Whether they need the items' classes and what JSON lacks; CSV has the texts of such values."""
        return bool(self.feeds) or any(file.format == "csv" for file in self.files)

    @property
    def shown(self) -> tuple[str, ...]:
        """The places, without what is secret."""
        return (*(str(file.path) for file in self.files), *map(shown, self.feeds))


def crawl_outputs(
    outputs: Iterable[Mapping[str, Any]], settings: BaseSettings, *, wants_exporter: bool = False
) -> CrawlOutputs:
    """Sort the outputs of DISTRIBUTED_OUTPUTS.

    Args:
        outputs: each with its path and the options of a feed.
        settings: of the crawl.
        wants_exporter: whether all of them are to be feeds of the exporter (`watches_feeds`).

    Raises:
        ConfigError: a local file cannot be written.
    """
    files = list[ItemOutput]()
    feeds = dict[str, dict[str, Any]]()
    for one in outputs:
        options = _completed(one, settings)
        if _is_plain(one, options, settings) and not wants_exporter:
            overwrite = bool(one.get("overwrite"))
            files.append(
                ItemOutput.named(one["path"], overwrite=overwrite, format=options["format"])
            )
        else:
            given = {name: unpack(value) for name, value in one.items() if name not in _OWN}
            feeds[str(one["path"])] = {**given, "format": options["format"]}
    return CrawlOutputs(files=tuple(files), feeds=feeds)


def watches_feeds(crawler: Any) -> bool:
    """Whether code of the project hears of stored feeds: only feeds of the exporter tell it."""
    return any(project_receivers(crawler, signal) for signal in FEED_SIGNALS)


def shown(place: str) -> str:
    """A path, or an address without its account."""
    if not is_elsewhere(place):
        return place
    parts = urlsplit(place)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def outputs_to_keep(outputs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The outputs as the crawl's row has them, for the next process: paths are absolute, and none has a password."""
    kept = []
    for one in outputs:
        place = str(one["path"])
        if not is_elsewhere(place) and not place.startswith("file:"):
            kept.append({**one, "path": str(Path(place).absolute())})
        elif not password_in(place):  # FEEDS of the project have it
            kept.append(dict(one))
    return kept


def take_feeds(settings: BaseSettings, spider: Spider | type[Spider] | None) -> None:
    """Make the feeds of this process the outputs of the whole crawl, which are written at its end.

    FEEDS is empty then: Scrapy would write the producer's own items there.
    """
    outputs = [dict(output) for output in settings.getlist("DISTRIBUTED_OUTPUTS")]
    given = settings.getpriority("FEEDS") or 0
    # As in Scrapy: -o and -O come on top of FEEDS of settings.py, and replace those of the spider.
    replaced = bool(outputs) and _PROJECT < given < _CMDLINE
    known = {output.get("feed") for output in outputs}
    for uri, feed in ({} if replaced else _feeds_of(settings)).items():
        if str(uri) in known:
            continue  # an earlier process of this crawl has made an output of it
        if str(uri).startswith("stdout:") and settings.get("DISTRIBUTED_CRAWL"):
            logger.warning(
                "FEEDS: nothing is written to stdout:, which this process does not have; use -o -."
            )
            continue
        options = {name: _packed(_as_json(value)) for name, value in feed.items()}
        place = str(uri) if has_own_storage(uri, settings) else _path_of(uri)
        outputs.append({**options, "path": place, "feed": str(uri)})
    made = [{**one, "path": _resolved(one, settings, spider)} for one in outputs]
    settings.set("DISTRIBUTED_OUTPUTS", made, priority="cmdline")
    settings.set("FEEDS", json.dumps({}), priority="cmdline")
    settings.set("FEED_URI", None, priority="cmdline")


def _feeds_of(settings: BaseSettings) -> dict[str, Any]:
    """FEEDS, with the one feed of the old settings FEED_URI and FEED_FORMAT."""
    feeds = settings.getdict("FEEDS")
    if settings.get("FEED_URI"):
        feeds = {
            str(settings["FEED_URI"]): {"format": settings.get("FEED_FORMAT", "jsonlines")},
            **feeds,
        }
    return feeds


def _path_of(uri: Any) -> str:
    """The path or address of a feed; a path is absolute."""
    text = str(uri)
    if is_elsewhere(text):
        return text
    path = Path(unquote(urlsplit(text).path) if text.startswith("file:") else text)
    return str(path.absolute())


def _as_json(value: Any) -> Any:
    """A value of a feed's options as the crawl's row can have it: classes and functions by their names."""
    if isinstance(value, (list, tuple, set)):
        return [_as_json(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _as_json(entry) for name, entry in value.items()}
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return value


def _packed(value: Any) -> Any:
    """A value that may be bytes, or have some, as JSON; one that has no JSON form is refused with the crawl's row."""
    try:
        return pack(value)
    except NoJsonForm:
        return value


def _completed(output: Mapping[str, Any], settings: BaseSettings) -> dict[str, Any]:
    """The options of a feed, with those that the settings give to all."""
    options = {name: value for name, value in output.items() if name not in _OWN}
    options["format"] = output.get("format") or _format_of(str(output["path"]))
    return feed_complete_default_values_from_settings(options, settings)


def _format_of(place: str) -> str:
    suffix = Path(place).suffix.lower()
    return FORMATS.get(suffix, suffix.removeprefix("."))


def _is_plain(
    output: Mapping[str, Any], options: Mapping[str, Any], settings: BaseSettings
) -> bool:
    """Whether a file of the parts' lines is all that this output asks for."""
    kind = options["format"]
    place = str(output["path"])
    if is_elsewhere(place) or has_own_storage(place, settings) or not _is_scrapys(kind, settings):
        return False
    if exporter_class(settings) is not FeedExporter:
        return False
    if str(options["encoding"] or "").lower() not in _UTF8:
        return False
    indents = kind == "json" and options["indent"]
    asked = {name for name in options.keys() - _KNOWN - _AT_DEFAULT.keys() if options[name]}
    return bool(options["store_empty"]) and not asked and not indents


def has_own_storage(uri: Any, settings: BaseSettings) -> bool:
    """Whether this is a local file for which the project has a storage of its own."""
    scheme = urlsplit(str(uri)).scheme if str(uri).startswith("file:") else ""
    storages, base = settings.getwithbase("FEED_STORAGES"), settings.getdict("FEED_STORAGES_BASE")
    return not is_elsewhere(str(uri)) and storages.get(scheme) != base.get(scheme)


def exporter_class(settings: BaseSettings) -> type[FeedExporter]:
    """The project's own feed exporter, where EXTENSIONS has one; else Scrapy's."""
    for path, order in settings.getwithbase("EXTENSIONS").items():
        found = load_object(path) if order is not None else None
        if (
            isinstance(found, type)
            and issubclass(found, FeedExporter)
            and found is not FeedExporter
        ):
            return found
    return FeedExporter


def _is_scrapys(kind: str, settings: BaseSettings) -> bool:
    """Whether this is a format that parts can be merged into, and its exporter is Scrapy's."""
    own, base = settings.getwithbase("FEED_EXPORTERS"), settings.getdict("FEED_EXPORTERS_BASE")
    scrapys = {"jl": "jsonlines", "jsonl": "jsonlines"}.get(kind, kind)
    return scrapys in FORMATS.values() and own.get(kind) == base.get(kind)


# the parameters of URIs


def _resolved(output: Mapping[str, Any], settings: BaseSettings, spider: Any) -> str:
    """The place with the spider's attributes and the time of this start filled in, as Scrapy does when it opens.

    The numbers and times of batches are filled in when these are written.
    """
    place, options = str(output["path"]), _completed(output, settings)
    if options["batch_item_count"] or "%(" not in place:
        return place
    params = {name: getattr(spider, name) for name in dir(spider)}
    now = datetime.now(timezone.utc)
    params["time"] = now.replace(microsecond=0).isoformat().replace(":", "-")
    params["batch_time"], params["batch_id"] = now.isoformat().replace(":", "-"), 1
    if options["uri_params"]:
        params = load_object(options["uri_params"])(params, spider) or params
    if hasattr(feedexport, "apply_uri_params"):
        return str(feedexport.apply_uri_params(place, params))
    return place % params  # Scrapy before 2.19
