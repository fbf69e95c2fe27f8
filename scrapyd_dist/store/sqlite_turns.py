"""Whose turn it is in the SQLite store, where slots are leased from fairly; triggers keep what this reads.

The rule it keeps: a crawl in which nobody leases fairly pays nothing for it; its turns are kept from the first time on
that somebody does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.store.frontier_rows import HUNGRY, Share
from scrapyd_dist.store.sqlite_attempts import NOW
from scrapyd_dist.store.sqlite_file import SqlitePort

if TYPE_CHECKING:
    from scrapyd_dist.store.sqlite_crawls import SqliteCrawls
    from scrapyd_dist.store.sqlite_file import SqliteConnection

#: in the very words of the index `next_turns`, or it would not be used
_LINE = "crawl = ? AND holder = ? AND waiting > 0 AND substr(slot, 1, 1) != '@'"


@dataclass(frozen=True, kw_only=True)
class Look:
    """A worker that looks for the next slot."""

    crawl: str
    worker: str
    slots: tuple[str, ...]  #: that it takes from; none: all but those of other spiders
    enough: set[str]  #: slots of which it wants nothing
    alone: bool  #: what it takes from is its own from then on


class SqliteTurns(SqlitePort):
    """Slots that take turns."""

    def __init__(self, connection: SqliteConnection, crawls: SqliteCrawls) -> None:
        super().__init__(connection)
        self._crawls = crawls

    def are_kept(self, crawl: str) -> bool:
        row = self._db.execute("SELECT turns FROM crawls WHERE id = ?", (crawl,)).fetchone()
        if row is None:
            raise self._crawls.no_crawl(crawl)
        return bool(row[0])

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

    def next_slot(self, look: Look, share: Share) -> str | None:
        """The slot whose turn it is for this worker."""
        holders = ["", look.worker] if share.may_take else [look.worker] if share.may_go_on else []
        first = [row for holder in holders for row in self._line(look, holder) if row[-1] not in look.enough]
        return min(first)[-1] if first else None

    def _line(self, look: Look, holder: str) -> list[tuple[int, int, str]]:
        """Slots of this holder in which something waits, in turn: requests under way, turn, name; enough of them."""
        names = look.slots
        where = f"crawl = ? AND holder = ? AND waiting > 0 AND slot IN ({', '.join('?' * len(names))})"
        query = f"SELECT out, turn, slot FROM slot_turns WHERE {where if names else _LINE} ORDER BY out, turn, slot"  # noqa: S608 - own words
        rows = self._db.execute(f"{query} LIMIT ?", (look.crawl, holder, *names, len(look.enough) + 1))
        return [(out, turn, slot) for out, turn, slot in rows]

    def take(self, look: Look, slot: str) -> bool:
        """Something of it has been leased just now; whether it has come to be this worker's alone."""
        crawl, worker = look.crawl, look.worker
        self._db.execute("UPDATE crawls SET turns = turns + 1 WHERE id = ?", (crawl,))
        turn = "(SELECT turns FROM crawls WHERE id = slot_turns.crawl)"
        self._db.execute(f"UPDATE slot_turns SET turn = {turn} WHERE crawl = ? AND slot = ?", (crawl, slot))  # noqa: S608 - own words
        hold = "UPDATE slot_turns SET holder = ? WHERE crawl = ? AND slot = ? AND holder != ?"
        return look.alone and self._db.execute(hold, (worker, crawl, slot, worker)).rowcount > 0

    # shares

    def share(self, look: Look, limit: int) -> Share:
        """How many slots this worker may have to itself; what it will take now is `limit` at most."""
        if not look.alone:
            return Share()
        crawl, worker = look.crawl, look.worker
        query = "SELECT holder, count(*) FROM slot_turns WHERE crawl = ? AND holder != '' GROUP BY holder"
        held: dict[str, int] = dict(self._db.execute(query, (crawl,)).fetchall())
        asking = self._db.execute(
            f"SELECT worker FROM hungry WHERE crawl = ? AND at > {NOW} - ?",  # noqa: S608 - own words
            (crawl, HUNGRY),
        )
        workers = {worker, *held, *(row[0] for row in asking)}
        enough = len(workers) * (held.get(worker, 0) + limit)  # more free slots than these change nothing
        free = self._db.execute(
            f"SELECT count(*) FROM (SELECT 1 FROM slot_turns INDEXED BY next_turns WHERE {_LINE} LIMIT ?)",  # noqa: S608 - own words
            (crawl, "", enough),
        ).fetchone()[0]
        return Share(held=held.get(worker, 0), slots=free + sum(held.values()), workers=len(workers))

    def note_hunger(self, look: Look) -> None:
        """It found nothing, though something waits: others have all slots."""
        with self._file.step():
            self._db.execute(
                f"INSERT INTO hungry VALUES (?, ?, {NOW}) ON CONFLICT DO UPDATE SET at = excluded.at",  # noqa: S608 - own words
                (look.crawl, look.worker),
            )
