"""What a field of a stored row may be: its type, its range, the characters of names; and the fields of each row. No IO.

The rule it keeps: a store may be written by others, so a row is judged before it becomes a value; one that cannot be
is `ForeignRow`, which says which row it is.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from scrapyd_dist.batches import (
    CRAWL_NAME,
    WANTED,
    AttemptState,
    BatchState,
    CrawlState,
    ShardState,
)
from scrapyd_dist.errors import ForeignRow
from scrapyd_dist.frontier.backlog import MAX_PRIORITY, SLOT_NAME
from scrapyd_dist.job_record import Outcome

Check = Callable[[Any], Any]
V = TypeVar("V")

#: the largest number that JSON, Lua and SQLite all keep exactly
LARGEST = (1 << 53) - 1
#: seconds since the epoch that a calendar still has
LATEST = 2e11
#: characters of a name, of an address, and of a text for people
NAME_MAX, URL_MAX, PROSE_MAX = 500, 100_000, 50_000
#: characters of the encrypted settings of a job
SEALED_MAX = 4_000_000
#: characters of the address of a page, which may be as long as a request that travels
PAGE_MAX = SEALED_MAX
#: how deep a document may be
DEPTH = 20

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_CONTROL_BUT_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def judged(what: str, row: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """The fields of a row that are known here, each as its check gives it; `ForeignRow` when one is no such thing."""
    values = {}
    for name, check in checks.items():
        if name in row:
            try:
                values[name] = check(row[name])
            except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise foreign(what, f"its {name} {error}") from None
    return values


def made(
    kind: Callable[..., V], what: str, row: Mapping[str, Any], checks: Mapping[str, Check]
) -> V:
    """A value of these fields of a row; `ForeignRow` when one is missing, or is no such thing."""
    try:
        return kind(**judged(what, row, checks))
    except TypeError:
        raise foreign(what, "it is not whole") from None


def foreign(what: str, why: str) -> ForeignRow:
    """What is raised for a row that cannot be used."""
    return ForeignRow(
        f"The store has {what} that cannot be used: {why}. No version of sdist wrote it so: another program has written"
        " to the store, or it is damaged. It is left out."
    )


def from_json(what: str, text: str | bytes) -> Any:
    """What the text says; `ForeignRow` when it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise foreign(what, "it is not JSON") from None


def object_in(what: str, row: Mapping[str, Any] | str | bytes) -> Mapping[str, Any]:
    """A row, or the JSON object that it is as text; without fields when it is another value."""
    said = from_json(what, row) if isinstance(row, (str, bytes)) else row
    return said if isinstance(said, Mapping) else {}


def whole(least: int = 0, most: int = LARGEST) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"is no whole number from {least} to {most}")
        return value

    return check


def number(least: float = -LARGEST, most: float = LARGEST) -> Check:
    def check(value: Any) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            raise ValueError("is no number")
        if not least <= value <= most:
            raise ValueError(f"is not between {least:g} and {most:g}")
        return value

    return check


#: seconds since the epoch
moment = number(0, LATEST)


def cut(most: float) -> Check:
    """A number that a job or a node has told; what is below 0 or beyond `most` is cut."""
    check = number(-math.inf, math.inf)
    return lambda value: min(max(check(value), 0), most)


def flag(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError("is neither true nor false")
    return bool(value)


def maybe(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def one_of(kind: type[Enum]) -> Check:
    known = {one.value: one for one in kind}

    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"is none of {', '.join(known)}")
        return known[value]

    return check


def _text(passes: Callable[[str], bool], fault: str) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not passes(value):
            raise ValueError(fault)
        return value

    return check


def among(*values: str) -> Check:
    return _text(lambda text: text in values, "is not known")


def like(pattern: re.Pattern[str]) -> Check:
    return _text(lambda text: pattern.fullmatch(text) is not None, "is no such name")


def line(most: int = NAME_MAX) -> Check:
    """A text of one line, without control characters."""
    fault = f"is no text of one line, with {most} characters at most"
    return _text(lambda text: len(text) <= most and not _CONTROL.search(text), fault)


def text_of(most: int) -> Check:
    """Any text of a bearable length, as it is."""
    return _text(lambda text: len(text) <= most, f"is no text of {most} characters at most")


words = text_of(URL_MAX)
page = text_of(PAGE_MAX)


def prose(value: Any) -> str:
    """A text for people; control characters in it are replaced, and what is too long is cut."""
    if not isinstance(value, str):
        raise ValueError("is no text")
    return _CONTROL_BUT_LINES.sub("\ufffd", value[:PROSE_MAX])


def document(value: Any) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")
    _check_depth(value, DEPTH)
    return value


def _check_depth(value: Any, left: int) -> None:
    if isinstance(value, (dict, list)):
        if not left:
            raise ValueError("is nested too deeply")
        for one in value.values() if isinstance(value, dict) else value:
            _check_depth(one, left - 1)


def each(check: Check, most: int = 1_000_000) -> Check:
    """A list of such values."""

    def check_all(value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) > most:
            raise ValueError("is no list")
        return [check(one) for one in value]

    return check_all


def tuple_of(check: Check) -> Check:
    return lambda value: tuple(each(check)(value))


def shaped(shape: Mapping[str, Check], others: Check = lambda value: value) -> Check:
    """A JSON object in which these names, where they are there, are so, and all others as `others` has it."""

    def check(value: Any) -> dict[str, Any]:
        return {name: shape.get(name, others)(one) for name, one in document(value).items()}

    return check


#: more of what is numbered in a crawl there is not
_MANY = 10_000_000
_VERSION = re.compile(r"(?!\.{1,2}$)[^\s/\\\x00-\x1f\x7f]{0,200}")
_JOB = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_FILE = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199})?")
_name, _count, _real, _told = line(), whole(), number(), cut(LARGEST)
_node = shaped(
    {
        "name": _name,
        "url": line(URL_MAX),
        "state": _name,
        "reason": prose,
        "slots": maybe(_count),
        "per_s": document,
    }
    | {name: maybe(_real) for name in ("running", "jobs", "items", "pages", "failed", "learned")}
)
_straggler = shaped(
    {"job": _name, "node": _name}
    | {name: maybe(_real) for name in ("batch", "attempt", "for_s", "done", "of", "times_slower")}
)
_summary = shaped(
    {
        "crawl": _name,
        "spider": _name,
        "project": _name,
        "version": maybe(_name),
        "state": _name,
        "message": prose,
    }
    | {name: shaped({}, maybe(_real)) for name in ("batches", "requests", "per_s", "index")}
    | {
        name: maybe(_real)
        for name in ("duration_s", "urls_found", "urls_distinct", "pages", "items", "gone_urls")
    }
    | {
        name: maybe(_real)
        for name in ("offsite", "duplicate", "refused", "local", "sealed", "index_failed")
    }
    | {name: maybe(_real) for name in ("failed_urls", "dead_urls", "exit_code", "schema")}
    | {"outlook": shaped({"requests": maybe(_real), "eta_s": maybe(_real), "sure": _name})}
    | {
        "nodes": each(_node),
        "stragglers": each(_straggler),
        "output": each(prose),
        "warnings": each(prose),
    }
    | {"misses": maybe(prose), "labels": each(line())}
)
_report = shaped(
    {name: maybe(_count) for name in ("done", "missed", "errors", "pages", "items", "requests")}
    | {
        "feeds": each(line(URL_MAX)),
        "started": maybe(moment),
        "updated": maybe(moment),
        "finish_reason": prose,
    }
    | {"fields": each(prose), "as_text": each(prose), "changed": each(prose)}
    | {"stats": document, "code": document}
)
SUMMARY = {"summary": _summary}
CRAWL = {
    "id": like(CRAWL_NAME),
    "project": _name,
    "spider": _name,
    "state": one_of(CrawlState),
    "created": moment,
    "kind": among("crawl", "frontier"),
    "standing": flag,
    "ended": maybe(moment),
    "version": maybe(like(_VERSION)),
    "options": document,
    "pid": maybe(whole(1, 1 << 31)),
    "host": _name,
    "beat": maybe(moment),
    "exit_code": maybe(whole(-255, 255)),
    "message": prose,
    "wanted": among(*WANTED),
}
BATCH = {
    "number": whole(0, _MANY),
    "size": _count,
    "state": one_of(BatchState),
    "attempts": whole(0, _MANY),
    "sealed_at": moment,
    "reason": prose,
    "forgiven": whole(0, _MANY),
    "parent": whole(0, _MANY),
    "slot": like(SLOT_NAME),
    "priority": whole(-MAX_PRIORITY, MAX_PRIORITY),
}
ATTEMPT = {
    "batch": whole(0, _MANY),
    "number": whole(0, _MANY),
    "job": like(_JOB),
    "node": _name,
    "url": line(URL_MAX),
    "state": one_of(AttemptState),
    "sent_at": moment,
    "ended_at": maybe(moment),
    "reason": prose,
    "report": _report,
    "part": like(_FILE),
    "worker": _name,
}
SHARD = {
    "number": _count,
    "url": line(PAGE_MAX),
    "first_page": maybe(whole(-LARGEST)),
    "last_page": maybe(whole(-LARGEST)),
    "state": one_of(ShardState),
}
WORKER = {
    "number": whole(1, _MANY),
    "job": like(_JOB),
    "url": line(URL_MAX),
    "pool": line(),
    "since": moment,
    "spider": _name,
    "project": _name,
    "version": like(_VERSION),
    "introduces": flag,
}
JOB = {
    "id": like(_JOB),
    "spider": _name,
    "project": _name,
    "version": like(_VERSION),
    "created": moment,
    "node": _name,
    "url": line(URL_MAX),
    "labels": tuple_of(line()),
    "args": shaped({}, words),
    "settings": tuple_of(_name),
    "state": one_of(Outcome),
    "started": maybe(cut(LATEST)),
    "ended": maybe(cut(LATEST)),
    "reason": prose,
    "pages": maybe(_told),
    "items": maybe(_told),
    "errors": maybe(_told),
    "codes": shaped({}, _told),
    "lost": flag,
    "posted": maybe(moment),
    "attempt": whole(1, _MANY),
    "first": line(),
    "retries": whole(0, _MANY),
    "limits": tuple_of(line()),
    "after": tuple_of(line()),
    "priority": maybe(_real),
    "place": _count,
    "sealed": line(SEALED_MAX),
    "wanted_project": _name,
    "on": _name,
    "among": tuple_of(_name),
    "tried": tuple_of(line(URL_MAX)),
    "signals": tuple_of(_name),
}
VERDICT = {
    "key": line(URL_MAX),
    "at": moment,
    "state": one_of(Outcome),
    "reason": prose,
    "pages": maybe(_told),
    "items": maybe(_told),
    "errors": maybe(_told),
    "codes": shaped({}, _told),
    "offset": maybe(_real),
}
MISS = {
    "url": page,
    "kind": among("gone", "failed", "dead", "index"),
    "reason": prose,
    "batch": whole(0, _MANY),
}
NODE = {
    "name": _name,
    "draining": maybe(moment),
    "start_delay": number(0),
    "idle_looks": each(moment),
    "url": line(URL_MAX),
    "changed": moment,
}
