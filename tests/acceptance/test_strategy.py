"""`sdist strategy run`: a class decides what is crawled, over real nodes, on both stores; and its bad days."""

from collections.abc import Callable

import pytest
from rig.strategy_bench import StrategyBench

pytestmark = pytest.mark.black_box
MakeBench = Callable[..., StrategyBench]


def test_every_page_is_crawled_once_and_a_second_run_hits_nothing(strategy_bench: MakeBench, engine: str) -> None:
    it = strategy_bench(store=engine)
    done = it.run("Each", "-o", "items.jl", "--json", code=0)
    it.assert_each_once()
    told = done.json()
    assert (told["state"], told["strategy"]["links"]["crawled"]) == ("finished", it.pages().total())
    assert sorted(item["url"] for item in it.it.items("items.jl")) == sorted(it.pages())
    it.run("Each", code=0)
    it.assert_each_once()
