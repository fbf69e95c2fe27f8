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
#: how a query for records begins
_JOBS = "SELECT id, record FROM jobs WHERE"
#: the limit of a query that has none
_ALL = -1


class SqliteJobs(SqlitePort, JobStore):
    """The port for plain jobs in an SQLite file."""

    def job_revision(self) -> int:
        """Return the number of `keep_jobs` that were made."""
        return int(self._value("SELECT revision FROM job_revision") or 0)

    def jobs(self, since: float | None = None, most: int | None = None) -> list[JobRecord]:
        """Return the open records, and those of jobs that ended since then, or ever."""
        ended = f"{_JOBS} is_over = 1 AND at >= ? ORDER BY at DESC LIMIT ?"
        query = f"{_JOBS} is_over = 0 UNION ALL SELECT * FROM ({ended})"  # noqa: S608 - constants
        found = self._all(self._read_job, query, since or 0.0, _ALL if most is None else most)
        return sorted(found, key=lambda record: (record.ended or record.created, record.id))

    def named_jobs(self, names: Collection[str]) -> list[JobRecord]:
        """Return the records of these ids."""
        found: list[JobRecord] = []
        for chunk in split_evenly(sorted(map(storable_text, names)), _KEYS):
            marks = ", ".join("?" * len(chunk))
            found += self._all(self._read_job, f"{_JOBS} id IN ({marks})", *chunk)
        return found

    def _read_job(self, row: dict[str, Any]) -> JobRecord:
        return self._door.job(row["id"], row["record"])

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
