"""The port for plain jobs, in memory."""

from collections.abc import Collection, Sequence

from scrapyd_dist.job_record import JobRecord, JobVerdict
from scrapyd_dist.store.ports.job_store import JobStore

from .memory_data import MemoryPort


class MemoryJobs(MemoryPort, JobStore):
    def job_revision(self) -> int:
        return self._connection.data.revision

    def jobs(self, since: float | None = None, most: int | None = None) -> list[JobRecord]:
        with self._connection.step() as data:
            rows = [
                (row["at"], name, row["text"])
                for name, row in data.jobs.items()
                if row["over"] and (since is None or row["at"] >= since)
            ]
            rows = sorted(rows, reverse=True)[:most]
            rows += [(0.0, name, row["text"]) for name, row in data.jobs.items() if not row["over"]]
        found = self._door.each(lambda row: self._door.job(*row[1:]), rows)
        return sorted(found, key=lambda record: (record.ended or record.created, record.id))

    def named_jobs(self, names: Collection[str]) -> list[JobRecord]:
        with self._connection.step() as data:
            rows = [(name, data.jobs[name]["text"]) for name in names if name in data.jobs]
        return self._door.each(lambda row: self._door.job(*row), rows)

    def keep_jobs(self, records: Sequence[JobRecord], revision: int | None = None) -> bool:
        rows = {
            one.id: {"over": one.state.over, "at": one.at, "text": self._door.job_text(one)}
            for one in records
        }
        with self._connection.step() as data:
            if revision not in (None, data.revision):
                return False
            data.revision += 1
            data.jobs.update(rows)
            return True

    def forget_jobs(self, before: float) -> int:
        with self._connection.step() as data:
            for name in [name for name, row in data.verdicts.items() if row["at"] < before]:
                del data.verdicts[name]
            old = [name for name, row in data.jobs.items() if row["at"] < before]
            for name in old:
                del data.jobs[name]
            return len(old)

    def keep_verdicts(self, verdicts: Sequence[JobVerdict]) -> None:
        with self._connection.step() as data:
            for one in verdicts:
                row = {"at": one.at, "text": self._door.verdict_text(one)}
                data.verdicts.setdefault(one.key, row)

    def verdicts(self, keys: Collection[str]) -> dict[str, JobVerdict]:
        with self._connection.step() as data:
            rows = [(key, data.verdicts[key]["text"]) for key in keys if key in data.verdicts]
        found = self._door.each(lambda row: self._door.verdict(*row), rows)
        return {verdict.key: verdict for verdict in found}
