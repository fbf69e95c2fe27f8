"""Judges stored rows: which fields each kind has, and what a field may be. No IO.

The rule it keeps: a store may be written by others, so a row is judged before it becomes a value;
one that cannot be is `ForeignRow`, which says which row it is. A `Check` gives the value of a
field, or raises why it is none (`ValueError`).
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
    MissKind,
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
#: characters of a name
NAME_MAX = 500
#: characters of an address
URL_MAX = 100_000
#: characters of a text for people
PROSE_MAX = 50_000
#: characters of the encrypted settings of a job
SEALED_MAX = 4_000_000
#: characters of the address of a page, which may be as long as a request that travels
PAGE_MAX = SEALED_MAX
#: how deep a document may be
DEPTH = 20

#: the most batches, attempts and so on of a crawl
_MANY = 10_000_000
_VERSION = re.compile(r"(?!\.{1,2}$)[^\s/\\\x00-\x1f\x7f]{0,200}")
_JOB = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_FILE = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199})?")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_CONTROL_BUT_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def judged(what: str, row: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the fields of a row that are known here, each as its check gives it.

    `what` names the row in messages. Raises `ForeignRow` when a check does not pass.
    """
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
    """Return a value made of a row; `ForeignRow` when a field is missing, or does not pass."""
    try:
        return kind(**judged(what, row, checks))
    except TypeError:
        raise foreign(what, "it is not whole") from None


def foreign(what: str, why: str) -> ForeignRow:
    """Return what is raised for a row that cannot be used."""
    return ForeignRow(
        f"The store has {what} that cannot be used: {why}. No version of sdist wrote it so: another"
        " program has written to the store, or it is damaged. It is left out."
    )


def from_json(what: str, text: str | bytes) -> Any:
    """Return the value of a JSON text; `ForeignRow` when it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise foreign(what, "it is not JSON") from None


def object_in(what: str, row: Mapping[str, Any] | str | bytes) -> Mapping[str, Any]:
    """Return a row, or the JSON object that it is as text.

    It has no fields when it is another value.
    """
    value = from_json(what, row) if isinstance(row, (str, bytes)) else row
    if not isinstance(value, Mapping):
        return {}
    return value


def whole(least: int = 0, most: int = LARGEST) -> Check:
    """Return the check for a whole number in a range."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"is no whole number from {least} to {most}")
        return value

    return check


def number(least: float = -LARGEST, most: float = LARGEST) -> Check:
    """Return the check for a finite number in a range."""

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
    """Return the check for a reported number; what is below 0 or beyond `most` is cut."""
    check = number(-math.inf, math.inf)
    return lambda value: min(max(check(value), 0), most)


def flag(value: Any) -> bool:
    """Check a boolean, which an engine may keep as 0 or 1."""
    if value not in (0, 1):
        raise ValueError("is neither true nor false")
    return bool(value)


def maybe(check: Check) -> Check:
    """Return the check for such a value, or none."""
    return lambda value: None if value is None else check(value)


def one_of(kind: type[Enum]) -> Check:
    """Return the check for the value of a member of the enumeration; it gives the member."""
    known = {member.value: member for member in kind}

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
    """Return the check for one of these texts."""
    return _text(lambda text: text in values, "is not known")


def like(pattern: re.Pattern[str]) -> Check:
    """Return the check for a text that the pattern matches as a whole."""
    return _text(lambda text: pattern.fullmatch(text) is not None, "is no such name")


def line(most: int = NAME_MAX) -> Check:
    """Return the check for a text of one line, without control characters."""
    fault = f"is no text of one line, with {most} characters at most"
    return _text(lambda text: len(text) <= most and not _CONTROL.search(text), fault)


def text_of(most: int) -> Check:
    """Return the check for any text of at most so many characters."""
    return _text(lambda text: len(text) <= most, f"is no text of {most} characters at most")


words = text_of(URL_MAX)
page = text_of(PAGE_MAX)


def prose(value: Any) -> str:
    """Check a text for people; control characters are replaced, and what is too long is cut."""
    if not isinstance(value, str):
        raise ValueError("is no text")  # noqa: TRY004 - as all of these
    return _CONTROL_BUT_LINES.sub("\ufffd", value[:PROSE_MAX])


def document(value: Any) -> dict[str, Any]:
    """Check a JSON object that is not nested too deeply."""
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")  # noqa: TRY004 - as all of these
    _check_depth(value, DEPTH)
    return value


def _check_depth(value: Any, left: int) -> None:
    if not isinstance(value, (dict, list)):
        return
    if not left:
        raise ValueError("is nested too deeply")
    parts = value.values() if isinstance(value, dict) else value
    for part in parts:
        _check_depth(part, left - 1)


def each(check: Check, most: int = 1_000_000) -> Check:
    """Return the check for a list of at most so many such values."""

    def check_all(value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) > most:
            raise ValueError("is no list")
        return list(map(check, value))

    return check_all


def tuple_of(check: Check) -> Check:
    """Return the check for a list of such values; it gives a tuple."""
    check_list = each(check)
    return lambda value: tuple(check_list(value))


def shaped(shape: Mapping[str, Check], others: Check = lambda value: value) -> Check:
    """Return the check for a JSON object.

    A name of `shape`, which need not be there, has its own check, all other names have `others`.
    """

    def check(value: Any) -> dict[str, Any]:
        checked = {}
        for name, field in document(value).items():
            checked[name] = shape.get(name, others)(field)
        return checked

    return check


# the checks of fields, and of documents in fields
_name = line()
_count = whole()
_real = number()
_reported = cut(LARGEST)
_per_name = shaped({}, maybe(_real))
_node = shaped(
    {
        "name": _name,
        "url": line(URL_MAX),
        "state": _name,
        "reason": prose,
        "slots": maybe(_count),
        "per_s": document,
        "running": maybe(_real),
        "jobs": maybe(_real),
        "items": maybe(_real),
        "pages": maybe(_real),
        "failed": maybe(_real),
        "learned": maybe(_real),
    }
)
_straggler = shaped(
    {
        "job": _name,
        "node": _name,
        "batch": maybe(_real),
        "attempt": maybe(_real),
        "for_s": maybe(_real),
        "done": maybe(_real),
        "of": maybe(_real),
        "times_slower": maybe(_real),
    }
)
_outlook = shaped({"requests": maybe(_real), "eta_s": maybe(_real), "sure": _name})
_summary = shaped(
    {
        "crawl": _name,
        "spider": _name,
        "project": _name,
        "version": maybe(_name),
        "state": _name,
        "message": prose,
        "batches": _per_name,
        "requests": _per_name,
        "per_s": _per_name,
        "index": _per_name,
        "duration_s": maybe(_real),
        "urls_found": maybe(_real),
        "urls_distinct": maybe(_real),
        "pages": maybe(_real),
        "items": maybe(_real),
        "gone_urls": maybe(_real),
        "offsite": maybe(_real),
        "duplicate": maybe(_real),
        "refused": maybe(_real),
        "local": maybe(_real),
        "sealed": maybe(_real),
        "index_failed": maybe(_real),
        "failed_urls": maybe(_real),
        "raised_urls": maybe(_real),
        "dead_urls": maybe(_real),
        "exit_code": maybe(_real),
        "schema": maybe(_real),
        "outlook": _outlook,
        "nodes": each(_node),
        "stragglers": each(_straggler),
        "output": each(prose),
        "warnings": each(prose),
        "misses": maybe(prose),
        "labels": each(line()),
    }
)
_report = shaped(
    {
        "done": maybe(_count),
        "missed": maybe(_count),
        "errors": maybe(_count),
        "pages": maybe(_count),
        "items": maybe(_count),
        "requests": maybe(_count),
        "feeds": each(line(URL_MAX)),
        "started": maybe(moment),
        "updated": maybe(moment),
        "finish_reason": prose,
        "fields": each(prose),
        "as_text": each(prose),
        "changed": each(prose),
        "components": each(prose),
        "disabled": each(prose),
        "stats": document,
        "code": document,
    }
)

# the rows, each by field
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
    "earlier": whole(0, _MANY),
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
    "pages": maybe(_reported),
    "items": maybe(_reported),
    "errors": maybe(_reported),
    "codes": shaped({}, _reported),
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
    "pages": maybe(_reported),
    "items": maybe(_reported),
    "errors": maybe(_reported),
    "codes": shaped({}, _reported),
    "offset": maybe(_real),
}
MISS = {
    "url": page,
    "kind": among(*[kind.value for kind in MissKind]),
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
