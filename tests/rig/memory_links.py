"""What an engine in memory keeps of a strategy: links with their queue, events, and who works on it."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scrapyd_dist.errors import StepRefused
from scrapyd_dist.store.ports.link_rows import by_fingerprint
from scrapyd_dist.strategy.links import (
    PARTITIONS,
    Link,
    LinkChange,
    States,
    StrategyProcess,
    StrategyStep,
)

Row = dict[str, Any]


class StrategyData:
    """What is kept of one strategy."""

    def __init__(self) -> None:
        self.ended = False
        self.links: dict[bytes, Link] = {}
        self.places: dict[bytes, int] = {}
        self.later: set[bytes] = set()
        self.last_place = 0
        #: slot -> when it was taken from last; one that is new comes before all others
        self.turns: dict[str, tuple[int, int]] = {}
        self.last_turn = 0
        self.events: dict[int, Row] = {}
        self.last_event = 0
        self.changes: list[LinkChange] = []
        self.domains: dict[str, str] = {}
        self.processes: dict[str, tuple[float, bool]] = {}
        self.held: dict[int, str] = {}

    def add_events(self, partitions: Sequence[int], texts: Sequence[str]) -> None:
        """Keep events behind all others."""
        for partition, text in zip(partitions, texts, strict=True):
            self.last_event += 1
            self.events[self.last_event] = {"partition": partition, "text": text, "fault": None}

    def hold(self, process: str, now: float, seconds: float, *, finished: bool) -> list[int]:
        """Take the process's share of the partitions, and return it."""
        self.processes[process] = (now + seconds, finished)
        for name, (until, _) in list(self.processes.items()):
            if until < now and name != process:
                self.leave(name)
        share = math.ceil(PARTITIONS / len(self.processes))
        own = self._held_by(process)
        free = sorted(set(range(PARTITIONS)) - self.held.keys())
        for number in own[share:]:
            del self.held[number]
        self.held |= dict.fromkeys(free[: max(0, share - len(own))], process)
        return self._held_by(process)

    def leave(self, process: str) -> None:
        """Free the partitions of a process that ends."""
        self.processes.pop(process, None)
        self.held = {number: name for number, name in self.held.items() if name != process}

    def live(self, now: float) -> list[StrategyProcess]:
        """Processes whose time has not run out, by name."""
        found = []
        for name, (until, said) in sorted(self.processes.items()):
            held = tuple(self._held_by(name))
            if until >= now:
                found.append(StrategyProcess(name=name, finished=said, partitions=held))
        return found

    def _held_by(self, process: str) -> list[int]:
        return sorted(number for number, name in self.held.items() if name == process)

    def waiting_events(self) -> dict[int, Row]:
        """Events that are no dead letters, by number."""
        return {number: row for number, row in self.events.items() if row["fault"] is None}

    def dead_events(self) -> dict[int, Row]:
        """Dead letters, by number."""
        return {number: row for number, row in self.events.items() if row["fault"] is not None}

    def check(self, step: StrategyStep, dead: Collection[int]) -> None:
        """Raise `StepRefused` unless the step can be made; `dead` are the batches that are."""
        prints = [name for batch in step.new for name in batch.fingerprints]
        links = by_fingerprint(step.links)
        queued = {name for name, one in links.items() if one.request and one.state is States.QUEUED}
        handled = [*step.handled, *step.dead]
        if any(self.held.get(number) != step.process for number in step.partitions):
            raise StepRefused(f"{step.process} does not hold a partition any more")
        if len({*handled} & self.waiting_events().keys()) < len({*step.handled}) + len(step.dead):
            raise StepRefused("another process has handled events meanwhile")
        if len({*prints} & (queued | (self.places.keys() - links.keys()))) < len(prints):
            raise StepRefused("links of a new batch are not in the queue")
        if not {*dead}.issuperset(step.dropped):
            raise StepRefused("a batch is not dead any more")

    def change(self, step: StrategyStep) -> None:
        """Make the changes of a step that are about links and events."""
        for number in step.handled:
            self.events.pop(number, None)
        for number, fault in step.dead.items():
            self.events[number]["fault"] = fault
        for one in by_fingerprint(step.links).values():
            self._keep(step, one)
        for name, move in step.moved.items():
            old = self.links.get(name)
            if old is not None and old.state is States.QUEUED:
                due = old.due if move.due is None else move.due
                self._move(step, replace(old, score=float(move.score), due=float(due)))
        for batch in step.new:
            for name in batch.fingerprints:
                self._leave(name)

    def _keep(self, step: StrategyStep, new: Link) -> None:
        name, old = new.fingerprint, self.links.get(new.fingerprint)
        before = States.NOT_CRAWLED if old is None else old.state
        if before != new.state or new.reason or (old and old.score != new.score):
            self._log(step, before, new)
        self.links[name] = new
        if new.state is not States.QUEUED or new.request is None:
            self._leave(name)
            return
        if name not in self.places:
            self.last_place += 1
            self.places[name] = self.last_place
        self.turns.setdefault(new.slot, (0, len(self.turns)))
        self._put_off(name, later=new.due > step.now)

    def _move(self, step: StrategyStep, new: Link) -> None:
        if new.score != self.links[new.fingerprint].score:
            self._log(step, new.state, replace(new, reason=""))
        self.links[new.fingerprint] = new
        if new.fingerprint in self.places:
            self._put_off(new.fingerprint, later=new.due > step.now)

    def _put_off(self, name: bytes, *, later: bool) -> None:
        self.later.discard(name)
        if later:
            self.later.add(name)

    def _leave(self, name: bytes) -> None:
        self.later.discard(name)
        if self.places.pop(name, None):
            self.last_turn += 1
            self.turns[self.links[name].slot] = (1, self.last_turn)

    def _log(self, step: StrategyStep, before: States, new: Link) -> None:
        self.changes.append(
            LinkChange(
                number=len(self.changes) + 1,
                at=step.now,
                fingerprint=new.fingerprint,
                url="",
                before=before,
                after=new.state,
                score=new.score,
                reason=new.reason,
            )
        )

    def heads(
        self, partitions: Collection[int], rooms: Mapping[str, int], ahead: int, now: float
    ) -> Iterator[Link]:
        """The links that come next, slot by slot; `rooms` are requests that wait in batches."""
        mine = [one for one in self.places if self.links[one].partition in partitions]
        self.later -= {one for one in mine if self.links[one].due <= now}
        ready = [self.links[one] for one in mine if one not in self.later]
        ready.sort(key=lambda one: (-one.score, self.places[one.fingerprint]))
        for slot in sorted({one.slot for one in ready}, key=lambda slot: (self.turns[slot], slot)):
            of_slot = [replace(one, waits=True) for one in ready if one.slot == slot]
            yield from of_slot[: max(0, ahead - rooms.get(slot, 0))]
