"""Counts what was done since a moment: by jobs that ended, and by crawls as they grew. No IO."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scrapyd_dist.batches import Attempt, Crawl
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.progress.summary_document import count_in

#: the windows of rolling figures, in seconds
WINDOWS = {"15m": 900.0, "1h": 3600.0, "24h": 86400.0}
#: (seconds since the epoch, values) of each sample of a crawl, oldest first
Samples = Sequence[tuple[float, Mapping[str, Any]]]


def ended_since(records: Iterable[JobRecord], since: float) -> list[JobRecord]:
    """Return the records of the jobs that have ended at this moment or later."""
    return [record for record in records if record.ended is not None and record.ended >= since]


def stats_of_record(record: JobRecord) -> dict[str, int]:
    """Return what is remembered of a job under the names that Scrapy has for it.

    It is empty if the job left nothing that can be counted.
    """
    counts = {
        "response_received_count": record.pages,
        "item_scraped_count": record.items,
        "log_count/ERROR": record.errors,
    }
    for code, count in record.codes.items():
        counts[f"downloader/response_status_count/{code}"] = count
    return {name: count for name, count in counts.items() if count is not None}


def stats_of_attempt(attempt: Attempt) -> dict[str, Any]:
    """Return the stats in the report of an attempt.

    A worker that leases reports less of each of its batches: then they are its pages and items.
    """
    report = attempt.report
    stats = {}
    if report.get("pages") is not None:
        stats["response_received_count"] = report["pages"]
    if report.get("items") is not None:
        stats["item_scraped_count"] = report["items"]
    stats.update(report.get("stats") or {})
    return stats


def growth(crawl: Crawl, samples: Samples, since: float) -> Counter[str]:
    """Return the pages and items of a crawl since this moment.

    They are counted from the last sample before it on.
    """
    base = _state_at(since, crawl, samples)
    grown = Counter[str]()
    for name in ("pages", "items"):
        grown[name] = max(0, count_in(crawl.summary, name) - count_in(base, name))
    return grown


def _state_at(since: float, crawl: Crawl, samples: Samples) -> Mapping[str, Any]:
    """Return the last sample up to a moment; if there is none, the first one of an older crawl."""
    for at, values in reversed(samples):
        if at <= since:
            return values
    if crawl.created >= since or not samples:
        return {}
    return samples[0][1]
