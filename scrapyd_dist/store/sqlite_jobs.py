"""The SQLite store's verbs about plain jobs."""

from collections.abc import Collection, Sequence

from scrapyd_dist.job_record import JobRecord, JobVerdict
from scrapyd_dist.store.base import JobStore
from scrapyd_dist.store.rows import text
from scrapyd_dist.store.sqlite_file import SqlitePort

#: keys that are asked for in one query
_ASKED = 500


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
                self._insert(
                    "jobs", {**row, "record": self._door.job_text(one)}, verb="INSERT OR REPLACE"
                )
        return True

    def keep_verdicts(self, verdicts: Sequence[JobVerdict]) -> None:
        with self._file.step():
            for one in verdicts:
                row = {"key": one.key, "at": one.at, "verdict": self._door.verdict_text(one)}
                self._insert("verdicts", row, verb="INSERT OR IGNORE")

    def verdicts(self, keys: Collection[str]) -> dict[str, JobVerdict]:
        found, wanted = list[JobVerdict](), sorted(map(text, keys))
        for start in range(0, len(wanted), _ASKED):
            some = wanted[start : start + _ASKED]
            query = f"SELECT key, verdict FROM verdicts WHERE key IN ({', '.join('?' * len(some))})"
            found += self._all(
                lambda row: self._door.verdict(row["key"], row["verdict"]), query, *some
            )
        return {one.key: one for one in found}

    def forget_jobs(self, before: float) -> int:
        with self._file.step():
            self._db.execute("DELETE FROM verdicts WHERE at < ?", (before,))
            return self._db.execute("DELETE FROM jobs WHERE at < ?", (before,)).rowcount
