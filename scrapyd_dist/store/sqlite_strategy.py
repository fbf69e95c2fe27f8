"""The SQLite store's verbs about crawling strategies."""

from collections.abc import Collection
from typing import Any

from scrapyd_dist.batches import Batch, BatchState
from scrapyd_dist.errors import ForeignRow, NothingMatched, StepRefused
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.store.base import StrategyStore
from scrapyd_dist.store.frontier_rows import BatchStep, at_work
from scrapyd_dist.store.link_rows import TOGETHER, checked_metadata, split_evenly
from scrapyd_dist.store.sqlite_batches import SqliteBatches
from scrapyd_dist.store.sqlite_crawls import SqliteCrawls
from scrapyd_dist.store.sqlite_events import SqliteEvents
from scrapyd_dist.store.sqlite_file import SqliteConnection, SqlitePort
from scrapyd_dist.store.sqlite_jobs import SqliteJobs
from scrapyd_dist.store.sqlite_partitions import SqlitePartitions
from scrapyd_dist.store.sqlite_queue import SqliteLinks
from scrapyd_dist.store.sqlite_throttle import SqliteThrottle
from scrapyd_dist.strategy.links import (
    Link,
    LinkChange,
    LinkEvent,
    States,
    StrategyBacklog,
    StrategyStep,
    is_empty,
)


class SqliteStrategy(SqlitePort, StrategyStore):
    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self._rows, self._batches = connection.link_rows, SqliteBatches(connection)
        self._events, self._partitions = SqliteEvents(connection), SqlitePartitions(connection)
        self._links = SqliteLinks(connection, self._events)

    # processes

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        with self._file.step():
            return self._partitions.hold(
                self._events.opened_strategy(crawl), process, seconds, finished=finished
            )

    def leave_partitions(self, crawl: str, process: str) -> None:
        with self._file.step():
            strategy = self._events.strategy(crawl)
            if strategy is not None:
                self._partitions.leave(strategy, process)

    # looking

    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        while True:
            with self._file.step(writes=False):
                strategy = self._events.strategy(crawl)
                rows = (
                    self._events.first(strategy, partitions, limit) if strategy is not None else []
                )
            found, faults = list[LinkEvent](), list[tuple[int, str]]()
            for number, text in rows:
                try:
                    found.append(self._rows.event(crawl, number, text))
                except ForeignRow as error:
                    self._door.tell(str(error))
                    faults.append((number, str(error)))
            if strategy is None or not faults:
                return found
            with self._file.step():  # out of the way of those behind them
                self._events.bury(crawl, strategy, faults)

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            rows = (
                []
                if strategy is None
                else list(map(dict, self._links.find(strategy, set(fingerprints))))
            )
        links = self._door.each(self._link, rows)
        return {link.fingerprint: link for link in links}

    def _link(self, row: dict[str, Any], request: Any = None) -> Link:
        return self._rows.link(
            row["fingerprint"], {**row, "waits": row["place"] is not None}, request
        )

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        with self._file.step(writes=False):
            strategy, rows = self._events.strategy(crawl), list[tuple[str, str]]()
            for some in split_evenly(list(names), TOGETHER):
                marks = ", ".join("?" * len(some))
                query = f"SELECT domain, metadata FROM link_domains WHERE strategy = ? AND domain IN ({marks})"
                rows += map(tuple, self._db.execute(query, (strategy, *some)))
        return dict(self._door.each(lambda row: (row[0], self._rows.domain(*row)), rows))

    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        while True:
            with self._file.step(writes=False):
                strategy = self._events.strategy(crawl)
                if strategy is None or self._takes_none(crawl, strategy):
                    return []
                due = self._links.has_due(strategy, partitions, now)
                known = (
                    self._value("SELECT ahead FROM strategies WHERE number = ?", strategy) == ahead
                )
            if due or not known:
                with self._file.step():
                    self._links.promote(strategy, partitions, now)
                    if not known:
                        self._links.look_again(strategy, ahead)
            with self._file.step(writes=False):
                found, full = self._fronts(crawl, strategy, partitions, ahead, limit)
            if full:
                with self._file.step():
                    self._links.pass_over(crawl, strategy, full, ahead)
            links = self._door.each(lambda row: self._link(row, self._request(crawl, row)), found)
            if len(links) == len(found):
                return links
            # Out of the way of those behind them.
            bad = {row["fingerprint"] for row in found} - {link.fingerprint for link in links}
            with self._file.step():
                self._links.set_aside(strategy, bad, now)

    def _request(self, crawl: str, row: dict[str, Any]) -> RequestValue:
        return self._rows.request(crawl, row["fingerprint"], row["request"])

    def _takes_none(self, crawl: str, strategy: int) -> bool:
        query = (
            "SELECT 1 FROM strategies, crawls WHERE strategies.number = ? AND crawls.id = ?"
            " AND (strategies.ended OR wanted != '')"
        )
        return self._value(query, strategy, crawl) is not None

    def _fronts(
        self, crawl: str, strategy: int, partitions: Collection[int], ahead: int, limit: int
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The first links of the slots in turn with their requests, and slots that were found full."""
        found, full, held = list[dict[str, Any]](), list[str](), set(partitions)
        for slot in self._links.next_slots(strategy, held):
            if len(found) >= limit:
                break
            room = ahead - self._links.waiting(crawl, slot)
            if room > 0:
                found += self._links.first(strategy, slot, held, min(room, limit - len(found)))
            else:
                full.append(slot)
        return found, full

    # steps

    def apply(self, step: StrategyStep) -> list[Batch]:
        crawl = step.crawl
        with self._file.step():
            strategy = self._events.opened_strategy(crawl)
            self._partitions.check(crawl, strategy, step.process, step.partitions)
            self._events.remove(crawl, strategy, step.handled)
            self._events.bury(crawl, strategy, list(step.dead.items()))
            self._links.keep(strategy, step)
            self._links.move(strategy, step)
            self._links.take(strategy, step)
            self._events.add(crawl, step.events)
            self._keep_domains(strategy, step)
            for number in step.dropped:
                self._drop(crawl, number)
            return self._batches.make_step(BatchStep(crawl, new=step.new, counts=step.counts))

    def _keep_domains(self, strategy: int, step: StrategyStep) -> None:
        kept = {name: it for name, it in step.domains.items() if it is not None}
        gone = [(strategy, name) for name in step.domains.keys() - kept.keys()]
        rows = [(strategy, name, checked_metadata(name, it)) for name, it in kept.items()]
        self._db.executemany("DELETE FROM link_domains WHERE strategy = ? AND domain = ?", gone)
        self._db.executemany("INSERT OR REPLACE INTO link_domains VALUES (?, ?, ?)", rows)

    def _drop(self, crawl: str, number: int) -> None:
        try:
            state = self._batches.batch(crawl, number).state
        except NothingMatched:
            state = None
        if state is not BatchState.DEAD:
            raise StepRefused(f"batch {number} of {crawl} is not dead any more")
        self._batches.make_step(BatchStep(crawl, number, dropped=True))

    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        with self._file.step():
            if if_empty and not is_empty(
                self._batches.backlog(crawl), self.strategy_backlog(crawl)
            ):
                return False
            self._update("strategies", {"ended": ended}, number=self._events.opened_strategy(crawl))
            return True

    # what a person asks for

    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            if strategy is None:
                return StrategyBacklog(states={})
            row = self._db.execute(
                "SELECT * FROM strategies WHERE number = ?", (strategy,)
            ).fetchone()
            processes = self._partitions.live(strategy)
        states = {
            States.QUEUED: row["queued"],
            States.CRAWLED: row["crawled"],
            States.ERROR: row["failed"],
        }
        return StrategyBacklog(
            states={state: number for state, number in states.items() if number},
            queued=row["waiting"] - row["later"],
            later=row["later"],
            events=row["pending"],
            dead=row["dead"],
            processes=processes,
            ended=bool(row["ended"]),
        )

    def changes(self, crawl: str, after: int = 0, limit: int = 10_000) -> list[LinkChange]:
        query = (
            "SELECT log.number, at, log.fingerprint, coalesce(links.url, '') AS url, before, after, log.score,"
            " log.reason FROM link_changes AS log LEFT JOIN links"
            " ON links.strategy = log.strategy AND links.fingerprint = log.fingerprint"
            " WHERE log.strategy = ? AND log.number > ? ORDER BY log.number LIMIT ?"
        )
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            return self._all(
                lambda row: self._rows.change(row["fingerprint"], row),
                query,
                strategy,
                after,
                limit,
            )

    def dead_events(self, crawl: str, limit: int = 1_000) -> list[LinkEvent]:
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            rows = [] if strategy is None else self._events.dead(strategy, limit)
        return self._door.each(lambda row: self._rows.event(crawl, *row), rows)

    def replay(self, crawl: str, numbers: Collection[int] | None = None) -> int:
        with self._file.step():
            strategy = self._events.strategy(crawl)
            return 0 if strategy is None else self._events.revive(strategy, numbers)

    def reset_strategy(self, crawl: str) -> None:
        with self._file.step():
            strategy = self._events.strategy(crawl)
            self._check_rest(crawl, strategy)
            self._db.execute("UPDATE strategies SET crawl = NULL WHERE number = ?", (strategy,))
            # Those that a worker could lease before they are gone.
            self._db.execute(
                "DELETE FROM batches WHERE crawl = ? AND state IN ('sealed', 'failed')", (crawl,)
            )
            self._db.execute("DELETE FROM counts WHERE crawl = ?", (crawl,))
        self._file.clear(crawl, self._crawl_number(crawl))

    def _check_rest(self, crawl: str, strategy: int | None) -> None:
        """Raise `StepRefused` while something works on the strategy."""
        query = "SELECT count(*) FROM attempts WHERE crawl = ? AND state IN ('sending', 'sent', 'running', 'acked')"
        out = self._value(query, crawl)
        busy = (
            [one.name for one in self._partitions.live(strategy) if one.partitions]
            if strategy is not None
            else []
        )
        if out or busy:
            raise at_work(crawl, out, (busy or [""])[0])


def sqlite_parts(path: str, *, durable: bool, owned: bool, key: bytes | None) -> tuple[object, ...]:
    """The store in this file: the connection, and the ports that share it."""
    connection = SqliteConnection(path, durable=durable, owned=owned, key=key)
    ports = (SqliteCrawls, SqliteBatches, SqliteThrottle, SqliteJobs, SqliteStrategy)
    return connection, *(port(connection) for port in ports)
