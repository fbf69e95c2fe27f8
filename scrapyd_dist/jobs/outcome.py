"""What a job really did: a worker's report as a value, and the judgement on it. Foreign bytes are read here only."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import Miss
from scrapyd_dist.errors import DistError
from scrapyd_dist.scrapyd.reply import LARGEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: seconds since the epoch, in the year 9000
LAST_MOMENT = 221_845_392_000.0
#: the folder of ours in a node's logs, and so below its /logs/
FOLDER = "logs/_sdist"


class BadReport(DistError):
    """The file at the report's address is not a worker's report."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The file with an attempt's items, as its worker describes it."""

    file: str
    items: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """How far a worker is, or how it ended."""

    ended: bool
    updated: float  #: seconds since the epoch, by the node's clock
    requests: int
    done: int
    missed: int
    pages: int
    items: int
    errors: int = 0  #: requests that failed so far; those that are gone are none of them
    started: float | None = None  #: when the worker began, by the node's clock
    finish_reason: str = ""
    problem: str = ""
    no_lease: str = ""  #: of a worker that was sent its batch: why it does not reach the store
    unreached: bool = False  #: of a worker that leases: its node has no way to the store
    public: str | None = None  #: of one that introduces itself: the public half of its code's key
    part: Part | None = None
    feeds: tuple[str, ...] = ()
    feeds_failed: int = 0
    gone: tuple[tuple[str, str], ...] = ()  #: URL and reason
    failed: tuple[tuple[str, str], ...] = ()
    dead: tuple[tuple[str, str], ...] = ()  #: that this worker's spider cannot make
    unended: tuple[tuple[str, str], ...] = ()
    #: of each request that failed: its place in the batch, its kind, its runs of items (first and count) or None where
    #: these are not known; None: the worker does not tell
    missed_requests: tuple[tuple[int, str, tuple[tuple[int, int], ...] | None], ...] | None = None
    replaces: bool = False  #: requests of it had failed in earlier batches
    stats: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended_requests(self) -> int:
        return self.done + self.missed

    @property
    def pace(self) -> float:
        """Requests per second so far, by the node's own clock; 0 while that is not known."""
        seconds = self.updated - self.started if self.started else 0.0
        return self.ended_requests / seconds if seconds > 0 else 0.0

    @property
    def failed_requests(self) -> int:
        return max(self.errors, len(self.failed) + len(self.dead) + len(self.unended))


def report_path(home: str, job: str) -> str:
    """Where a job's report is on its node."""
    return f"{FOLDER}/{home}/{job}.json"


def part_path(home: str, job: str) -> str:
    """Where a job's part is on its node. Its name is ours: what a report says of it is not followed."""
    return f"{FOLDER}/{home}/{job}.jl"


def read_report(data: bytes) -> Report:
    """A report from its bytes.

    Raises:
        BadReport: it is not one.
    """
    try:
        document = json.loads(data)
        if document["schema"] != 1:
            raise BadReport(f"a report of schema {document['schema']} is not known here")
        return _report(document)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadReport(f"a worker's report cannot be read: {type(error).__name__}: {error}") from error


def _report(document: Mapping[str, Any]) -> Report:
    part = document.get("part")
    return Report(
        ended=document["state"] == "ended",
        updated=_moment(document["updated"]),
        requests=_count(document["requests"]),
        done=_count(document["done"]),
        missed=_count(document["missed"]),
        pages=_count(document["pages"]),
        items=_count(document["items"]),
        errors=_count(document.get("errors", 0)),
        started=None if document.get("started") is None else _moment(document["started"]),
        finish_reason=str(document.get("finish_reason", "")),
        problem=str(document.get("problem", "")),
        no_lease=str(document.get("no_lease", "")),
        unreached=bool(document.get("unreached", False)),
        public=None if document.get("public") is None else str(document["public"]),
        part=None
        if part is None
        else Part(
            file=str(part["file"]), items=_count(part["items"]), bytes=_count(part["bytes"]), sha256=str(part["sha256"])
        ),
        feeds=tuple(str(uri) for uri in document.get("feeds", ())),
        feeds_failed=_count(document.get("feeds_failed", 0)),
        gone=_urls(document.get("gone", ())),
        failed=_urls(document.get("failed", ())),
        dead=_urls(document.get("dead", ())),
        unended=_urls(document.get("unended", ())),
        missed_requests=_missed_requests(document),
        replaces=bool(document.get("replaces", False)),
        stats={str(name): value for name, value in document.get("stats", {}).items() if _is_stat(value)},
        code=dict(document.get("code", {})),
    )


def _count(value: Any) -> int:
    found = int(value)
    if not 0 <= found <= LARGEST:
        raise ValueError("a number that counts nothing")
    return found


def _moment(value: Any) -> float:
    found = float(value)
    if not 0 <= found <= LAST_MOMENT:  # nor is what is no number
        raise ValueError("a number that is no time")
    return found


def _is_stat(value: object) -> bool:
    """Whether it can be shown and summed up; what the project puts beside that costs nothing but itself."""
    if isinstance(value, (int, float)):
        return abs(value) <= LARGEST
    return isinstance(value, str)


def _missed_requests(
    document: Mapping[str, Any],
) -> tuple[tuple[int, str, tuple[tuple[int, int], ...] | None], ...] | None:
    rows = document.get("missed_requests")
    if rows is None:
        return None
    items = _count(document["items"])
    return tuple((_count(place), str(kind), None if runs is None else _runs(runs, items)) for place, kind, runs in rows)


def _runs(rows: Any, items: int) -> tuple[tuple[int, int], ...]:
    runs = tuple((_count(first), _count(count)) for first, count in rows)
    end = 0
    for first, count in runs:
        if first < end or count < 1:
            raise ValueError("its runs of items are not one behind the other")
        end = first + count
    if end > items:
        raise ValueError("it tells of more items than there are")
    return runs


def _urls(rows: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(row["url"]), str(row["reason"])) for row in rows)


def refusal(report: Report, size: int, *, feed: bool) -> str:
    """Why the result of an ended attempt cannot be accepted; empty when it can.

    Args:
        report: the worker's last report.
        size: the requests of the batch, by the store.
        feed: whether the items went to a feed URL instead of a part.
    """
    if report.problem:
        return report.problem
    if report.finish_reason != "finished":
        return f"the worker ended early ({report.finish_reason})"
    if report.requests != size:
        return f"the worker had {report.requests} requests of the batch's {size}"
    if feed and (report.feeds_failed or not report.feeds) and report.items:
        return "the worker could not store its feed; its log says why"
    return "" if feed else _part_refusal(report)


def _part_refusal(report: Report) -> str:
    if report.part is None:
        return "the worker wrote no part"
    if report.part.items != report.items:
        return f"the worker wrote {report.part.items} of its {report.items} items"
    return ""


def misses(report: Report, batch: int) -> list[Miss]:
    """The URLs of an accepted attempt that gave no result. What nothing was heard of has failed."""
    gone = [Miss(url=url, kind="gone", reason=reason, batch=batch) for url, reason in report.gone]
    failed = [
        Miss(url=url, kind="failed", reason=reason, batch=batch) for url, reason in report.failed + report.unended
    ]
    dead = [Miss(url=url, kind="dead", reason=reason, batch=batch) for url, reason in report.dead]
    return gone + failed + dead


def kept(report: Report, replaces: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """What the store keeps of an accepted report: all but the lists of URLs, which have a table of their own.

    Args:
        report: the worker's last report.
        replaces: the requests that it has tried again: their earlier batch, and their place in it.
    """
    told = {} if report.missed_requests is None else {"missed_requests": report.missed_requests}
    return {
        **told,
        **({"replaces": list(replaces)} if replaces else {}),
        "done": report.done,
        "missed": report.missed,
        "errors": report.failed_requests,
        "pages": report.pages,
        "items": report.items,
        "feeds": list(report.feeds),
        "started": report.started,
        "updated": report.updated,
        "finish_reason": report.finish_reason,
        "stats": dict(report.stats),
        "code": dict(report.code),
    }
