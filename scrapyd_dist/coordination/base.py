"""What a coordinator and a manager have in common: how a crawl stands at their desk, and how they leave it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapyd_dist.account.tally import Tally
    from scrapyd_dist.batches import Attempt
    from scrapyd_dist.coordination.desk import Desk
    from scrapyd_dist.coordination.fleet import Member


class AtDesk:
    """Sits at a desk."""

    desk: Desk
    members: list[Member]
    #: whether it stopped because all is done but for what nobody looks for any more
    incomplete = False
    #: why nothing more has to be found: workers have ended as their settings say
    enough = ""

    @property
    def tally(self) -> Tally:
        """What has become of the batches so far."""
        return self.desk.tally

    @property
    def stopped(self) -> str:
        """Why it stopped before the end, in words."""
        return self.desk.stopped

    @property
    def unreached(self) -> bool:
        """Whether nothing was done, since workers do not reach the store from any node that answers."""
        return False

    @property
    def fault(self) -> BaseException | None:
        """An error of ours, never of a node."""
        return self.desk.fault

    @property
    def paused(self) -> bool:
        """Whether no new work leaves for now."""
        return self.desk.paused

    def credit(self, attempt: Attempt) -> None:
        """An attempt was accepted in the time of an earlier process."""
        member = next((one for one in self.members if one.node.name == attempt.node), None)
        if member is not None:
            member.jobs += 1
            member.items += attempt.report.get("items", 0)

    async def stop(self, reason: str) -> None:
        """Send nothing that is not on its way, see the posts under way to their end, and leave."""
        desk = self.desk
        desk.sending = False
        desk.stopped = desk.stopped or reason
        while desk.posts:
            await asyncio.wait(set(desk.posts))
        desk.close()
        for task in list(desk.tasks):
            task.cancel()
        await asyncio.gather(*desk.tasks, return_exceptions=True)
