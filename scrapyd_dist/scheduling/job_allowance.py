"""Counts what a job may do without the store, as what was left of the goals when it was sent."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from scrapyd_dist.joblogs.worker_report import WorkerReport

#: the stat of requests that have left
HITS = "downloader/request_count"
#: the stat of exceptions in the spider's code
EXCEPTIONS = "spider_exceptions/count"


@dataclass(kw_only=True)
class JobAllowance:
    """Keeps what a job may do without the store, and what of it was counted by its report."""

    #: name of each of the crawl's goals -> what was left of it, when the job was sent
    limits: Mapping[str, float]
    reserved: int = 0  #: requests in the store that it may make, if it does not ask there
    granted: int = field(init=False)  #: how many were reserved when it was sent
    _spent: Counter[str] = field(default_factory=Counter)  #: what was counted for them in its place

    def __post_init__(self) -> None:
        self.granted = self.reserved

    @property
    def document(self) -> dict[str, float]:
        """Return the limits as the job gets them.

        Of requests, this is what is reserved for it in the store, so that the total holds.
        """
        limits = dict(self.limits)
        if not self.reserved:
            limits.pop("requests", None)
        return limits

    def settle(
        self, report: WorkerReport | None, *, over: bool = False, lost: bool = False
    ) -> Counter[str]:
        """Count what the job reports, and release what it does not need.

        Returns by how much this changes the counts of the goals. `over`: it makes no more requests;
        `lost`: it may make all that it has reserved.
        """
        changes, release = self._count(report)
        rest = self.reserved - release
        if lost and rest:
            changes["requests"] += rest
        if over or lost:
            release = self.reserved
        self.reserved -= release
        changes["reserved"] -= release
        return changes

    def _count(self, report: WorkerReport | None) -> tuple[Counter[str], int]:
        """Return what the report has that was not counted yet, and how many requests it releases.

        This is for a job that does not reach the store.
        """
        nothing: Counter[str] = Counter()
        if report is None:
            return nothing, 0
        if not report.no_lease:
            # with a lease it asks the store itself
            return nothing, self.reserved if report.lease else 0
        now = +Counter(items=report.items, pages=report.pages, errors=report.stat(EXCEPTIONS))
        now["requests"] = report.stat(HITS) or report.ended_requests
        if "requests" in self.limits:
            # Scrapy's count has those, too, that the goal has held back
            now["requests"] = min(now["requests"], self.granted)
        release = min(self.reserved, now["requests"] - self._spent["requests"])
        changes = now - self._spent
        self._spent |= now
        return changes, release
