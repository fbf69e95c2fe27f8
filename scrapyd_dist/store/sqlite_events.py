"""Events of workers for a crawl's strategy in the SQLite store, and the strategy's own row."""

from collections.abc import Collection, Sequence
from heapq import merge
from itertools import islice

from scrapyd_dist.errors import StepRefused
from scrapyd_dist.store.sqlite_file import SqliteConnection, SqlitePort
from scrapyd_dist.strategy.links import LinkEvent


class SqliteEvents(SqlitePort):
    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self._rows = connection.link_rows

    def strategy(self, crawl: str) -> int | None:
        """The short number of the crawl's strategy, if it has one."""
        query = (
            "SELECT number FROM strategies WHERE crawl = (SELECT number FROM crawls WHERE id = ?)"
        )
        number: int | None = self._value(query, crawl)
        if number is None:
            self._crawl_number(crawl)
        return number

    def opened_strategy(self, crawl: str) -> int:
        """The same; it is made when there is none yet."""
        number = self.strategy(crawl)
        if number is None:
            number = self._insert("strategies", {"crawl": self._crawl_number(crawl)})
        return number

    def count(self, strategy: int, **changes: int) -> None:
        """Add to these counts of the strategy."""
        assignments = ", ".join(f"{name} = {name} + ?" for name in changes)
        query = f"UPDATE strategies SET {assignments} WHERE number = ?"
        self._db.execute(query, (*changes.values(), strategy))

    def numbers(self, strategy: int, kind: str, how_many: int) -> int:
        """Take the next so many numbers of this kind; the last that was given before them."""
        last: int = self._value(f"SELECT {kind} FROM strategies WHERE number = ?", strategy)
        if how_many:
            self.count(strategy, **{kind: how_many})
        return last

    def add(self, crawl: str, events: Sequence[LinkEvent]) -> None:
        """Keep them; inside of a step."""
        if not events:
            return
        strategy = self.opened_strategy(crawl)
        first = self.numbers(strategy, "events", len(events)) + 1
        rows = [
            (strategy, number, one.partition, self._rows.event_text(crawl, one))
            for number, one in enumerate(events, first)
        ]
        query = "INSERT INTO link_events (strategy, number, partition, event) VALUES (?, ?, ?, ?)"
        self._db.executemany(query, rows)
        self.count(strategy, pending=len(rows))

    def first(
        self, strategy: int, partitions: Collection[int], limit: int
    ) -> list[tuple[int, str]]:
        """The oldest that wait in these partitions: number and text."""
        query = (
            "SELECT number, event FROM link_events WHERE strategy = ? AND partition = ? AND fault IS NULL"
            " ORDER BY number"
        )
        lines = [self._db.execute(query, (strategy, one)) for one in sorted(set(partitions))]
        return [tuple(row) for row in islice(merge(*lines, key=lambda row: row["number"]), limit)]

    def remove(self, crawl: str, strategy: int, numbers: Collection[int]) -> None:
        query = "DELETE FROM link_events WHERE strategy = ? AND number = ? AND fault IS NULL"
        self._must_change(crawl, query, [(strategy, number) for number in set(numbers)])
        self.count(strategy, pending=-len(set(numbers)))

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
        query = (
            "SELECT number, event, fault FROM link_events WHERE strategy = ? AND fault IS NOT NULL"
            " ORDER BY number LIMIT ?"
        )
        return [tuple(row) for row in self._db.execute(query, (strategy, limit))]

    def revive(self, strategy: int, numbers: Collection[int] | None) -> int:
        """Let dead letters wait again, these or all; how many there were."""
        query = "UPDATE link_events SET fault = NULL WHERE strategy = ? AND fault IS NOT NULL"
        if numbers is None:
            revived = self._db.execute(query, (strategy,)).rowcount
        else:
            rows = [(strategy, number) for number in set(numbers)]
            revived = self._db.executemany(f"{query} AND number = ?", rows).rowcount if rows else 0
        self.count(strategy, pending=revived, dead=-revived)
        return revived
