"""Encodes the requests of a batch as settings of a job, and decodes them.

Invariant: no setting is longer than the kernel accepts as one argument, because Scrapyd passes each one as an argument
of the job's process, and silently loses the job if it does not fit.

Part of the worker half: imports the standard library only, and `cryptography` (a dependency of Scrapy) for encrypted
batches.
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
#: maximum total bytes of a batch's settings: a quarter of the usual limit of a process's argument list
#: (2 MiB with an 8 MiB stack), because Scrapyd logs each of them twice
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
        "replaces",
    }
)
#: the field of a retried request: the batch in which it failed, and its index there, from 0
REPLACES = "replaces"
OPEN_META = frozenset({"link_text", "depth"})

#: a request as JSON: at least `url`; see `scrapyd_dist.middlewares.codec` for the fields
RequestValue = dict[str, Any]


class PayloadError(ValueError):
    """A batch cannot be encoded or decoded."""


class TooLarge(PayloadError):
    """The requests do not fit into the settings of one job."""


def replaced_by(values: Sequence[RequestValue]) -> list[tuple[int, int]]:
    """Return (batch, index in it) of the earlier requests that these retry."""
    return [
        (batch, place)
        for batch, place in (value[REPLACES] for value in values if REPLACES in value)
    ]


def hidden_by(value: RequestValue) -> str | None:
    """Return what in a request must be encrypted (cookies, credentials, a body), or None."""
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
    """Whether a request is encrypted if there is a key, because it has private fields."""
    if hidden_by(value):
        return True
    closed = value.keys() - OPEN_FIELDS - {"headers", "meta"}
    return bool(closed) or bool(_meta(value).keys() - OPEN_META)


def _meta(value: RequestValue) -> dict[str, Any]:
    meta: dict[str, Any] = value.get("meta", {})
    wrapped: dict[str, Any] = meta.get(
        "$dict", meta
    )  # the codec's form of a dict with keys that begin with $
    return wrapped


def to_json(values: Sequence[RequestValue]) -> str:
    """Return the requests as compact JSON; fields with the same value in all of them are written once.

    Requests that are only URLs become a list of strings, the form of the book.
    """
    common = _common(values)
    requests = [_without(value, common) for value in values]
    document: Any = {"common": common, "requests": requests} if common else requests
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True)


def from_json(text: str) -> list[RequestValue]:
    """Parse the output of `to_json`, or a list of URLs typed by hand; raises `PayloadError` for any other text."""
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
    values = [
        {**common, "url": entry} if isinstance(entry, str) else {**common, **entry}
        for entry in document
    ]
    for value in values:
        if not isinstance(value.get("url"), str):
            raise PayloadError(
                f"{START_URLS} has an entry without a URL: {json.dumps(value)[:100]}"
            )
    return values


def _common(values: Sequence[RequestValue]) -> RequestValue:
    if not values:
        return {}
    first = values[0]
    return {
        name: first[name]
        for name in first
        if name != "url"
        and all(name in value and _same(value[name], first[name]) for value in values)
    }


def _same(one: Any, other: Any) -> bool:
    # 1, 1.0 and True are equal in Python, and a callback may tell them apart.
    return bool(one == other) and json.dumps(one) == json.dumps(other)


def _without(value: RequestValue, common: RequestValue) -> str | RequestValue:
    rest = {name: field for name, field in value.items() if name not in common}
    return rest["url"] if len(rest) == 1 else rest


def encode(values: Sequence[RequestValue], *, key: bytes | None = None) -> dict[str, str]:
    """Return the settings that carry these requests to a job: plain JSON while small, compressed beyond that.

    With `key`, the Fernet key in the nodes' egg, a batch with private fields is encrypted.

    Raises:
        TooLarge: the requests do not fit into one job.
        PayloadError: a request must be encrypted, and there is no key.
    """
    text = to_json(values)
    if key and any(_private(value) for value in values):
        from cryptography.fernet import Fernet

        return _spread("e:" + Fernet(key).encrypt(zlib.compress(text.encode(), 9)).decode())
    hidden = next(filter(None, map(hidden_by, values)), None)
    if hidden:
        raise PayloadError(f"a request has {hidden}, and the nodes have no key to read it with")
    if len(text) <= PLAIN_MAX:
        return {START_URLS: text}
    return _spread("z:" + base64.b64encode(zlib.compress(text.encode(), 9)).decode())


def _spread(text: str) -> dict[str, str]:
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
    """Return the name of the setting that carries piece `index`; for 0 the name without a number."""
    return f"{START_URLS}_{index}" if index else START_URLS


def decode(get: Callable[[str], Any], *, key: bytes | None = None) -> list[RequestValue]:
    """Return the requests that these settings carry; `get` returns a setting's value by name, or None.

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
    from cryptography.fernet import Fernet, InvalidToken

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
    """Encode requests, halving the list until every piece fits; returns (requests, settings) of each piece, in order.

    `TooLarge` means that a single request does not fit.
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
    return sum(len(f"{name}={value}".encode()) + 1 for name, value in settings.items())


def describe(values: Sequence[RequestValue], settings: Mapping[str, str]) -> dict[str, Any]:
    """Describe encoded requests: form, bytes, bytes per URL, number of requests per callback."""
    text = settings[START_URLS]
    form = {"z:": "compressed", "e:": "encrypted"}.get(text[:2], "plain")
    size = argument_bytes(settings)
    kinds = Counter(str(value.get("rule", value.get("callback"))) for value in values)
    return {
        "form": form,
        "bytes": size,
        "per_url": round(size / max(1, len(values)), 1),
        "targets": dict(kinds),
    }
