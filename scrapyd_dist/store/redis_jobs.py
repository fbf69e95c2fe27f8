"""The Redis store's verbs about plain jobs: a hash of those that are open, one of those that are over."""

from collections.abc import Sequence

from scrapyd_dist.job_record import OPEN_ONLY, JobRecord
from scrapyd_dist.store.base import JobStore
from scrapyd_dist.store.redis_link import CHUNK, Condition, RedisPort, whole, word

#: hashes of records, and a sorted set of ids by the jobs' ends
_OPEN, _OVER, _ENDS = "open", "over", "ends"


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
        rows |= {word(name): text for name, text in zip(names, texts, strict=True) if text is not None}
        found = self._door.each(lambda row: self._door.job(*row), rows.items())
        return sorted(found, key=lambda one: (one.ended or one.created, one.id))

    def keep_jobs(self, records: Sequence[JobRecord], revision: int | None = None) -> bool:
        key = self._key("meta")
        needed = [] if revision is None else [Condition(key, "revision", [revision] if revision else ())]
        writes: list[Sequence[object]] = [("HINCRBY", key, "revision", 1)]
        for one in records:
            now, before = (_OVER, _OPEN) if one.state.over else (_OPEN, _OVER)
            writes += [
                ("HDEL", self._key(before), one.id),
                ("HSET", self._key(now), one.id, self._door.job_text(one)),
                ("ZADD", self._key(_ENDS), one.at, one.id),
            ]
        return "refused" not in self._server.step("steps", self._server.prefix, needed=needed, writes=writes)

    def forget_jobs(self, before: float) -> int:
        old = self._look("ZRANGEBYSCORE", self._key(_ENDS), "-inf", f"({before}")
        old = list(map(word, old))
        for start in range(0, len(old), CHUNK):
            some = old[start : start + CHUNK]
            gone = [("HDEL", self._key(_OPEN), *some), ("HDEL", self._key(_OVER), *some)]
            gone.append(("ZREM", self._key(_ENDS), *some))
            self._server.step("steps", self._server.prefix, writes=gone)
        return len(old)

    def _key(self, kind: str) -> str:
        return f"{self._server.prefix}jobs:{kind}"
