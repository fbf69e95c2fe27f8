"""What all schedulers share: how one crawl stands, and how a scheduler stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapyd_dist.batches import Attempt
    from scrapyd_dist.coordination.desk import Desk
    from scrapyd_dist.coordination.fleet import Member
    from scrapyd_dist.coordination.tally import Tally


class AtDesk:
    """Access to the state of one crawl, and an orderly stop."""

    desk: Desk
    members: list[Member]
    #: True when it stopped because a producer that still owed requests has disappeared
    incomplete = False
    #: reason why no more requests are needed: the workers ended as their settings say
    enough = ""

    @property
    def tally(self) -> Tally:
        """Counters of the batches so far."""
        return self.desk.tally

    @property
    def stopped(self) -> str:
        """Why it stopped before the end; empty when it did not."""
        return self.desk.stopped

    @property
    def unreached(self) -> bool:
        """True when nothing was done because no answering node's workers reach the store."""
        return False

    @property
    def fault(self) -> BaseException | None:
        """An internal error, never a node's."""
        return self.desk.fault

    @property
    def paused(self) -> bool:
        """True while no new work is sent."""
        return self.desk.paused

    def credit(self, attempt: Attempt) -> None:
        """Count an attempt that an earlier process accepted."""
        member = next((one for one in self.members if one.node.name == attempt.node), None)
        if member is not None:
            member.jobs += 1
            member.items += attempt.report.get("items", 0)

    async def stop(self, reason: str) -> None:
        """Stop sending, let posts in flight finish, then cancel all tasks."""
        desk = self.desk
        desk.sending = False
        desk.stopped = desk.stopped or reason
        while desk.posts:
            await asyncio.wait(set(desk.posts))
        desk.close()
        for task in list(desk.tasks):
            task.cancel()
        await asyncio.gather(*desk.tasks, return_exceptions=True)
