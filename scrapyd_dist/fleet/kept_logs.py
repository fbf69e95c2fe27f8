"""Which logs of its finished jobs a node still has, and whether jobs_to_keep took the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from scrapyd_dist.scrapyd.api import Job


@dataclass(frozen=True, kw_only=True)
class KeptLogs:
    """Which logs of a node's remembered finished jobs still exist."""

    kept: int = 0
    lost: int = 0
    most: int = 0  #: the largest number of kept logs of one spider
    by_limit: bool = True  #: whether the lost ones are those that jobs_to_keep would remove


def find_kept_logs(finished: Sequence[Job]) -> KeptLogs:
    """Return how many of these jobs, newest first, still have a log."""
    by_spider: dict[tuple[str, str], list[bool]] = {}
    for job in finished:
        by_spider.setdefault((job.project, job.spider), []).append(job.log_url is not None)
    kept = 0
    lost = 0
    most = 0
    for has_logs in by_spider.values():
        count = sum(has_logs)
        kept += count
        lost += len(has_logs) - count
        most = max(most, count)
    # One job without a log is no limit: it may have written none.
    by_limit = lost != 1
    for has_logs in by_spider.values():
        if not all(has_logs) and not _is_cut(has_logs, most):
            by_limit = False
    return KeptLogs(kept=kept, lost=lost, most=most, by_limit=by_limit)


def _is_cut(has_logs: Sequence[bool], most: int) -> bool:
    """Return whether only the newest so many jobs of a spider, or one less, have logs.

    has_logs: of each of its jobs, the newest first.
    """
    is_sorted = list(has_logs) == sorted(has_logs, reverse=True)
    return is_sorted and max(1, most - 1) <= sum(has_logs) <= most
