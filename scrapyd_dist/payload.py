"""How a batch travels: request values to the settings that carry them, and back.

The rule it keeps: no setting is ever longer than the kernel takes as one argument, because Scrapyd
puts each one into a job's argument list, says ok, and loses the job when it does not fit.

This module is part of the worker half: it imports the standard library only, and `cryptography`
(which Scrapy brings) when a batch is encrypted.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: the setting that carries a batch, as in the book; `NAME_1`, `NAME_2` … continue it
START_URLS = "DISTRIBUTED_START_URLS"
#: Linux: the bytes of one `NAME=VALUE` argument, its closing NUL included (MAX_ARG_STRLEN)
ARGUMENT_LIMIT = 131_072
#: bytes of one `NAME=VALUE` that is still safe
ARGUMENT_MAX = ARGUMENT_LIMIT - 1
#: bytes that all settings of a batch may take together: a quarter of the smallest usual limit for a
#: process's whole argument list (2 MiB with an 8 MiB stack), because Scrapyd logs each of them twice
BATCH_MAX_BYTES = 524_288
#: bytes up to which a batch stays plain JSON that a person can read in a node's job list
PLAIN_MAX = 8_192

#: headers that say nothing about who asks; any other one makes its batch travel encrypted
OPEN_HEADERS = frozenset(
    {"accept", "accept-encoding", "accept-language", "content-type", "referer", "user-agent", "x-requested-with"}
)
#: fields of a request value that anybody may read
OPEN_FIELDS = frozenset(
    {"url", "rule", "callback", "errback", "method", "priority", "dont_filter", "encoding", "flags", "replaces"}
)
#: the field of a request that is tried again: the batch in which it failed, and its place there, from 0
REPLACES = "replaces"
OPEN_META = frozenset({"link_text"})

#: a request as JSON: at least `url`; see `scrapyd_dist.middlewares.codec` for the fields
RequestValue = dict[str, Any]


class PayloadError(ValueError):
    """A batch cannot be encoded or read."""


class TooLarge(PayloadError):
    """These requests do not fit into one job's settings."""


def replaced_by(values: Sequence[RequestValue]) -> list[tuple[int, int]]:
    """Which requests of earlier batches these are: the batch, and the place in it."""
    return [(batch, place) for batch, place in (value[REPLACES] for value in values if REPLACES in value)]


def hidden_by(value: RequestValue) -> str | None:
    """What in this request must never be readable on a node (cookies, credentials, a body), or None."""
    if value.get("cookies"):
        return "cookies"
    if value.get("body"):
        return "a body"
    if "@" in urlsplit(value["url"]).netloc:
        return "credentials in its URL"
    for name in value.get("headers", ()):
        if name.lower() not in OPEN_HEADERS:
            return f"the header {name}"
    meta = _meta(value)
    if "@" in str(meta.get("proxy", "")) or "http_pass" in meta:
        return "credentials in its meta"
    return None


def _private(value: RequestValue) -> bool:
    """Whether this request is better encrypted when there is a key: it has more than an address."""
    if hidden_by(value):
        return True
    closed = value.keys() - OPEN_FIELDS - {"headers", "meta"}
    return bool(closed) or bool(_meta(value).keys() - OPEN_META)


def _meta(value: RequestValue) -> dict[str, Any]:
    meta: dict[str, Any] = value.get("meta", {})
    wrapped: dict[str, Any] = meta.get("$dict", meta)  # how the codec packs keys that begin with $
    return wrapped


def to_json(values: Sequence[RequestValue]) -> str:
    """The requests as compact JSON: fields that all of them share are written once.

    Plain addresses without anything shared are a list of strings, exactly the book's form.
    """
    common = _common(values)
    requests = [_without(value, common) for value in values]
    document: Any = {"common": common, "requests": requests} if common else requests
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True)


def from_json(text: str) -> list[RequestValue]:
    """The requests of `to_json`, or of a list of URLs typed by hand.

    Raises:
        PayloadError: it is not JSON of that form.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{START_URLS} is not JSON: {error}") from error
    common: Any = {}
    if isinstance(document, dict):
        common, document = document.get("common", {}), document.get("requests")
    if not isinstance(common, dict) or not isinstance(document, list):
        raise PayloadError(f"{START_URLS} must be a JSON list of URLs")
    if not all(isinstance(entry, (str, dict)) for entry in document):
        raise PayloadError(f"{START_URLS} has an entry that is neither a URL nor a request")
    values = [{**common, "url": entry} if isinstance(entry, str) else {**common, **entry} for entry in document]
    for value in values:
        if not isinstance(value.get("url"), str):
            raise PayloadError(f"{START_URLS} has an entry without a URL: {json.dumps(value)[:100]}")
    return values


def _common(values: Sequence[RequestValue]) -> RequestValue:
    if not values:
        return {}
    first = values[0]
    return {
        name: first[name]
        for name in first
        if name != "url" and all(name in value and _same(value[name], first[name]) for value in values)
    }


def _same(one: Any, other: Any) -> bool:
    # 1, 1.0 and True are equal in Python, and a callback may tell them apart.
    return bool(one == other) and json.dumps(one) == json.dumps(other)


def _without(value: RequestValue, common: RequestValue) -> str | RequestValue:
    rest = {name: field for name, field in value.items() if name not in common}
    return rest["url"] if len(rest) == 1 else rest


def encode(values: Sequence[RequestValue], *, key: bytes | None = None) -> dict[str, str]:
    """The settings that carry these requests to a job.

    Args:
        values: the requests.
        key: a Fernet key that the nodes have; with it, whatever is more than an address is encrypted.

    Returns:
        Setting names and values: plain JSON while small, compressed or encrypted beyond that.

    Raises:
        TooLarge: they do not fit; send fewer.
        PayloadError: a request must be hidden and there is no key.
    """
    text = to_json(values)
    if key and any(_private(value) for value in values):
        return _spread("e:" + _encrypt(zlib.compress(text.encode(), 9), key))
    hidden = next(filter(None, map(hidden_by, values)), None)
    if hidden:
        raise PayloadError(f"a request has {hidden}, and the nodes have no key to read it with")
    if len(text) <= PLAIN_MAX:
        return {START_URLS: text}
    return _spread("z:" + base64.b64encode(zlib.compress(text.encode(), 9)).decode())


def _spread(text: str) -> dict[str, str]:
    """Cut one long value into settings of at most `ARGUMENT_MAX` bytes each."""
    if len(text) > BATCH_MAX_BYTES:
        raise TooLarge(f"{len(text)} bytes do not fit into the {BATCH_MAX_BYTES} of one job")
    settings: dict[str, str] = {}
    start = 0
    while start < len(text):
        name = setting_name(len(settings))
        room = ARGUMENT_MAX - len(name) - len("=")
        settings[name] = text[start : start + room]
        start += room
    return settings


def setting_name(index: int) -> str:
    """The name of the setting that carries piece `index` (0 is the book's own name)."""
    return f"{START_URLS}_{index}" if index else START_URLS


def decode(get: Callable[[str], Any], *, key: bytes | None = None) -> list[RequestValue]:
    """The requests that these settings carry.

    Args:
        get: gives a setting's value by its name, or None.
        key: the Fernet key that travelled in the egg, if any.

    Raises:
        PayloadError: a piece is missing, cut, or not what `encode` made.
    """
    first = get(START_URLS)
    if not isinstance(first, str):
        return from_json(json.dumps(first))  # a list given in a settings file
    kind, _, _ = first.partition(":")
    if kind not in {"z", "e"}:
        return from_json(first)
    pieces = [first[2:]]
    while (piece := get(setting_name(len(pieces)))) is not None:
        pieces.append(piece)
    packed = "".join(pieces)
    try:
        data = _decrypt(packed, key) if kind == "e" else base64.b64decode(packed, validate=True)
        text = zlib.decompress(data).decode()
    except (ValueError, zlib.error) as error:
        raise PayloadError(f"{START_URLS} cannot be unpacked: {error}") from error
    return from_json(text)


def _encrypt(data: bytes, key: bytes) -> str:
    from cryptography.fernet import Fernet  # noqa: PLC0415 - only batches with something to hide pay for it

    return Fernet(key).encrypt(data).decode()


def _decrypt(text: str, key: bytes | None) -> bytes:
    from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415 - as above

    if key is None:
        raise PayloadError("the batch is encrypted, and this code carries no key; deploy it with sdist")
    try:
        return Fernet(key).decrypt(text)
    except InvalidToken as error:
        raise PayloadError("the batch is encrypted with another key than this code carries; deploy again") from error


def fit(values: Sequence[RequestValue], *, key: bytes | None = None) -> list[tuple[list[RequestValue], dict[str, str]]]:
    """Encode, halving until every piece fits: the pieces, each with its settings, in order.

    Raises:
        TooLarge: one single request does not fit.
    """
    try:
        return [(list(values), encode(values, key=key))]
    except TooLarge:
        if len(values) <= 1:
            raise
    half = len(values) // 2
    return fit(values[:half], key=key) + fit(values[half:], key=key)


def argument_bytes(settings: Mapping[str, str]) -> int:
    """The bytes that these settings take in a job's argument list."""
    return sum(len(f"{name}={value}".encode()) + 1 for name, value in settings.items())


def describe(values: Sequence[RequestValue], settings: Mapping[str, str]) -> dict[str, Any]:
    """How these requests travel, in numbers: form, bytes, bytes per URL."""
    text = settings[START_URLS]
    form = {"z:": "compressed", "e:": "encrypted"}.get(text[:2], "plain")
    size = argument_bytes(settings)
    kinds = Counter(str(value.get("rule", value.get("callback"))) for value in values)
    return {"form": form, "bytes": size, "per_url": round(size / max(1, len(values)), 1), "targets": dict(kinds)}
