"""The Redis store's verbs about plain jobs: a hash of those that are open, one of those that are over."""

from collections.abc import Sequence

from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.store.base import JobStore
from scrapyd_dist.store.redis_link import CHUNK, Condition, RedisPort, whole, word

_OPEN, _OVER = "open", "over"


class RedisJobs(RedisPort, JobStore):
    def job_revision(self) -> int:
        return whole(self._look("HGET", self._key("meta"), "revision"), "the revision of its jobs")

    def jobs(self, *, open_only: bool = False) -> list[JobRecord]:
        looks = [("HGETALL", self._key(kind)) for kind in ((_OPEN,) if open_only else (_OVER, _OPEN))]
        rows = {word(name): text for found in self._server.ask(looks) for name, text in found.items()}
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
            ]
        return "refused" not in self._server.step("steps", self._server.prefix, needed=needed, writes=writes)

    def forget_jobs(self, before: float) -> int:
        old = [one.id for one in self.jobs() if (one.ended or one.created) < before]
        for start in range(0, len(old), CHUNK):
            some = old[start : start + CHUNK]
            gone = [("HDEL", self._key(kind), *some) for kind in (_OPEN, _OVER)]
            self._server.step("steps", self._server.prefix, writes=gone)
        return len(old)

    def _key(self, kind: str) -> str:
        return f"{self._server.prefix}jobs:{kind}"
