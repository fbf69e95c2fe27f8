"""Counts how far a crawl is from its goals, by the store and by jobs that do not reach it."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from scrapyd_dist.goals import Spent
from scrapyd_dist.scheduling.job_allowance import JobAllowance
from scrapyd_dist.scheduling.node_state import JobRun

#: requests that a job may make besides two for each of its batch: a robots.txt, and more retries
SPARE = 10


@dataclass(kw_only=True)
class GoalAccount:
    """Keeps what counts for the goals of a crawl."""

    limits: Mapping[str, float]  #: as `Goals.limits`
    #: the verb `spend` of the store, for this crawl
    ask_store: Callable[..., Awaitable[Spent]]
    spent: Spent = field(default_factory=lambda: Spent(0, {}))  #: by the last answer of the store
    #: what jobs have done since then that do not reach the store
    uncounted: Counter[str] = field(default_factory=Counter)

    @property
    def reached(self) -> str:
        """Return the first goal that is reached by the last answer of the store; empty for none."""
        return self.spent.reached(self.limits)

    async def spend(
        self,
        requests: int = 0,
        done: Mapping[str, int] = MappingProxyType({}),
        *,
        reserve: bool = False,
    ) -> int:
        """Ask the store for requests, and add to it what was counted here.

        Returns the number of requests that is granted; `reserve`: they are for later.
        """
        self.spent = await self.ask_store(requests, done, reserve=reserve)
        return self.spent.granted

    async def store_counts(self, clocks: Mapping[str, int]) -> None:
        """Bring the store what was counted here, and how far the clocks have gone."""
        changes = self.uncounted.copy()
        await self.spend(done={**changes, **clocks})
        self.uncounted.subtract(changes)

    async def reserve(self, out: JobRun) -> bool:
        """Set what a job may do without the store.

        Where its node does not reach the store, its requests are reserved there. Returns False when
        none are left now.
        """
        left = {}
        for name, limit in self.limits.items():
            left[name] = limit - self.spent.counts.get(name, 0)
        if "requests" not in self.limits:
            out.allow(JobAllowance(limits=left))
            return True
        most = 2 * out.batch.size + SPARE
        reserved = 0
        if out.member.readiness.throttle_problem or out.member.readiness.unreached:
            most = await self.spend(most, reserve=True)
            reserved = most
        # Elsewhere it asks the store, and what it does not need must not be kept from others.
        left["requests"] = min(most, left["requests"])
        out.allow(JobAllowance(limits=left, reserved=reserved))
        return left["requests"] >= 1

    def count_for(self, out: JobRun, *, over: bool = False, lost: bool = False) -> None:
        """Count what a job reports, and release what it has reserved.

        This is for a job that does not reach the store. `over`: it makes no more requests; `lost`:
        it may make all that it has reserved.
        """
        if out.allowance is not None and out.allowance.limits:
            self.uncounted.update(out.allowance.settle(out.report, over=over, lost=lost))
