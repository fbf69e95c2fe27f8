"""Parses workers' reports, and decides whether the result of an attempt can be accepted."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from scrapyd_dist.batches import PUT_OFF, Miss, meaning
from scrapyd_dist.errors import DistError
from scrapyd_dist.escapes import harmless
from scrapyd_dist.followed_pages import FollowedPages
from scrapyd_dist.plurals import counted
from scrapyd_dist.scrapyd.reply import LARGEST, QUOTE, parsed

#: the latest accepted time: seconds since the epoch, in the year 9000
LAST_MOMENT = 221_845_392_000.0
#: maximum bytes of a report; it lists missed URLs
REPORT_BYTES = 16 * 1024 * 1024
#: this program's folder below a node's /logs/
FOLDER = "logs/_sdist"
#: of each missed request of a batch: its index, the kind of miss, and the runs of its items
#: (first, count) or None if these are unknown
MissedRequests = tuple[tuple[int, str, tuple[tuple[int, int], ...] | None], ...]

T = TypeVar("T")


class BadReport(DistError):
    """The file is not a worker's report."""


@dataclass(frozen=True, kw_only=True)
class PartInfo:
    """Describes the file with an attempt's items, as the worker's report tells of it."""

    file: str
    items: int
    bytes: int
    sha256: str
    fields: tuple[str, ...] = ()  #: that its items declare, filled or not, in their order
    as_text: tuple[str, ...] = ()  #: names of the types of values that were written as text


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """Holds a worker's report: its progress, or how it ended."""

    ended: bool  #: whether this is its last report
    updated: float  #: seconds since the epoch, by the node's clock
    requests: int  #: requests that it was given
    done: int  #: requests that ended with a result
    missed: int  #: requests that ended without one
    pages: int
    items: int
    errors: int = 0  #: requests that have failed so far, without those that are gone
    started: float | None = None  #: when the worker started, by the node's clock
    finish_reason: str = ""
    closed_by: str = ""  #: the reason for which the project's own code has closed the spider
    problem: str = ""  #: why its result cannot be used; empty if it can
    #: whether the worker of a pushed batch holds a lease, and so reaches the store
    lease: bool = False
    no_lease: str = ""  #: why the worker of a pushed batch cannot reach the store
    unreached: bool = False  #: whether a leasing worker cannot reach the store
    closing: bool = False  #: whether a leasing worker is about to end
    public: str | None = None  #: public key of the worker's code, if it introduces itself
    #: of a leasing worker: what became of batches -> how many; None: it was sent one
    batches: Mapping[str, int] | None = None
    part: PartInfo | None = None
    #: what the idle handlers of a job that was sent its batch ask the fleet for, as `SealedIntake`
    #: seals it; empty if that is nothing
    idle_requests: str = ""
    #: attributes of the spider that were set, or changed in place, while it worked
    changed: tuple[str, ...] = ()
    #: import paths of the project's components that were on; None if the report does not say
    components: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()  #: those that were not, with the reason behind a colon
    logins: int = 0  #: pages in whose place the site has sent its login
    left_links: int = 0  #: links that rules have found, and that the worker did not follow
    #: of pages with items, those that it was led to; None if there are none
    followed: FollowedPages | None = None
    feeds: tuple[str, ...] = ()
    feeds_failed: int = 0
    #: kind of miss -> URL and reason of each such request: gone, failed, unended, put off, or dead,
    #: as the worker's spider cannot make it
    missed_urls: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    missed_requests: MissedRequests | None = None  #: None if the report does not have them
    replaces: bool = False  #: whether it has retried requests of earlier batches
    stats: Mapping[str, Any] = field(default_factory=dict)  #: Scrapy's, by name
    code: Mapping[str, Any] = field(default_factory=dict)  #: what identifies the worker's code

    @property
    def ended_requests(self) -> int:
        """Return the number of requests that have ended, with a result or without."""
        return self.done + self.missed

    def stat(self, name: str) -> int:
        """Return a number that Scrapy has counted; 0 if it is missing or not a number."""
        value = self.stats.get(name)
        if not isinstance(value, (int, float)):
            return 0
        return max(0, int(value))

    @property
    def stray_items(self) -> int:
        """Count the items for no batch, or after theirs was acked: they are in no part."""
        return self.stat("distributed/items_of_no_batch") + self.stat("distributed/items_too_late")

    @property
    def own_items(self) -> int:
        """Count the items of the worker's own start requests and logins: they are in no part."""
        return self.stat("distributed/items_of_own_pages")

    @property
    def pace(self) -> float:
        """Return the requests per second so far, by the node's clock; 0 while unknown."""
        if not self.started:
            return 0.0
        seconds = self.updated - self.started
        if seconds <= 0:
            return 0.0
        return self.ended_requests / seconds

    @property
    def blames_batch(self) -> bool:
        """Tell by the finish reason whether the batch may have caused its worker's end."""
        return meaning(self.finish_reason).blames_batch

    @property
    def failed_requests(self) -> int:
        """Return the number of requests that failed; those gone or put off are none."""
        listed = 0
        for kind, rows in self.missed_urls.items():
            if kind not in ("gone", PUT_OFF):
                listed += len(rows)
        return max(self.errors, listed)

    @property
    def counts(self) -> Counter[str]:
        """Count the requests that ended and those that failed, the pages and the items so far."""
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
    """Return the path of a job's part, relative to the node's base.

    The file name in a report is not trusted.
    """
    return f"{FOLDER}/{home}/{job}.jl"


def read_report(data: bytes) -> WorkerReport:
    """Parse a report.

    Raises:
        BadReport: the bytes are none.
    """
    try:
        document = _make_harmless(parsed(data))
        if document["schema"] != 1:
            raise BadReport(
                f"a report of schema {str(document['schema'])[:QUOTE]} is not known here"
            )
        return _read_document(document)
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


def _make_harmless(value: Any) -> Any:
    """Make the texts of a report harmless: they reach logs and terminals."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict):
        return {harmless(name): _make_harmless(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_make_harmless(entry) for entry in value]
    return value


def counts_of(report: Mapping[str, Any]) -> Counter[str]:
    """Return `WorkerReport.counts` of what the store keeps of an accepted report."""

    def kept_count(name: str) -> int:
        return int(report.get(name) or 0)

    return Counter(
        requests=kept_count("done") + kept_count("missed"),
        pages=kept_count("pages"),
        items=kept_count("items"),
        failed=kept_count("errors"),
    )


def _read_document(document: Mapping[str, Any]) -> WorkerReport:
    def text(name: str) -> str:
        return str(document.get(name, ""))

    def flag(name: str) -> bool:
        return bool(document.get(name, False))

    # The first field that is wrong gives the error its text: counts come first, then texts.
    return WorkerReport(
        requests=_read_count(document["requests"]),
        done=_read_count(document["done"]),
        missed=_read_count(document["missed"]),
        pages=_read_count(document["pages"]),
        items=_read_count(document["items"]),
        errors=_read_count(document.get("errors", 0)),
        feeds_failed=_read_count(document.get("feeds_failed", 0)),
        logins=_read_count(document.get("logins", 0)),
        left_links=_read_count(document.get("left_links", 0)),
        finish_reason=text("finish_reason"),
        closed_by=text("closed_by"),
        problem=text("problem"),
        no_lease=text("no_lease"),
        idle_requests=text("idle_requests"),
        part=_unless_none(_read_part, document.get("part")),
        followed=_unless_none(FollowedPages.read_document, document.get("followed")),
        ended=document["state"] == "ended",
        updated=_read_moment(document["updated"]),
        started=_unless_none(_read_moment, document.get("started")),
        lease=flag("lease"),
        unreached=flag("unreached"),
        closing=flag("closing"),
        public=_unless_none(str, document.get("public")),
        batches=_unless_none(_read_batch_counts, document.get("batches")),
        changed=_read_texts(document.get("changed", ())),
        components=_unless_none(_read_texts, document.get("components")),
        disabled=_read_texts(document.get("disabled", ())),
        feeds=_read_texts(document.get("feeds", ())),
        missed_urls=_read_missed_urls(document),
        missed_requests=_read_missed_requests(document),
        replaces=flag("replaces"),
        stats=_read_stats(document.get("stats", {})),
        code=dict(document.get("code", {})),
    )


def _unless_none(read: Callable[[Any], T], value: Any) -> T | None:
    """Read a value that a report may lack."""
    if value is None:
        return None
    return read(value)


def _read_batch_counts(batches: Any) -> dict[str, int]:
    return {str(outcome): _read_count(number) for outcome, number in batches.items()}


def _read_part(part: Any) -> PartInfo:
    return PartInfo(
        items=_read_count(part["items"]),
        bytes=_read_count(part["bytes"]),
        fields=_read_texts(part.get("fields", ())),
        as_text=_read_texts(part.get("as_text", ())),
        file=str(part["file"]),
        sha256=str(part["sha256"]),
    )


def _read_texts(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values))


def _read_missed_urls(document: Mapping[str, Any]) -> dict[str, tuple[tuple[str, str], ...]]:
    kinds = ("gone", "failed", "unended", "dead", PUT_OFF)
    return {kind: _read_urls(document.get(kind, ())) for kind in kinds}


def _read_urls(rows: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(row["url"]), str(row["reason"])) for row in rows)


def _read_stats(stats: Any) -> dict[str, Any]:
    """Keep the stats that can be displayed and added up, of all that a project collects."""
    kept_stats = {}
    for name, value in stats.items():
        if _is_stat(value):
            kept_stats[str(name)] = value
    return kept_stats


def _is_stat(value: object) -> bool:
    if isinstance(value, (int, float)):
        return abs(value) <= LARGEST
    return isinstance(value, str)


def _read_count(value: Any) -> int:
    found = int(value)
    if not 0 <= found <= LARGEST:
        raise ValueError("a number that counts nothing")
    return found


def _read_moment(value: Any) -> float:
    found = float(value)
    if not 0 <= found <= LAST_MOMENT:  # NaN fails this, too
        raise ValueError("a number that is no time")
    return found


def _read_missed_requests(document: Mapping[str, Any]) -> MissedRequests | None:
    rows = document.get("missed_requests")
    if rows is None:
        return None
    items = _read_count(document["items"])
    size = _read_count(document["requests"])
    for index, _, _ in rows:
        if not 0 <= int(index) < size:
            raise ValueError("it tells of requests that its batch has not")
    missed: list[tuple[int, str, tuple[tuple[int, int], ...] | None]] = []
    for index, kind, rows_of_runs in rows:
        runs = None
        if rows_of_runs is not None:
            runs = _read_runs(rows_of_runs, items)
        missed.append((_read_count(index), str(kind), runs))
    return tuple(missed)


def _read_runs(rows: Any, items: int) -> tuple[tuple[int, int], ...]:
    """Read the runs of a request's items (first, count), of the `items` that there are in all."""
    runs = tuple((_read_count(first), _read_count(count)) for first, count in rows)
    end = 0
    for first, count in runs:
        if first < end or count < 1:
            raise ValueError("its runs of items are not one behind the other")
        end = first + count
    if end > items:
        raise ValueError("it tells of more items than there are")
    return runs


def refusal(report: WorkerReport, size: int, *, feed: bool) -> str:
    """Return why the result of an ended attempt cannot be accepted; empty if it can.

    By the store, its batch has `size` requests; with `feed`, items went to a feed URL instead of a
    part.
    """
    if report.problem:
        return report.problem
    if report.finish_reason != "finished":
        return f"the worker ended early ({report.finish_reason})"
    if report.requests != size:
        return f"the worker had {counted(report.requests, 'request')} of the batch's {size}"
    if feed:
        return _refuse_feed(report)
    return _refuse_part(report)


def _refuse_feed(report: WorkerReport) -> str:
    is_stored = report.feeds and not report.feeds_failed
    if report.items and not is_stored:
        return "the worker could not store its feed; its log says why"
    return ""


def _refuse_part(report: WorkerReport) -> str:
    if report.part is None:
        return "the worker wrote no part"
    if report.part.items != report.items:
        return f"the worker wrote {report.part.items} of its {report.items} items"
    return ""


def misses(report: WorkerReport, batch: int) -> list[Miss]:
    """Return the URLs of an accepted attempt without a result.

    Requests that did not end count as failed.
    """
    found = []
    for reported_kind, rows in report.missed_urls.items():
        kind = "failed" if reported_kind in ("unended", PUT_OFF) else reported_kind
        for url, reason in rows:
            found.append(Miss(url=url, kind=kind, reason=reason, batch=batch))
    return found


def to_kept(report: WorkerReport, replaces: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """Return what the store keeps of an accepted report.

    That is everything except URLs, which have their own table. `replaces` has (earlier batch, index
    in it) of each request that the worker has retried.
    """
    document: dict[str, Any] = {}
    if report.missed_requests is not None:
        document["missed_requests"] = report.missed_requests
    if replaces:
        document["replaces"] = list(replaces)
    document["done"] = report.done
    document["missed"] = report.missed
    document["errors"] = report.failed_requests
    document["pages"] = report.pages
    document["items"] = report.items
    document["feeds"] = list(report.feeds)
    if report.changed:
        document["changed"] = list(report.changed)
    document |= _keep_components(report)
    if report.followed is not None:
        document["followed"] = report.followed.document
    if report.logins:
        document["logins"] = report.logins
    if report.left_links:
        document["left_links"] = report.left_links
    if report.part is not None:
        document |= _keep_part(report.part)
    document["started"] = report.started
    document["updated"] = report.updated
    document["finish_reason"] = report.finish_reason
    document["stats"] = dict(report.stats)
    document["code"] = dict(report.code)
    return document


def _keep_components(report: WorkerReport) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if report.components is not None:
        document["components"] = list(report.components)
    if report.disabled:
        document["disabled"] = list(report.disabled)
    return document


def _keep_part(part: PartInfo) -> dict[str, Any]:
    document: dict[str, Any] = {"part": {"bytes": part.bytes, "sha256": part.sha256}}
    if part.fields:
        document["fields"] = list(part.fields)
    if part.as_text:
        document["as_text"] = list(part.as_text)
    return document
