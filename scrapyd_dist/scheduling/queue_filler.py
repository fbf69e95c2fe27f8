"""Reads from the store the batches that are sent next, few enough to be kept in memory."""

from dataclasses import dataclass

from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.scheduling.scheduler_state import SchedulerState

#: waiting batches that are kept in memory to be sent, besides two for each job that may run
STOCK = 20


@dataclass(kw_only=True)
class QueueFiller:
    """Fills the queue of batches to be sent from the store."""

    state: SchedulerState

    async def read_waiting(self) -> None:
        """Read the batches to be sent next: old ones, new ones, and those that a user requeued."""
        state = self.state
        if not any(member.usable for member in state.sent_to):
            return
        stock = self._stock()
        waiting = len(state.queue.waiting)
        if waiting > stock // 2 or state.backlog.waiting <= waiting:
            return
        for count in state.backlog.slots:
            is_of_this_spider = not spider_of_slot(count.slot)[0]
            if count.waiting and is_of_this_spider:
                await self._read_slot(count.slot, stock)
        state.pump()

    def _stock(self) -> int:
        """Return how many waiting batches are to be in memory, at most."""
        jobs = self.state.limits.max_jobs
        if not jobs:
            for member in self.state.sent_to:
                jobs += member.capacity.slots
        return STOCK + 2 * jobs

    async def _read_slot(self, slot: str, stock: int) -> None:
        """Read waiting batches of a slot, as long as there are fewer than `stock` here."""
        state = self.state
        # batches in memory wait in the store as well, and for a moment also batches that are being
        # posted
        first = await state.run(state.db.peek, slot, len(state.queue.open) + stock)
        for batch in first:
            if len(state.queue.waiting) >= stock:
                return
            if batch.number not in state.queue.open:
                state.queue.add(batch)
