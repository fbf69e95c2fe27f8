"""Slots of the SQLite store that take turns, shared among the workers; triggers keep them."""

import math
from dataclasses import dataclass

from scrapyd_dist.frontier.backlog import LeaseRequest
from scrapyd_dist.store.frontier_rows import HUNGRY
from scrapyd_dist.store.sqlite_file import NOW, SqlitePort

#: in the very words of the index `next_turns`, or it would not be used
_LINE = "crawl = ? AND holder = ? AND waiting > 0 AND substr(slot, 1, 1) != '@'"


@dataclass
class Share:
    """How many slots a worker has to itself, and how many it may have at most."""

    held: int = 0
    most: float = math.inf


class SqliteTurns(SqlitePort):
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
            self._db.execute(
                "UPDATE slot_turns SET out = ? WHERE crawl = ? AND slot = ?",
                (requests, crawl, slot),
            )

    def next_slot(self, look: LeaseRequest, share: Share) -> str | None:
        """The slot whose turn it is for this worker; one that has more than its share lets its own run out."""
        holders = [""] if share.held < share.most else []
        if share.held <= share.most:
            holders.append(look.lessee.job)
        first = [
            row
            for holder in holders
            for row in self._line(look, holder)
            if row[-1] not in look.enough
        ]
        return min(first)[-1] if first else None

    def _line(self, look: LeaseRequest, holder: str) -> list[tuple[int, int, str]]:
        """Slots of this holder in which something waits, in turn: requests under way, turn, name; enough of them."""
        names = look.slots
        where = (
            f"crawl = ? AND holder = ? AND waiting > 0 AND slot IN ({', '.join('?' * len(names))})"
        )
        query = f"SELECT out, turn, slot FROM slot_turns WHERE {where if names else _LINE} ORDER BY out, turn, slot"
        rows = self._db.execute(
            f"{query} LIMIT ?", (look.crawl, holder, *names, len(look.enough) + 1)
        )
        return [(out, turn, slot) for out, turn, slot in rows]

    def take(self, look: LeaseRequest, slot: str) -> bool:
        """Something of it has been leased just now; whether it has come to be this worker's alone."""
        crawl, worker = look.crawl, look.lessee.job
        self._db.execute("UPDATE crawls SET turns = turns + 1 WHERE id = ?", (crawl,))
        turn = "(SELECT turns FROM crawls WHERE id = slot_turns.crawl)"
        give_back = f"UPDATE slot_turns SET turn = {turn} WHERE crawl = ? AND slot = ?"
        self._db.execute(give_back, (crawl, slot))
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
            f"SELECT worker FROM hungry WHERE crawl = ? AND at > {NOW} - ?",
            (crawl, HUNGRY),
        )
        workers = {worker, *held, *(row[0] for row in asking)}
        enough = len(workers) * (
            held.get(worker, 0) + limit
        )  # more free slots than these change nothing
        some = f"SELECT 1 FROM slot_turns INDEXED BY next_turns WHERE {_LINE} LIMIT ?"
        free = self._value(f"SELECT count(*) FROM ({some})", crawl, "", enough)
        return Share(held.get(worker, 0), math.ceil((free + sum(held.values())) / len(workers)))

    def note_hunger(self, look: LeaseRequest) -> None:
        """It found nothing, though something waits: others have all slots."""
        hungry = (
            f"INSERT INTO hungry VALUES (?, ?, {NOW}) ON CONFLICT DO UPDATE SET at = excluded.at"
        )
        self._change(hungry, (look.crawl, look.lessee.job))
