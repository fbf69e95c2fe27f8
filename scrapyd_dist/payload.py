"""Encodes the requests of a batch as settings of a job, and decodes them.

Invariant: no setting is longer than the kernel accepts as one argument, because Scrapyd passes each
one as an argument of the job's process, and silently loses the job if it does not fit.

Part of the worker half: imports the standard library only, and `cryptography` (a dependency of
Scrapy) for encrypted batches.
"""

import base64
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

#: the setting that carries a batch, as in the book; continued in `NAME_1`, `NAME_2` …
START_URLS = "DISTRIBUTED_START_URLS"
#: Linux: maximum bytes of a `NAME=VALUE` argument without its NUL (MAX_ARG_STRLEN - 1)
ARGUMENT_MAX = 131_071
#: maximum total bytes of a batch's settings: a quarter of the usual limit of a process's argument
#: list (2 MiB with an 8 MiB stack), because Scrapyd logs each of them twice
BATCH_MAX_BYTES = 524_288
#: maximum bytes of a batch in plain JSON, which is readable in a node's job list
PLAIN_MAX = 8_192

#: headers without private data; any other header makes its batch encrypted
OPEN_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "content-type",
        "referer",
        "user-agent",
        "x-requested-with",
    }
)
#: the field of a retried request: the batch in which it failed, and its index there, from 0; in the
#: report of an attempt, these of each request that it has retried
REPLACES = "replaces"
#: fields of a request value without private data
OPEN_FIELDS = frozenset(
    {
        "url",
        "rule",
        "callback",
        "errback",
        "method",
        "priority",
        "dont_filter",
        "encoding",
        "flags",
        REPLACES,
    }
)
#: keys of a request's meta without private data
OPEN_META = frozenset({"link_text", "depth", "is_start_request"})

#: types of values that JSON tells apart only where Python does, too
_DISTINCT_TYPES = frozenset({str, int, bool, type(None)})
#: a request as JSON: at least `url`; see `scrapyd_dist.middlewares.codec` for the fields
RequestValue = dict[str, Any]


class PayloadError(ValueError):
    """A batch cannot be encoded or decoded."""


class TooLarge(PayloadError):
    """The requests do not fit into the settings of one job."""


def replaced_by(values: Sequence[RequestValue]) -> list[tuple[int, int]]:
    """Return (batch, index in it) of the earlier requests that these retry."""
    replaced: list[tuple[int, int]] = []
    for value in values:
        if REPLACES in value:
            batch, index = value[REPLACES]
            replaced.append((batch, index))
    return replaced


def private_part_of(value: RequestValue) -> str | None:
    """Return what in a request must be encrypted (cookies, credentials, a body), or None."""
    if value.get("cookies"):
        return "cookies"
    if value.get("body"):
        return "a body"
    url = value["url"]
    if "@" in url and "@" in urlsplit(url).netloc:
        return "credentials in its URL"
    for name in value.get("headers", ()):
        if name.lower() not in OPEN_HEADERS:
            return f"the header {name}"
    meta = _meta(value)
    if "@" in str(meta.get("proxy", "")) or "http_pass" in meta:
        return "credentials in its meta"
    return None


def _is_private(value: RequestValue) -> bool:
    """Return whether a request is encrypted if there is a key, because it has private fields."""
    if private_part_of(value):
        return True
    closed = value.keys() - OPEN_FIELDS - {"headers", "meta"}
    return bool(closed) or bool(_meta(value).keys() - OPEN_META)


def _meta(value: RequestValue) -> dict[str, Any]:
    meta: dict[str, Any] = value.get("meta", {})
    # The codec wraps a dict with keys that begin with $.
    unwrapped: dict[str, Any] = meta.get("$dict", meta)
    return unwrapped


def to_json(values: Sequence[RequestValue]) -> str:
    """Return the requests as compact JSON; fields with one value in all of them are written once.

    Requests that are only URLs become a list of strings, the form of the book.
    """
    common = _find_common_fields(values)
    requests = [_remove_fields(value, common) for value in values]
    document: Any = requests
    if common:
        document = {"common": common, "requests": requests}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True)


def from_json(text: str) -> list[RequestValue]:
    """Parse the output of `to_json`, or a list of URLs typed by hand.

    Raises:
        PayloadError: it is another text.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{START_URLS} is not JSON: {error}") from error
    common: Any = {}
    entries: Any = document
    if isinstance(document, dict):
        common = document.get("common", {})
        entries = document.get("requests")
    if not isinstance(common, dict) or not isinstance(entries, list):
        raise PayloadError(f"{START_URLS} must be a JSON list of URLs")
    if not all(isinstance(entry, (str, dict)) for entry in entries):
        raise PayloadError(f"{START_URLS} has an entry that is neither a URL nor a request")
    return [_merge_entry(common, entry) for entry in entries]


def _merge_entry(common: RequestValue, entry: str | RequestValue) -> RequestValue:
    value = {**common, "url": entry} if isinstance(entry, str) else {**common, **entry}
    if not isinstance(value.get("url"), str):
        raise PayloadError(f"{START_URLS} has an entry without a URL: {json.dumps(value)[:100]}")
    return value


def _find_common_fields(values: Sequence[RequestValue]) -> RequestValue:
    """Return the fields, without the URL, that have one value in all requests."""
    if not values:
        return {}
    common: RequestValue = {}
    for name, field in values[0].items():
        if name != "url" and _all_have(values, name, field):
            common[name] = field
    return common


def _all_have(values: Sequence[RequestValue], name: str, field: Any) -> bool:
    text = json.dumps(field)
    return all(name in value and _is_same(value[name], field, text) for value in values)


def _is_same(field: Any, other: Any, text: str) -> bool:
    """Tell whether a field is the same as the other one, whose JSON is `text`."""
    if type(field) is type(other) and type(field) in _DISTINCT_TYPES:
        return bool(field == other)
    # 1, 1.0 and True are equal in Python, and a callback may tell them apart.
    return bool(field == other) and json.dumps(field) == text


def _remove_fields(value: RequestValue, common: RequestValue) -> str | RequestValue:
    rest = {name: field for name, field in value.items() if name not in common}
    return rest["url"] if len(rest) == 1 else rest


def encode(values: Sequence[RequestValue], *, key: bytes | None = None) -> dict[str, str]:
    """Return the settings that carry these requests to a job.

    They are plain JSON while that is small, and compressed beyond that.

    With `key`, the Fernet key in the nodes' egg, a batch with private fields is encrypted.

    Raises:
        TooLarge: the requests do not fit into one job.
        PayloadError: a request must be encrypted, and there is no key.
    """
    text = to_json(values)
    if not key:
        hidden = next(filter(None, map(private_part_of, values)), None)
        if hidden:
            raise PayloadError(f"a request has {hidden}, and the nodes have no key to read it with")
    elif any(map(_is_private, values)):
        from cryptography.fernet import Fernet  # noqa: PLC0415 - only needed for encrypted batches

        compressed = zlib.compress(text.encode(), 9)
        return _split_into_settings("e:" + Fernet(key).encrypt(compressed).decode())
    if len(text) <= PLAIN_MAX:
        return {START_URLS: text}
    compressed = zlib.compress(text.encode(), 9)
    return _split_into_settings("z:" + base64.b64encode(compressed).decode())


def _split_into_settings(text: str) -> dict[str, str]:
    """Split a long value into settings of at most `ARGUMENT_MAX` bytes each."""
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
    """Return the name of the setting that carries piece `index`; that of 0 has no number."""
    return f"{START_URLS}_{index}" if index else START_URLS


def decode(get: Callable[[str], Any], *, key: bytes | None = None) -> list[RequestValue]:
    """Return the requests that these settings carry.

    `get` returns a setting's value by name, or None.

    Raises:
        PayloadError: a piece is missing, truncated, or not made by `encode`.
    """
    first = get(START_URLS)
    if not isinstance(first, str):
        return from_json(json.dumps(first))  # a list in a settings file
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


def _decrypt(text: str, key: bytes | None) -> bytes:
    from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415 - only needed for encrypted batches

    if key is None:
        raise PayloadError(
            "the batch is encrypted, and this code carries no key; deploy it with sdist"
        )
    try:
        return Fernet(key).decrypt(text)
    except InvalidToken as error:
        raise PayloadError(
            "the batch is encrypted with another key than this code carries; deploy again"
        ) from error


def fit(
    values: Sequence[RequestValue], *, key: bytes | None = None
) -> list[tuple[list[RequestValue], dict[str, str]]]:
    """Encode requests, halving the list until every piece fits.

    Returns (requests, settings) of each piece, in order. `TooLarge` means that a single request
    does not fit.
    """
    try:
        return [(list(values), encode(values, key=key))]
    except TooLarge:
        if len(values) <= 1:
            raise
    half = len(values) // 2
    return fit(values[:half], key=key) + fit(values[half:], key=key)


def argument_bytes(settings: Mapping[str, str]) -> int:
    """Return the bytes that these settings take in a job's argument list."""
    size = 0
    for name, value in settings.items():
        argument = f"{name}={value}"
        size += len(argument.encode()) + 1  # with the NUL at its end
    return size


def describe(values: Sequence[RequestValue], settings: Mapping[str, str]) -> dict[str, Any]:
    """Describe encoded requests: form, bytes, bytes per URL, number of requests per callback."""
    text = settings[START_URLS]
    form = {"z:": "compressed", "e:": "encrypted"}.get(text[:2], "plain")
    size = argument_bytes(settings)
    targets = Counter(str(value.get("rule", value.get("callback"))) for value in values)
    return {
        "form": form,
        "bytes": size,
        "per_url": round(size / max(1, len(values)), 1),
        "targets": dict(targets),
    }
