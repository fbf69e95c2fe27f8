"""The Redis store's verbs about plain jobs: a hash of those that are open, one of those that are over."""

from collections.abc import Collection, Sequence

from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, JobVerdict
from scrapyd_dist.store.base import JobStore
from scrapyd_dist.store.redis_link import CHUNK, Condition, RedisPort, whole, word

#: hashes of records, and a sorted set of ids by the jobs' ends
_OPEN, _OVER, _ENDS = "open", "over", "ends"
#: likewise of verdicts, by when they were written down
_VERDICTS, _WRITTEN = "verdicts", "written"


class RedisJobs(RedisPort, JobStore):
    def job_revision(self) -> int:
        return whole(self._look("HGET", self._key("meta"), "revision"), "the revision of its jobs")

    def jobs(self, since: float | None = None) -> list[JobRecord]:
        looks: list[Sequence[object]] = [("HGETALL", self._key(_OPEN))]
        names = []
        if since is None:
            looks.insert(0, ("HGETALL", self._key(_OVER)))
        elif since != OPEN_ONLY:
            names = self._look("ZRANGEBYSCORE", self._key(_ENDS), since, "+inf")
            looks += [("HMGET", self._key(_OVER), *names)] if names else []
        answers = self._server.ask(looks)
        texts = answers.pop() if names else []
        rows = {word(name): text for found in answers for name, text in found.items()}
        rows |= {
            word(name): text for name, text in zip(names, texts, strict=True) if text is not None
        }
        found = self._door.each(lambda row: self._door.job(*row), rows.items())
        return sorted(found, key=lambda one: (one.ended or one.created, one.id))

    def keep_jobs(self, records: Sequence[JobRecord], revision: int | None = None) -> bool:
        key = self._key("meta")
        needed = (
            [] if revision is None else [Condition(key, "revision", [revision] if revision else ())]
        )
        writes: list[Sequence[object]] = [("HINCRBY", key, "revision", 1)]
        for one in records:
            now, before = (_OVER, _OPEN) if one.state.over else (_OPEN, _OVER)
            writes += [
                ("HDEL", self._key(before), one.id),
                ("HSET", self._key(now), one.id, self._door.job_text(one)),
                ("ZADD", self._key(_ENDS), one.at, one.id),
            ]
        return "refused" not in self._server.step(
            "steps", self._server.prefix, needed=needed, writes=writes
        )

    def keep_verdicts(self, verdicts: Sequence[JobVerdict]) -> None:
        writes: list[Sequence[object]] = []
        for one in verdicts:
            writes += [
                ("HSETNX", self._key(_VERDICTS), one.key, self._door.verdict_text(one)),
                ("ZADD", self._key(_WRITTEN), "NX", one.at, one.key),
            ]
        for start in range(0, len(writes), CHUNK):
            self._server.step("steps", self._server.prefix, writes=writes[start : start + CHUNK])

    def verdicts(self, keys: Collection[str]) -> dict[str, JobVerdict]:
        wanted = sorted(keys)
        chunks = [wanted[start : start + CHUNK] for start in range(0, len(wanted), CHUNK)]
        answers = self._server.ask([("HMGET", self._key(_VERDICTS), *some) for some in chunks])
        texts = [text for some in answers for text in some]
        rows = ((key, text) for key, text in zip(wanted, texts, strict=True) if text is not None)
        return {one.key: one for one in self._door.each(lambda row: self._door.verdict(*row), rows)}

    def forget_jobs(self, before: float) -> int:
        self._forget(_WRITTEN, (_VERDICTS,), before)
        return self._forget(_ENDS, (_OPEN, _OVER), before)

    def _forget(self, order: str, hashes: Collection[str], before: float) -> int:
        """Remove what stands before this time in the order of such a name, and from these hashes; how many."""
        old = list(map(word, self._look("ZRANGEBYSCORE", self._key(order), "-inf", f"({before}")))
        for start in range(0, len(old), CHUNK):
            some = old[start : start + CHUNK]
            gone = [("HDEL", self._key(name), *some) for name in hashes]
            self._server.step(
                "steps", self._server.prefix, writes=[*gone, ("ZREM", self._key(order), *some)]
            )
        return len(old)

    def _key(self, kind: str) -> str:
        return f"{self._server.prefix}jobs:{kind}"
