"""Sort what a crawl writes its items to: files of the parts' lines, and feeds of the exporter."""

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

from scrapyd_dist.items.merging import FORMATS, ItemOutput, is_elsewhere, scheme_of
from scrapyd_dist.items.sink import password_in
from scrapyd_dist.settings import SettingReader

from ..engine_compat import project_receivers
from ..feed_place import exporter_class
from ..typed_json import NoJsonForm, pack, unpack

logger = logging.getLogger(__name__)
#: what the exporter tells of a feed, and of all
FEED_SIGNALS = (signals.feed_slot_closed, signals.feed_exporter_closed)
#: Scrapy's priority of settings.py
_PROJECT = 20
#: Scrapy's priority of -s, -o and -O
_CMDLINE = 40
#: encodings that lines have as they are
_UTF8 = {"", "utf8", "utf-8"}
#: fields of an output that are no options of a feed; `feed` is the key in FEEDS that it was made of
_OWN = frozenset({"path", "feed"})
#: options of a feed that files of the parts' lines have, too
_KNOWN = frozenset({"format", "overwrite", "encoding", "uri_params"})
#: options of a feed that files of the parts' lines have at these values only
_AT_DEFAULT: Mapping[str, Any] = {"store_empty": True, "indent": 0}


@dataclass(frozen=True, kw_only=True)
class CrawlOutputs:
    """Says where the items of a crawl go at its end."""

    files: tuple[ItemOutput, ...] = ()  #: local, made of the parts' lines
    #: URI -> options, as in FEEDS
    feeds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def typed(self) -> bool:
        """Return whether the outputs need the items' classes and what JSON lacks.

        CSV has the texts of such values.
        """
        return bool(self.feeds) or any(file.format == "csv" for file in self.files)

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the places, without what is secret."""
        files = [str(file.path) for file in self.files]
        return (*files, *map(shown, self.feeds))


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
    files: list[ItemOutput] = []
    feeds: dict[str, dict[str, Any]] = {}
    for output in outputs:
        options = _complete_options(output, settings)
        kind = options["format"]
        if _is_plain(output, options, settings) and not wants_exporter:
            overwrite = bool(output.get("overwrite"))
            file = ItemOutput.named(
                output["path"],
                overwrite=overwrite,
                format=kind,
                only_utf8=bool(options["encoding"]),
            )
            files.append(file)
        else:
            feed = _options_given(output)
            for name, value in feed.items():
                feed[name] = unpack(value)
            feed["format"] = kind
            feeds[str(output["path"])] = feed
    return CrawlOutputs(files=tuple(files), feeds=feeds)


def feeds_in_order(settings: BaseSettings) -> list[str]:
    """Return the places of outputs whose bytes or files depend on the order of the items.

    A feed of FEEDS is one of the outputs by now (`take_feeds`), and is called as it is there.
    """
    places = []
    for output in settings.getlist("DISTRIBUTED_OUTPUTS"):
        options = _complete_options(output, settings)
        if options["batch_item_count"] or options.get("postprocessing"):
            places.append(shown(str(output.get("feed") or output["path"])))
    return places


def watches_feeds(crawler: Any) -> bool:
    """Return whether code of the project hears of stored feeds.

    Only feeds of the exporter tell it.
    """
    return any(project_receivers(crawler, signal) for signal in FEED_SIGNALS)


def shown(place: str) -> str:
    """Return a path as it is, and an address without its account."""
    if not is_elsewhere(place):
        return place
    parts = urlsplit(place)
    _, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=host).geturl()


def outputs_to_keep(outputs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the outputs as the crawl's row has them, for the next process.

    Paths are absolute, and none has a password.
    """
    kept = []
    for output in outputs:
        place = str(output["path"])
        if not is_elsewhere(place) and not place.startswith("file:"):
            kept.append({**output, "path": str(Path(place).absolute())})
        elif not password_in(place):  # FEEDS of the project have it
            kept.append(dict(output))
    return kept


def take_feeds(
    settings: BaseSettings, spider: Spider | type[Spider] | None, *, has_stdout: bool = True
) -> None:
    """Make the feeds of this process the outputs of the whole crawl, which are written at its end.

    FEEDS is empty then: Scrapy would write the producer's own items there.
    has_stdout: whether the crawl writes to a shell, as `scrapy crawl` does and `sdist crawl` not.
    ConfigError if DISTRIBUTED_OUTPUTS has another kind of value.
    """
    outputs = [dict(output) for output in SettingReader(settings).value("DISTRIBUTED_OUTPUTS")]
    given = settings.getpriority("FEEDS") or 0
    # As in Scrapy: -o and -O come on top of FEEDS of settings.py, and replace those of the spider.
    is_replaced = bool(outputs) and _PROJECT < given < _CMDLINE
    if not is_replaced:
        outputs += _outputs_of_feeds(outputs, settings, has_stdout=has_stdout)
    for output in outputs:
        output["path"] = _resolve_place(output, settings, spider)
    settings.set("DISTRIBUTED_OUTPUTS", outputs, priority="cmdline")
    settings.set("FEEDS", json.dumps({}), priority="cmdline")
    settings.set("FEED_URI", None, priority="cmdline")


def _outputs_of_feeds(
    outputs: Iterable[Mapping[str, Any]], settings: BaseSettings, *, has_stdout: bool
) -> list[dict[str, Any]]:
    """Return an output for each feed of which an earlier process of this crawl has made none."""
    known = {output.get("feed") for output in outputs}
    added: list[dict[str, Any]] = []
    for uri, feed in _feeds_in(settings).items():
        address = str(uri)
        if address in known:
            continue
        if address.startswith("stdout:") and not has_stdout:
            logger.warning(
                "FEEDS: nothing is written to stdout:, which this process does not have; use -o -."
            )
            continue
        output = {name: _packed(_as_json(value)) for name, value in feed.items()}
        output["path"] = address if has_own_storage(address, settings) else _path_of(address)
        output["feed"] = address
        added.append(output)
    return added


def _feeds_in(settings: BaseSettings) -> dict[str, Any]:
    """Return FEEDS, with the one feed of the old settings FEED_URI and FEED_FORMAT."""
    feeds = settings.getdict("FEEDS")
    if settings.get("FEED_URI"):
        feed = {"format": settings.get("FEED_FORMAT", "jsonlines")}
        return {str(settings["FEED_URI"]): feed, **feeds}
    return feeds


def _path_of(uri: str) -> str:
    """Return the path or address of a feed; a path is absolute."""
    if is_elsewhere(uri):
        return uri
    path = unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
    return str(Path(path).absolute())


def _as_json(value: Any) -> Any:
    """Return a value of a feed's options as the crawl's row can have it.

    Classes and functions are named.
    """
    if isinstance(value, (list, tuple, set)):
        return [_as_json(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _as_json(entry) for name, entry in value.items()}
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return value


def _packed(value: Any) -> Any:
    """Return a value that may be bytes, or have some, as JSON.

    One that has no JSON form stays, and is refused with the crawl's row.
    """
    try:
        return pack(value)
    except NoJsonForm:
        return value


def _options_given(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a feed that an output has."""
    return {name: value for name, value in output.items() if name not in _OWN}


def _complete_options(output: Mapping[str, Any], settings: BaseSettings) -> dict[str, Any]:
    """Return the options of a feed, with those that the settings give to all."""
    options = _options_given(output)
    options["format"] = output.get("format") or _format_of(str(output["path"]))
    return feed_complete_default_values_from_settings(options, settings)


def _format_of(place: str) -> str:
    suffix = Path(place).suffix.lower()
    return FORMATS.get(suffix, suffix.removeprefix("."))


def _is_plain(
    output: Mapping[str, Any], options: Mapping[str, Any], settings: BaseSettings
) -> bool:
    """Return whether a file of the parts' lines is all that this output asks for."""
    kind = options["format"]
    place = str(output["path"])
    if is_elsewhere(place) or has_own_storage(place, settings) or not _is_scrapys(kind, settings):
        return False
    if exporter_class(settings) is not FeedExporter:
        return False
    if not _is_utf8(options["encoding"]):
        return False
    is_indented = kind == "json" and options["indent"]
    others = options.keys() - _KNOWN - _AT_DEFAULT.keys()
    has_others = any(options[name] for name in others)
    return bool(options["store_empty"]) and not has_others and not is_indented


def _is_utf8(encoding: Any) -> bool:
    return str(encoding or "").lower() in _UTF8


def has_own_storage(uri: Any, settings: BaseSettings) -> bool:
    """Return whether this is a local file for which the project has a storage of its own."""
    address = str(uri)
    scheme = scheme_of(address)
    own = settings.getwithbase("FEED_STORAGES")
    scrapys = settings.getdict("FEED_STORAGES_BASE")
    is_own = own.get(scheme, own.get("file")) != scrapys.get(scheme, scrapys.get("file"))
    return is_own and not is_elsewhere(address)


def _is_scrapys(kind: str, settings: BaseSettings) -> bool:
    """Return whether parts can be merged into this format, and its exporter is Scrapy's."""
    own = settings.getwithbase("FEED_EXPORTERS")
    base = settings.getdict("FEED_EXPORTERS_BASE")
    scrapys = {"jl": "jsonlines", "jsonl": "jsonlines"}.get(kind, kind)
    return scrapys in FORMATS.values() and own.get(kind) == base.get(kind)


# the parameters of URIs


def _resolve_place(output: Mapping[str, Any], settings: BaseSettings, spider: Any) -> str:
    """Fill in the spider's attributes and the time of this start, as Scrapy does when it opens.

    The numbers and times of batches are filled in when these are written.
    """
    place = str(output["path"])
    options = _complete_options(output, settings)
    if options["batch_item_count"] or "%(" not in place:
        return place
    params = {name: getattr(spider, name) for name in dir(spider)}
    now = datetime.now(timezone.utc)
    params["time"] = now.replace(microsecond=0).isoformat().replace(":", "-")
    params["batch_time"] = now.isoformat().replace(":", "-")
    params["batch_id"] = 1
    if options["uri_params"]:
        params = load_object(options["uri_params"])(params, spider) or params
    if hasattr(feedexport, "apply_uri_params"):
        return str(feedexport.apply_uri_params(place, params))
    return place % params  # Scrapy before 2.19
