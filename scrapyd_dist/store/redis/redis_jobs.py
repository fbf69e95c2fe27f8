"""The Redis store's verbs about plain jobs: one hash of the open ones, and one of those over."""

from collections.abc import Collection, Sequence

from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, JobVerdict
from scrapyd_dist.store.ports.job_store import JobStore
from scrapyd_dist.store.ports.link_rows import split_evenly
from scrapyd_dist.store.redis.redis_link import CHUNK, Condition, RedisPort, by_word, whole, word

#: the hashes of records, by id
_OPEN = "open"
_OVER = "over"
#: the sorted set of their ids, by the jobs' ends
_ENDS = "ends"
#: the hash of verdicts by key, and the sorted set of the keys, by when they were written down
_VERDICTS = "verdicts"
_WRITTEN = "written"


class RedisJobs(RedisPort, JobStore):
    """The port for plain jobs on a Redis server."""

    def job_revision(self) -> int:
        """Return the number of `keep_jobs` that were made."""
        revision = self._query("HGET", self._key("meta"), "revision")
        return whole(revision, "the revision of its jobs")

    def jobs(self, since: float | None = None, most: int | None = None) -> list[JobRecord]:
        """Return the open records, and those of jobs that ended since then, or ever."""
        if since is None and most is None:
            over, still_open = self._server.query_all(
                [("HGETALL", self._key(_OVER)), ("HGETALL", self._key(_OPEN))]
            )
            rows = by_word(over) | by_word(still_open)
        else:
            rows = self._rows_since(since or 0.0, most)
        found = self._door.each(lambda row: self._door.job(*row), rows.items())
        return sorted(found, key=lambda record: (record.ended or record.created, record.id))

    def named_jobs(self, names: Collection[str]) -> list[JobRecord]:
        """Return the records of these ids."""
        ordered = sorted(names)
        rows = self._rows_of(_OPEN, ordered) | self._rows_of(_OVER, ordered)
        return self._door.each(lambda row: self._door.job(*row), rows.items())

    def _rows_since(self, since: float, most: int | None) -> dict[str, bytes]:
        """Return the rows of open jobs, and of those that ended since then, by id.

        most: so many of the latter, the last ones.
        """
        rows = by_word(self._query("HGETALL", self._key(_OPEN)))
        if since == OPEN_ONLY:
            return rows
        limit: Sequence[object] = ()
        if most is not None:
            # What is open has a place among the ends as well.
            limit = ("LIMIT", 0, most + len(rows))
        ends = ("ZREVRANGEBYSCORE", self._key(_ENDS), "+inf", since, *limit)
        over = list(self._rows_of(_OVER, list(map(word, self._query(*ends)))).items())
        return rows | dict(over[:most])

    def _rows_of(self, kind: str, names: Sequence[str]) -> dict[str, bytes]:
        """Return the rows of a hash that have these ids, in their order."""
        rows: dict[str, bytes] = {}
        for chunk in split_evenly(names, CHUNK):
            texts = self._query("HMGET", self._key(kind), *chunk)
            rows |= {name: text for name, text in zip(chunk, texts, strict=True) if text}
        return rows

    def keep_jobs(self, records: Sequence[JobRecord], revision: int | None = None) -> bool:
        """Keep these records in one step; False when the revision is another one by now."""
        key = self._key("meta")
        needed = []
        if revision is not None:
            values = [revision] if revision else ()
            needed.append(Condition(key, "revision", values))
        writes: list[Sequence[object]] = [("HINCRBY", key, "revision", 1)]
        for record in records:
            kind, other_kind = (_OVER, _OPEN) if record.state.over else (_OPEN, _OVER)
            writes += [
                ("HDEL", self._key(other_kind), record.id),
                ("HSET", self._key(kind), record.id, self._door.job_text(record)),
                ("ZADD", self._key(_ENDS), record.at, record.id),
            ]
        answer = self._server.step("steps", self._server.prefix, needed=needed, writes=writes)
        return "refused" not in answer

    def keep_verdicts(self, verdicts: Sequence[JobVerdict]) -> None:
        """Write down how jobs ended, where nothing is written yet."""
        writes: list[Sequence[object]] = []
        for verdict in verdicts:
            text = self._door.verdict_text(verdict)
            writes += [
                ("HSETNX", self._key(_VERDICTS), verdict.key, text),
                ("ZADD", self._key(_WRITTEN), "NX", verdict.at, verdict.key),
            ]
        for chunk in split_evenly(writes, CHUNK):
            self._server.step("steps", self._server.prefix, writes=chunk)

    def verdicts(self, keys: Collection[str]) -> dict[str, JobVerdict]:
        """Return the verdicts that are known of these keys."""
        ordered = sorted(keys)
        key = self._key(_VERDICTS)
        commands = [("HMGET", key, *chunk) for chunk in split_evenly(ordered, CHUNK)]
        texts: list[bytes | None] = []
        for answer in self._server.query_all(commands):
            texts += answer
        rows = []
        for name, text in zip(ordered, texts, strict=True):
            if text is not None:
                rows.append((name, text))
        found = self._door.each(lambda row: self._door.verdict(*row), rows)
        return {verdict.key: verdict for verdict in found}

    def forget_jobs(self, before: float) -> int:
        """Remove old jobs and verdicts, and return how many jobs they were."""
        self._forget(_WRITTEN, (_VERDICTS,), before)
        return self._forget(_ENDS, (_OPEN, _OVER), before)

    def _forget(self, order: str, hashes: Collection[str], before: float) -> int:
        """Remove what stands before this time in a sorted set, also from the hashes; how many."""
        members = self._query("ZRANGEBYSCORE", self._key(order), "-inf", f"({before}")
        old = list(map(word, members))
        for chunk in split_evenly(old, CHUNK):
            writes = [("HDEL", self._key(name), *chunk) for name in hashes]
            writes.append(("ZREM", self._key(order), *chunk))
            self._server.step("steps", self._server.prefix, writes=writes)
        return len(old)

    def _key(self, kind: str) -> str:
        return f"{self._server.prefix}jobs:{kind}"
