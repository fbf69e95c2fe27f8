"""The SQLite store's verbs about crawling strategies."""

from collections.abc import Collection
from typing import Any

from scrapyd_dist.batches import Batch, BatchState
from scrapyd_dist.errors import ForeignRow, NothingMatched, StepRefused
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.store.ports.frontier_rows import BatchStep, at_work
from scrapyd_dist.store.ports.link_rows import (
    TOGETHER,
    by_fingerprint,
    checked_metadata,
    split_evenly,
)
from scrapyd_dist.store.ports.strategy_store import StrategyStore
from scrapyd_dist.store.sqlite.sqlite_batches import SqliteBatches
from scrapyd_dist.store.sqlite.sqlite_events import SqliteEvents
from scrapyd_dist.store.sqlite.sqlite_file import SqliteConnection, SqlitePort
from scrapyd_dist.store.sqlite.sqlite_partitions import SqlitePartitions
from scrapyd_dist.store.sqlite.sqlite_queue import STATE_COUNTS, SqliteLinks
from scrapyd_dist.strategy.links import (
    Link,
    LinkChange,
    LinkEvent,
    StrategyBacklog,
    StrategyStep,
    is_empty,
)


class SqliteStrategy(SqlitePort, StrategyStore):
    """The port for crawling strategies in an SQLite file."""

    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self._rows = connection.link_rows
        self._batches = SqliteBatches(connection)
        self._events = SqliteEvents(connection)
        self._partitions = SqlitePartitions(connection)
        self._links = SqliteLinks(connection, self._events)

    # processes

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        """Take the process's share of the partitions, and return it."""
        with self._file.step():
            strategy = self._events.opened_strategy(crawl)
            return self._partitions.hold(strategy, process, seconds, finished=finished)

    def leave_partitions(self, crawl: str, process: str) -> None:
        """Free the partitions of a process that ends."""
        with self._file.step():
            strategy = self._events.strategy(crawl)
            if strategy is not None:
                self._partitions.leave(strategy, process)

    # events, links and domains

    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        """Return the oldest events of these partitions; those that cannot be read become dead."""
        while True:
            with self._file.step(writes=False):
                strategy = self._events.strategy(crawl)
                if strategy is None:
                    return []
                rows = self._events.first(strategy, partitions, limit)
            found: list[LinkEvent] = []
            faults: list[tuple[int, str]] = []
            for number, text in rows:
                try:
                    found.append(self._rows.event(crawl, number, text))
                except ForeignRow as error:
                    self._door.log_fault(str(error))
                    faults.append((number, str(error)))
            if not faults:
                return found
            with self._file.step():  # out of the way of those behind them
                self._events.bury(crawl, strategy, faults)

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        """Return those of these links that are there, without their requests."""
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            if strategy is None:
                return {}
            rows = list(map(dict, self._links.find(strategy, set(fingerprints))))
        links = self._door.each(self._link, rows)
        return by_fingerprint(links)

    def _link(self, row: dict[str, Any], request: RequestValue | None = None) -> Link:
        fields = {**row, "waits": row["place"] is not None}
        return self._rows.link(row["fingerprint"], fields, request)

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the metadata of those of these sites that have any."""
        rows: list[tuple[str, str]] = []
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            for chunk in split_evenly(list(names), TOGETHER):
                marks = ", ".join("?" * len(chunk))
                query = (
                    "SELECT domain, metadata FROM link_domains"  # noqa: S608 - only marks are added
                    f" WHERE strategy = ? AND domain IN ({marks})"
                )
                rows += map(tuple, self._db.execute(query, (strategy, *chunk)))
        return dict(self._door.each(lambda row: (row[0], self._rows.domain(*row)), rows))

    # the front of the queue

    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        """Return the links to be requested next; those that cannot be read leave the queue."""

        def read_link(row: dict[str, Any]) -> Link:
            request = self._rows.request(crawl, row["fingerprint"], row["request"])
            return self._link(row, request)

        while True:
            strategy = self._prepare_queue(crawl, partitions, ahead, now)
            if strategy is None:
                return []
            with self._file.step(writes=False):
                found, full = self._fronts(crawl, strategy, partitions, ahead, limit)
            if full:
                with self._file.step():
                    self._links.pass_over(crawl, strategy, full, ahead)
            links = self._door.each(read_link, found)
            if len(links) == len(found):
                return links
            # Out of the way of those behind them.
            bad = {row["fingerprint"] for row in found} - by_fingerprint(links).keys()
            with self._file.step():
                self._links.set_aside(strategy, bad, now)

    def _prepare_queue(
        self, crawl: str, partitions: Collection[int], ahead: int, now: float
    ) -> int | None:
        """Bring what is due to its place, and return the strategy; None where nothing is taken.

        The lock is taken only if there is something to write.
        """
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            if strategy is None or self._takes_none(crawl, strategy):
                return None
            due = self._links.has_due(strategy, partitions, now)
            last_ahead = self._value("SELECT ahead FROM strategies WHERE number = ?", strategy)
        if due or last_ahead != ahead:
            with self._file.step():
                self._links.promote(strategy, partitions, now)
                if last_ahead != ahead:
                    self._links.look_again(strategy, ahead)
        return strategy

    def _takes_none(self, crawl: str, strategy: int) -> bool:
        """Return whether the strategy has ended, or the crawl is to rest or to end."""
        query = (
            "SELECT 1 FROM strategies, crawls WHERE strategies.number = ? AND crawls.id = ?"
            " AND (strategies.ended OR wanted != '')"
        )
        return self._value(query, strategy, crawl) is not None

    def _fronts(
        self, crawl: str, strategy: int, partitions: Collection[int], ahead: int, limit: int
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the first links of the slots in turn with their requests, and the full slots."""
        found: list[dict[str, Any]] = []
        full: list[str] = []
        held = set(partitions)
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
        """Make the step in one transaction."""
        crawl = step.crawl
        with self._file.step():
            strategy = self._events.opened_strategy(crawl)
            self._partitions.check(crawl, strategy, step.process, step.partitions)
            self._events.remove(crawl, strategy, step.handled)
            self._events.bury(crawl, strategy, list(step.dead.items()))
            self._links.keep(strategy, step)
            self._links.move(strategy, step)
            self._links.take_out(strategy, step)
            self._events.add(crawl, step.events)
            self._keep_domains(strategy, step)
            for number in step.dropped:
                self._drop(crawl, number)
            return self._batches.make_step(BatchStep(crawl, new=step.new, counts=step.counts))

    def _keep_domains(self, strategy: int, step: StrategyStep) -> None:
        gone = []
        kept = []
        for name, metadata in step.domains.items():
            if metadata is None:
                gone.append((strategy, name))
            else:
                kept.append((strategy, name, checked_metadata(name, metadata)))
        self._db.executemany("DELETE FROM link_domains WHERE strategy = ? AND domain = ?", gone)
        self._db.executemany("INSERT OR REPLACE INTO link_domains VALUES (?, ?, ?)", kept)

    def _drop(self, crawl: str, number: int) -> None:
        """Remove a batch; `StepRefused` unless it is dead."""
        try:
            state = self._batches.batch(crawl, number).state
        except NothingMatched:
            state = None
        if state is not BatchState.DEAD:
            raise StepRefused(f"batch {number} of {crawl} is not dead any more")
        self._batches.make_step(BatchStep(crawl, number, dropped=True))

    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        """Close the queue, or open it again; returns whether that was done."""
        with self._file.step():
            if if_empty:
                backlog = self._batches.backlog(crawl)
                if not is_empty(backlog, self.strategy_backlog(crawl)):
                    return False
            strategy = self._events.opened_strategy(crawl)
            self._update("strategies", {"ended": ended}, number=strategy)
            return True

    # what a person asks for

    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        """Return the counts of the strategy's row, whatever the number of links."""
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            if strategy is None:
                return StrategyBacklog(states={})
            row = self._db.execute(
                "SELECT * FROM strategies WHERE number = ?", (strategy,)
            ).fetchone()
            processes = self._partitions.live(strategy)
        states = {}
        for state, column in STATE_COUNTS.items():
            if row[column]:
                states[state] = row[column]
        return StrategyBacklog(
            states=states,
            queued=row["waiting"] - row["later"],
            later=row["later"],
            events=row["pending"],
            dead=row["dead"],
            processes=processes,
            ended=bool(row["ended"]),
        )

    def changes(self, crawl: str, after: int = 0, limit: int = 10_000) -> list[LinkChange]:
        """Return the changes behind that number, with the links' addresses where they are known."""

        def read_change(row: dict[str, Any]) -> LinkChange:
            return self._rows.change(row["fingerprint"], row)

        query = (
            "SELECT log.number, at, log.fingerprint, coalesce(links.url, '') AS url, before, after,"
            " log.score, log.reason FROM link_changes AS log LEFT JOIN links"
            " ON links.strategy = log.strategy AND links.fingerprint = log.fingerprint"
            " WHERE log.strategy = ? AND log.number > ? ORDER BY log.number LIMIT ?"
        )
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            return self._all(read_change, query, strategy, after, limit)

    def dead_events(self, crawl: str, limit: int = 1_000) -> list[LinkEvent]:
        """Return the dead letters that can be read, by number."""
        with self._file.step(writes=False):
            strategy = self._events.strategy(crawl)
            if strategy is None:
                return []
            rows = self._events.dead(strategy, limit)
        return self._door.each(lambda row: self._rows.event(crawl, *row), rows)

    def replay(self, crawl: str, numbers: Collection[int] | None = None) -> int:
        """Let dead letters wait again, and return how many there were."""
        with self._file.step():
            strategy = self._events.strategy(crawl)
            if strategy is None:
                return 0
            return self._events.revive(strategy, numbers)

    def reset_strategy(self, crawl: str) -> None:
        """Part the strategy from its crawl in one step, then remove its rows in pieces."""
        with self._file.step():
            strategy = self._events.strategy(crawl)
            self._check_rest(crawl, strategy)
            self._db.execute("UPDATE strategies SET crawl = NULL WHERE number = ?", (strategy,))
            # At once what a worker could lease; the rest goes bit by bit.
            self._db.execute(
                "DELETE FROM batches WHERE crawl = ? AND state IN ('sealed', 'failed')", (crawl,)
            )
            self._db.execute("DELETE FROM counts WHERE crawl = ?", (crawl,))
        self._file.clear(crawl, self._crawl_number(crawl))

    def _check_rest(self, crawl: str, strategy: int | None) -> None:
        """Raise `StepRefused` while something works on the strategy."""
        query = (
            "SELECT count(*) FROM attempts"
            " WHERE crawl = ? AND state IN ('sending', 'sent', 'running', 'acked')"
        )
        out = self._value(query, crawl)
        busy = ""
        if strategy is not None:
            busy = self._first_holder(strategy)
        if out or busy:
            raise at_work(crawl, out, busy)

    def _first_holder(self, strategy: int) -> str:
        """Return the first process that holds a partition; empty when there is none."""
        for process in self._partitions.live(strategy):
            if process.partitions:
                return process.name
        return ""
