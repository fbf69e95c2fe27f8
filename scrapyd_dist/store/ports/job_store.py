"""The port for records of plain jobs, and verdicts on how jobs ended."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from scrapyd_dist.job_record import JobRecord, JobVerdict


class JobStore(ABC):
    """Records of plain jobs. A record is open until its job is seen to be over."""

    @abstractmethod
    def job_revision(self) -> int:
        """Return a number that is higher after each `keep_jobs`.

        It is read before the jobs on which a step depends.
        """

    @abstractmethod
    def jobs(self, since: float | None = None, most: int | None = None) -> list[JobRecord]:
        """Return the open records, and those of jobs that ended since then, or ever.

        They come in order of their ends, open ones by when they were written. most: so many of
        those that ended, the last ones; no other is read.
        """

    @abstractmethod
    def named_jobs(self, names: Collection[str]) -> list[JobRecord]:
        """Return the records of these ids, in any order; no other is read."""

    @abstractmethod
    def keep_jobs(self, records: Sequence[JobRecord], revision: int | None = None) -> bool:
        """Keep these records in one step, each in the place of the one of its id.

        Returns False, and keeps nothing, when `revision` is given and is not the current one.
        """

    @abstractmethod
    def forget_jobs(self, before: float) -> int:
        """Remove jobs that ended before this time, or were posted before it and are open.

        Verdicts that were written down before it are removed as well. Returns how many jobs they
        were.
        """

    @abstractmethod
    def keep_verdicts(self, verdicts: Sequence[JobVerdict]) -> None:
        """Write down how jobs ended. What is there already stays as it is."""

    @abstractmethod
    def verdicts(self, keys: Collection[str]) -> dict[str, JobVerdict]:
        """Return the verdicts that are known of these keys."""
