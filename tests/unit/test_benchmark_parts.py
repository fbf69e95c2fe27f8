"""The benchmark's arithmetic: shares that add up, shards as the product cuts them, ratios taken pair by pair."""

import pytest
from bound import shard_starts, shares
from hypothesis import given
from hypothesis import strategies as st
from kinds import Way
from report import summary, table
from ways import Run


@given(st.integers(0, 500), st.integers(1, 50), st.integers(1, 8), st.floats(0, 20))
def test_every_item_is_in_exactly_one_share(items: int, pages: int, processes: int, weight: float) -> None:
    cut = shares(items, pages, processes, weight)
    assert len(cut) == processes
    assert sorted(number for share in cut for number in share) == list(range(items))


def test_the_process_that_walks_the_index_gets_fewer_details() -> None:
    assert [len(share) for share in shares(900, 100, 3, 0)] == [300, 300, 300]
    assert [len(share) for share in shares(900, 100, 3, 3)] == [100, 400, 400]


@pytest.mark.parametrize(
    ("pages", "shards", "starts"), [(10, 2, [0, 5]), (1667, 1, [0]), (3, 20, [0, 1, 2]), (10, 3, [0, 3, 6])]
)
def test_shards_start_where_the_formula_says(pages: int, shards: int, starts: list[int]) -> None:
    assert shard_starts(pages, shards) == starts


def run(way: str, pair: int, wall: float, cpu: float) -> Run:
    return Run(way=way, pair=pair, wall_s=wall, cpu_s=cpu, site_cpu_s=0.1, refetched=0, index_fetched=10)


def test_ratios_are_those_of_the_same_pair() -> None:
    # The second pair met a slow moment of the machine; medians of each side alone would say 25 / 30.
    runs = [run("bound", 0, 10, 20), run("sdist2", 0, 12, 24), run("bound", 1, 50, 20), run("sdist2", 1, 55, 22)]
    found = summary(runs)
    assert found["sdist2"]["wall_ratio"] == {"median": 1.15, "min": 1.1, "max": 1.2}
    assert found["sdist2"]["cpu_ratio"] == {"median": 1.15, "min": 1.1, "max": 1.2}
    assert found["bound"]["wall_s"] == {"median": 30, "min": 10, "max": 50}
    assert "| `sdist crawl` on 2 nodes | 33.5 (12.0-55.0) | 23.0 (22.0-24.0) | 1.15 (1.10-1.20) |" in table(found)


def test_without_the_bound_there_are_no_ratios() -> None:
    found = summary([run("plain", 0, 1, 1)])
    assert "wall_ratio" not in found["plain"]
    assert "| plain Scrapy, one process | 1.0 (1.0-1.0) | 1.0 (1.0-1.0) | - | - | 1 |" in table(found)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("plain", "plain Scrapy, one process"),
        ("sdist2-redis-fast", "`sdist crawl --profile fast` on 2 nodes, Redis"),
        ("push2-none", "`sdist crawl --push --profile none` on 2 nodes"),
        ("scrapy-redis2-fast", "scrapy-redis, 2 processes and the index, settings of `fast`"),
        ("bound-usual", "the bound, by hand, settings of `usual`"),
    ],
)
def test_a_way_says_what_it_is(name: str, says: str) -> None:
    assert Way.named(name).says == says


@pytest.mark.parametrize(
    "name", ["", "sdist", "bound2", "push2-slow", "scrapy-redis", "scrapy-redis2-redis", "bound-fast-fast"]
)
def test_a_way_that_nobody_knows_is_told(name: str) -> None:
    with pytest.raises(ValueError, match="sdistN-redis"):
        Way.named(name)


def test_only_ways_that_need_a_redis_server_get_one() -> None:
    names = ("plain", "bound", "sdist2", "push2", "sdist2-redis", "scrapy-redis2")
    assert [name for name in names if Way.named(name).needs_redis] == ["sdist2-redis", "scrapy-redis2"]
