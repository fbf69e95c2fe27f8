"""Slots of the SQLite store that take turns, shared among the workers; triggers keep them."""

import math
from dataclasses import dataclass

from scrapyd_dist.frontier.backlog import LeaseRequest
from scrapyd_dist.store.ports.frontier_rows import HUNGRY
from scrapyd_dist.store.sqlite.sqlite_file import NOW, SqlitePort

#: in the very words of the index `next_turns`, or it would not be used
_LINE = "crawl = ? AND holder = ? AND waiting > 0 AND substr(slot, 1, 1) != '@'"


@dataclass
class Share:
    """How many slots a worker has to itself, and how many it may have at most."""

    held: int = 0
    most: float = math.inf


class SqliteTurns(SqlitePort):
    """The turns of slots, and which worker has which slot to itself."""

    def are_kept(self, crawl: str) -> bool:
        """Return whether `begin` was called; `NoCrawl` when there is no such crawl."""
        turns = self._value("SELECT turns FROM crawls WHERE id = ?", crawl)
        if turns is None:
            raise self._door.no_crawl(crawl)
        return bool(turns)

    def begin(self, crawl: str) -> None:
        """Make the rows of the turns, which triggers keep from now on."""
        self._db.execute("UPDATE crawls SET turns = 1 WHERE id = ?", (crawl,))
        self._db.execute(
            "INSERT INTO slot_turns (crawl, slot, waiting)"
            " SELECT crawl, slot, sum(batches * (state IN ('sealed', 'failed'))) FROM slot_counts"
            " WHERE crawl = ? GROUP BY slot",
            (crawl,),
        )
        under_way = (
            "SELECT batches.slot, sum(batches.size) FROM attempts JOIN batches"
            " ON batches.crawl = attempts.crawl AND batches.number = attempts.batch"
            " WHERE attempts.crawl = ? AND attempts.state IN ('sending', 'sent', 'running')"
            " GROUP BY batches.slot"
        )
        query = "UPDATE slot_turns SET out = ? WHERE crawl = ? AND slot = ?"
        for slot, requests in self._db.execute(under_way, (crawl,)).fetchall():
            self._db.execute(query, (requests, crawl, slot))

    def next_slot(self, wanted: LeaseRequest, share: Share) -> str | None:
        """Return the slot whose turn it is for this worker, if there is one.

        A worker that has more slots than its share lets its own run out.
        """
        holders = []
        if share.held < share.most:
            holders.append("")  # slots without a holder
        if share.held <= share.most:
            holders.append(wanted.lessee.job)
        candidates = []
        for holder in holders:
            for row in self._line(wanted, holder):
                if row[-1] not in wanted.enough:
                    candidates.append(row)
                    break
        return min(candidates)[-1] if candidates else None

    def _line(self, wanted: LeaseRequest, holder: str) -> list[tuple[int, int, str]]:
        """Return slots of this holder in which something waits, in turn: as many as may be needed.

        Each is requests under way, turn and name; the holder is empty where a slot has none.
        """
        names = wanted.slots
        where = _LINE
        if names:
            marks = ", ".join("?" * len(names))
            where = f"crawl = ? AND holder = ? AND waiting > 0 AND slot IN ({marks})"
        query = (
            f"SELECT out, turn, slot FROM slot_turns WHERE {where} ORDER BY out, turn, slot LIMIT ?"  # noqa: S608 - own words
        )
        values = (wanted.crawl, holder, *names, len(wanted.enough) + 1)
        return list(map(tuple, self._db.execute(query, values)))

    def give_turn(self, wanted: LeaseRequest, slot: str) -> bool:
        """Give the slot, of which something was leased, its next turn.

        Returns whether it has come to be this worker's alone.
        """
        crawl = wanted.crawl
        worker = wanted.lessee.job
        self._db.execute("UPDATE crawls SET turns = turns + 1 WHERE id = ?", (crawl,))
        turn = "(SELECT turns FROM crawls WHERE id = slot_turns.crawl)"
        move_back = f"UPDATE slot_turns SET turn = {turn} WHERE crawl = ? AND slot = ?"  # noqa: S608 - own words
        self._db.execute(move_back, (crawl, slot))
        if not wanted.alone:
            return False
        hold = "UPDATE slot_turns SET holder = ? WHERE crawl = ? AND slot = ? AND holder != ?"
        return self._db.execute(hold, (worker, crawl, slot, worker)).rowcount > 0

    # shares

    def share(self, wanted: LeaseRequest, limit: int) -> Share:
        """Return how many slots this worker may have, which is about to take `limit` at most."""
        if not wanted.alone:
            return Share()
        crawl = wanted.crawl
        worker = wanted.lessee.job
        query = (
            "SELECT holder, count(*) FROM slot_turns WHERE crawl = ? AND holder != ''"
            " GROUP BY holder"
        )
        held: dict[str, int] = dict(self._db.execute(query, (crawl,)).fetchall())
        workers = {worker, *held}
        query = f"SELECT worker FROM hungry WHERE crawl = ? AND at > {NOW} - ?"  # noqa: S608 - own words
        for (hungry,) in self._db.execute(query, (crawl, HUNGRY)):
            workers.add(hungry)
        own = held.get(worker, 0)
        # More free slots than these change nothing, and are not counted.
        enough = len(workers) * (own + limit)
        rows = f"SELECT 1 FROM slot_turns INDEXED BY next_turns WHERE {_LINE} LIMIT ?"  # noqa: S608 - own words
        free = self._value(f"SELECT count(*) FROM ({rows})", crawl, "", enough)  # noqa: S608 - own words
        slots = free + sum(held.values())
        return Share(own, math.ceil(slots / len(workers)))

    def note_hunger(self, wanted: LeaseRequest) -> None:
        """Note that the worker found nothing, though something waits: others have all slots."""
        query = (
            f"INSERT INTO hungry VALUES (?, ?, {NOW}) ON CONFLICT DO UPDATE SET at = excluded.at"  # noqa: S608 - own words
        )
        self._change(query, (wanted.crawl, wanted.lessee.job))
