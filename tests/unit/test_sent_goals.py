"""A job that was sent its batch makes no request that the crawl's goal does not leave, though the store is away."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from rig.scheduling import run
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares import assignment
from scrapyd_dist.middlewares.assignment import Assignment
from scrapyd_dist.middlewares.goal_keeper import GoalKeeper, GoalReached
from scrapyd_dist.middlewares.store_access import OutOfReach
from scrapyd_dist.middlewares.worker import sent_session
from scrapyd_dist.middlewares.worker.sent_session import SentSession

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.goals import Spent


class Away:
    """A store that is away for some calls, and has then so many requests left."""

    def __init__(self, times: int, left: int) -> None:
        self.times, self.left = times, left

    def reach(self, _: Assignment) -> "Away":
        self.times -= 1
        if self.times >= 0:
            raise OutOfReach("it does not answer", lasting=False)
        return self

    def lease(self, *_: object) -> bool:
        return True

    def wanted(self, _: str) -> str:
        return ""

    def spend(
        self, _: str, limits: Mapping[str, float], requests: int, told: Mapping[str, int]
    ) -> Spent:
        granted = min(requests, self.left)
        self.left -= granted
        return Spent(granted, {"requests": int(limits["requests"]) - self.left})

    def close(self) -> None:
        pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """How many of ten requests leave a job with this allowance, and for what reason it ends."""
    monkeypatch.setattr(sent_session, "STORE_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(sent_session, "PATIENCE", 0.5)
    monkeypatch.setattr(assignment, "egg_key", lambda: None)

    async def attempt(store: Away, allowance: Mapping[str, float], ends: list[FinishReason]) -> int:
        job = Assignment(
            crawl="c",
            batch=1,
            attempt=1,
            lease=60.0,
            goals={"requests": 100.0},
            allowance=allowance,
        )
        crawler: Any = get_crawler(Spider, {})
        crawler.spider = Spider("s")
        keeper = GoalKeeper(job.goals)
        keeper._ends = lambda: False
        monkeypatch.setattr(sent_session, "reach", store.reach)
        monkeypatch.setattr(GoalKeeper, "for_crawler", lambda _: keeper)
        monkeypatch.setattr(sent_session, "LeaseRenewer", Renewer)
        session = SentSession(crawler, job, None, lambda _, reason: ends.append(reason))
        # there is no engine to rest, or to guard
        monkeypatch.setattr(session, "_obey", lambda _: None)
        monkeypatch.setattr(sent_session, "guard_downloads", lambda *_: None)
        await session._hold_lease()
        await session._keep_to_goals(keeper)
        left = 0
        for number in range(10):
            try:
                await keeper.process_request(Request(f"http://web/{number}"))
            except GoalReached:
                continue
            left += 1
        return left

    return lambda store, allowance, ends: run(attempt(store, allowance, ends))


class Renewer:
    """Renews no lease."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def hold(self, *_: object) -> None:
        pass

    start = hold


def test_a_store_that_is_away_for_a_moment_is_waited_for(made: Callable[..., int]) -> None:
    ends = list[FinishReason]()
    assert made(Away(3, left=4), {}, ends) == 4
    assert ends == [FinishReason.GOAL]


def test_without_the_store_no_request_leaves_that_was_not_reserved(
    made: Callable[..., int],
) -> None:
    ends = list[FinishReason]()
    assert made(Away(1_000_000, left=100), {}, ends) == 0
    assert ends == [FinishReason.GOAL]


def test_what_was_reserved_is_made_without_the_store(made: Callable[..., int]) -> None:
    assert made(Away(1_000_000, left=100), {"requests": 7}, []) == 7
