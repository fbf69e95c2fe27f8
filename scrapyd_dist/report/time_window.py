"""What was done since a moment: by jobs that have ended since then, and by crawls as they grew. No IO."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scrapyd_dist.batches import Attempt, Crawl
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.progress import number

#: the windows of rolling figures, in seconds
WINDOWS = {"15m": 900.0, "1h": 3600.0, "24h": 86400.0}
Samples = Sequence[tuple[float, Mapping[str, Any]]]


def ended_since(records: Iterable[JobRecord], since: float) -> list[JobRecord]:
    return [one for one in records if one.ended is not None and one.ended >= since]


def stats_of_record(record: JobRecord) -> dict[str, int]:
    """Return what is remembered of a job under the names that Scrapy has for it; empty if it left neither."""
    counts = {
        "response_received_count": record.pages,
        "item_scraped_count": record.items,
        "log_count/ERROR": record.errors,
        **{
            f"downloader/response_status_count/{code}": count
            for code, count in record.codes.items()
        },
    }
    return {name: count for name, count in counts.items() if count is not None}


def stats_of_attempt(attempt: Attempt) -> dict[str, Any]:
    """Return the stats in the report of an attempt; a worker that leases reports less of each of its batches."""
    report = attempt.report
    sums = {
        "response_received_count": report.get("pages"),
        "item_scraped_count": report.get("items"),
    }
    return {name: count for name, count in sums.items() if count is not None} | dict(
        report.get("stats") or {}
    )


def growth(crawl: Crawl, samples: Samples, since: float) -> Counter[str]:
    """Return the pages and items of a crawl since this moment, from the last sample before it on."""
    before = [values for at, values in samples if at <= since]
    base = before[-1] if before else {} if crawl.created >= since or not samples else samples[0][1]
    return Counter(
        {
            name: max(0, number(crawl.summary, name) - number(base, name))
            for name in ("pages", "items")
        }
    )
