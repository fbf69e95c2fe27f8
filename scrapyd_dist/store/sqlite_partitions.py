"""Partitions of a strategy in the SQLite store, and the processes that hold them, by the store's clock."""

import math
from collections.abc import Collection

from scrapyd_dist.errors import StepRefused
from scrapyd_dist.store.sqlite_file import NOW, SqlitePort
from scrapyd_dist.strategy.links import PARTITIONS, StrategyProcess


class SqlitePartitions(SqlitePort):
    def hold(self, strategy: int, process: str, seconds: float, *, finished: bool) -> list[int]:
        """Take the process's share; inside of a step."""
        self._db.execute(
            f"INSERT INTO strategy_processes VALUES (?, ?, {NOW} + ?, ?)"
            " ON CONFLICT (strategy, name) DO UPDATE SET until = excluded.until, finished = excluded.finished",
            (strategy, process, seconds, finished),
        )
        late = f"SELECT name FROM strategy_processes WHERE strategy = ? AND until < {NOW} AND name != ?"
        for (name,) in self._db.execute(late, (strategy, process)).fetchall():
            self.leave(strategy, name)
        live = self._value("SELECT count(*) FROM strategy_processes WHERE strategy = ?", strategy)
        share = math.ceil(PARTITIONS / live)
        held = self._held(strategy)
        mine = [partition for partition, holder in held.items() if holder == process]
        free = [partition for partition in range(PARTITIONS) if partition not in held]
        given, taken = mine[share:], free[: max(0, share - len(mine))]
        rows = [(strategy, partition) for partition in given]
        self._db.executemany(
            "DELETE FROM strategy_partitions WHERE strategy = ? AND partition = ?", rows
        )
        rows_taken = [(strategy, partition, process) for partition in taken]
        self._db.executemany("INSERT INTO strategy_partitions VALUES (?, ?, ?)", rows_taken)
        return sorted([*mine[:share], *taken])

    def leave(self, strategy: int, process: str) -> None:
        for table, column in (("strategy_partitions", "process"), ("strategy_processes", "name")):
            query = f"DELETE FROM {table} WHERE strategy = ? AND {column} = ?"
            self._db.execute(query, (strategy, process))

    def check(self, crawl: str, strategy: int, process: str, partitions: Collection[int]) -> None:
        """Raise `StepRefused` unless the process holds them all; until another one takes one, it does."""
        held = self._held(strategy)
        lost = sorted(one for one in set(partitions) if held.get(one) != process)
        if lost:
            raise StepRefused(
                f"{process} does not hold partition {lost[0]} of the strategy of {crawl} any more: its time ran out, or"
                " other processes have their share now"
            )

    def live(self, strategy: int) -> list[StrategyProcess]:
        query = f"SELECT name, finished FROM strategy_processes WHERE strategy = ? AND until >= {NOW} ORDER BY name"
        held = self._held(strategy)
        return [
            StrategyProcess(
                name=name,
                partitions=tuple(partition for partition, holder in held.items() if holder == name),
                finished=bool(finished),
            )
            for name, finished in self._db.execute(query, (strategy,))
        ]

    def _held(self, strategy: int) -> dict[int, str]:
        """The partitions that are held, in order, and by which process."""
        query = "SELECT partition, process FROM strategy_partitions WHERE strategy = ? ORDER BY partition"
        return dict(map(tuple, self._db.execute(query, (strategy,))))
