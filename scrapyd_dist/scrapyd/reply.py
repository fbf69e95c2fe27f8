"""Checks the replies of nodes: turns each one into a value or a `NodeError`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from scrapyd_dist.errors import (
    ApiRefused,
    AuthRefused,
    CallRefused,
    NodeError,
    NotFound,
    NotJson,
    ServerFailed,
)
from scrapyd_dist.escapes import harmless

T = TypeVar("T")

#: Largest accepted number: counts, sizes, process ids.
LARGEST = 1 << 53
#: Maximum commas and brackets of a JSON text; each value between them takes some ten times as many
#: bytes in memory.
VALUES_MAX = 1_500_000
#: Bytes from which a JSON text must be ASCII, as Scrapyd's is; other characters may take four times
#: the memory.
PLAIN_BYTES = 8 * 1024 * 1024
#: Maximum characters of a node's text that an error quotes.
QUOTE = 300
#: Bytes that are looked at of a reply that is no JSON: a traceback, or the beginning of a page.
TEXT_BYTES = 1 << 20
#: Statuses that carry a raw file.
RAW_STATUSES = (200, 206)

#: Errors by status, else by status // 100.
_STATUS_ERRORS: dict[int, type[NodeError]] = {
    401: AuthRefused,
    403: AuthRefused,
    404: NotFound,
    4: CallRefused,
    5: ServerFailed,
}
_HALVES = re.compile(r"[\ud800-\udfff]")
_TRACEBACK = "Traceback (most recent call last):"
_RANGE = re.compile(r"bytes (?:([0-9]{1,16})-([0-9]{1,16})|\*)/([0-9]{1,16}|\*)\Z")
_LENGTH = re.compile(r"[0-9]{1,16}\Z")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Holds a complete HTTP reply, which is not checked yet."""

    where: str  #: `str(node)`, for error messages
    path: str  #: the requested path, relative to the node's base
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)  #: names in lower case
    body: bytes = field(default=b"", repr=False)
    login_hint: str = ""  #: hint if the credentials were refused; empty for the error's own

    @property
    def date(self) -> datetime | None:
        """Return the node's clock by its Date header, in UTC, whole seconds."""
        return moment(self.headers.get("date"))

    @property
    def length(self) -> int | None:
        """Return the body's length by Content-Length.

        It is None without that header, or with a transfer encoding.
        """
        text = self.headers.get("content-length") or ""
        if not _LENGTH.match(text) or self.headers.get("transfer-encoding"):
            return None
        return int(text)

    def error(self, kind: type[NodeError], why: str) -> NodeError:
        """Return an error of this kind about the reply."""
        hint = self.login_hint if kind is AuthRefused else ""
        return kind.at(self.where, f"{self.path}: {why}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class Document:
    """Reads the JSON object of a good reply.

    A field that is missing or has the wrong type raises `NotJson`.
    """

    reply: Reply
    values: Mapping[str, Any]

    def text(self, name: str) -> str:
        """Return a text without lone surrogates."""
        return self._field(name, str)

    def number(self, name: str) -> int:
        """Return an integer from 0 to `LARGEST`."""
        value = self._field(name, int)
        if not 0 <= value <= LARGEST:
            raise self.wrong(name)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts in a list."""
        return tuple(self._part(name, item, str) for item in self._field(name, list))

    def documents(self, name: str) -> tuple[Document, ...]:
        """Return the objects in a list."""
        documents = []
        for item in self._field(name, list):
            values = self._part(name, item, dict)
            documents.append(Document(reply=self.reply, values=values))
        return tuple(documents)

    def mapping(self, name: str) -> dict[str, str]:
        """Return an object of plain values, each as text."""
        texts = {}
        for key, value in self._field(name, dict).items():
            if isinstance(value, (dict, list)):
                raise self.wrong(name)
            texts[key] = str(value)
        return texts

    def time(self, name: str) -> datetime:
        """Return a naive time of the node's local clock, as Scrapyd writes it."""
        try:
            found = datetime.fromisoformat(self.text(name))
        except ValueError as e:
            raise self.wrong(name) from e
        if found.tzinfo is not None or not sensible(found):
            raise self.wrong(name)
        return found

    def has(self, name: str) -> bool:
        """Return whether the field exists and is not null."""
        return self.values.get(name) is not None

    def wrong(self, name: str) -> NodeError:
        """Return the error for a field that is missing or of the wrong kind."""
        return self.reply.error(NotJson, f"the field {name!r} is missing or of the wrong kind")

    def _field(self, name: str, kind: type[T]) -> T:
        return self._part(name, self.values.get(name), kind)

    def _part(self, name: str, value: object, kind: type[T]) -> T:
        """Return a value of this field if it is of this kind, else raise `wrong`."""
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(name)
        # lone surrogates can be neither sent nor printed
        if isinstance(value, str) and _HALVES.search(value):
            raise self.wrong(name)
        return value


def parsed(body: bytes) -> Any:
    """Parse JSON.

    Raises ValueError or RecursionError if it is none, or its values would take too much memory.
    """
    if len(body) > PLAIN_BYTES and not body.isascii():
        raise ValueError("too long for its characters")
    if sum(map(body.count, (b",", b"[", b"{"))) > VALUES_MAX:
        raise ValueError("too many values")
    return json.loads(body)


def document(reply: Reply) -> Document:
    """Return the document of a JSON endpoint's reply.

    Raises a `NodeError` that says why the reply is an error, or not Scrapyd's.
    """
    _judge_status(reply)
    if reply.status != 200:
        raise reply.error(NotJson, f"HTTP {reply.status}")
    try:
        values = parsed(reply.body)
    except (ValueError, RecursionError) as e:
        text = reply.body[:TEXT_BYTES].decode("utf-8", "replace").strip()
        if text.startswith(_TRACEBACK):  # a node with `debug = on` answers every refusal so
            raise _refused(reply, text) from e
        raise reply.error(NotJson, f"no JSON but {_quoted(text)}") from e
    if not isinstance(values, dict) or values.get("status") not in ("ok", "error"):
        raise reply.error(NotJson, "JSON, but not of Scrapyd")
    if values["status"] == "error":
        message = values.get("message")
        raise _refused(reply, message if isinstance(message, str) else "no reason given")
    return Document(reply=reply, values=values)


def is_raw(reply: Reply) -> bool:
    """Return whether the body of a reply is the requested file, judged by status and headers.

    Scrapyd serves log files as text/plain; an HTML page is a folder listing or a proxy's login
    form.
    """
    content_type = reply.headers.get("content-type", "")
    return reply.status in RAW_STATUSES and not content_type.startswith("text/html")


def judge_raw(reply: Reply) -> None:
    """Raise a `NodeError` unless the reply is a raw file."""
    _judge_status(reply)
    if not is_raw(reply):
        what = "a page of HTML" if reply.status in RAW_STATUSES else f"HTTP {reply.status}"
        raise reply.error(NotJson, f"{what} in place of the file")


def content_range(reply: Reply) -> tuple[int | None, int | None]:
    """Return first byte and total size by the Content-Range header.

    None stands for each that it does not give; both are None if they cannot be true.
    """
    match = _RANGE.match(reply.headers.get("content-range", ""))
    if not match:
        return None, None
    first, last, total = map(_number_or_none, match.groups())
    if first is None or last is None:
        return first, total
    if first > last or (total is not None and last >= total):
        return None, None
    return first, total


def _number_or_none(text: str | None) -> int | None:
    return None if text in (None, "*") else int(text)


def moment(header: str | None) -> datetime | None:
    """Return the time in a header, in UTC; None if there is none."""
    try:
        date = parsedate_to_datetime(header or "")
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if not sensible(date):
        return None
    if date.tzinfo:
        return date.astimezone(timezone.utc)
    return date.replace(tzinfo=timezone.utc)


def sensible(time: datetime) -> bool:
    """Return whether a time is from 1970 to 9000.

    Others may overflow when a zone or a span is added.
    """
    return 1970 <= time.year <= 9000


def shorten_message(message: str) -> str:
    r"""Shorten a message of Scrapyd to one line.

    Of a traceback, only the kind of error and the last line are kept.

    >>> said("RunnerError: Traceback (most recent call last):\n  File ...\nImportError: no x\n")
    'RunnerError: ImportError: no x'
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    first = lines[0]
    last = lines[-1]
    if len(lines) == 1:
        return first[:QUOTE]
    if first.endswith(_TRACEBACK):
        return f"{first.removesuffix(_TRACEBACK)}{last}"[:QUOTE]
    if _TRACEBACK in lines:  # what Python had warned of comes before it
        return f"{first.partition(':')[0]}: {last}"[:QUOTE]
    return f"{first[: QUOTE // 2]} … {last[: QUOTE // 2]}"


def _judge_status(reply: Reply) -> None:
    """Raise a `NodeError` for a status that is an error."""
    status = reply.status
    if 300 <= status < 400:
        raise reply.error(NotJson, f"HTTP {status}, a redirect, which is not followed")
    kind = _STATUS_ERRORS.get(status) or _STATUS_ERRORS.get(status // 100)
    if kind is not None:
        raise reply.error(kind, f"HTTP {status}")


def _refused(reply: Reply, message: str) -> ApiRefused:
    """Return the error for a reply in which Scrapyd refuses the call."""
    words = harmless(shorten_message(message))
    error = ApiRefused(f"{reply.where}: {ApiRefused.short} {reply.path}: {words}")
    error.scrapyd_message = words
    return error


def _quoted(text: str) -> str:
    """Quote the beginning of a text."""
    line = " ".join(text.split())
    if not line:
        return "an empty body"
    if len(line) > 80:
        line = f"{line[:80]}…"
    return repr(line)
