"""Partitions of a strategy in the SQLite store, and the processes that hold them."""

import math
from collections.abc import Collection

from scrapyd_dist.errors import StepRefused
from scrapyd_dist.store.sqlite.sqlite_file import NOW, SqlitePort, pairs_with
from scrapyd_dist.strategy.links import PARTITIONS, StrategyProcess


class SqlitePartitions(SqlitePort):
    """The partitions of strategies; times are those of the store's clock."""

    def hold(self, strategy: int, process: str, seconds: float, *, finished: bool) -> list[int]:
        """Take the process's share for so many seconds, and return it; inside of a step."""
        self._sign_on(strategy, process, seconds, finished=finished)
        live = self._value("SELECT count(*) FROM strategy_processes WHERE strategy = ?", strategy)
        share = math.ceil(PARTITIONS / live)
        held = self._held(strategy)
        own = _partitions_of(process, held)
        free = sorted(set(range(PARTITIONS)) - held.keys())
        taken = free[: max(0, share - len(own))]
        query = "DELETE FROM strategy_partitions WHERE strategy = ? AND partition = ?"
        self._db.executemany(query, pairs_with(strategy, own[share:]))
        new_rows = ((strategy, partition, process) for partition in taken)
        self._db.executemany("INSERT INTO strategy_partitions VALUES (?, ?, ?)", new_rows)
        return sorted([*own[:share], *taken])

    def _sign_on(self, strategy: int, process: str, seconds: float, *, finished: bool) -> None:
        """Note that the process lives, and remove those whose time has run out."""
        self._db.execute(
            f"INSERT INTO strategy_processes VALUES (?, ?, {NOW} + ?, ?)"  # noqa: S608 - own words
            " ON CONFLICT (strategy, name)"
            " DO UPDATE SET until = excluded.until, finished = excluded.finished",
            (strategy, process, seconds, finished),
        )
        late = (
            "SELECT name FROM strategy_processes"  # noqa: S608 - own words
            f" WHERE strategy = ? AND until < {NOW} AND name != ?"
        )
        for (name,) in self._db.execute(late, (strategy, process)).fetchall():
            self.leave(strategy, name)

    def leave(self, strategy: int, process: str) -> None:
        """Remove a process, and free its partitions; inside of a step."""
        for table, column in (("strategy_partitions", "process"), ("strategy_processes", "name")):
            query = f"DELETE FROM {table} WHERE strategy = ? AND {column} = ?"  # noqa: S608 - own names
            self._db.execute(query, (strategy, process))

    def check(self, crawl: str, strategy: int, process: str, partitions: Collection[int]) -> None:
        """Raise `StepRefused` unless the process holds all these partitions.

        It holds a partition until another one takes it, even if its time has run out.
        """
        held = self._held(strategy)
        for partition in sorted(set(partitions)):
            if held.get(partition) != process:
                raise StepRefused(
                    f"{process} does not hold partition {partition} of the strategy of {crawl} any"
                    " more: its time ran out, or other processes have their share now"
                )

    def live(self, strategy: int) -> list[StrategyProcess]:
        """Return the processes whose time has not run out, by name."""
        query = (
            "SELECT name, finished FROM strategy_processes"  # noqa: S608 - own words
            f" WHERE strategy = ? AND until >= {NOW} ORDER BY name"
        )
        held = self._held(strategy)
        processes = []
        for name, finished in self._db.execute(query, (strategy,)):
            partitions = tuple(_partitions_of(name, held))
            processes.append(
                StrategyProcess(name=name, partitions=partitions, finished=bool(finished))
            )
        return processes

    def _held(self, strategy: int) -> dict[int, str]:
        """Return the partitions that are held, in order, and by which process."""
        query = (
            "SELECT partition, process FROM strategy_partitions WHERE strategy = ?"
            " ORDER BY partition"
        )
        return dict(map(tuple, self._db.execute(query, (strategy,))))


def _partitions_of(process: str, held: dict[int, str]) -> list[int]:
    return [partition for partition, holder in held.items() if holder == process]
