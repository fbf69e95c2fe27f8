"""Reads worklists as request values, one row at a time.

They are lists of URLs, JSON lines, a CSV column, or rows of spider arguments. Invariant: memory use
does not depend on the length of the list; an unreadable row is reported with its line number and
does not stop the reading. A row of arguments is a batch of one; its arguments as sorted JSON stand
in for the URL.
"""

import base64
import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any, TypeAlias

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import MAX_PRIORITY
from scrapyd_dist.frontier.intake import ARGUMENTS
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.payload import ARGUMENT_MAX, RequestValue, decode
from scrapyd_dist.scrapyd.jobs import check_args

FORMATS = ("urls", "jsonl", "csv")
#: file suffix -> format; any other file is a list of URLs
ENDINGS = {
    ".jl": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
}
#: CSV delimiters; the one that occurs most often in the first line is used
DELIMITERS = ",;\t|"
#: the default column
URL_COLUMN = "url"
#: how a URL begins
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S")

#: gives the value of a CSV's row by its cells
ReadCells: TypeAlias = "Callable[[list[str]], RequestValue]"


def value_of(args: Mapping[str, str]) -> RequestValue:
    """Return the request value that carries these arguments.

    Raises `ValueError` if no job can be given them.
    """
    size = 0
    for name, text in args.items():
        if "=" in name or not name:
            raise ValueError(f"{name!r} cannot be the name of an argument")
        length = len(f"{name}={text}".encode())
        if length > ARGUMENT_MAX:
            raise ValueError(f"its {name} is longer than a job can be given")
        if "\0" in name + text:
            raise ValueError(f"its {name} has a zero byte, which no argument can have")
        size += length
    if size > ARGUMENT_MAX:
        raise ValueError("its arguments together are longer than a job can be given")
    return {
        "url": json.dumps(dict(sorted(args.items())), ensure_ascii=False),
        ARGUMENTS: dict(args),
    }


def intake_of(value: RequestValue, priority: int) -> FrontierIntake:
    """Return the row ready to be added to a frontier; equal arguments have equal fingerprints."""
    print_ = hashlib.sha256(value["url"].encode("utf-8", "surrogatepass")).digest()
    return FrontierIntake(value=value, fingerprint=print_, slot=ARGUMENTS, priority=priority)


def arguments_in(payload: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the arguments that a batch carries, as JSON text and as a dict.

    Raises `PayloadError` if the payload cannot be read.
    """
    (value,) = decode(payload.get)
    return value["url"], value[ARGUMENTS]


@dataclass(frozen=True, slots=True)
class WorklistRow:
    """One request of a worklist, or the arguments of one run."""

    line: int
    value: RequestValue = field(default_factory=dict)
    reason: str = ""  #: why it could not be read; it has no value then


def format_of(name: str) -> str:
    """Return the format of a worklist by its file name."""
    return ENDINGS.get(PurePath(name.lower()).suffix, FORMATS[0])


def rows(
    lines: Iterable[bytes], *, kind: str, column: str | None = None, arguments: bool = False
) -> Iterator[WorklistRow]:
    """Yield the rows of a worklist in UTF-8.

    Blank lines are skipped and, in lists of URLs, lines that begin with #. The URLs of a CSV are in
    a `column`, by name or by number from 1. With `arguments`, rows are spider arguments, not
    requests: CSV columns by name (an empty cell is left out), or JSON objects of strings and
    numbers.

    Raises:
        ConfigError: there is no such format or column.
    """
    _check_kind(kind, column, arguments)
    texts = _texts(lines)
    if kind == "csv":
        if arguments:
            return _csv_rows(texts, _arguments_columns)
        return _csv_rows(texts, partial(_url_column, column=column))
    if kind == "urls":
        return _line_rows(texts, _url_value)
    if arguments:
        return _line_rows(texts, _arguments_value)
    return _line_rows(texts, _request_value)


def _check_kind(kind: str, column: str | None, arguments: bool) -> None:
    """Raise `ConfigError` if there is no such format, or not with a column or with arguments."""
    if kind not in FORMATS:
        raise ConfigError(f"A worklist cannot be {kind!r}, only {', '.join(FORMATS)}.")
    if column is not None and kind != "csv":
        raise ConfigError(
            f"Only a CSV has columns, and this worklist is read as {kind}. Is it one? Say --format"
            " csv."
        )
    if arguments and (kind == "urls" or column is not None):
        raise ConfigError(
            "Arguments have names: a list of them is a CSV with all its columns, or JSON lines."
        )


def _texts(lines: Iterable[bytes]) -> Iterator[str]:
    """Decode lines; bytes that are not UTF-8 become surrogates, which `_checked` reports."""
    for number, line in enumerate(lines):
        # Only the first line may begin with a byte order mark.
        plain = line if number else line.removeprefix(b"\xef\xbb\xbf")
        yield plain.decode("utf-8", "surrogateescape")


def _checked(text: str) -> str:
    """Return a text without the blanks around it; ValueError if it was not UTF-8."""
    if not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text):
        raise ValueError("it is not UTF-8 text")
    return text.strip()


def _line_rows(
    texts: Iterable[str], read: Callable[[str], RequestValue | None]
) -> Iterator[WorklistRow]:
    for number, text in enumerate(texts, 1):
        try:
            plain = _checked(text)
            value = read(plain) if plain else None
        except ValueError as error:
            yield WorklistRow(number, reason=str(error))
        else:
            if value is not None:
                yield WorklistRow(number, value)


def _url_value(text: str) -> RequestValue | None:
    """Read a line of a list of URLs; None for a comment."""
    if text.startswith("#"):
        return None
    return {"url": _checked_url(text)}


def _checked_url(text: Any) -> str:
    if not isinstance(text, str) or not _SCHEME.match(text):
        raise ValueError(f"{str(text)[:100]!r} is no URL: it has to begin with http:// or the like")
    return text


def _csv_rows(
    texts: Iterator[str], reading: Callable[[list[str]], ReadCells]
) -> Iterator[WorklistRow]:
    head = next(texts, "")
    delimiter = max(DELIMITERS, key=head.count)
    names = next(csv.reader([head], delimiter=delimiter), [])
    read = reading([name.strip() for name in names])
    reader = csv.reader(texts, delimiter=delimiter)
    while True:
        try:
            cells = next(reader)
            if any(cells):
                value = read([_checked(cell) for cell in cells])
                yield WorklistRow(reader.line_num + 1, value)
        except StopIteration:
            return
        except csv.Error as error:
            yield WorklistRow(reader.line_num + 1, reason=f"it is no row of a CSV: {error}")
        except ValueError as error:
            yield WorklistRow(reader.line_num + 1, reason=str(error))


def _url_column(names: list[str], column: str | None) -> ReadCells:
    """Read the URL from its column."""
    place = _place_of_column(names, column)

    def read(cells: list[str]) -> RequestValue:
        url = cells[place] if place < len(cells) else ""
        return {"url": _checked_url(url)}

    return read


def _place_of_column(names: list[str], column: str | None) -> int:
    """Return the place of the column with the URLs, which is named or numbered from 1."""
    if column is None and len(names) == 1:
        return 0
    wanted = URL_COLUMN if column is None else column
    if wanted in names:
        return names.index(wanted)
    if wanted.isdecimal() and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    listed = ", ".join(map(repr, names)) or "none"
    which = " Name the one with the URLs: --column NAME." if column is None else ""
    raise ConfigError(f"The CSV has no column {wanted!r}; its columns are {listed}.{which}")


def _arguments_columns(names: list[str]) -> ReadCells:
    """Read all columns as spider arguments."""
    if len(set(names)) < len(names) or not all(names):
        listed = ", ".join(map(repr, names)) or "none"
        raise ConfigError(f"Each column needs a name of its own; there are {listed}.")

    def read(cells: list[str]) -> RequestValue:
        if len(cells) > len(names):
            raise ValueError(f"it has {len(cells)} cells, and there are {len(names)} columns")
        named = zip(names, cells, strict=False)
        return _checked_arguments({name: cell for name, cell in named if cell})

    return read


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _no_number(text: str) -> float:
    raise ValueError(f"it has {text}, which is no number")


def _arguments_value(text: str) -> RequestValue:
    """Read a JSON object as spider arguments."""
    fields = _json(text)
    if not isinstance(fields, dict):
        raise ValueError("it is no object of names and values")  # noqa: TRY004 - of the row, not of our caller
    for name, item in fields.items():
        if not isinstance(item, (str, int, float)) or isinstance(item, bool):
            raise ValueError(f"its {name} is neither text nor a number: {json.dumps(item)[:100]}")  # noqa: TRY004 - as above
    return _checked_arguments({name: str(item) for name, item in fields.items()})


def _checked_arguments(args: dict[str, str]) -> RequestValue:
    try:
        check_args(args)
    except ConfigError as error:
        raise ValueError(str(error).rstrip(".")) from None
    return value_of(args)


def _request_value(text: str) -> RequestValue:
    """Read a JSON URL or object as a request."""
    fields = _json(text)
    if isinstance(fields, str):
        fields = {"url": fields}
    _check_fields(fields)
    value = {name: item for name, item in fields.items() if item is not None or name == "callback"}
    if isinstance(value.get("body"), str):
        body: bytes = value["body"].encode(value.get("encoding", "utf-8"))
        value["body"] = {"$bytes": base64.b64encode(body).decode()}
    if "headers" in value:
        value["headers"] = _listed_headers(value["headers"])
    return value


def _check_fields(fields: Any) -> None:
    """Raise ValueError if this is no object, or has a field that no request can have."""
    if not isinstance(fields, dict):
        raise ValueError("it is neither a URL nor an object with one")  # noqa: TRY004 - of the row, not of our caller
    unknown = fields.keys() - FIELDS.keys()
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"it has {names}, which no request has; there are {', '.join(FIELDS)}")
    _checked_url(fields.get("url"))
    for name, item in fields.items():
        if not FIELDS[name](item):
            raise ValueError(f"its {name} cannot be {json.dumps(item)[:100]}")


def _listed_headers(headers: dict[str, Any]) -> dict[str, list[str]]:
    """Return headers with a list of values for each name."""
    listed = {}
    for name, item in headers.items():
        listed[name] = [item] if isinstance(item, str) else item
    return listed


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda item: isinstance(item, kinds)


def _is_encoding(item: Any) -> bool:
    try:
        return isinstance(item, str) and "".encode(item) is not None
    except (LookupError, ValueError):  # ValueError: a name with a zero byte
        return False


def _is_name(item: Any) -> bool:
    return item is None or (isinstance(item, str) and item.isidentifier())


def _are_texts(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(entry, str) for entry in item)


def _are_headers(item: Any) -> bool:
    return isinstance(item, dict) and all(
        isinstance(value, str) or _are_texts(value) for value in item.values()
    )


def _is_body(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, dict) and set(item) == {"$bytes"})


# `bool` is a kind of `int`, and no number here.
def _is_priority(item: Any) -> bool:
    return type(item) is int and abs(item) <= MAX_PRIORITY


def _is_number(item: Any) -> bool:
    return type(item) is int


#: the fields of a JSON line, each with its validity check
FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "url": _is(str),
    "callback": _is_name,
    "errback": _is_name,
    "method": _is(str),
    "headers": _are_headers,
    "body": _is_body,
    "cookies": _is(dict, list),
    "meta": _is(dict),
    "cb_kwargs": _is(dict),
    "priority": _is_priority,
    "dont_filter": _is(bool),
    "encoding": _is_encoding,
    "flags": _are_texts,
    "rule": _is_number,
    "attributes": _is(dict),
}
