"""Sees whether a crawl has reached a goal, by what is at home, what jobs report, and the clock."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scrapyd_dist.goals import in_words
from scrapyd_dist.scheduling.scheduler_state import SchedulerState

logger = logging.getLogger(__name__)

#: counts for goals that begin anew with each process
ANEW = frozenset({"time", "dry_time", "dry_pages", "reserved"})


@dataclass(kw_only=True)
class GoalWatch:
    """Brings the account of a crawl's goals up to date, and ends the crawl at one of them."""

    state: SchedulerState
    #: it is no frontier: its items and pages are at home, and this process adds more
    is_crawl: bool
    own: Callable[[], Mapping[str, int]]  #: pages and items of this process itself
    _begun: float = field(default_factory=time.monotonic)
    #: what was at home before, and does not count
    _before: Counter[str] = field(default_factory=Counter)
    #: the number of items when it last grew, and the monotonic time of that
    _dry: tuple[int, float] | None = None

    async def begin(self) -> None:
        """Begin anew what counts for this process; at a frontier, that is all.

        The items and pages of a crawl are at home.
        """
        state = self.state
        if not state.spec.goals:
            return
        await state.goals.spend()
        counts = state.goals.spent.counts
        changes = {}
        for name, count in counts.items():
            if not self.is_crawl or name in ANEW:
                changes[name] = -count
        is_out = (await state.run(state.db.backlog)).out
        if self.is_crawl and is_out:
            # jobs of an earlier process may make all that they have reserved
            changes["requests"] = counts.get("reserved", 0)
        await state.goals.spend(done=changes)
        if not self.is_crawl:  # of a frontier's, those since this process began
            self._before = self._at_home()
        elif not is_out:
            await self._count_home()

    def _at_home(self) -> Counter[str]:
        """Return the items and pages that are at home, with those of this process itself."""
        counters = self.state.counters
        return Counter(self.own()) + Counter(items=counters.items, pages=counters.pages)

    async def _count_home(self) -> None:
        """Count what is at home: what a worker has counted may be lost with it."""
        home = self._at_home()
        home.subtract(self._before)
        changes = {}
        for name in ("items", "pages"):
            changes[name] = home[name] - self.state.goals.spent.counts.get(name, 0)
        await self.state.goals.spend(done=changes)

    async def check(self, is_out: Callable[[], bool]) -> None:
        """Begin nothing more once a goal is reached; end when nothing is out any more.

        `is_out` says whether something is under way.
        """
        state = self.state
        goals = state.spec.goals
        for member in state.members:
            for out in member.out.values():
                state.goals.count_for(out)
        await state.goals.store_counts(self._clocks())
        state.status.reach_goal(state.goal or state.goals.reached)
        may_get_more = self.is_crawl and not state.status.closed
        if not state.goal or is_out() or may_get_more:
            state.pump()  # what was reserved may be free again
            return
        await self._count_home()
        state.status.reach_goal(state.goals.reached)
        if state.goal:
            logger.info("The crawl has reached a goal: %s", in_words(state.goal, goals[state.goal]))
            state.status.finish()

    def _clocks(self) -> dict[str, int]:
        """Return how many seconds the clocks have run, for those that goals are set for.

        They are counted from what was last stored.
        """
        counts = self.state.goals.spent.counts
        now = time.monotonic()
        items = counts.get("items", 0)
        if self._dry is None or self._dry[0] != items or self.state.paused:
            self._dry = (items, now)
        clocks = {"time": now - self._begun, "dry_time": now - self._dry[1]}
        gone = {}
        for name in self.state.spec.goals:
            if name in clocks:
                gone[name] = int(clocks[name]) - counts.get(name, 0)
        return gone
