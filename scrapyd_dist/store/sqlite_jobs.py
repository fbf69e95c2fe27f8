"""The SQLite store's verbs about plain jobs."""

from collections.abc import Sequence

from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.store.base import JobStore
from scrapyd_dist.store.sqlite_file import SqlitePort


class SqliteJobs(SqlitePort, JobStore):
    def job_revision(self) -> int:
        return int(self._value("SELECT revision FROM job_revision") or 0)

    def jobs(self, since: float | None = None) -> list[JobRecord]:
        query = "SELECT id, record FROM jobs WHERE is_over = 0 OR (is_over = 1 AND at >= ?)"
        found = self._all(lambda row: self._door.job(row["id"], row["record"]), query, since or 0.0)
        return sorted(found, key=lambda one: (one.ended or one.created, one.id))

    def keep_jobs(self, records: Sequence[JobRecord], revision: int | None = None) -> bool:
        with self._file.step():
            if revision not in (None, self.job_revision()):
                return False
            self._db.execute("UPDATE job_revision SET revision = revision + 1")
            for one in records:
                row = {"id": one.id, "is_over": one.state.over, "at": one.at}
                self._insert("jobs", {**row, "record": self._door.job_text(one)}, verb="INSERT OR REPLACE")
        return True

    def forget_jobs(self, before: float) -> int:
        with self._file.step():
            return self._db.execute("DELETE FROM jobs WHERE at < ?", (before,)).rowcount
