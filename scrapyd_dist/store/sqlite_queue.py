"""The links of a strategy in the SQLite store, and their queue: by score within a slot, the slots in turn."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from sqlite3 import Row
from typing import Any

from scrapyd_dist.errors import StepRefused
from scrapyd_dist.store.link_rows import PROMOTED, TOGETHER, UNBELIEVED, split_evenly
from scrapyd_dist.store.sqlite_events import SqliteEvents
from scrapyd_dist.store.sqlite_file import SqliteConnection, SqlitePort
from scrapyd_dist.strategy.links import Link, States, StrategyStep

#: below the turn of every slot that has had one
_FIRST_TURN = -(1 << 52)
#: the columns of `strategies` that count links by state
_COUNTS = {States.QUEUED: "queued", States.CRAWLED: "crawled", States.ERROR: "failed"}
_KEEP = (
    "INSERT INTO links (strategy, fingerprint, url, state, score, slot, partition, depth, due, expires, reason, place)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET url = excluded.url, state = excluded.state,"
    " score = excluded.score, slot = excluded.slot, partition = excluded.partition, depth = excluded.depth,"
    " due = excluded.due, expires = excluded.expires, reason = excluded.reason, place = excluded.place"
)
_QUEUE = "INSERT OR REPLACE INTO link_queue VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_LOG = (
    "INSERT INTO link_changes (strategy, number, at, fingerprint, before, after, score, reason)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass
class _LinkChanges:
    """What a step changes, to be written together."""

    counts: Counter[str] = field(default_factory=Counter)  #: of the strategy's row
    slots: Counter[tuple[str, int]] = field(
        default_factory=Counter
    )  #: (slot, partition) -> links in its queue
    taken: dict[str, None] = field(default_factory=dict)  #: slots of which a link was taken
    kept: list[tuple[object, ...]] = field(default_factory=list)
    log: list[tuple[object, ...]] = field(default_factory=list)


class SqliteLinks(SqlitePort):
    def __init__(self, connection: SqliteConnection, events: SqliteEvents) -> None:
        super().__init__(connection)
        self._rows, self._events = connection.link_rows, events

    def find(self, strategy: int, fingerprints: Collection[bytes]) -> Iterator[Row]:
        """The rows of those that are there."""
        for some in split_evenly(list(fingerprints), TOGETHER):
            marks = ", ".join("?" * len(some))
            query = f"SELECT * FROM links WHERE strategy = ? AND fingerprint IN ({marks})"
            yield from self._db.execute(query, (strategy, *some))

    # changes

    def keep(self, strategy: int, step: StrategyStep) -> None:
        """Keep the step's links, in the queue and out of it, and log what changes; inside of a step."""
        last = {link.fingerprint: link for link in step.links}
        before = {row["fingerprint"]: row for row in self.find(strategy, last)}
        changes = _LinkChanges()
        for link in last.values():
            self._keep_one(strategy, step, before.get(link.fingerprint), link, changes)
        self._db.executemany(_KEEP, changes.kept)
        self._write(strategy, changes)

    def move(self, strategy: int, step: StrategyStep) -> None:
        """Give links that are QUEUED another score, and another place in the queue; inside of a step."""
        changes, rows = _LinkChanges(), []
        for row in list(self.find(strategy, step.moved)):
            move = step.moved[row["fingerprint"]]
            if row["state"] != States.QUEUED:
                continue
            score, due = float(move.score), row["due"] if move.due is None else float(move.due)
            rows.append((score, due, strategy, row["fingerprint"]))
            if row["place"] is not None:
                self._leave(row["place"], changes)
                query = "UPDATE link_queue SET score = ?, due = ?, later = ? WHERE number = ?"
                self._db.execute(query, (score, due, due > step.now, row["place"]))
                self._enter(row["slot"], row["partition"], later=due > step.now, changes=changes)
            if score != row["score"]:
                queued = int(States.QUEUED)
                changes.log.append((step.now, row["fingerprint"], queued, queued, score, ""))
        self._db.executemany(
            "UPDATE links SET score = ?, due = ? WHERE strategy = ? AND fingerprint = ?", rows
        )
        self._write(strategy, changes)

    def take(self, strategy: int, step: StrategyStep) -> None:
        """Take the links of the step's new batches out of the queue, or raise `StepRefused`; inside of a step."""
        prints = [one for batch in step.new for one in batch.fingerprints]
        changes, places = _LinkChanges(), list[int]()
        for row in list(self.find(strategy, prints)):
            if row["place"] is not None:
                places.append(row["place"])
                self._leave(row["place"], changes)
                changes.taken[row["slot"]] = None
        if len(places) < len(prints):
            raise StepRefused(
                f"links of a new batch of {step.crawl} are not in its queue: another process has them"
            )
        self._db.executemany(
            "DELETE FROM link_queue WHERE number = ?", [(place,) for place in places]
        )
        query = "UPDATE links SET place = NULL WHERE strategy = ? AND fingerprint = ?"
        self._db.executemany(query, [(strategy, one) for one in prints])
        self._write(strategy, changes)

    def _keep_one(
        self, strategy: int, step: StrategyStep, old: Row | None, link: Link, changes: _LinkChanges
    ) -> None:
        place = self._requeue(strategy, step, old, link, changes)
        before = States(old["state"]) if old else States.NOT_CRAWLED
        for state, change in ((before, -1), (link.state, 1)):
            if state in _COUNTS:
                changes.counts[_COUNTS[state]] += change
        url, state, score, slot, partition, depth, due, expires, reason, _ = self._rows.fields(link)
        row = (
            strategy,
            link.fingerprint,
            url,
            state,
            score,
            slot,
            partition,
            depth,
            due,
            expires,
            reason,
            place,
        )
        changes.kept.append(row)
        if before != state or reason or (old and old["score"] != score):
            changes.log.append((step.now, link.fingerprint, int(before), state, score, reason))

    def _requeue(
        self, strategy: int, step: StrategyStep, old: Row | None, link: Link, changes: _LinkChanges
    ) -> int | None:
        """Put a link into the queue, or take it out; gives its place, if it has one."""
        place: int | None = old["place"] if old else None
        waits = link.state is States.QUEUED and link.request is not None
        if place is not None:
            self._leave(place, changes)
            if not waits:
                self._db.execute("DELETE FROM link_queue WHERE number = ?", (place,))
                changes.taken[old["slot"] if old else ""] = None
                return None
        if not waits or link.request is None:
            return None
        later = link.due > step.now
        self._enter(link.slot, link.partition, later=later, changes=changes)
        request = self._rows.request_text(step.crawl, link.fingerprint, link.request)
        row = (
            place,
            strategy,
            link.fingerprint,
            link.slot,
            link.partition,
            float(link.score),
            float(link.due),
            later,
            request,
        )
        return self._db.execute(_QUEUE, row).lastrowid

    def _enter(self, slot: str, partition: int, *, later: bool, changes: _LinkChanges) -> None:
        changes.counts["waiting"] += 1
        changes.counts["later"] += later
        changes.slots[slot, partition] += not later

    def _leave(self, place: int, changes: _LinkChanges) -> None:
        slot, partition, later = self._db.execute(
            "SELECT slot, partition, later FROM link_queue WHERE number = ?", (place,)
        ).fetchone()
        changes.counts["waiting"] -= 1
        changes.counts["later"] -= later
        changes.slots[slot, partition] -= not later

    def _write(self, strategy: int, changes: _LinkChanges) -> None:
        """Log and count what has changed."""
        number = self._events.numbers(strategy, "changes", len(changes.log))
        self._db.executemany(
            _LOG, ((strategy, at, *row) for at, row in enumerate(changes.log, number + 1))
        )
        counts = {name: number for name, number in changes.counts.items() if number}
        if counts:
            self._events.count(strategy, **counts)
        self._count_slots(strategy, changes.slots)
        turn = self._events.numbers(strategy, "turns", len(changes.taken))
        turns = [(at, strategy, slot) for at, slot in enumerate(changes.taken, turn + 1)]
        self._db.executemany(
            "UPDATE link_slots SET turn = ? WHERE strategy = ? AND slot = ?", turns
        )

    def _count_slots(self, strategy: int, slots: Counter[tuple[str, int]]) -> None:
        """Slots that are new come before all that had a turn, in the order in which they came."""
        new = self._events.numbers(strategy, "slots", len(slots)) + _FIRST_TURN
        rows = [
            (strategy, *place, more, new + at)
            for at, (place, more) in enumerate(slots.items(), 1)
            if more
        ]
        self._db.executemany(
            "INSERT INTO link_slots (strategy, slot, partition, queued, turn) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (strategy, slot, partition) DO UPDATE SET queued = queued + excluded.queued",
            rows,
        )

    def set_aside(self, strategy: int, fingerprints: Collection[bytes], now: float) -> None:
        """Take these out of the queue as they are, with an error; inside of a step."""
        changes = _LinkChanges()
        for row in self.find(strategy, fingerprints):
            if row["place"] is not None:
                self._leave(row["place"], changes)
                self._db.execute("DELETE FROM link_queue WHERE number = ?", (row["place"],))
            ends = (int(States.QUEUED), int(States.ERROR), row["score"], UNBELIEVED)
            changes.log.append((now, row["fingerprint"], *ends))
        query = "UPDATE links SET state = ?, place = NULL, reason = ? WHERE strategy = ? AND fingerprint = ?"
        rows = [(int(States.ERROR), UNBELIEVED, strategy, one) for one in fingerprints]
        self._db.executemany(query, rows)
        changes.counts.update({"queued": -len(rows), "failed": len(rows)})
        self._write(strategy, changes)

    # the front of the queue

    def promote(self, strategy: int, partitions: Collection[int], now: float) -> None:
        """Links that are due now join the queue, some thousands in one look; inside of a step."""
        query = (
            "SELECT number, slot FROM link_queue WHERE strategy = ? AND partition = ? AND due <= ? AND later = 1"
            " ORDER BY due, number LIMIT ?"
        )
        slots: Counter[tuple[str, int]] = Counter()
        for partition in partitions:
            due = self._db.execute(query, (strategy, partition, now, PROMOTED)).fetchall()
            self._db.executemany(
                "UPDATE link_queue SET later = 0 WHERE number = ?", [row[:1] for row in due]
            )
            slots.update((row["slot"], partition) for row in due)
        self._events.count(strategy, later=-slots.total())
        self._count_slots(strategy, slots)

    def has_due(self, strategy: int, partitions: Collection[int], now: float) -> bool:
        query = "SELECT 1 FROM link_queue WHERE strategy = ? AND partition = ? AND due <= ? AND later = 1 LIMIT 1"
        return any(self._value(query, strategy, partition, now) for partition in partitions)

    def next_slots(self, strategy: int, partitions: Collection[int]) -> Iterator[str]:
        """The slots that are not full, in turn."""
        query = (
            "SELECT turn, slot FROM link_slots WHERE strategy = ? AND partition = ? AND queued > 0 AND is_full = 0"
            " ORDER BY turn, slot"
        )
        lines = [self._db.execute(query, (strategy, one)) for one in sorted(set(partitions))]
        told = set()
        for _, slot in merge(*map(_tuples, lines)):
            if slot not in told:
                told.add(slot)
                yield slot

    def first(
        self, strategy: int, slot: str, partitions: Collection[int], limit: int
    ) -> list[dict[str, Any]]:
        """The links of a slot that come first, with their requests."""
        query = (
            "SELECT -score, number, fingerprint, request FROM link_queue WHERE strategy = ? AND slot = ?"
            " AND partition = ? AND later = 0 ORDER BY score DESC, number"
        )
        there = "SELECT partition FROM link_slots WHERE strategy = ? AND slot = ? AND queued > 0"
        lines = [
            row[0] for row in self._db.execute(there, (strategy, slot)) if row[0] in partitions
        ]
        rows = islice(
            merge(*(_tuples(self._db.execute(query, (strategy, slot, one))) for one in lines)),
            limit,
        )
        requests = {fingerprint: request for _, _, fingerprint, request in rows}
        links = {row["fingerprint"]: dict(row) for row in self.find(strategy, requests)}
        return [
            {**links[one], "request": request} for one, request in requests.items() if one in links
        ]

    def waiting(self, crawl: str, slot: str) -> int:
        """Requests that wait in batches of a slot."""
        query = (
            "SELECT coalesce(sum(requests), 0) FROM slot_counts WHERE crawl = ? AND slot = ?"
            " AND state IN ('sealed', 'failed')"
        )
        return int(self._value(query, crawl, slot))

    def pass_over(self, crawl: str, strategy: int, slots: Sequence[str], ahead: int) -> None:
        """Full slots are looked at again when something of their batches was leased; inside of a step."""
        full = [(strategy, slot) for slot in slots if self.waiting(crawl, slot) >= ahead]
        self._db.executemany(
            "UPDATE link_slots SET is_full = 1 WHERE strategy = ? AND slot = ?", full
        )

    def look_again(self, strategy: int, ahead: int) -> None:
        """Slots were full by another measure."""
        self._db.execute(
            "UPDATE link_slots SET is_full = 0 WHERE strategy = ? AND is_full = 1", (strategy,)
        )
        self._db.execute("UPDATE strategies SET ahead = ? WHERE number = ?", (ahead, strategy))


def _tuples(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    return map(tuple, rows)
