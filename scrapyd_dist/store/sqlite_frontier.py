"""The SQLite store's verbs about the frontier: adding, leasing in turn or by priority; triggers count."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from heapq import nsmallest

from scrapyd_dist.batches import Batch, BatchState
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, Backlog, Leased, LeaseRequest
from scrapyd_dist.store.base import QueueStore
from scrapyd_dist.store.frontier_rows import HUNGRY, slot_counts
from scrapyd_dist.store.judging import whole
from scrapyd_dist.store.sqlite_batches import NOW, SqliteBatches
from scrapyd_dist.store.sqlite_crawls import SqliteCrawls, SqliteRuns
from scrapyd_dist.store.sqlite_file import SqliteConnection, SqlitePort
from scrapyd_dist.store.sqlite_throttle import SqliteThrottle

_count = whole()
#: in the very words of the index `next_turns`, or it would not be used
_LINE = "crawl = ? AND holder = ? AND waiting > 0 AND substr(slot, 1, 1) != '@'"


@dataclass
class Share:
    """How many slots a worker has to itself, and how many it may have at most."""

    held: int = 0
    most: float = math.inf


class SqliteTurns(SqlitePort):
    """Slots that take turns."""

    def are_kept(self, crawl: str) -> bool:
        turns = self._value("SELECT turns FROM crawls WHERE id = ?", crawl)
        if turns is None:
            raise self._door.no_crawl(crawl)
        return bool(turns)

    def begin(self, crawl: str) -> None:
        """From now on the triggers keep them."""
        self._db.execute("UPDATE crawls SET turns = 1 WHERE id = ?", (crawl,))
        self._db.execute(
            "INSERT INTO slot_turns (crawl, slot, waiting)"
            " SELECT crawl, slot, sum(batches * (state IN ('sealed', 'failed'))) FROM slot_counts WHERE crawl = ?"
            " GROUP BY slot",
            (crawl,),
        )
        under_way = (
            "SELECT batches.slot, sum(batches.size) FROM attempts JOIN batches ON batches.crawl = attempts.crawl"
            " AND batches.number = attempts.batch WHERE attempts.crawl = ?"
            " AND attempts.state IN ('sending', 'sent', 'running') GROUP BY batches.slot"
        )
        for slot, requests in self._db.execute(under_way, (crawl,)).fetchall():
            self._db.execute("UPDATE slot_turns SET out = ? WHERE crawl = ? AND slot = ?", (requests, crawl, slot))

    def next_slot(self, look: LeaseRequest, share: Share) -> str | None:
        """The slot whose turn it is for this worker; one that has more than its share lets its own run out."""
        holders = [""] if share.held < share.most else []
        if share.held <= share.most:
            holders.append(look.lessee.job)
        first = [row for holder in holders for row in self._line(look, holder) if row[-1] not in look.enough]
        return min(first)[-1] if first else None

    def _line(self, look: LeaseRequest, holder: str) -> list[tuple[int, int, str]]:
        """Slots of this holder in which something waits, in turn: requests under way, turn, name; enough of them."""
        names = look.slots
        where = f"crawl = ? AND holder = ? AND waiting > 0 AND slot IN ({', '.join('?' * len(names))})"
        query = f"SELECT out, turn, slot FROM slot_turns WHERE {where if names else _LINE} ORDER BY out, turn, slot"  # noqa: S608 - own words
        rows = self._db.execute(f"{query} LIMIT ?", (look.crawl, holder, *names, len(look.enough) + 1))
        return [(out, turn, slot) for out, turn, slot in rows]

    def take(self, look: LeaseRequest, slot: str) -> bool:
        """Something of it has been leased just now; whether it has come to be this worker's alone."""
        crawl, worker = look.crawl, look.lessee.job
        self._db.execute("UPDATE crawls SET turns = turns + 1 WHERE id = ?", (crawl,))
        turn = "(SELECT turns FROM crawls WHERE id = slot_turns.crawl)"
        self._db.execute(f"UPDATE slot_turns SET turn = {turn} WHERE crawl = ? AND slot = ?", (crawl, slot))  # noqa: S608 - own words
        hold = "UPDATE slot_turns SET holder = ? WHERE crawl = ? AND slot = ? AND holder != ?"
        return look.alone and self._db.execute(hold, (worker, crawl, slot, worker)).rowcount > 0

    # shares

    def share(self, look: LeaseRequest, limit: int) -> Share:
        """How many slots this worker may have to itself; what it will take now is `limit` at most."""
        if not look.alone:
            return Share()
        crawl, worker = look.crawl, look.lessee.job
        query = "SELECT holder, count(*) FROM slot_turns WHERE crawl = ? AND holder != '' GROUP BY holder"
        held: dict[str, int] = dict(self._db.execute(query, (crawl,)).fetchall())
        asking = self._db.execute(
            f"SELECT worker FROM hungry WHERE crawl = ? AND at > {NOW} - ?",  # noqa: S608 - own words
            (crawl, HUNGRY),
        )
        workers = {worker, *held, *(row[0] for row in asking)}
        enough = len(workers) * (held.get(worker, 0) + limit)  # more free slots than these change nothing
        some = f"SELECT 1 FROM slot_turns INDEXED BY next_turns WHERE {_LINE} LIMIT ?"  # noqa: S608 - own words
        free = self._value(f"SELECT count(*) FROM ({some})", crawl, "", enough)  # noqa: S608 - own words
        return Share(held.get(worker, 0), math.ceil((free + sum(held.values())) / len(workers)))

    def note_hunger(self, look: LeaseRequest) -> None:
        """It found nothing, though something waits: others have all slots."""
        hungry = f"INSERT INTO hungry VALUES (?, ?, {NOW}) ON CONFLICT DO UPDATE SET at = excluded.at"  # noqa: S608 - own words
        self._change(hungry, (look.crawl, look.lessee.job))


#: in the very words of the index `waiting_batches`, or it would not be used
_WAITING = "state IN ('sealed', 'failed')"


class SqliteFrontier(SqlitePort, QueueStore):
    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self._turns = SqliteTurns(connection)

    # leasing

    def lease_next(self, look: LeaseRequest) -> list[Leased]:
        crawl, slots, limit = look.crawl, look.slots, look.limit
        if look.fair:
            return self._lease_in_turn(look)
        # Idle workers ask again and again; those that find nothing do not wait for the lock of those that write.
        if not self._waiting_in(crawl, slots):
            self._crawl_number(crawl)
            return []
        with self._file.step():
            waiting = self._waiting_in(crawl, slots)
            found = [batch for slot in waiting for batch in self._next_batches(crawl, slot, limit)]
            first = nsmallest(limit, found, key=lambda batch: (-batch.priority, batch.number))
            return [self._lease_one(look, batch) for batch in first]

    def _lease_in_turn(self, look: LeaseRequest) -> list[Leased]:
        if self._turns.are_kept(look.crawl) and not self._finds_turn(look):
            return []
        leased: list[Leased] = []
        with self._file.step():
            if not self._turns.are_kept(look.crawl):
                self._turns.begin(look.crawl)
            share = self._turns.share(look, look.limit)
            while len(leased) < look.limit and not self._rests(look.crawl):
                slot = self._turns.next_slot(look, share)
                if slot is None:
                    break
                found = self._next_batches(look.crawl, slot, 1)
                if not found:  # it cannot be read
                    break
                leased.append(self._lease_one(look, found[0]))
                share.held += self._turns.take(look, slot)
                look = replace(look, enough={*look.enough, slot})
        return leased

    def _finds_turn(self, look: LeaseRequest) -> bool:
        """Whether there may be something for this worker; seen without the lock, which those need that write."""
        share = self._turns.share(look, 1)
        if self._turns.next_slot(look, share) is not None:
            return not self._rests(look.crawl)
        if look.alone and not share.held and self._waiting_in(look.crawl, look.slots):
            self._turns.note_hunger(look)
        return False

    def _rests(self, crawl: str) -> bool:
        return self._value("SELECT 1 FROM crawls WHERE id = ? AND wanted != ''", crawl) is not None

    def _waiting_in(self, crawl: str, slots: Collection[str]) -> list[str]:
        """The named slots, else all of the own spider, in which something waits; none while the crawl is to rest."""
        query = (
            f"SELECT DISTINCT slot FROM slot_counts WHERE crawl = ? AND {_WAITING} AND batches > 0"  # noqa: S608 - own words
            " AND NOT EXISTS (SELECT 1 FROM crawls WHERE id = slot_counts.crawl AND wanted != '')"
        )
        waiting, named = (row[0] for row in self._db.execute(query, (crawl,))), set(slots)
        return [slot for slot in waiting if (slot in named if named else not slot.startswith(OTHER_SPIDER))]

    def _next_batches(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        where = f"crawl = ? AND slot = ? AND {_WAITING} ORDER BY priority DESC, number LIMIT ?"
        return self._all(self._door.batch, f"SELECT * FROM batches WHERE {where}", crawl, slot, limit)  # noqa: S608 - own words

    def _lease_one(self, look: LeaseRequest, batch: Batch) -> Leased:
        crawl, number = look.crawl, batch.attempts + 1
        self._insert_attempt(crawl, look.attempt_at(batch.number, number))
        # Through SENT, in one step: a worker that leases a batch has it.
        row = {"state": BatchState.RUNNING, "attempts": number}
        self._update("batches", row, crawl=crawl, number=batch.number)
        self._db.execute(
            f"INSERT INTO leases VALUES (?, ?, ?, ?, {NOW} + ?)",  # noqa: S608 - own words
            (crawl, batch.number, number, look.lessee.job, look.seconds),
        )
        leased = replace(batch, state=BatchState.RUNNING, attempts=number)
        return self._door.leased(crawl, leased, number, self._payload_text(crawl, batch.number))

    # producers

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        with self._file.step():
            self._crawl_number(crawl)
            self._db.execute(
                f"INSERT INTO producers VALUES (?, ?, {NOW} + ?)"  # noqa: S608 - own words
                " ON CONFLICT (crawl, name) DO UPDATE SET until = excluded.until",
                (crawl, producer, seconds),
            )

    def sign_off(self, crawl: str, producer: str) -> None:
        self._change("DELETE FROM producers WHERE crawl = ? AND name = ?", (crawl, producer))

    # looking

    def backlog(self, crawl: str) -> Backlog:
        with self._file.step(writes=False):
            self._crawl_number(crawl)
            known = self._db.execute(
                f"SELECT name, until < {NOW} FROM producers WHERE crawl = ? ORDER BY name",  # noqa: S608 - own words
                (crawl,),
            ).fetchall()
            query = "SELECT slot, state, batches, requests FROM slot_counts WHERE crawl = ? AND batches > 0"
            rows = self._db.execute(query, (crawl,))
            return Backlog(
                slots=slot_counts((slot, state, _count(batches), _count(size)) for slot, state, batches, size in rows),
                expired=self._value(f"SELECT count(*) FROM leases WHERE crawl = ? AND until < {NOW}", crawl),  # noqa: S608 - own words
                acked=self._value("SELECT count(*) FROM attempts WHERE crawl = ? AND state = 'acked'", crawl),
                producers=tuple(name for name, lost in known if not lost),
                lost=tuple(name for name, lost in known if lost),
                standing=bool(self._value("SELECT standing FROM crawls WHERE id = ?", crawl)),
            )

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        return self._next_batches(crawl, slot, limit)


def sqlite_parts(path: str, *, durable: bool, key: bytes | None) -> tuple[object, ...]:
    """The store in this file: the connection, and the ports that share it."""
    connection = SqliteConnection(path, durable=durable, key=key)
    ports = (SqliteCrawls, SqliteRuns, SqliteBatches, SqliteFrontier, SqliteThrottle)
    return connection, *(port(connection) for port in ports)
