"""Parses workers' reports, and decides whether the result of an attempt can be accepted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scrapyd_dist.batches import PUT_OFF, Miss, meaning
from scrapyd_dist.errors import DistError
from scrapyd_dist.escapes import harmless
from scrapyd_dist.plurals import counted
from scrapyd_dist.scrapyd.reply import LARGEST, QUOTE, parsed

#: the latest accepted time: seconds since the epoch, in the year 9000
LAST_MOMENT = 221_845_392_000.0
#: maximum bytes of a report; it lists missed URLs
REPORT_BYTES = 16 * 1024 * 1024
#: this program's folder below a node's /logs/
FOLDER = "logs/_sdist"


#: of each missed request of a batch: its index, the kind of miss, runs of its items (first, count) or None if unknown
MissedRequests = tuple[tuple[int, str, tuple[tuple[int, int], ...] | None], ...]


class BadReport(DistError):
    """The file is not a worker's report."""


@dataclass(frozen=True, kw_only=True)
class PartInfo:
    """The file with an attempt's items, as described by the worker's report."""

    file: str
    items: int
    bytes: int
    sha256: str
    fields: tuple[str, ...] = ()  #: that its items declare, filled or not, in their order
    as_text: tuple[str, ...] = ()  #: names of the types of values that were written as text


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """A worker's report: its progress, or how it ended."""

    ended: bool
    updated: float  #: seconds since the epoch, by the node's clock
    requests: int
    done: int
    missed: int
    pages: int
    items: int
    errors: int = 0  #: requests that have failed so far, without those that are gone
    started: float | None = None  #: when the worker started, by the node's clock
    finish_reason: str = ""
    closed_by: str = ""  #: the reason for which the project's own code has closed the spider
    problem: str = ""
    lease: bool = (
        False  #: whether the worker of a pushed batch holds a lease, and so reaches the store
    )
    no_lease: str = ""  #: why the worker of a pushed batch cannot reach the store
    unreached: bool = False  #: whether a leasing worker cannot reach the store
    public: str | None = None  #: public key of the worker's code, if it introduces itself
    batches: Mapping[str, int] | None = (
        None  #: of a leasing worker: fate of a batch -> how many; None: it was sent one
    )
    part: PartInfo | None = None
    changed: tuple[
        str, ...
    ] = ()  #: attributes of the spider that were set, or changed in place, while it worked
    logins: int = 0  #: pages in whose place the site has sent its login
    feeds: tuple[str, ...] = ()
    feeds_failed: int = 0
    #: of requests that are gone, failed, unended, or dead, as the worker's spider cannot make them: URL and reason
    missed_urls: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    missed_requests: MissedRequests | None = None  #: None if the report does not have them
    replaces: bool = False  #: whether it has retried requests of earlier batches
    stats: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended_requests(self) -> int:
        return self.done + self.missed

    def stat(self, name: str) -> int:
        """A number that Scrapy has counted; 0 when it has not, or the project has put something else there."""
        value = self.stats.get(name)
        return max(0, int(value)) if isinstance(value, (int, float)) else 0

    @property
    def stray_items(self) -> int:
        """Items that were scraped for no batch, or after theirs was acked: they are in no part."""
        return self.stat("distributed/items_of_no_batch") + self.stat("distributed/items_too_late")

    @property
    def pace(self) -> float:
        """Requests per second so far, by the node's clock; 0 while unknown."""
        seconds = self.updated - self.started if self.started else 0.0
        return self.ended_requests / seconds if seconds > 0 else 0.0

    @property
    def blames_batch(self) -> bool:
        """True when the batch may have caused its worker's end, as far as the finish reason tells."""
        return meaning(self.finish_reason).blames_batch

    @property
    def failed_requests(self) -> int:
        failed = (
            len(rows) for kind, rows in self.missed_urls.items() if kind not in ("gone", PUT_OFF)
        )
        return max(self.errors, sum(failed))

    @property
    def counts(self) -> Counter[str]:
        """The job so far: requests that ended, and those of them that failed; pages and items."""
        return Counter(
            requests=self.ended_requests,
            pages=self.pages,
            items=self.items,
            failed=self.failed_requests,
        )


def report_path(home: str, job: str) -> str:
    """Return the path of a job's report, relative to the node's base."""
    return f"{FOLDER}/{home}/{job}.json"


def part_path(home: str, job: str) -> str:
    """Return the path of a job's part, relative to the node's base; the file name in a report is not trusted."""
    return f"{FOLDER}/{home}/{job}.jl"


def read_report(data: bytes) -> WorkerReport:
    """Parse a report; raises `BadReport` if the bytes are none."""
    try:
        document = _harmless(parsed(data))
        if document["schema"] != 1:
            raise BadReport(
                f"a report of schema {str(document['schema'])[:QUOTE]} is not known here"
            )
        return _report(document)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        why = f"{type(error).__name__}: {error}"[:QUOTE]
        raise BadReport(f"a worker's report cannot be read: {why}") from error


def _harmless(value: Any) -> Any:
    """The texts of a report reach logs and terminals."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict):
        return {harmless(name): _harmless(one) for name, one in value.items()}
    return [_harmless(one) for one in value] if isinstance(value, list) else value


def counts_of(report: Mapping[str, Any]) -> Counter[str]:
    """`WorkerReport.counts` of what the store keeps of an accepted report."""
    done, missed, pages, items, failed = (
        int(report.get(name) or 0) for name in ("done", "missed", "pages", "items", "errors")
    )
    return Counter(requests=done + missed, pages=pages, items=items, failed=failed)


def _report(document: Mapping[str, Any]) -> WorkerReport:
    part, started, public, batches = (
        document.get(name) for name in ("part", "started", "public", "batches")
    )
    counts: dict[str, Any] = {
        name: _count(document[name]) for name in ("requests", "done", "missed", "pages", "items")
    }
    counts |= {name: _count(document.get(name, 0)) for name in ("errors", "feeds_failed", "logins")}
    texts: dict[str, Any] = {
        name: str(document.get(name, ""))
        for name in ("finish_reason", "closed_by", "problem", "no_lease")
    }
    if part is not None:
        items, size = _count(part["items"]), _count(part["bytes"])
        fields, as_text = (
            tuple(str(name) for name in part.get(key, ())) for key in ("fields", "as_text")
        )
        part = PartInfo(
            file=str(part["file"]),
            items=items,
            bytes=size,
            sha256=str(part["sha256"]),
            fields=fields,
            as_text=as_text,
        )
    return WorkerReport(
        ended=document["state"] == "ended",
        updated=_moment(document["updated"]),
        started=None if started is None else _moment(started),
        lease=bool(document.get("lease", False)),
        unreached=bool(document.get("unreached", False)),
        public=None if public is None else str(public),
        batches=None
        if batches is None
        else {str(fate): _count(number) for fate, number in batches.items()},
        part=part,
        changed=tuple(str(name) for name in document.get("changed", ())),
        feeds=tuple(str(uri) for uri in document.get("feeds", ())),
        missed_urls={
            kind: _urls(document.get(kind, ()))
            for kind in ("gone", "failed", "unended", "dead", PUT_OFF)
        },
        missed_requests=_missed_requests(document),
        replaces=bool(document.get("replaces", False)),
        stats={
            str(name): value for name, value in document.get("stats", {}).items() if _is_stat(value)
        },
        code=dict(document.get("code", {})),
        **counts,
        **texts,
    )


def _count(value: Any) -> int:
    found = int(value)
    if not 0 <= found <= LARGEST:
        raise ValueError("a number that counts nothing")
    return found


def _moment(value: Any) -> float:
    found = float(value)
    if not 0 <= found <= LAST_MOMENT:  # NaN fails this, too
        raise ValueError("a number that is no time")
    return found


def _is_stat(value: object) -> bool:
    """Whether a stat can be displayed and added up; other values that a project collects are dropped."""
    if isinstance(value, (int, float)):
        return abs(value) <= LARGEST
    return isinstance(value, str)


def _missed_requests(document: Mapping[str, Any]) -> MissedRequests | None:
    rows = document.get("missed_requests")
    if rows is None:
        return None
    items, size = _count(document["items"]), _count(document["requests"])
    if any(not 0 <= int(place) < size for place, _, _ in rows):
        raise ValueError("it tells of requests that its batch has not")
    return tuple(
        (_count(place), str(kind), None if runs is None else _runs(runs, items))
        for place, kind, runs in rows
    )


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


def refusal(report: WorkerReport, size: int, *, feed: bool) -> str:
    """Return why the result of an ended attempt cannot be accepted; empty if it can.

    By the store, its batch has `size` requests; with `feed`, items went to a feed URL instead of a part.
    """
    if report.problem:
        return report.problem
    if report.finish_reason != "finished":
        return f"the worker ended early ({report.finish_reason})"
    if report.requests != size:
        return f"the worker had {counted(report.requests, 'request')} of the batch's {size}"
    if feed and (report.feeds_failed or not report.feeds) and report.items:
        return "the worker could not store its feed; its log says why"
    if feed or (report.part is not None and report.part.items == report.items):
        return ""
    return (
        f"the worker wrote {report.part.items} of its {report.items} items"
        if report.part
        else "the worker wrote no part"
    )


def misses(report: WorkerReport, batch: int) -> list[Miss]:
    """Return the URLs of an accepted attempt without a result; requests that did not end count as failed."""
    return [
        Miss(
            url=url,
            kind="failed" if kind in ("unended", PUT_OFF) else kind,
            reason=reason,
            batch=batch,
        )
        for kind, rows in report.missed_urls.items()
        for url, reason in rows
    ]


def _of_part(part: PartInfo) -> dict[str, Any]:
    lists = {"fields": part.fields, "as_text": part.as_text}
    described = {"part": {"bytes": part.bytes, "sha256": part.sha256}}
    return {**described, **{name: list(entries) for name, entries in lists.items() if entries}}


def kept(report: WorkerReport, replaces: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """Return what the store keeps of an accepted report: everything except URLs, which have their own table.

    `replaces` has (earlier batch, index in it) of each request that the worker has retried.
    """
    return {
        **({} if report.missed_requests is None else {"missed_requests": report.missed_requests}),
        **({"replaces": list(replaces)} if replaces else {}),
        "done": report.done,
        "missed": report.missed,
        "errors": report.failed_requests,
        "pages": report.pages,
        "items": report.items,
        "feeds": list(report.feeds),
        **({"changed": list(report.changed)} if report.changed else {}),
        **({"logins": report.logins} if report.logins else {}),
        **({} if report.part is None else _of_part(report.part)),
        "started": report.started,
        "updated": report.updated,
        "finish_reason": report.finish_reason,
        "stats": dict(report.stats),
        "code": dict(report.code),
    }
