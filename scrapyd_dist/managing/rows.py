"""What keeps jobs running at a frontier whose rows are arguments: one job for each row, so many at a time.

A row is a batch of one, and how its job is placed, watched, tried again and brought home is the coordinator's; this
adds what is different at a frontier: rows come from others while it works, and it is over when nobody adds any more.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from scrapyd_dist.batches import BatchState
from scrapyd_dist.coordination.coordinator import Coordinator
from scrapyd_dist.coordination.desk import WorkAtHand


@dataclass(kw_only=True)
class RowJobs(Coordinator):
    """See the module; used as a `Manager` is."""

    max_time: float = 0.0  #: seconds after which nothing more is started; 0: no limit
    _taken: dict[int, int] = field(default_factory=dict)  #: row -> attempts that were forgiven when it was taken in

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begun = time.monotonic()

    @property
    def work(self) -> WorkAtHand:
        """The rows that wait or are out."""
        work = super().work
        return WorkAtHand(
            waiting=work.waiting, waiting_requests=work.waiting_requests, out=work.out, batches=self.tally.sealed
        )

    async def recover(self) -> None:
        """Take up what an earlier process left, as there."""
        await super().recover()
        rows = await self.store(self.store.store.batches, self.spec.crawl)
        self._taken = {row.number: row.forgiven for row in rows if row.number in self.desk.open}

    def start(self) -> None:
        """As there; and take in what is added from now on."""
        super().start()
        self.desk.spawn(self._keep_looking())

    async def _keep_looking(self) -> None:
        while not self.desk.over.is_set():
            await self._look()
            await asyncio.sleep(self.limits.poll)

    async def _look(self) -> None:
        db, crawl, desk = self.store.store, self.spec.crawl, self.desk
        # In this order: when nobody could add anything any more, and after that nothing is left, it is finished.
        backlog = await self.store(db.backlog, crawl)
        if backlog.waiting > len(desk.waiting):
            await self._take_in()
        if self.max_time and time.monotonic() - self._begun > self.max_time:
            desk.stop_now(f"Jobs were started for {self.max_time:g} s, as long as was asked for.")
        elif backlog.producers or backlog.standing or desk.closed:
            return
        elif not backlog.lost:
            self.no_more()
        elif not desk.open:
            self.incomplete, names = True, ", ".join(backlog.lost)
            desk.stopped = f"Not all was found: {names}, which filled the frontier, has not been heard of any more."
            desk.over.set()

    async def _take_in(self) -> None:
        """Rows that others have added; and those that were given up, and wait again since a person wants it."""
        for row in await self.store(self.store.store.batches, self.spec.crawl, {BatchState.SEALED}):
            if row.number not in self.desk.open and self._taken.get(row.number, -1) < row.forgiven:
                self._taken[row.number] = row.forgiven
                self.add(row)
