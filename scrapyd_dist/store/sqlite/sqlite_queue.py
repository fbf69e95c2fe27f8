"""The links of strategies in the SQLite store, and their queue.

Within a slot the highest scores come first; the slots take turns.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from sqlite3 import Row
from typing import Any

from scrapyd_dist.errors import StepRefused
from scrapyd_dist.store.ports.link_rows import (
    PROMOTED,
    TOGETHER,
    UNBELIEVED,
    by_fingerprint,
    split_evenly,
)
from scrapyd_dist.store.sqlite.sqlite_events import SqliteEvents
from scrapyd_dist.store.sqlite.sqlite_file import SqliteConnection, SqlitePort, pairs_with
from scrapyd_dist.strategy.links import Link, States, StrategyStep

#: below the turn of every slot that has had one
_FIRST_TURN = -(1 << 52)
#: the columns of `strategies` that count links by state
STATE_COUNTS = {States.QUEUED: "queued", States.CRAWLED: "crawled", States.ERROR: "failed"}
#: keeps a link, in the place of that of its fingerprint
_KEEP = (
    "INSERT INTO links (strategy, fingerprint, url, state, score, slot, partition, depth, due,"
    " expires, reason, place) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET url = excluded.url, state = excluded.state,"
    " score = excluded.score, slot = excluded.slot, partition = excluded.partition,"
    " depth = excluded.depth, due = excluded.due, expires = excluded.expires,"
    " reason = excluded.reason, place = excluded.place"
)
#: puts a link into the queue
_QUEUE = "INSERT OR REPLACE INTO link_queue VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
#: logs a change of a link
_LOG = (
    "INSERT INTO link_changes (strategy, number, at, fingerprint, before, after, score, reason)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass
class _LinkChanges:
    """What a step changes, to be written together."""

    #: column of the strategy's row -> what is added to it
    counts: Counter[str] = field(default_factory=Counter)
    #: (slot, partition) -> links added to its queue
    slots: Counter[tuple[str, int]] = field(default_factory=Counter)
    #: slots of which a link was taken, in order
    taken: dict[str, None] = field(default_factory=dict)
    #: rows for `_KEEP`
    kept: list[tuple[object, ...]] = field(default_factory=list)
    #: rows for `_LOG`, without strategy and number
    log: list[tuple[object, ...]] = field(default_factory=list)


class SqliteLinks(SqlitePort):
    """Links of strategies, with the queue of those that wait."""

    def __init__(self, connection: SqliteConnection, events: SqliteEvents) -> None:
        super().__init__(connection)
        self._rows = connection.link_rows
        self._events = events

    def find(self, strategy: int, fingerprints: Collection[bytes]) -> Iterator[Row]:
        """Yield the rows of those of these links that are there."""
        for chunk in split_evenly(list(fingerprints), TOGETHER):
            marks = ", ".join("?" * len(chunk))
            query = f"SELECT * FROM links WHERE strategy = ? AND fingerprint IN ({marks})"  # noqa: S608 - only marks are added
            yield from self._db.execute(query, (strategy, *chunk))

    # changes

    def keep(self, strategy: int, step: StrategyStep) -> None:
        """Keep the step's links and their places in the queue, and log it; inside of a step."""
        last = by_fingerprint(step.links)
        before = {row["fingerprint"]: row for row in self.find(strategy, last)}
        changes = _LinkChanges()
        for link in last.values():
            self._keep_link(strategy, step, before.get(link.fingerprint), link, changes)
        self._db.executemany(_KEEP, changes.kept)
        self._write(strategy, changes)

    def move(self, strategy: int, step: StrategyStep) -> None:
        """Give QUEUED links another score, and another place in the queue; inside of a step."""
        changes = _LinkChanges()
        moved: list[tuple[object, ...]] = []
        for row in list(self.find(strategy, step.moved)):
            if row["state"] == States.QUEUED:
                score, due = self._move_in_queue(step, row, changes)
                moved.append((score, due, strategy, row["fingerprint"]))
        query = "UPDATE links SET score = ?, due = ? WHERE strategy = ? AND fingerprint = ?"
        self._db.executemany(query, moved)
        self._write(strategy, changes)

    def _move_in_queue(
        self, step: StrategyStep, row: Row, changes: _LinkChanges
    ) -> tuple[float, float]:
        """Move a link to its new place, and return its new score and when it is due."""
        fingerprint = row["fingerprint"]
        place = row["place"]
        move = step.moved[fingerprint]
        score = float(move.score)
        due = row["due"] if move.due is None else float(move.due)
        if place is not None:
            self._leave(place, changes)
            query = "UPDATE link_queue SET score = ?, due = ?, later = ? WHERE number = ?"
            self._db.execute(query, (score, due, due > step.now, place))
            self._enter(row["slot"], row["partition"], later=due > step.now, changes=changes)
        if score != row["score"]:
            queued = int(States.QUEUED)
            changes.log.append((step.now, fingerprint, queued, queued, score, ""))
        return score, due

    def take_out(self, strategy: int, step: StrategyStep) -> None:
        """Take the links of the step's new batches out of the queue; inside of a step.

        Raises `StepRefused` when one of them is not there.
        """
        prints: list[bytes] = []
        for batch in step.new:
            prints += batch.fingerprints
        changes = _LinkChanges()
        places: list[tuple[int]] = []
        for row in list(self.find(strategy, prints)):
            if row["place"] is not None:
                places.append((row["place"],))
                self._leave(row["place"], changes)
                changes.taken[row["slot"]] = None
        if len(places) < len(prints):
            raise StepRefused(
                f"links of a new batch of {step.crawl} are not in its queue: another process has"
                " them"
            )
        self._db.executemany("DELETE FROM link_queue WHERE number = ?", places)
        query = "UPDATE links SET place = NULL WHERE strategy = ? AND fingerprint = ?"
        self._db.executemany(query, pairs_with(strategy, prints))
        self._write(strategy, changes)

    def _keep_link(
        self, strategy: int, step: StrategyStep, old: Row | None, link: Link, changes: _LinkChanges
    ) -> None:
        place = self._requeue(strategy, step, old, link, changes)
        before = States(old["state"]) if old else States.NOT_CRAWLED
        for counted_state, change in ((before, -1), (link.state, 1)):
            if counted_state in STATE_COUNTS:
                changes.counts[STATE_COUNTS[counted_state]] += change
        *fields, _ = self._rows.fields(link)  # without the last, which the place tells
        changes.kept.append((strategy, link.fingerprint, *fields, place))
        _, state, score, *_, reason = fields
        if before != state or reason or (old and old["score"] != score):
            changes.log.append((step.now, link.fingerprint, int(before), state, score, reason))

    def _requeue(
        self, strategy: int, step: StrategyStep, old: Row | None, link: Link, changes: _LinkChanges
    ) -> int | None:
        """Put a link into the queue, or take it out, and return its place, if it has one."""
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
        last = self._events.numbers(strategy, "changes", len(changes.log))
        self._db.executemany(_LOG, _numbered_rows(strategy, last + 1, changes.log))
        counts = {name: change for name, change in changes.counts.items() if change}
        if counts:
            self._events.count(strategy, **counts)
        self._count_slots(strategy, changes.slots)
        last_turn = self._events.numbers(strategy, "turns", len(changes.taken))
        query = "UPDATE link_slots SET turn = ? WHERE strategy = ? AND slot = ?"
        turns = enumerate(changes.taken, last_turn + 1)
        self._db.executemany(query, ((turn, strategy, slot) for turn, slot in turns))

    def _count_slots(self, strategy: int, slots: Counter[tuple[str, int]]) -> None:
        """Add to the links of slots.

        Slots that are new come before all that had a turn, in the order in which they came.
        """
        query = (
            "INSERT INTO link_slots (strategy, slot, partition, queued, turn)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (strategy, slot, partition)"
            " DO UPDATE SET queued = queued + excluded.queued"
        )
        last = self._events.numbers(strategy, "slots", len(slots)) + _FIRST_TURN
        rows = []
        for turn, ((slot, partition), change) in enumerate(slots.items(), last + 1):
            if not change:
                continue
            rows.append((strategy, slot, partition, change, turn))
        self._db.executemany(query, rows)

    def set_aside(self, strategy: int, fingerprints: Collection[bytes], now: float) -> None:
        """Take these out of the queue as they are, with an error; inside of a step."""
        changes = _LinkChanges()
        for row in self.find(strategy, fingerprints):
            if row["place"] is not None:
                self._leave(row["place"], changes)
                self._db.execute("DELETE FROM link_queue WHERE number = ?", (row["place"],))
            ends = (int(States.QUEUED), int(States.ERROR), row["score"], UNBELIEVED)
            changes.log.append((now, row["fingerprint"], *ends))
        query = (
            "UPDATE links SET state = ?, place = NULL, reason = ?"
            " WHERE strategy = ? AND fingerprint = ?"
        )
        end = (int(States.ERROR), UNBELIEVED, strategy)
        self._db.executemany(query, ((*end, fingerprint) for fingerprint in fingerprints))
        changes.counts["queued"] -= len(fingerprints)
        changes.counts["failed"] += len(fingerprints)
        self._write(strategy, changes)

    # the front of the queue

    def promote(self, strategy: int, partitions: Collection[int], now: float) -> None:
        """Let links that are due now join the queue, some thousands at once; inside of a step."""
        query = (
            "SELECT number, slot FROM link_queue"
            " WHERE strategy = ? AND partition = ? AND due <= ? AND later = 1"
            " ORDER BY due, number LIMIT ?"
        )
        slots: Counter[tuple[str, int]] = Counter()
        for partition in partitions:
            due = self._db.execute(query, (strategy, partition, now, PROMOTED)).fetchall()
            numbers = ((number,) for number, _ in due)
            self._db.executemany("UPDATE link_queue SET later = 0 WHERE number = ?", numbers)
            for _, slot in due:
                slots[slot, partition] += 1
        self._events.count(strategy, later=-slots.total())
        self._count_slots(strategy, slots)

    def has_due(self, strategy: int, partitions: Collection[int], now: float) -> bool:
        """Return whether `promote` would find a link."""
        query = (
            "SELECT 1 FROM link_queue"
            " WHERE strategy = ? AND partition = ? AND due <= ? AND later = 1 LIMIT 1"
        )
        return any(self._value(query, strategy, partition, now) for partition in partitions)

    def next_slots(self, strategy: int, partitions: Collection[int]) -> Iterator[str]:
        """Yield the slots that are not full, in turn, each once."""
        query = (
            "SELECT turn, slot FROM link_slots"
            " WHERE strategy = ? AND partition = ? AND queued > 0 AND is_full = 0"
            " ORDER BY turn, slot"
        )
        lines = []
        for partition in sorted(set(partitions)):
            rows = self._db.execute(query, (strategy, partition))
            lines.append(_tuples(rows))
        seen = set()
        for _, slot in merge(*lines):
            if slot not in seen:
                seen.add(slot)
                yield slot

    def first(
        self, strategy: int, slot: str, partitions: Collection[int], limit: int
    ) -> list[dict[str, Any]]:
        """Return the links of a slot that come first, with their requests."""
        requests = self._first_requests(strategy, slot, partitions, limit)
        rows = {row["fingerprint"]: row for row in self.find(strategy, requests)}
        found = []
        for fingerprint, request in requests.items():
            if fingerprint in rows:
                found.append({**dict(rows[fingerprint]), "request": request})
        return found

    def _first_requests(
        self, strategy: int, slot: str, partitions: Collection[int], limit: int
    ) -> dict[bytes, str]:
        """Return the requests of the links that come first, by fingerprint and in order."""
        filled = "SELECT partition FROM link_slots WHERE strategy = ? AND slot = ? AND queued > 0"
        query = (
            "SELECT -score, number, fingerprint, request FROM link_queue"
            " WHERE strategy = ? AND slot = ? AND partition = ? AND later = 0"
            " ORDER BY score DESC, number"
        )
        lines = []
        for (partition,) in self._db.execute(filled, (strategy, slot)):
            if partition in partitions:
                rows = self._db.execute(query, (strategy, slot, partition))
                lines.append(_tuples(rows))
        first = islice(merge(*lines), limit)
        return {fingerprint: request for _, _, fingerprint, request in first}

    def waiting(self, crawl: str, slot: str) -> int:
        """Return how many requests wait in batches of a slot."""
        query = (
            "SELECT coalesce(sum(requests), 0) FROM slot_counts WHERE crawl = ? AND slot = ?"
            " AND state IN ('sealed', 'failed')"
        )
        return int(self._value(query, crawl, slot))

    def pass_over(self, crawl: str, strategy: int, slots: Sequence[str], ahead: int) -> None:
        """Pass over those of these slots that are still full; inside of a step.

        They have their turn again when something of their batches was leased.
        """
        full = [(strategy, slot) for slot in slots if self.waiting(crawl, slot) >= ahead]
        query = "UPDATE link_slots SET is_full = 1 WHERE strategy = ? AND slot = ?"
        self._db.executemany(query, full)

    def look_again(self, strategy: int, ahead: int) -> None:
        """Give full slots their turn again: they were full by another measure than `ahead`."""
        query = "UPDATE link_slots SET is_full = 0 WHERE strategy = ? AND is_full = 1"
        self._db.execute(query, (strategy,))
        self._db.execute("UPDATE strategies SET ahead = ? WHERE number = ?", (ahead, strategy))


def _tuples(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    """Return the rows as tuples, which can be compared."""
    return map(tuple, rows)


def _numbered_rows(
    strategy: int, first: int, rows: Iterable[tuple[object, ...]]
) -> Iterator[tuple[object, ...]]:
    for number, row in enumerate(rows, first):
        yield (strategy, number, *row)
