"""Events of workers for a crawl's strategy in the SQLite store, and the strategy's own row."""

from collections.abc import Collection, Sequence
from heapq import merge
from itertools import islice

from scrapyd_dist.errors import StepRefused
from scrapyd_dist.store.sqlite.sqlite_file import SqliteConnection, SqlitePort, pairs_with
from scrapyd_dist.strategy.links import LinkEvent


class SqliteEvents(SqlitePort):
    """Events that wait or are dead, and the counts and numbers of a strategy."""

    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self._rows = connection.link_rows

    def strategy(self, crawl: str) -> int | None:
        """Return the short number of the crawl's strategy, if it has one."""
        query = (
            "SELECT number FROM strategies WHERE crawl = (SELECT number FROM crawls WHERE id = ?)"
        )
        number: int | None = self._value(query, crawl)
        if number is None:
            self._crawl_number(crawl)
        return number

    def opened_strategy(self, crawl: str) -> int:
        """Return the short number of the crawl's strategy, which is made when there is none."""
        number = self.strategy(crawl)
        if number is None:
            number = self._insert("strategies", {"crawl": self._crawl_number(crawl)})
        return number

    def count(self, strategy: int, **changes: int) -> None:
        """Add to these counts of the strategy."""
        assignments = ", ".join(f"{name} = {name} + ?" for name in changes)
        query = f"UPDATE strategies SET {assignments} WHERE number = ?"  # noqa: S608 - own names
        self._db.execute(query, (*changes.values(), strategy))

    def numbers(self, strategy: int, kind: str, how_many: int) -> int:
        """Take the next so many numbers of this kind, and return the last one given before them."""
        last: int = self._value(f"SELECT {kind} FROM strategies WHERE number = ?", strategy)  # noqa: S608 - own names
        if how_many:
            self.count(strategy, **{kind: how_many})
        return last

    def add(self, crawl: str, events: Sequence[LinkEvent]) -> None:
        """Keep new events; inside of a step."""
        if not events:
            return
        strategy = self.opened_strategy(crawl)
        first = self.numbers(strategy, "events", len(events)) + 1
        rows = []
        for number, event in enumerate(events, first):
            kept = self._rows.event_text(crawl, event)
            rows.append((strategy, number, event.partition, kept))
        query = "INSERT INTO link_events (strategy, number, partition, event) VALUES (?, ?, ?, ?)"
        self._db.executemany(query, rows)
        self.count(strategy, pending=len(rows))

    def first(
        self, strategy: int, partitions: Collection[int], limit: int
    ) -> list[tuple[int, str]]:
        """Return number and text of the oldest events that wait in these partitions."""
        query = (
            "SELECT number, event FROM link_events"
            " WHERE strategy = ? AND partition = ? AND fault IS NULL ORDER BY number"
        )
        lines = []
        for partition in sorted(set(partitions)):
            rows = self._db.execute(query, (strategy, partition))
            lines.append(rows)
        oldest_first = merge(*lines, key=lambda row: row["number"])
        return list(map(tuple, islice(oldest_first, limit)))

    def remove(self, crawl: str, strategy: int, numbers: Collection[int]) -> None:
        """Remove handled events; `StepRefused` when one of them does not wait any more."""
        query = "DELETE FROM link_events WHERE strategy = ? AND number = ? AND fault IS NULL"
        rows = list(pairs_with(strategy, set(numbers)))
        self._must_change(crawl, query, rows)
        self.count(strategy, pending=-len(rows))

    def bury(self, crawl: str, strategy: int, faults: Sequence[tuple[int, str]]) -> None:
        """Make dead letters of these events, for these reasons."""
        query = (
            "UPDATE link_events SET fault = ? WHERE strategy = ? AND number = ? AND fault IS NULL"
        )
        self._must_change(crawl, query, [(fault, strategy, number) for number, fault in faults])
        self.count(strategy, pending=-len(faults), dead=len(faults))

    def _must_change(self, crawl: str, query: str, rows: Sequence[Sequence[object]]) -> None:
        if rows and self._db.executemany(query, rows).rowcount != len(rows):
            raise StepRefused(f"another process has handled events of {crawl} meanwhile")

    def dead(self, strategy: int, limit: int) -> list[tuple[int, str, str]]:
        """Return number, text and fault of the first dead letters."""
        query = (
            "SELECT number, event, fault FROM link_events WHERE strategy = ? AND fault IS NOT NULL"
            " ORDER BY number LIMIT ?"
        )
        return list(map(tuple, self._db.execute(query, (strategy, limit))))

    def revive(self, strategy: int, numbers: Collection[int] | None) -> int:
        """Let these dead letters wait again, or all, and return how many there were."""
        query = "UPDATE link_events SET fault = NULL WHERE strategy = ? AND fault IS NOT NULL"
        revived = 0
        if numbers is None:
            revived = self._db.execute(query, (strategy,)).rowcount
        elif numbers:
            rows = pairs_with(strategy, set(numbers))
            revived = self._db.executemany(f"{query} AND number = ?", rows).rowcount
        self.count(strategy, pending=revived, dead=-revived)
        return revived
