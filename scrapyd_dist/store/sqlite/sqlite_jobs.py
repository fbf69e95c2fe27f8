"""The SQLite store's verbs about plain jobs."""

from collections.abc import Collection, Sequence
from typing import Any

from scrapyd_dist.job_record import JobRecord, JobVerdict
from scrapyd_dist.store.ports.job_store import JobStore
from scrapyd_dist.store.ports.link_rows import split_evenly
from scrapyd_dist.store.ports.rows import storable_text
from scrapyd_dist.store.sqlite.sqlite_file import SqlitePort

#: the most keys that one query names
_KEYS = 500


class SqliteJobs(SqlitePort, JobStore):
    """The port for plain jobs in an SQLite file."""

    def job_revision(self) -> int:
        """Return the number of `keep_jobs` that were made."""
        return int(self._value("SELECT revision FROM job_revision") or 0)

    def jobs(self, since: float | None = None) -> list[JobRecord]:
        """Return the open records, and those of jobs that ended since then, or ever."""
        query = "SELECT id, record FROM jobs WHERE is_over = 0 OR (is_over = 1 AND at >= ?)"
        found = self._all(lambda row: self._door.job(row["id"], row["record"]), query, since or 0.0)
        return sorted(found, key=lambda record: (record.ended or record.created, record.id))

    def keep_jobs(self, records: Sequence[JobRecord], revision: int | None = None) -> bool:
        """Keep these records in one step; False when the revision is another one by now."""
        with self._file.step():
            if revision not in (None, self.job_revision()):
                return False
            self._db.execute("UPDATE job_revision SET revision = revision + 1")
            for record in records:
                row = {
                    "id": record.id,
                    "is_over": record.state.over,
                    "at": record.at,
                    "record": self._door.job_text(record),
                }
                self._insert("jobs", row, verb="INSERT OR REPLACE")
        return True

    def keep_verdicts(self, verdicts: Sequence[JobVerdict]) -> None:
        """Write down how jobs ended, where nothing is written yet."""
        with self._file.step():
            for verdict in verdicts:
                kept = self._door.verdict_text(verdict)
                row = {"key": verdict.key, "at": verdict.at, "verdict": kept}
                self._insert("verdicts", row, verb="INSERT OR IGNORE")

    def verdicts(self, keys: Collection[str]) -> dict[str, JobVerdict]:
        """Return the verdicts that are known of these keys."""

        def read_verdict(row: dict[str, Any]) -> JobVerdict:
            return self._door.verdict(row["key"], row["verdict"])

        found: list[JobVerdict] = []
        for chunk in split_evenly(sorted(map(storable_text, keys)), _KEYS):
            marks = ", ".join("?" * len(chunk))
            query = f"SELECT key, verdict FROM verdicts WHERE key IN ({marks})"  # noqa: S608 - marks
            found += self._all(read_verdict, query, *chunk)
        return {verdict.key: verdict for verdict in found}

    def forget_jobs(self, before: float) -> int:
        """Remove old jobs and verdicts, and return how many jobs they were."""
        with self._file.step():
            self._db.execute("DELETE FROM verdicts WHERE at < ?", (before,))
            return self._db.execute("DELETE FROM jobs WHERE at < ?", (before,)).rowcount
