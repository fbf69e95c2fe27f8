"""A strategy process that is killed at any call to the store: others go on, and each event has its effects once."""

from dataclasses import dataclass
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rig.strategy_memory import Counting, Killed, StrategyRig, web

from scrapyd_dist.strategy.manager import StrategyManager


@dataclass
class Killer:
    """Kills the process at one of its next calls to the store: before it, or behind a step that was made."""

    left: int = -1  #: calls; -1: never

    def __call__(self, verb: str) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1 if self.left > 0 else 0


def outcome(rig: StrategyRig) -> Any:
    """What has to be the same, whatever was killed."""
    return rig.store.states(), rig.store.metadata, sorted(rig.worker.made)


def finished(rig: StrategyRig, manager: StrategyManager, seeds: list[str]) -> StrategyRig:
    manager.read_seeds(iter(seeds))
    rig.crawl(manager, rounds=500)
    assert manager.over
    assert rig.store.dead == {}
    assert rig.store.waiting == {}
    return rig


@settings(max_examples=30, deadline=None, phases=[Phase.generate])
@given(
    seed=st.integers(0, 10_000),
    sites=st.integers(1, 8),
    calls=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    size=st.integers(1, 7),
    together=st.booleans(),
)
def test_whatever_call_a_process_is_killed_at_the_outcome_is_the_same(
    seed: int, sites: int, calls: list[int], size: int, together: bool
) -> None:
    pages = web(seed, sites, 40)
    seeds = list(pages)[:5]
    calm = StrategyRig(Counting(), pages, size=size)
    expected = outcome(finished(calm, calm.manager, seeds))

    rig = StrategyRig(Counting(), pages, size=size)
    killer = Killer()
    rig.store.before = killer
    for number, left in enumerate(calls):
        manager = rig.another(f"killed{number}")
        # The one before it is forgotten, or has its partitions still, as far as the store knows.
        rig.clock.time += 5 if together else 60
        killer.left = left
        try:
            manager.read_seeds(iter(seeds))
            for _ in range(100):
                rig.clock.time += 1
                manager.work()
                rig.worker.work(3)
        except Killed:
            pass
        killer.left = -1
        rig.worker.work(1)
    rig.store.end_strategy("c", ended=False)
    rig.clock.time += 60
    assert outcome(finished(rig, rig.another("last"), seeds)) == expected
    for name in rig.store.backlog("c").producers:
        assert name.startswith("strategy@")
