"""The Redis store's verbs about attempts, and leases on them; each step goes by the tables of batches.py."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import (
    ATTEMPT_STEPS,
    LEASABLE,
    Attempt,
    AttemptState,
    BatchState,
    check_attempt_step,
    check_step,
    job_id,
)
from scrapyd_dist.errors import NothingMatched, StepRefused
from scrapyd_dist.store.frontier_rows import lost_lease
from scrapyd_dist.store.judging import foreign
from scrapyd_dist.store.redis_batches import before
from scrapyd_dist.store.redis_port import OPEN, RedisPort, attempt_name, packed, unpacked
from scrapyd_dist.store.rows import storable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from scrapyd_dist.batches import Miss
    from scrapyd_dist.store.redis_batches import RedisBatches
    from scrapyd_dist.store.redis_link import Command, Condition, RedisConnection


def _attempt_before(state: AttemptState) -> list[str]:
    return [json.dumps(old.value) for old, new in ATTEMPT_STEPS.items() if state in new]


class RedisAttempts(RedisPort):
    """Attempts and leases."""

    def __init__(self, connection: RedisConnection, batches: RedisBatches) -> None:
        super().__init__(connection)
        self._batches = batches

    # attempts

    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        key, batch = self._attempt_key(crawl, attempt.batch, attempt.number), self._batch_key(crawl, attempt.batch)
        old = self._server.read(lambda: self._client.hget(key, "state"))
        fresh = old is None
        row = {**asdict(attempt), "report": "{}"} if fresh else _again(attempt)
        needed: list[Condition] = [
            (batch, "state", before(BatchState.SENT)),
            (key, "state", () if fresh else _attempt_before(AttemptState.SENDING)),
        ]
        commands: list[Command] = [
            ("HSET", batch, *packed({"state": BatchState.SENT.value, "attempts": attempt.number})),
            ("HSET", key, *packed(storable(row))),
            ("SADD", f"{self._base(crawl)}attempts", f"{attempt.batch}.{attempt.number}"),
        ]
        answer = self._move(crawl, attempt.batch, attempt.number, needed, commands)
        self.check(answer, crawl, attempt.batch, attempt.number, [BatchState.SENT, AttemptState.SENDING])

    def _move(
        self, crawl: str, batch: int, attempt: int, needed: Sequence[Condition], writes: Sequence[Command]
    ) -> dict[str, Any]:
        base, moved = self._base(crawl), [f"{batch}.{attempt}"]
        return self._server.step("moves", base, needed=needed, writes=writes, batches=[batch], attempts=moved)

    def sent(self, crawl: str, batch: int, attempt: int) -> None:
        self._step(crawl, batch, attempt, AttemptState.SENT)

    def refused(self, crawl: str, batch: int, attempt: int, reason: str, now: float) -> None:
        self.refuse(crawl, batch, attempt, reason, now)

    def refuse(self, crawl: str, batch: int, attempt: int, reason: str, now: float, holder: str | None = None) -> None:
        self._step(
            crawl,
            batch,
            attempt,
            AttemptState.REFUSED,
            BatchState.SEALED,
            {"attempts": attempt - 1, "reason": reason},
            holder=holder,
            reason=reason,
            ended_at=now,
        )

    def running(self, crawl: str, batch: int, attempt: int) -> None:
        self._step(crawl, batch, attempt, AttemptState.RUNNING, BatchState.RUNNING)

    def accept(
        self,
        crawl: str,
        batch: int,
        attempt: int,
        *,
        report: Mapping[str, Any],
        part: str,
        misses: Sequence[Miss],
        now: float,
    ) -> None:
        self._step(
            crawl,
            batch,
            attempt,
            AttemptState.ACCEPTED,
            BatchState.DONE,
            more=self._missing(crawl, misses),
            ended_at=now,
            report=json.dumps(dict(report)),
            part=part,
        )

    def fail(
        self, crawl: str, batch: int, attempt: int, *, reason: str, now: float, max_attempts: int, out: bool = False
    ) -> BatchState:
        # How many attempts are forgiven changes only while a batch is dead, so it may be read before.
        forgiven = self._batches.batch(crawl, batch).forgiven
        end = BatchState.FAILED if attempt - forgiven < max_attempts else BatchState.DEAD
        if end is BatchState.DEAD:
            check_step(BatchState.FAILED, end)
        changes = {"reason": reason, "state": end.value}
        self._step(
            crawl, batch, attempt, AttemptState.FAILED, BatchState.FAILED, changes, out=out, reason=reason, ended_at=now
        )
        return end

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        attempts = self._some_attempts(crawl, self._attempts_in(crawl, states))
        chosen = [attempt for attempt in attempts if not states or attempt.state in states]
        return sorted(chosen, key=lambda attempt: (attempt.sent_at, attempt.batch, attempt.number))

    def _attempts_in(self, crawl: str, states: Collection[AttemptState]) -> list[str]:
        """The names of all attempts that can be in one of these states."""
        if not states or not {state.value for state in states} <= set(OPEN):
            return self._attempt_names(crawl)
        keys = [f"{self._base(crawl)}open:{state.value}" for state in states]
        return self._door.each(attempt_name, self._server.read(lambda: self._client.sunion(keys)))

    def _some_attempts(self, crawl: str, names: Collection[str]) -> list[Attempt]:
        rows = self._server.ask([("HGETALL", f"{self._base(crawl)}a:{name}") for name in names])

        def attempt(named: tuple[str, Mapping[bytes, bytes]]) -> Attempt:
            name, row = named
            found = self._door.attempt(crawl, {"job": _job(crawl, name), **unpacked(row)})
            if f"{found.batch}.{found.number}" != name:
                raise foreign(f"attempt {name} of {crawl}", "it is another one")
            return found

        return self._door.each(attempt, (pair for pair in zip(names, rows, strict=True) if pair[1]))

    def _step(
        self,
        crawl: str,
        batch: int,
        number: int,
        to: AttemptState,
        batch_to: BatchState | None = None,
        batch_changes: Mapping[str, Any] | None = None,
        more: Sequence[Command] = (),
        holder: str | None = None,
        out: bool = False,
        **changes: Any,
    ) -> None:
        """Move the batch's current attempt, and the batch with it; for the holder of its lease, where one is named."""
        needed = self.needed(crawl, batch, number, to, batch_to, holder)
        if out:  # an attempt that was acked meanwhile is refused: `check` finds no other reason
            key, field, states = needed[0]
            needed[0] = key, field, [state for state in states if state != json.dumps(AttemptState.ACKED.value)]
        commands = [*self.commands(crawl, batch, number, {**changes, "state": to.value}), *more]
        if batch_to is not None:
            row = storable({"state": batch_to.value, **(batch_changes or {})})
            commands.append(("HSET", self._batch_key(crawl, batch), *packed(row)))
        answer = self._move(crawl, batch, number, needed, commands)
        self.check(answer, crawl, batch, number, [*([holder] if holder else []), to, None, batch_to])

    def needed(
        self,
        crawl: str,
        batch: int,
        number: int,
        to: AttemptState,
        batch_to: BatchState | None = None,
        holder: str | None = None,
    ) -> list[Condition]:
        """What has to be so for a step of an attempt; in this order, whose refusals `check` tells."""
        key = self._batch_key(crawl, batch)
        needed: list[Condition] = [
            (self._attempt_key(crawl, batch, number), "state", _attempt_before(to)),
            (key, "attempts", [number]),
        ]
        if holder is not None:
            needed.insert(0, (f"{self._base(crawl)}holders", f"{batch}.{number}", [holder]))
        return needed if batch_to is None else [*needed, (key, "state", before(batch_to))]

    def commands(self, crawl: str, batch: int, number: int, changes: Mapping[str, Any]) -> list[Command]:
        """What a step writes into an attempt; one that has ended has no lease."""
        commands: list[Command] = [("HSET", self._attempt_key(crawl, batch, number), *packed(storable(changes)))]
        if "ended_at" in changes:
            base, member = self._base(crawl), f"{batch}.{number}"
            commands += [("ZREM", f"{base}leases", member), ("HDEL", f"{base}holders", member)]
        return commands

    def check(
        self,
        answer: Mapping[str, Any],
        crawl: str,
        batch: int,
        number: int,
        wanted: Sequence[AttemptState | BatchState | str | None],
    ) -> None:
        """Raise what the first condition that did not hold means."""
        if "refused" not in answer:
            return
        state, found = wanted[answer["refused"] - 1], answer.get("found")
        if isinstance(state, AttemptState):
            if found is None:
                raise NothingMatched(f"crawl {crawl} has no attempt {number} of batch {batch}.")
            check_attempt_step(AttemptState(json.loads(found)), state)
        elif isinstance(state, BatchState):
            if found is None:
                raise NothingMatched(f"crawl {crawl} has no batch {batch}.")
            check_step(BatchState(json.loads(found)), state)
        elif state is not None:
            raise lost_lease(batch, number, state)
        raise StepRefused(f"attempt {number} of batch {batch} is over; attempt {found} is the one that counts")

    # leases

    def lease(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float) -> bool:
        return self._lease(crawl, batch, attempt, holder, seconds, again=False)

    def renew(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float) -> bool:
        return self._lease(crawl, batch, attempt, holder, seconds, again=True)

    def _lease(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float, *, again: bool) -> bool:
        current: list[Condition] = [
            (self._batch_key(crawl, batch), "attempts", [attempt]),
            (self._attempt_key(crawl, batch, attempt), "state", [json.dumps(state.value) for state in LEASABLE]),
        ]
        base, name = self._base(crawl), f"{batch}.{attempt}"
        answer = self._server.step(
            "lease", base, needed=current, attempt=name, holder=holder, seconds=seconds, again=again
        )
        return "refused" not in answer

    def expired(self, crawl: str) -> list[Attempt]:
        names = map(str.encode, self._server.step("expired", self._base(crawl))["attempts"])
        late = self._some_attempts(crawl, self._door.each(attempt_name, names))
        return sorted((a for a in late if a.state in LEASABLE), key=lambda a: (a.sent_at, a.batch, a.number))


def _again(attempt: Attempt) -> dict[str, Any]:
    """An attempt whose number is used again: what its refused post left is forgotten."""
    kept = {name: getattr(attempt, name) for name in ("node", "url", "sent_at", "worker")}
    return {**kept, "state": attempt.state.value, "ended_at": None, "reason": ""}


def _job(crawl: str, name: str) -> str:
    """The job of an attempt that was leased; the others have theirs written down."""
    batch, number = name.split(".")
    return job_id(crawl, int(batch), int(number))
